// A sequence: an append-only log of positions with a committed length. A step appends; commit keeps a prefix
// of what it appended; nothing is copied back and nothing is replayed.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "state/layout.h"

namespace carat {

// Hands out page numbers and ring slots of one KvPool. One thread.
class PagePool {
 public:
  // recurrent: some layers keep a state that takes rows in for good unless they are logged.
  explicit PagePool(const KvLimits& limits, bool recurrent = false);
  bool recurrent() const { return recurrent_; }
  bool take_slot(int32_t& slot);  // one of limits.sequences
  void free_slot(int32_t slot);
  bool take_page(int32_t& page);
  void free_page(int32_t page);
  int32_t free_pages() const { return static_cast<int32_t>(pages_.size()); }
  const KvLimits& limits() const { return limits_; }

 private:
  KvLimits limits_;
  bool recurrent_;
  std::vector<int32_t> pages_, slots_;
};

class Sequence {
 public:
  explicit Sequence(PagePool& pool);  // Error if no slot is free
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  int32_t committed() const { return committed_; }
  // Room for n more rows; false (and nothing changes) if pages or context run out, or if more than the
  // limits' step_rows would be uncommitted.
  bool append(int32_t n);
  // Keeps the first `keep` of the appended rows. With recurrent layers at most limits' draft_rows go.
  void commit(int32_t keep);
  // Keeps a path of a tree: these of the appended rows, ascending, the first is 0. A row that is not at its
  // place on the path is moved there in all caches of `kv`; chains move nothing.
  void commit(std::span<const int32_t> path, const KvPool& kv);
  // Back to the first `keep` committed rows, at most step_rows behind the furthest ever written: so far rings
  // still hold what their windows need.
  void rewind(int32_t keep);
  // What kernels see of it. Valid until the next append or commit.
  SeqView view() const;
  int32_t ring_slot() const { return slot_; }
  const std::vector<int32_t>& pages() const { return pages_; }

 private:
  void release_beyond(size_t pages);
  int32_t settled() const;  // of the appended rows
  void take(int32_t keep);
  void keep_logged(std::span<const int32_t> rows);

  PagePool& pool_;
  int32_t slot_ = 0, committed_ = 0, appended_ = 0, furthest_ = 0;
  std::vector<int32_t> pages_;
  std::vector<int32_t> kept_;  // log entries of the last step that are committed
  int32_t log_ = 0;            // first entry of the half that the next step writes
};

}  // namespace carat
