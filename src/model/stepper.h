// Runs steps of one model: its caches, its scratch, a program per bucket of rows. No scheduling and no
// sampling: the engine, the evaluation commands and the benchmarks all stand on this. One thread.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/host_rows.h"
#include "model/kv_policy.h"
#include "model/model.h"
#include "model/top_rows.h"
#include "state/sequence.h"

namespace carat {

// What a Stepper keeps of every row, wanted or not (Build).
struct Listen {
  std::vector<int32_t> taps = {};  // layers, ascending
  bool hidden_all = false;
};

class Stepper {
 public:
  enum class Wanted : uint8_t { none, last, all };
  // Tokens that a sequence has just appended (Sequence::append), and which of their rows' logits are wanted.
  struct Part {
    const Sequence* sequence = nullptr;
    std::span<const int32_t> tokens;
    Wanted wanted = Wanted::last;
    // A tree: the token each one follows, before it in this list; -1: what is committed. Empty: a chain.
    std::span<const int32_t> parents = {};
    // Rows of pictures: for each token what stands in its place, f32 [dim], or null; empty: tokens only. The
    // token itself counts as 0 then. Where the model has blocks (ModelSpec), rows that follow each other are
    // one, and all of it must be in the part.
    std::span<const float* const> soft = {};
    // Where rows stand in time, height and width ([tokens][3]), where that is not their position; empty: it
    // is.
    std::span<const int32_t> place = {};
  };

  Stepper(std::shared_ptr<Backend> backend, std::shared_ptr<const Model> model, const KvLimits& limits,
          const KvFormats& formats, Listen listen = {});
  Stepper(std::shared_ptr<Backend> backend, std::shared_ptr<const Model> model, const KvLimits& limits,
          DType k, DType v, Listen listen = {})
      : Stepper(std::move(backend), std::move(model), limits, KvFormats{k, v, k, v}, std::move(listen)) {}
  ~Stepper();

  // Compiles the program for such a step, and allocates its scratch, ahead of its first use.
  const Program& prepare(int32_t rows, int32_t wanted);

  // One step over all parts, at most limits().step_rows rows. Commits nothing. Error if a token is not of the
  // vocabulary.
  void run(std::span<const Part> parts);
  // The same in two halves: between them a device computes while the host does something else.
  void start(std::span<const Part> parts);
  void finish();

  // Rows wanted by the last run, in the order of the parts. Valid until the next run.
  int32_t wanted() const { return state_.n_out; }
  std::span<const float> logits(int32_t i) const;
  TopRows::Row top(int32_t i) const;  // of them, cheap on every device
  std::span<const float> hidden(int32_t i) const;
  // Of the last run's rows, all parts' in order. hidden_of: null if that was not computed for the row.
  int32_t rows() const { return state_.n_rows; }
  const float* hidden_of(int32_t row) const;
  const float* tap(int32_t row, size_t tap) const;  // Listen::taps[tap]
  const Program& program() const;                   // the last run's

  PagePool& pages() { return pages_; }
  const KvPool& kv() const { return kv_; }
  const Backend& backend() const { return *backend_; }
  const KvLimits& limits() const { return kv_.limits(); }
  const Model& model() const { return *model_; }
  // KV caches and scratch.
  int64_t memory_bytes() const { return kv_.plan().bytes() + arena_.bytes(); }

 private:
  struct Bucket;
  Bucket& bucket_for(int32_t rows, int32_t wanted);
  Bucket& bucket(int32_t rows, int32_t out_rows);

  std::shared_ptr<Backend> backend_;
  std::shared_ptr<const Model> model_;
  KvPool kv_;
  PagePool pages_;
  Arena arena_;
  Listen listen_;
  void add_rows(const Part& part);
  void add_soft(const Part& part);
  std::vector<int32_t> token_, pos_, seq_, out_row_, slot_, parent_, until_, place_;
  std::vector<const float*> soft_;
  bool placed_ = false;
  std::vector<SeqView> views_;
  StepState state_;
  mutable HostRows host_;  // results of the last run
  std::map<std::pair<int32_t, int32_t>, std::unique_ptr<Bucket>> buckets_;
  Bucket* last_ = nullptr;
};

}  // namespace carat
