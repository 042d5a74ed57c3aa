// Attention of prompts (prompts/prompts.cuh): shared memory, and the warpgroup that brings keys and values.
#pragma once
#include "cuda/attention/prompts/tasks.cuh"
#include "cuda/device/warpgroup.cuh"

namespace carat::cuda {

inline constexpr int kPromptThreads = 384, kPromptConsumers = 256;

// TWICE: some tiles come twice, where rows are protected.
template <int DIM, PromptSource SOURCE, bool TWICE = false>
struct PromptShape {
  // Of 168 a thread. With fewer those who multiply wait for each product (heads of 512).
  static constexpr int kConsumerRegs = DIM == 512 ? 232 : 224, kLoaderRegs = DIM == 512 ? 40 : 56;
  static constexpr int kRows = kPromptRows, kDim = DIM, kPieces = DIM / 64,
                       kChunks = DIM / 128;  // of keys; of values, a group's
  static constexpr bool kUnpacked = SOURCE != PromptSource::halves, kSingle = SOURCE == PromptSource::single,
                        kTwice = TWICE;
  static constexpr int kQueries = DIM + (kSingle ? kKeyColumns : 0), kKeyPieces = kQueries / 64;
  static constexpr int kPiece = kKvTile * 128, kStages = kQueries > 512 ? 6 : 8;
  static constexpr int kQuery = 0, kRing = kPromptRows * kQueries * 2, kWeight = kRing + 2 * kStages * kPiece,
                       kMost = kWeight + 2 * kPiece, kGates = kMost + 4 * kPromptRows * 4,
                       kWarps = kGates + 4 * kStages * 8, kBytes = kWarps + 8 * 1024 + 1024;
};

// What a consuming warp knows: of its 16 pairs, and of their going on in each of two tiles.
struct PromptWarp {
  PromptTask task;
  Pair pairs[16];
  // What came before fades; at a segment's end: what is kept of all before, what is taken of the segment.
  struct Turn {
    float fade, keep, take;
    bool blank;  // nothing was seen before
  } turns[2][16];
};
static_assert(sizeof(PromptWarp) <= 1024);

// Whether the next scores are made between the values of short segments: where there are registers for both.
template <class S>
constexpr bool overlaps() {
  return S::kDim == 256 && !S::kSingle;
}

// Caches as boxes of 64 rows x 64 columns; y as boxes of a task's pairs x 32 columns.
struct KvBoxes {
  BoxMap k, v, y;
};
inline bool make_box(BoxMap& box, const void* base, int32_t columns, int64_t pitch, int32_t rows,
                     int64_t page) {
  return make_box_map(box, {base, false, columns, pitch, rows, page});
}
inline bool make_boxes(KvBoxes& boxes, const UnpackedTiles& u, const DevKv& kv) {
  const int32_t rows = kv.heads * kKvTile, k = 2 * u.key_columns, v = 2 * kv.dim;
  return make_box(boxes.k, u.k, u.key_columns, k, rows, int64_t{rows} * k) &&
         make_box(boxes.v, u.v, kv.dim, v, rows, int64_t{rows} * v);
}
inline bool make_boxes(KvBoxes& boxes, const DevKv& kv) {
  const int32_t rows = kv.heads * kv.page_tokens;
  return make_box(boxes.k, kv.k, kv.dim, kv.k_row, rows, kv.k_page_bytes) &&
         make_box(boxes.v, kv.v, kv.dim, kv.v_row, rows, kv.v_page_bytes);
}
inline bool make_output_box(KvBoxes& boxes, const AttentionPart& a) {
  return make_box_map(boxes.y, {a.y.data, true, a.kv.dim, int64_t{4} * a.kv.dim, a.heads, a.y.pitch, a.y.rows,
                                a.width, kPromptRows / a.width});
}

// Pieces of keys and values to the two rings, in the order in which they are taken: two warps a ring, every
// other piece each. A tile that is seen whole comes as boxes that one lane asks for; of tiles at the ends of
// what is seen every lane copies its part.
template <class S>
struct PromptLoader {
  const AttentionPart& a;
  const DevStep* s;
  RowSet set;
  const KvBoxes& boxes;
  SharedAddress memory;
  const int lane = threadIdx.x % 32, ring = threadIdx.x / 32 % 2;
  int slot = 0, parity = 1;
  bool mine = threadIdx.x / 64 % 2 == 0;
  const PromptTask* p = nullptr;

