#include "state/sequence.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace carat {

PagePool::PagePool(const KvLimits& limits, const KvPlan& plan)
    : limits_(limits),
      recurrent_(!plan.recurrent.empty()),
      ring_pages_(plan.ring_tokens / limits.page_tokens) {
  const auto pages = static_cast<int32_t>(limits.total_pages());
  for (int32_t i = pages - 1; i >= 0; --i) pages_.push_back(i);
  uses_.resize(static_cast<size_t>(pages));
  for (int32_t i = limits.sequences - 1; i >= 0; --i) slots_.push_back(i);
  for (int32_t i = 0; i < plan.ring_pages(limits); ++i) free_ring_.insert(free_ring_.end(), i);
}

bool PagePool::take_slot(int32_t& slot) {
  if (slots_.empty()) return false;
  slot = slots_.back();
  slots_.pop_back();
  return true;
}
void PagePool::free_slot(int32_t slot) { slots_.push_back(slot); }

bool PagePool::take_page(int32_t& page) {
  if (pages_.empty() && !(reclaim_ && reclaim_())) return false;
  CARAT_CHECK(!pages_.empty(), "nothing was reclaimed");
  page = pages_.back();
  pages_.pop_back();
  uses_[page] = {1, false};
  return true;
}
bool PagePool::take_ring_page(int32_t like, int32_t& page) {
  if (free_ring_.empty()) return false;
  auto at = free_ring_.find(like);
  if (at == free_ring_.end()) at = free_ring_.begin();
  page = *at;
  free_ring_.erase(at);
  return true;
}
void PagePool::free_ring_page(int32_t page) {
  CARAT_CHECK(free_ring_.insert(page).second, "page {} of rings is free", page);
}
PageCount PagePool::pages_of(int32_t tokens) const {
  const int32_t pages = (tokens + limits_.page_tokens - 1) / limits_.page_tokens;
  return {pages, std::min(pages, ring_pages_)};
}
void PagePool::share_page(int32_t page) {
  Use& u = uses_[page];
  CARAT_CHECK(u.sequences > 0 || u.kept, "page {} is free", page);
  if (u.sequences++ == 0) --idle_;
}
void PagePool::free_page(int32_t page) {
  Use& u = uses_[page];
  CARAT_CHECK(u.sequences > 0, "page {} belongs to nobody", page);
  if (--u.sequences > 0) return;
  if (u.kept)
    ++idle_;
  else
    pages_.push_back(page);
}
void PagePool::keep_page(int32_t page) {
  Use& u = uses_[page];
  CARAT_CHECK(u.sequences > 0 && !u.kept, "page {}", page);
  u.kept = true;
}
void PagePool::drop_page(int32_t page) {
  Use& u = uses_[page];
  CARAT_CHECK(u.kept, "page {}", page);
  u.kept = false;
  if (u.sequences > 0) return;
  --idle_;
  pages_.push_back(page);
}

Sequence::Sequence(PagePool& pool) : pool_(pool) {
  if (!pool_.take_slot(slot_))
    throw Error(fmt::format("all {} sequences are in use", pool_.limits().sequences),
                "wait for one to end, or allow more at once");
}

Sequence::~Sequence() {
  release_beyond(0);
  for (const int32_t page : ring_) pool_.free_ring_page(page);
  pool_.free_slot(slot_);
}

bool Sequence::start_from(std::span<const int32_t> pages, int32_t tokens, const KvPool& kv,
                          const Restart& at) {
  CARAT_CHECK(committed_ == 0 && appended_ == 0 && pages_.empty(), "{} positions are there", committed_);
  const int32_t page_tokens = pool_.limits().page_tokens;
  const auto whole = static_cast<size_t>(tokens / page_tokens);
  CARAT_CHECK(pages.size() * page_tokens >= static_cast<size_t>(tokens), "{} pages", pages.size());
  if (!take_ring(pool_.pages_of(std::max(tokens, at.to)).ring)) return false;
  for (size_t i = 0; i < whole; ++i) {
    pool_.share_page(pages[i]);
    pages_.push_back(pages[i]);
  }
  if (tokens % page_tokens) {
    const int32_t from = pages[whole];
    int32_t to;
    pool_.share_page(from);  // or it might be what is reclaimed
    const bool room = pool_.take_page(to);
    if (room) {
      kv.copy_page(from, to);
      pages_.push_back(to);
    }
    pool_.free_page(from);
    if (!room) {
      release_beyond(0);
      return false;
    }
  }
  stand_at(tokens, at);
  return true;
}

bool Sequence::start_blank(int32_t tokens, const Restart& at) {
  CARAT_CHECK(committed_ == 0 && appended_ == 0 && pages_.empty(), "{} positions are there", committed_);
  if (!take_ring(pool_.pages_of(std::max(tokens, at.to)).ring) || !take_pages(tokens)) return false;
  stand_at(tokens, at);
  return true;
}

void Sequence::stand_at(int32_t tokens, const Restart& at) {
  const KvLimits& l = pool_.limits();
  CARAT_CHECK(at.logged <= l.draft_rows && tokens <= l.context, "{} logged, {} tokens", at.logged, tokens);
  committed_ = furthest_ = tokens;
  ring_first_ = at.ring_first, from_ = at.from;
  kept_.resize(static_cast<size_t>(at.logged));
  std::iota(kept_.begin(), kept_.end(), 0);
  log_ = at.logged ? l.draft_rows : 0;
}

