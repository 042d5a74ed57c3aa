// A sequence: an append-only log of positions with a committed length. A step appends; commit keeps a prefix
// of what it appended; nothing is copied back and nothing is replayed.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "state/layout.h"

namespace carat {

// Numbers of pages: of layers that see everything, and of rings.
struct PageCount {
  int32_t paged = 0, ring = 0;
  PageCount& operator+=(PageCount o) { return paged += o.paged, ring += o.ring, *this; }
  PageCount& operator-=(PageCount o) { return paged -= o.paged, ring -= o.ring, *this; }
  bool fits(PageCount room) const { return paged <= room.paged && ring <= room.ring; }
};

// Hands out page numbers and slots of one KvPool. A page belongs to the sequences that hold it and to the
// prefix tree if that keeps it (state/prefix_tree.h); it is free when neither does. A page of a ring belongs
// to one sequence. One thread.
class PagePool {
 public:
  // plan: the pool's, for its rings and recurrent layers; none: it has neither.
  explicit PagePool(const KvLimits& limits, const KvPlan& plan = {});
  // Some layers keep a state that takes rows in for good unless they are logged.
  bool recurrent() const { return recurrent_; }
  bool take_slot(int32_t& slot);  // one of limits.sequences
  void free_slot(int32_t slot);
  int32_t free_slots() const { return static_cast<int32_t>(slots_.size()); }
  bool take_page(int32_t& page);  // asks the reclaimer if none is free
  void share_page(int32_t page);  // for one more sequence
  void free_page(int32_t page);   // of one sequence
  void keep_page(int32_t page);   // by the tree
  void drop_page(int32_t page);
  // `like` if that is free (few runs of pages are few copies), else any.
  bool take_ring_page(int32_t like, int32_t& page);
  void free_ring_page(int32_t page);
  int32_t ring_pages_each() const { return ring_pages_; }  // of one sequence's ring, at most
  // What sequences of so many positions need.
  PageCount pages_of(int32_t tokens) const;
  PageCount room() const {  // for sequences: free, or idle
    return {free_pages() + idle_pages(), static_cast<int32_t>(free_ring_.size())};
  }
  int32_t free_pages() const { return static_cast<int32_t>(pages_.size()); }
  int32_t idle_pages() const { return idle_; }  // kept, and held by no sequence
  int32_t total_pages() const { return static_cast<int32_t>(uses_.size()); }
  bool idle(int32_t page) const { return uses_[page].sequences == 0; }
  // Frees at least one idle page, or returns false.
  void set_reclaimer(std::function<bool()> reclaim) { reclaim_ = std::move(reclaim); }
  const KvLimits& limits() const { return limits_; }

 private:
  struct Use {
    int32_t sequences = 0;
    bool kept = false;
  };
  KvLimits limits_;
  bool recurrent_;
  int32_t ring_pages_ = 0;
  std::vector<int32_t> pages_, slots_;  // free
  std::set<int32_t> free_ring_;
  std::vector<Use> uses_;  // per page
  int32_t idle_ = 0;
  std::function<bool()> reclaim_;
};

// What a sequence that starts on others' pages has of what is not in pages (state/checkpoint.h).
struct Restart {
  int32_t from = 0;        // where it, or another that starts on its pages, may go on at the earliest
  int32_t ring_first = 0;  // the first position whose ring rows are there
  int32_t logged = 0;      // entries of the recurrent log
  int32_t to = 0;          // rows of rings come up to here, perhaps beyond where the sequence starts
};

class Sequence {
 public:
  explicit Sequence(PagePool& pool);  // Error if no slot is free
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  int32_t committed() const { return committed_; }
  // Makes an empty sequence one of `tokens` positions that others have run: whole pages are shared, the rest
  // of the last one is copied. False (and nothing changes) if there is no page for it. What is not in pages
  // comes from a checkpoint, which is restored next.
  bool start_from(std::span<const int32_t> pages, int32_t tokens, const KvPool& kv, const Restart& at = {});
  // The same with pages of its own, whose rows are yet to be written.
  bool start_blank(int32_t tokens, const Restart& at = {});
  // Committed positions from here on are in a ring of so many tokens.
  int32_t first_in_ring(int32_t ring_tokens) const { return std::max(ring_first_, furthest_ - ring_tokens); }
  // Where one may go on that reads `recent` rows back in a ring of protected rows (KvProtect).
  int32_t first_protected(int32_t ring_tokens, int32_t recent) const {
    return std::max({from_, furthest_ - ring_tokens + recent, 0});
  }
  std::span<const int32_t> logged() const { return kept_; }  // committed entries of the log
  // Room for n more rows; false (and nothing changes) if pages or context run out, or if more than the
  // limits' step_rows would be uncommitted.
  bool append(int32_t n);
  // Pages it would take for n more rows, and rows that it could append with so many pages.
  PageCount pages_for(int32_t n) const;
  int32_t rows_in(PageCount pages) const;
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
  const std::vector<int32_t>& pages() const { return pages_; }

 private:
  bool take_pages(int32_t tokens);  // as far as `tokens`; false, and nothing changes, if there are not enough
  bool take_ring(int32_t pages);    // likewise, the ring's
  void release_beyond(size_t pages);
  void stand_at(int32_t tokens, const Restart& at);
  int32_t settled() const;  // of the appended rows
  void take(int32_t keep);
  void keep_logged(std::span<const int32_t> rows);

  PagePool& pool_;
  int32_t slot_ = 0, committed_ = 0, appended_ = 0, furthest_ = 0;
  int32_t ring_first_ = 0;  // rows before it were never written to this sequence's rings
  int32_t from_ = 0;        // nor what one that goes on before it would read of protected rows
  std::vector<int32_t> pages_;
  std::vector<int32_t> ring_;  // grows to the whole ring, and stays
  std::vector<int32_t> kept_;  // log entries of the last step that are committed
  int32_t log_ = 0;            // first entry of the half that the next step writes
};

}  // namespace carat
