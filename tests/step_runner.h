// Drives a model step by step in tests: Program, KvPool and Sequences, without the engine's scheduling.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "core/backend.h"
#include "model/model.h"
#include "state/sequence.h"

namespace carat::test {

class StepRunner {
 public:
  // Tokens to append to one sequence.
  struct Part {
    int32_t seq = 0;
    std::span<const int32_t> tokens;
  };

  StepRunner(Backend& backend, const Model& model, const KvLimits& limits, DType kv = DType::f32,
             bool taps = false)
      : backend_(backend),
        model_(model),
        limits_(limits),
        kv_(backend, kv_layers(model.spec, kv, kv), limits),
        pages_(limits),
        arena_(backend),
        with_taps_(taps) {
    for (int32_t i = 0; i < limits.sequences; ++i) sequences_.push_back(std::make_unique<Sequence>(pages_));
  }

  // Appends and commits the first `keep` rows of every part (-1: all); afterwards logits() and hidden() hold
  // the wanted rows: all, or the last of every part.
  void step(const std::vector<Part>& parts, bool all_rows = true, int32_t keep = -1) {
    token_.clear(), pos_.clear(), seq_.clear(), out_row_.clear();
    for (const Part& p : parts) {
      Sequence& s = *sequences_[p.seq];
      CARAT_CHECK(s.append(static_cast<int32_t>(p.tokens.size())), "no room");
      for (size_t i = 0; i < p.tokens.size(); ++i) {
        if (all_rows || i + 1 == p.tokens.size()) out_row_.push_back(static_cast<int32_t>(token_.size()));
        token_.push_back(p.tokens[i]);
        pos_.push_back(s.committed() + static_cast<int32_t>(i));
        seq_.push_back(p.seq);
      }
    }
    views_.clear();
    for (const auto& s : sequences_) views_.push_back({s->pages().data(), s->ring_slot()});
    const auto rows = static_cast<int32_t>(token_.size());
    const auto wanted = static_cast<int32_t>(out_row_.size());
    state_ = {rows, wanted, token_.data(), pos_.data(), seq_.data(), out_row_.data(), views_.data()};
    last_ = &bucket(rows == 1 ? 1 : limits_.step_rows, rows == 1 || !all_rows ? wanted : limits_.step_rows);
    backend_.submit(*last_->executable);
    backend_.wait();
    for (const Part& p : parts)
      sequences_[p.seq]->commit(keep < 0 ? static_cast<int32_t>(p.tokens.size()) : keep);
  }
  void step(std::span<const int32_t> tokens, bool all_rows = true) {
    step(std::vector<Part>{{0, tokens}}, all_rows);
  }

  int32_t wanted() const { return state_.n_out; }
  const float* logits(int32_t i) const { return last_->outputs.logits.row<float>(i); }
  const float* hidden(int32_t i) const { return last_->outputs.hidden.row<float>(i); }
  const std::vector<Tensor>& taps() const { return last_->taps; }
  const Program& program() const { return last_->program; }
  const KvPool& kv() const { return kv_; }
  SeqView view(int32_t seq) const { return {sequences_[seq]->pages().data(), sequences_[seq]->ring_slot()}; }
  Sequence& sequence(int32_t seq) { return *sequences_[seq]; }

 private:
  struct Bucket {
    Program program;
    std::vector<Tensor> taps;
    Outputs outputs;
    std::unique_ptr<Executable> executable;
  };

  Bucket& bucket(int32_t rows, int32_t out_rows) {
    std::unique_ptr<Bucket>& b = buckets_[{rows, out_rows}];
    if (!b) {
      b = std::make_unique<Bucket>();
      Build build{b->program, model_.spec, kv_, arena_, rows, out_rows, with_taps_ ? &b->taps : nullptr};
      b->outputs = model_.family->build(build, *model_.weights);
      b->executable = backend_.compile(b->program, &state_);
    }
    return *b;
  }

  Backend& backend_;
  const Model& model_;
  KvLimits limits_;
  KvPool kv_;
  PagePool pages_;
  Arena arena_;
  bool with_taps_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<int32_t> token_, pos_, seq_, out_row_;
  std::vector<SeqView> views_;
  StepState state_;
  std::map<std::pair<int32_t, int32_t>, std::unique_ptr<Bucket>> buckets_;
  Bucket* last_ = nullptr;
};

}  // namespace carat::test