  // put(address, gate) for the next piece once it has been given back, if it is this warp's.
  template <class Put>
  CARAT_D void push(Put put) {
    const int at = ring * S::kStages + slot;
    if (mine) {
      gate_wait(memory + S::kGates + 8 * (2 * S::kStages + at), parity);
      put(memory + S::kRing + at * S::kPiece, memory + S::kGates + 8 * at);
    }
    mine = !mine;
    if (++slot == S::kStages) slot = 0, parity ^= 1;
  }
  // 128 bytes of rows x.first to x.last of a tile that begins at `from`, zeros around them.
  CARAT_D void copy_rows(SharedAddress to, SharedAddress gate, const PromptTile& x, const uint8_t* from,
                         int64_t pitch) const {
    const int unit = lane % 8;
#pragma unroll 4
    for (int r = lane / 8; r < kKvTile; r += 4)
      copy16_async(to + 128 * r + (unit ^ r % 8) * 16, from + r * pitch + 16 * unit,
                   r >= x.first && r <= x.last);
    arrive_after_copies(gate);
  }
  CARAT_D void copy_second(SharedAddress to, SharedAddress gate, const PromptTile& x, bool values,
                           int column) const {
    const int unit = lane % 8;
#pragma unroll 1
    for (int r = lane / 8; r < kKvTile; r += 4) {
      const uint8_t* from = second_copy(a, s, *p, x, r, values, column + 8 * unit);
      copy16_async(to + 128 * r + (unit ^ r % 8) * 16, from, from != nullptr);
    }
    arrive_after_copies(gate);
  }
  // 64 columns of a tile.
  CARAT_D void push_columns(const PromptTile& x, bool values, int column) {
    push([&](SharedAddress to, SharedAddress gate) {
      if (S::kTwice && x.second) return copy_second(to, gate, x, values, column);
      if (x.first > 0 || x.last < kKvTile - 1) {
        const PromptRows of = prompt_rows<S::kUnpacked>(a, values);
        return copy_rows(to, gate, x, of.cache + x.page * of.page_bytes + x.row * of.pitch + 2 * column,
                         of.pitch);
      }
      if (lane) return gate_arrive(gate);
      gate_arrive(gate, S::kPiece);
      copy_box(to, values ? boxes.v : boxes.k, column, x.row, x.page, gate);
    });
  }
  CARAT_D void push_keys(const PromptTile& x, int c) {
    const bool values = S::kSingle && c < S::kPieces;
    push_columns(x, values, 64 * (S::kSingle && !values ? c - S::kPieces : c));
  }
  CARAT_D void push_values(const PromptTile& x, int c) {
    push_columns(x, true, 64 * (ring * S::kChunks + c));
  }
  // What the pairs have so far of y, 32 columns a piece.
  CARAT_D void push_outputs() {
#pragma unroll 1
    for (int c = 0; c < 2 * S::kChunks; ++c)
      push([&](SharedAddress to, SharedAddress gate) {
        if (lane) return gate_arrive(gate);
        gate_arrive(gate, 128 * a.width * a.by_width.quotient(kPromptRows));
        copy_box(to, boxes.y, ring * (S::kDim / 2) + 32 * c, p->head, p->group.m, gate);
      });
  }
  CARAT_D void push_all_keys(const PromptTile& x) {
#pragma unroll 1
    for (int c = 0; c < S::kKeyPieces; ++c) push_keys(x, c);
  }
  CARAT_D void push_all_values(const PromptTile& x) {
#pragma unroll 1
    for (int c = 0; c < S::kChunks; ++c) push_values(x, c);
  }
  // In the order of walk_short(): x, next: two tiles, of which a ring has the keys of one and columns of
  // both's values.
  CARAT_D void push_short(const PromptTile (&x)[2], const PromptTile (&next)[2], bool is_first, bool more) {
    const PromptTile keys = ring ? x[1] : x[0], next_keys = ring ? next[1] : next[0];
    if (!overlaps<S>() || is_first) push_all_keys(keys);
#pragma unroll 1
    for (int c = 0; c < S::kChunks; ++c)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        push_values(x[i], c);
        if (overlaps<S>() && more) push_keys(next_keys, 2 * c + i);
      }
  }
  // In the orders of walk_first() and walk_second().
  CARAT_D void push_long(const LongSegments<S>& segments, const PromptRound<S>& now, bool is_first, bool more,
                         const PromptTile (&x)[2], const PromptTile (&next)[2]) {
    if (is_first || ring) push_all_keys(ring ? x[1] : x[0]), push_all_values(x[0]);
    if (more && !ring) push_all_keys(next[0]);
    push_all_values(x[1]);
    if (segments.ends(now) && !segments.in_first(now)) push_outputs();
    if (more && !ring) push_all_values(next[0]);
  }
  CARAT_D void run() {
    each_prompt_task<S>(a, s, set, [&](const PromptTask& task) {
      p = &task;
      const SeqView& seq = *seq_of(s, step_row(s, set, task.group.m));
      const int32_t* pages = a.kv.pages_of(seq);
      const auto find = [&](const PromptRound<S>& round, PromptTile(&x)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) x[i] = prompt_tile<S>(a, s, set, task, pages, round, i);
      };
      const LongSegments<S> segments(task);
      PromptRound<S> now(task, task.first);
      PromptTile x[2], next[2];
      find(now, x);
      bool is_first = true;
#pragma unroll 1
      for (bool more = true; more; is_first = false) {
        more = !now.is_last_of(task.last);
        const PromptRound<S> behind = more ? now.next(task) : now;
        find(behind, next);
        if (is_long<S>(task))
          push_long(segments, now, is_first, more, x, next);
        else
          push_short(x, next, is_first, more);
        now = behind;
        x[0] = next[0], x[1] = next[1];
      }
    });
    commit_copies();
    wait_copies<0>();
  }
};

}  // namespace carat::cuda
