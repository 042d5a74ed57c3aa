// What a sequence keeps outside its pages, copied: the rings of sliding layers, the protected rows and the
// states of recurrent layers. With it and its pages another sequence goes on from
// there, with the same bits.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "state/layout.h"
#include "state/sequence.h"

namespace carat {

// Memory of a device for checkpoints: a copy within it takes next to no time, one to the host holds up every
// sequence. In blocks, since checkpoints come in all sizes.
class CheckpointMemory {
 public:
  static constexpr int64_t kBlock = int64_t{4} << 20;
  // Blocks of one checkpoint; given back with it.
  class Blocks {
   public:
    Blocks(CheckpointMemory& memory, std::vector<int32_t> blocks)
        : memory_(memory), blocks_(std::move(blocks)) {}
    ~Blocks() { memory_.free_.insert(memory_.free_.end(), blocks_.begin(), blocks_.end()); }
    Blocks(const Blocks&) = delete;
    Blocks& operator=(const Blocks&) = delete;
    int64_t bytes() const { return kBlock * static_cast<int64_t>(blocks_.size()); }
    // f(memory, bytes) over the pieces of [at, at + n).
    template <class F>
    void each_piece(int64_t at, int64_t n, F&& f) const {
      while (n > 0) {
        const int64_t piece = std::min(n, kBlock - at % kBlock);
        f(memory_.buffer_.data() + blocks_[static_cast<size_t>(at / kBlock)] * kBlock + at % kBlock, piece);
        at += piece, n -= piece;
      }
    }

   private:
    CheckpointMemory& memory_;
    std::vector<int32_t> blocks_;
  };

  // Error if the device has not so much.
  CheckpointMemory(Backend& backend, int64_t bytes);
  std::shared_ptr<const Blocks> take(int64_t bytes);  // null: there are not so many blocks left
  int64_t bytes() const { return static_cast<int64_t>(buffer_.size()); }

 private:
  Buffer buffer_;
  std::vector<int32_t> free_;
};

// Sequences may go on at positions from `from` to `to`. Rings and protected rows hold what is read behind any
// of them; recurrent states are those of one.
struct Checkpoint : Restart {
  // Rings, layer by layer, then protected rows, then states: in host memory, or (then with the whole of each
  // page that the rings' positions are in) on the device.
  std::vector<std::byte> bytes;
  std::shared_ptr<const CheckpointMemory::Blocks> blocks;
  int64_t held() const { return blocks ? blocks->bytes() : static_cast<int64_t>(bytes.size()); }
};

// Whether pages alone are not all there is.
bool needs_checkpoint(const KvPlan& plan);
// Bytes of one that covers `span` positions beside the window.
int64_t checkpoint_bytes(const KvPool& pool, int32_t span);
// The first position where a copy of the sequence as it is could go on.
int32_t first_restart(const KvPool& pool, const Sequence& sequence);
// Of what is committed. It covers the last `span` positions, or fewer if the rings no longer hold them.
// memory: where to, and without bytes or blocks if there is no room; null: to the host.
Checkpoint take_checkpoint(Backend& backend, const KvPool& pool, const Sequence& sequence, int32_t span,
                           CheckpointMemory* memory = nullptr);
// Bytes that a checkpoint of these positions and log entries has.
size_t checkpoint_size(const KvPool& pool, const Checkpoint& checkpoint);
// Into the rings and states of a sequence that has started from it (Sequence::start_from).
void restore_checkpoint(Backend& backend, const KvPool& pool, const Sequence& sequence,
                        const Checkpoint& checkpoint);

// f(page, how many follow it in memory) over the whole pages of positions [first, end).
template <class F>
void each_page_run(const KvView& v, const SeqView& seq, int32_t first, int32_t end, F&& f) {
  for (int32_t p = first, n; p < end; p += n * v.page_tokens) {
    const int64_t page = v.page(seq, p);
    for (n = 1; p + n * v.page_tokens < end && v.page(seq, p + n * v.page_tokens) == page + n;) ++n;
    f(page, n);
  }
}
// f(memory of the pool, bytes) over the keys and values of positions [first, end) of one layer: whole pages,
// of a ring up to its seam, keys and then values; and parts of pages head by head. The same order for every
// sequence. Pages that follow each other come at once: on some devices each piece is a copy.
template <class F>
void each_kv_run(const KvView& v, const SeqView& seq, int32_t first, int32_t end, F&& f) {
  const int64_t rows = int64_t{v.spec.heads} * v.page_tokens;
  for (int32_t p = first; p < end;) {
    if (p % v.page_tokens == 0 && end - p >= v.page_tokens) {
      const int32_t most =
                        v.ring_tokens ? std::min(end - p, v.ring_tokens - p % v.ring_tokens) : v.page_tokens,
                    to = p + most / v.page_tokens * v.page_tokens;
      each_page_run(v, seq, p, to, [&](int64_t page, int32_t n) {
        if (v.k_page_bytes) f(v.k + page * v.k_page_bytes, static_cast<size_t>(n * v.k_page_bytes));
      });
      each_page_run(v, seq, p, to, [&](int64_t page, int32_t n) {
        if (v.v_page_bytes) f(v.v + page * v.v_page_bytes, static_cast<size_t>(n * v.v_page_bytes));
      });
      p = to;
      continue;
    }
    const int32_t n = std::min(end - p, v.page_tokens - p % v.page_tokens);
    for (int32_t h = 0; h < v.spec.heads; ++h) {
      if (v.k_page_bytes) f(v.k_row(seq, p, h), static_cast<size_t>(n * (v.k_page_bytes / rows)));
      if (v.v_page_bytes) f(v.v_row(seq, p, h), static_cast<size_t>(n * (v.v_page_bytes / rows)));
    }
    p += n;
  }
}
// The same over the protected rows of positions [first, end).
template <class F>
void each_edge_run(const KvView& v, const SeqView& seq, int32_t first, int32_t end, F&& f) {
  for (int32_t p = first; p < end; ++p) {
    f(v.k_edge_row(seq, p, 0), static_cast<size_t>(v.spec.heads * v.spec.k_edge_bytes()));
    f(v.v_edge_row(seq, p, 0), static_cast<size_t>(v.spec.heads * v.spec.v_edge_bytes()));
  }
}

}  // namespace carat