bool Sequence::append(int32_t n) {
  CARAT_CHECK(n >= 0, "{}", n);
  const KvLimits& l = pool_.limits();
  const int32_t room = l.context - committed_ - appended_;
  // More than a step's rows uncommitted would let a ring overwrite what its window needs.
  if (n > room || appended_ + n > l.step_rows) return false;
  if (!take_pages(committed_ + appended_ + n)) return false;
  appended_ += n;
  furthest_ = std::max(furthest_, committed_ + appended_);
  return true;
}

bool Sequence::take_pages(int32_t tokens) {
  const PageCount need = pool_.pages_of(tokens);
  const size_t had = pages_.size();
  while (pages_.size() < static_cast<size_t>(need.paged)) {
    int32_t page;
    if (!pool_.take_page(page)) {
      release_beyond(had);
      return false;
    }
    pages_.push_back(page);
  }
  if (take_ring(need.ring)) return true;
  release_beyond(had);
  return false;
}

bool Sequence::take_ring(int32_t pages) {
  const size_t had = ring_.size();
  while (static_cast<int32_t>(ring_.size()) < pages) {
    // Where all rings are whole each sequence has the same pages every time.
    const int32_t like = ring_.empty() ? slot_ * pool_.ring_pages_each() : ring_.back() + 1;
    int32_t page;
    if (!pool_.take_ring_page(like, page)) {
      for (; ring_.size() > had; ring_.pop_back()) pool_.free_ring_page(ring_.back());
      return false;
    }
    ring_.push_back(page);
  }
  return true;
}

PageCount Sequence::pages_for(int32_t n) const {
  const PageCount need = pool_.pages_of(committed_ + appended_ + n);
  return {std::max(0, need.paged - static_cast<int32_t>(pages_.size())),
          std::max(0, need.ring - static_cast<int32_t>(ring_.size()))};
}
int32_t Sequence::rows_in(PageCount more) const {
  const int64_t ring = static_cast<int64_t>(ring_.size()) + std::max(0, more.ring);
  int64_t pages = static_cast<int64_t>(pages_.size()) + std::max(0, more.paged);
  if (ring < pool_.ring_pages_each()) pages = std::min(pages, ring);
  return static_cast<int32_t>(
      std::min<int64_t>(pages * pool_.limits().page_tokens - committed_ - appended_, INT32_MAX));
}

void Sequence::commit(int32_t keep) {
  CARAT_CHECK(keep >= 0 && keep <= appended_, "{} of {}", keep, appended_);
  if (pool_.recurrent()) {
    std::vector<int32_t> rows(static_cast<size_t>(keep));
    std::iota(rows.begin(), rows.end(), 0);
    keep_logged(rows);
  }
  take(keep);
}

void Sequence::take(int32_t keep) {
  committed_ += keep;
  appended_ = 0;
  const int32_t page_tokens = pool_.limits().page_tokens;
  release_beyond((committed_ + page_tokens - 1) / page_tokens);
}

void Sequence::commit(std::span<const int32_t> path, const KvPool& kv) {
  const SeqView at = view();
  // Ascending, so that no row is overwritten before it has moved.
  for (int32_t i = 0; i < static_cast<int32_t>(path.size()); ++i) {
    CARAT_CHECK(path[i] >= i && path[i] < appended_ && (i == 0 || path[i] > path[i - 1]), "row {} of {}",
                path[i], appended_);
    if (path[i] != i) kv.move(at, committed_ + path[i], committed_ + i);
  }
  if (pool_.recurrent()) keep_logged(path);
  take(static_cast<int32_t>(path.size()));
}

void Sequence::rewind(int32_t keep) {
  CARAT_CHECK(appended_ == 0 && keep >= 0 && keep <= committed_, "{} of {}", keep, committed_);
  CARAT_CHECK(!pool_.recurrent(), "a recurrent state cannot go back");
  CARAT_CHECK(furthest_ - keep <= pool_.limits().step_rows, "{} of {}", keep, furthest_);
  committed_ = keep;
  const int32_t page_tokens = pool_.limits().page_tokens;
  release_beyond(static_cast<size_t>((keep + page_tokens - 1) / page_tokens));
}

// Those of the rows that are in the log: the next step takes them into the base.
void Sequence::keep_logged(std::span<const int32_t> rows) {
  if (appended_ == 0) return;
  const int32_t settled_rows = settled();
  int32_t settled_kept = 0;
  kept_.clear();
  for (const int32_t row : rows) {
    settled_kept += row < settled_rows;
    if (row >= settled_rows) kept_.push_back(log_ + row - settled_rows);
  }
  CARAT_CHECK(settled_kept == settled_rows, "{} of {} rows: more than {} rejected", rows.size(), appended_,
              pool_.limits().draft_rows);
  log_ = log_ ? 0 : pool_.limits().draft_rows;
}

int32_t Sequence::settled() const { return std::max(0, appended_ - pool_.limits().draft_rows); }

SeqView Sequence::view() const {
  return {
      pages_.data(), ring_.data(), slot_, settled(), log_, kept_.data(), static_cast<int32_t>(kept_.size())};
}

void Sequence::release_beyond(size_t pages) {
  for (; pages_.size() > pages; pages_.pop_back()) pool_.free_page(pages_.back());
}

}  // namespace carat
