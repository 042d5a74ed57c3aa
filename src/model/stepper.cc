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
  TopRows top;
  std::unique_ptr<Executable> executable;
};

Stepper::Stepper(std::shared_ptr<Backend> backend, std::shared_ptr<const Model> model, const KvLimits& limits,
                 const KvFormats& formats, Listen listen)
    : backend_(std::move(backend)),
      model_(std::move(model)),
      kv_(*backend_, kv_layers(*model_, *backend_, formats), limits),
      pages_(limits, kv_.plan()),
      arena_(*backend_),
      listen_(std::move(listen)),
      host_(*backend_) {
  for (const int32_t l : listen_.taps)
    CARAT_CHECK(l >= 0 && static_cast<size_t>(l) < model_->spec.layers.size(), "layer {}", l);
  CARAT_CHECK(std::is_sorted(listen_.taps.begin(), listen_.taps.end()), "taps in no order");
}
Stepper::~Stepper() { backend_->wait(); }

void Stepper::add_rows(const Part& p) {
  const auto n = static_cast<int32_t>(p.tokens.size()), first = static_cast<int32_t>(token_.size());
  const int32_t base = p.sequence->committed();
  CARAT_CHECK(p.parents.empty() || p.parents.size() == p.tokens.size(), "{} parents of {} tokens",
              p.parents.size(), n);
  for (int32_t i = 0; i < n; ++i) {
    const int32_t token = p.tokens[i], up = p.parents.empty() ? i - 1 : p.parents[i];
    if (token < 0 || token >= model_->spec.vocab)
      throw Error(fmt::format("token {} is not in the vocabulary of {} entries", token, model_->spec.vocab));
    CARAT_CHECK(up >= -1 && up < i, "row {} follows {}", i, up);
    if (p.wanted == Wanted::all || (p.wanted == Wanted::last && i == n - 1)) out_row_.push_back(first + i);
    token_.push_back(token);
    pos_.push_back(up < 0 ? base : pos_[first + up] + 1);
    slot_.push_back(base + i);
    parent_.push_back(up < 0 ? -1 : first + up);
    seq_.push_back(static_cast<int32_t>(views_.size()));
  }
  views_.push_back(p.sequence->view());
  add_soft(p);
}

void Stepper::add_soft(const Part& p) {
  const size_t n = p.tokens.size(), first = token_.size() - n;
  until_.insert(until_.end(), pos_.begin() + static_cast<ptrdiff_t>(first), pos_.end());
  soft_.resize(token_.size(), nullptr);
  CARAT_CHECK(p.place.empty() || p.place.size() == 3 * n, "{} places of {} tokens", p.place.size(), n);
  for (size_t i = 0; i < 3 * n; ++i) place_.push_back(p.place.empty() ? pos_[first + i / 3] : p.place[i]);
  placed_ = placed_ || !p.place.empty();
  if (p.soft.empty()) return;
  CARAT_CHECK(p.soft.size() == n && p.parents.empty(), "{} rows of pictures for {} tokens", p.soft.size(), n);
  for (size_t i = n; i-- > 0;) {
    if (!p.soft[i]) continue;
    soft_[first + i] = p.soft[i];
    token_[first + i] = 0;
    if (model_->spec.blocks && i + 1 < n && p.soft[i + 1]) until_[first + i] = until_[first + i + 1];
  }
}

void Stepper::run(std::span<const Part> parts) {
  start(parts);
  finish();
}

void Stepper::start(std::span<const Part> parts) {
  token_.clear(), pos_.clear(), seq_.clear(), out_row_.clear(), views_.clear();
  slot_.clear(), parent_.clear(), until_.clear(), soft_.clear(), place_.clear();
  placed_ = false;
  for (const Part& p : parts) add_rows(p);
  const auto rows = static_cast<int32_t>(token_.size());
  const auto wanted = static_cast<int32_t>(out_row_.size());
  CARAT_CHECK(rows > 0 && rows <= limits().step_rows, "{} rows", rows);
  state_ = {rows, wanted, token_.data(), pos_.data(), seq_.data(), out_row_.data(), views_.data()};
  if (slot_ != pos_) state_.slot = slot_.data(), state_.parent = parent_.data();
  const bool soft = std::any_of(soft_.begin(), soft_.end(), [](const float* row) { return row != nullptr; });
  if ((soft || placed_) && !backend_->takes_soft_rows())
    throw Error(fmt::format("{} takes no pictures yet", backend_->info().name), "use --device cpu for them");
  if (placed_) state_.place = place_.data();
  if (soft) state_.soft = soft_.data(), state_.until = until_.data();
  last_ = &bucket_for(rows, wanted);
  host_.forget();
  backend_->submit(*last_->executable);
}

void Stepper::finish() { backend_->wait(); }

const Program& Stepper::prepare(int32_t rows, int32_t wanted) { return bucket_for(rows, wanted).program; }

Stepper::Bucket& Stepper::bucket_for(int32_t rows, int32_t wanted) {
  const int32_t n = bucket_rows(rows, limits().step_rows);
  return bucket(n, std::min(n, bucket_rows(std::max(wanted, 1), n)));
}

std::span<const float> Stepper::logits(int32_t i) const {
  return {host_.row<float>(last_->outputs.logits, i), static_cast<size_t>(model_->spec.vocab)};
}
TopRows::Row Stepper::top(int32_t i) const { return last_->top.row(host_, i); }
std::span<const float> Stepper::hidden(int32_t i) const {
  return {host_.row_of<float>(last_->outputs.hidden, i, std::ssize(out_row_)),
          static_cast<size_t>(model_->spec.dim)};
}

const float* Stepper::hidden_of(int32_t row) const {
  if (listen_.hidden_all) return host_.row_of<float>(last_->outputs.hidden_all, row, std::ssize(token_));
  const auto it = std::lower_bound(out_row_.begin(), out_row_.end(), row);
  if (it == out_row_.end() || *it != row) return nullptr;
  return hidden(static_cast<int32_t>(it - out_row_.begin())).data();
}
const float* Stepper::tap(int32_t row, size_t tap) const {
  return host_.row_of<float>(last_->outputs.taps[tap], row, std::ssize(token_));
}
const Program& Stepper::program() const { return last_->program; }

Stepper::Bucket& Stepper::bucket(int32_t rows, int32_t out_rows) {
  std::unique_ptr<Bucket>& b = buckets_[{rows, out_rows}];
  if (!b) {
    auto made = std::make_unique<Bucket>();
    arena_.reset();
    Build build{made->program, model_->spec, kv_, arena_, rows, out_rows, listen_.taps, listen_.hidden_all};
    made->outputs = model_->family->build(build, *model_->weights);
    made->top = TopRows(made->program, arena_, *backend_, made->outputs.logits, RowSet::out, false);
    made->executable = backend_->compile(made->program, &state_);
    b = std::move(made);
  }
  return *b;
}

}  // namespace carat
