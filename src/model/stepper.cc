#include "model/stepper.h"

#include <algorithm>

#include "base/error.h"

namespace carat {
namespace {

// Powers of two: few programs, and never more than twice the scratch a step needs.
int32_t bucket_rows(int32_t n, int32_t most) {
  int32_t rows = 1;
  while (rows < n) rows *= 2;
  return std::min(rows, std::max(n, most));
}

}  // namespace

struct Stepper::Bucket {
  Program program;
  Outputs outputs;
  std::unique_ptr<Executable> executable;
};

Stepper::Stepper(std::shared_ptr<Backend> backend, std::shared_ptr<const Model> model, const KvLimits& limits,
                 DType k, DType v)
    : backend_(std::move(backend)),
      model_(std::move(model)),
      kv_(*backend_, kv_layers(model_->spec, k, v), limits),
      pages_(limits),
      arena_(*backend_) {}
Stepper::~Stepper() { backend_->wait(); }

void Stepper::run(std::span<const Part> parts) {
  token_.clear(), pos_.clear(), seq_.clear(), out_row_.clear(), views_.clear();
  for (const Part& p : parts) {
    const auto n = static_cast<int32_t>(p.tokens.size());
    for (int32_t i = 0; i < n; ++i) {
      const int32_t token = p.tokens[i];
      if (token < 0 || token >= model_->spec.vocab)
        throw Error(
            fmt::format("token {} is not in the vocabulary of {} entries", token, model_->spec.vocab));
      if (p.wanted == Wanted::all || (p.wanted == Wanted::last && i == n - 1))
        out_row_.push_back(static_cast<int32_t>(token_.size()));
      token_.push_back(token);
      pos_.push_back(p.sequence->committed() + i);
      seq_.push_back(static_cast<int32_t>(views_.size()));
    }
    views_.push_back({p.sequence->pages().data(), p.sequence->ring_slot()});
  }
  const auto rows = static_cast<int32_t>(token_.size());
  const auto wanted = static_cast<int32_t>(out_row_.size());
  CARAT_CHECK(rows > 0 && rows <= limits().step_rows, "{} rows", rows);
  state_ = {rows, wanted, token_.data(), pos_.data(), seq_.data(), out_row_.data(), views_.data()};
  last_ = &bucket_for(rows, wanted);
  backend_->submit(*last_->executable);
  backend_->wait();
}

const Program& Stepper::prepare(int32_t rows, int32_t wanted) { return bucket_for(rows, wanted).program; }

Stepper::Bucket& Stepper::bucket_for(int32_t rows, int32_t wanted) {
  const int32_t n = bucket_rows(rows, limits().step_rows);
  return bucket(n, std::min(n, bucket_rows(std::max(wanted, 1), n)));
}

std::span<const float> Stepper::logits(int32_t i) const {
  return {last_->outputs.logits.row<const float>(i), static_cast<size_t>(model_->spec.vocab)};
}
std::span<const float> Stepper::hidden(int32_t i) const {
  return {last_->outputs.hidden.row<const float>(i), static_cast<size_t>(model_->spec.dim)};
}

Stepper::Bucket& Stepper::bucket(int32_t rows, int32_t out_rows) {
  std::unique_ptr<Bucket>& b = buckets_[{rows, out_rows}];
  if (!b) {
    auto made = std::make_unique<Bucket>();
    arena_.reset();
    Build build{made->program, model_->spec, kv_, arena_, rows, out_rows};
    made->outputs = model_->family->build(build, *model_->weights);
    made->executable = backend_->compile(made->program, &state_);
    b = std::move(made);
  }
  return *b;
}

}  // namespace carat
