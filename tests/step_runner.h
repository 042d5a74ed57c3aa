// Drives a model step by step in tests: a Stepper and its sequences, without the engine's scheduling.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/stepper.h"

namespace carat::test {

class StepRunner {
 public:
  // Tokens to append to one sequence; with parents, a tree.
  struct Part {
    int32_t seq = 0;
    std::span<const int32_t> tokens;
    std::span<const int32_t> parents = {};
    std::span<const float* const> soft = {};  // Stepper::Part
    std::span<const int32_t> place = {};
  };

  // taps: the outputs of all layers are kept.
  StepRunner(Backend& backend, const Model& model, const KvLimits& limits, DType kv = DType::f32,
             bool taps = false)
      : backend_(backend), stepper_(unowned(backend), unowned(model), limits, kv, kv, listen(model, taps)) {
    for (int32_t i = 0; i < limits.sequences; ++i)
      sequences_.push_back(std::make_unique<Sequence>(stepper_.pages()));
  }

  // Appends and commits the first `keep` rows of every part (-1: all); afterwards logits() and hidden() hold
  // the wanted rows: all, or the last of every part.
  void step(const std::vector<Part>& parts, bool all_rows = true, int32_t keep = -1) {
    run(parts, all_rows);
    for (const Part& p : parts)
      sequences_[p.seq]->commit(keep < 0 ? static_cast<int32_t>(p.tokens.size()) : keep);
  }
  void step(std::span<const int32_t> tokens, bool all_rows = true) {
    step(std::vector<Part>{{0, tokens}}, all_rows);
  }
  // Appends and runs; the caller commits.
  void run(const std::vector<Part>& parts, bool all_rows = true) {
    std::vector<Stepper::Part> out;
    for (const Part& p : parts) {
      Sequence& s = *sequences_[p.seq];
      CARAT_CHECK(s.append(static_cast<int32_t>(p.tokens.size())), "no room");
      out.push_back({&s, p.tokens, all_rows ? Stepper::Wanted::all : Stepper::Wanted::last, p.parents, p.soft,
                     p.place});
    }
    stepper_.run(out);
  }

  int32_t wanted() const { return stepper_.wanted(); }
  const float* logits(int32_t i) const { return stepper_.logits(i).data(); }
  const float* hidden(int32_t i) const { return stepper_.hidden(i).data(); }
  const float* tap(int32_t row, size_t layer) const { return stepper_.tap(row, layer); }
  // n values that the backend computed, wherever it keeps them.
  template <class T>
  std::vector<T> values(const T* p, size_t n) const {
    std::vector<T> out(n);
    if (backend_.host_memory())
      std::copy_n(p, n, out.begin());
    else
      backend_.copy(out.data(), p, n * sizeof(T));
    return out;
  }
  void prepare() { stepper_.prepare(1, 1); }
  const Program& program() const { return stepper_.program(); }
  const KvPool& kv() const { return stepper_.kv(); }
  SeqView view(int32_t seq) const { return sequences_[seq]->view(); }
  Sequence& sequence(int32_t seq) { return *sequences_[seq]; }

 private:
  template <class T>
  static std::shared_ptr<T> unowned(T& t) {
    return {std::shared_ptr<void>{}, &t};
  }
  static Listen listen(const Model& model, bool taps) {
    Listen l;
    if (!taps) return l;
    l.taps.resize(model.spec.layers.size());
    std::iota(l.taps.begin(), l.taps.end(), 0);
    return l;
  }

  Backend& backend_;
  Stepper stepper_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

}  // namespace carat::test
