// One-operation programs with inputs, for comparing backends: shapes, formats and geometries that kernels get
// wrong.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"

namespace carat::test {

// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t operator()() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }

 private:
  uint64_t state_;
};

// A matrix on the backend beside its values on the host.
struct Operand {
  Tensor t;
  Tensor file;              // weights: the host's bytes in the documented layout
  std::vector<float> host;  // [rows * cols], decoded
  const float* row(int64_t r) const { return host.data() + r * t.cols; }
  double norm(int64_t r) const;  // asked for again with every element of a product
  double max_abs(int64_t r) const;

 private:
  mutable std::vector<double> norms_;  // below 0: not computed yet
};

// A span of a row that the operation must write. tolerance: per element; empty: the same bytes on every
// backend.
struct Region {
  std::string name;
  std::byte* data = nullptr;
  DType type = DType::f32;
  int32_t count = 0;
  std::vector<double> tolerance;
};

// Rows of one sequence in the step; a tree if parents are given (row numbers from 0, -1: none).
struct Rows {
  int32_t first_pos = 0, count = 0;
  std::vector<int32_t> parents = {};
};

// Memory, step and program of one case on one backend. The same seed makes the same inputs on every backend.
class CaseRun {
 public:
  CaseRun(Backend& backend, uint64_t seed) : backend_(backend), rng_(seed) {}

  // f32 activations with an odd pitch; rows past `used` are NaN. halves: multiples of 1/2.
  Operand input(int32_t rows, int32_t cols, int32_t used, double spread = 1, bool halves = false);
  Operand weight(DType type, int32_t rows, int32_t cols, int32_t slices = 1,
                 WeightUse use = WeightUse::product);
  // Rows [first, first + n) of every slice, as a weight of its own.
  Operand weight_rows(const Operand& host, int32_t first, int32_t n);
  Operand shared_row(int32_t cols, double low, double high);
  Tensor ints(const std::vector<int32_t>& values, int32_t rows, int32_t cols);
  const float* floats(const std::vector<float>& values);
  // Where the host has what floats() gave.
  const float* on_host(const float* p) const {
    return reinterpret_cast<const float*>(image_at(reinterpret_cast<const std::byte*>(p)));
  }
  // Poisoned memory with guard bands and an odd pitch.
  Tensor output(int32_t rows, int32_t cols, DType type = DType::f32);
  // Rows of t that the operation must write.
  void expect(const std::string& name, const Tensor& t, int32_t rows,
              const std::function<double(int32_t, int32_t)>& tolerance = {});
  void expect_row(std::string name, std::byte* data, DType type, std::vector<double> tolerance);

  // The step: rows of several sequences, in order; every `keep`-th row is wanted (the last always).
  void step(const std::vector<Rows>& sequences, int32_t vocab = 1, int32_t keep = 1);
  // Of the step's rows: from each sequence's second on, blocks of so many, a token between two; a place of
  // its own for each; every third is something else than its token, cols wide.
  void blocks(int32_t rows);
  void places();
  void soft(int32_t cols);
  int32_t n_rows() const { return state_.n_rows; }
  int32_t n_out() const { return state_.n_out; }
  // Whether attention over caches that are not f32 may round its operands to f16 (docs/numerics.md).
  bool halves() const { return !backend_.host_memory(); }
  const StepState& state() const { return state_; }
  // Cache for the step's sequences with everything before it filled in, and with_step: the step's own
  // positions too.
  KvView cache(KvSpec spec, int32_t page_tokens, bool ring, bool with_step);
  // States of a recurrent layer for the step's sequences, kept rows in their logs; the last draft_rows of
  // each are to be logged. base, entry: floats.
  RecurrentView states(const RecurrentSpec& spec, int64_t base, int64_t entry, int32_t draft_rows);
  // What the operation must write of them.
  void expect_states(const RecurrentView& v, int64_t base, int64_t entry, double tolerance);
  // What a row of the step reads at a position, decoded from the initial image.
  std::vector<float> stored(const KvView& v, int32_t row, int32_t position, int32_t head, bool keys) const;

  template <class A>
  void push(const A& args, RowSet rows = RowSet::all) {
    program_.at_rows(rows);
    program_.push(args);
  }

  // Compiles and runs; afterwards everything outside the regions must be what it was (else: where it is not).
  std::string run();
  const std::vector<Region>& regions() const { return regions_; }
  std::vector<std::byte> bytes(const Region& r) const;

 private:
  struct Block {
    Buffer memory;
    std::vector<std::byte> image;
  };
  std::byte* add(std::vector<std::byte> image);
  void add_edges(KvView& v, int32_t most_rows, bool with_step);
  const std::byte* image_at(const std::byte* p) const;
  double normal();

  Backend& backend_;
  Random rng_;
  std::vector<Block> blocks_;
  std::vector<std::unique_ptr<std::byte[]>> weights_;
  std::vector<Buffer> owners_;
  std::vector<int32_t> token_, pos_, seq_, out_row_, slot_, parent_, until_, place_;
  std::vector<const float*> soft_;
  std::vector<std::vector<int32_t>> pages_, kept_;
  std::vector<SeqView> views_;
  std::vector<Rows> sequences_;
  StepState state_;
  Program program_;
  std::vector<Region> regions_;
};

struct OpCase {
  std::string name;
  std::function<void(CaseRun&)> build;
};
std::vector<OpCase> op_cases();
std::vector<OpCase> large_op_cases();  // for whole GPUs
// Parts of it.
std::vector<OpCase> row_cases();
std::vector<OpCase> attention_cases();
std::vector<OpCase> protected_prompt_cases();
std::vector<OpCase> recurrent_cases();
// Of all cases those that a run takes: one in so many, by CARAT_TESTS_SAMPLE (./check --fast), else every
// one.
size_t one_case_in();

// The first element of b that is further from a than b's tolerance; empty if none.
std::string compare(const CaseRun& a, const CaseRun& b);

}  // namespace carat::test
