#include "engine/prefix/prefix_cache.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"

namespace carat {
namespace {

// Positions before the end at which a checkpoint lets one start, beside the end: a chat's next turn often
// drops a little of what the last one ended with.
constexpr int32_t kSpan = 512;
constexpr int32_t kLeastInterval = 1024;

}  // namespace

int64_t default_prefix_bytes(const DeviceInfo& device, int64_t planned) {
  constexpr int64_t kMost = int64_t{8} << 30, kLeast = int64_t{64} << 20;
  return std::clamp((device.mem_free - planned) / 4, kLeast, kMost);
}

int32_t prefix_pages(int64_t budget, const KvPlan& plan, const KvLimits& limits) {
  const int64_t own = limits.total_pages(), most = std::min(15 * own, INT32_MAX / 2 - own);
  return static_cast<int32_t>(
      std::clamp<int64_t>(budget / 2 / std::max<int64_t>(1, plan.page_bytes()), 0, most));
}

PrefixCache::PrefixCache(std::shared_ptr<Backend> backend, Stepper& stepper, int64_t budget)
    : backend_(std::move(backend)),
      stepper_(stepper),
      budget_(budget),
      checkpoints_(needs_checkpoint(stepper.kv().plan())),
      tree_(stepper.pages(), stepper.kv().plan().page_bytes(), checkpoints_) {
  stepper_.pages().set_reclaimer([this] { return tree_.free_page(); });
  if (!checkpoints_) return;
  // As far apart as the pages between them take the memory of one.
  const int64_t page = std::max<int64_t>(1, stepper.kv().plan().page_bytes());
  const int64_t tokens = stepper.limits().page_tokens * (checkpoint_bytes(stepper.kv(), kSpan) / page);
  interval_ = static_cast<int32_t>(std::clamp<int64_t>(tokens, kLeastInterval, kMaxContext));
  if (backend_->host_memory() || checkpoint_bytes(stepper.kv(), kSpan) > budget / 2) return;
  try {
    memory_ = std::make_unique<CheckpointMemory>(*backend_, budget / 2);
  } catch (const Error& e) {
    log_warn("checkpoints go to the host's memory, which is slow: {}", e.what());
  }
}
PrefixCache::~PrefixCache() { stepper_.pages().set_reclaimer({}); }

bool PrefixCache::start(Sequence& s, const PrefixTree::Match& m) {
  if (m.start == 0) return true;
  const Checkpoint* c = m.checkpoint.get();
  if (!s.start_from(m.pages, m.start, stepper_.kv(), c ? Restart(*c) : Restart())) return false;
  if (c) restore_checkpoint(*backend_, stepper_.kv(), s, *c);
  return true;
}

bool PrefixCache::rebuild(Sequence& s, std::span<const Token> tokens) {
  const PrefixTree::Match m = tree_.match(tokens);
  return m.start == static_cast<int32_t>(tokens.size()) && start(s, m);
}

int32_t PrefixCache::begin(Sequence& s, std::span<const Token> prompt, std::span<const int32_t> shared,
                           std::vector<int32_t>& marks) {
  marks.clear();
  const PrefixTree::Match m = tree_.match(prompt.first(prompt.size() - 1));
  const int32_t start = this->start(s, m) ? m.start : 0;
  queries_ += prompt.size();
  hits_ += static_cast<uint64_t>(start);
  if (!checkpoints_) return start;
  // Where texts part, in the middle of long ones, and just before the end: what comes next may say the last
  // few tokens otherwise.
  const int32_t page = stepper_.limits().page_tokens, end = static_cast<int32_t>(prompt.size());
  const auto mark = [&](int32_t at) {
    if (at > start && at < end) marks.push_back(at);
  };
  for (int32_t at = (start / interval_ + 1) * interval_; at < end; at += interval_) mark(at);
  if (m.known > start) mark(m.known / page * page);
  for (const int32_t at : shared) mark(at);
  if (!stepper_.kv().plan().recurrent.empty()) mark((end - 1) / page * page);
  std::sort(marks.begin(), marks.end());
  marks.erase(std::unique(marks.begin(), marks.end()), marks.end());
  return start;
}

void PrefixCache::keep(const Sequence& s, std::span<const Token> tokens) {
  CARAT_CHECK(static_cast<int32_t>(tokens.size()) == s.committed(), "{} tokens, {} positions", tokens.size(),
              s.committed());
  if (tokens.empty() || tree_.page_bytes() > budget_) return;
  tree_.insert(tokens, s.pages());
  if (checkpoints_ && !tree_.covers(tokens)) {
    if (checkpoint_bytes(stepper_.kv(), kSpan) <= budget_) tree_.add(tokens, checkpoint(s));
  }
  tree_.trim(budget_);
}

// On the device those that were of use longest ago make room for it.
Checkpoint PrefixCache::checkpoint(const Sequence& s) {
  while (memory_) {
    Checkpoint c = take_checkpoint(*backend_, stepper_.kv(), s, kSpan, memory_.get());
    if (c.blocks) return c;
    if (!tree_.free_checkpoint()) break;
  }
  return take_checkpoint(*backend_, stepper_.kv(), s, kSpan);
}

bool PrefixCache::leaves(const Sequence& s, int32_t position) const {
  return checkpoints_ && stepper_.kv().plan().recurrent.empty() &&
         s.committed() >= position + std::min(stepper_.limits().step_rows, kSpan) / 2;
}

PrefixStats PrefixCache::stats() const {
  return {queries_, hits_, tree_.bytes(), tree_.pages(), tree_.checkpoints()};
}

}  // namespace carat
