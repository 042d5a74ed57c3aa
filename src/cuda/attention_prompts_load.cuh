// Attention of prompts (attention_prompts.cuh): shared memory, tasks, and the warpgroup that brings keys and
// values.
#pragma once
#include "cuda/attention_tasks.cuh"
#include "cuda/warpgroup.cuh"

namespace carat::cuda {

inline constexpr int kPromptThreads = 384, kPromptConsumers = 256, kPromptRows = 64;
inline constexpr int kPromptConsumerRegs = 224, kPromptLoaderRegs = 56;

template <int DIM>
struct PromptShape {
  static constexpr int kDim = DIM, kPieces = DIM / 64, kChunks = DIM / 128;  // of keys; of values, a group's
  static constexpr int kPiece = kKvTile * 128, kStages = 8;
  static constexpr int kQuery = 0, kRing = kPromptRows * DIM * 2, kWeight = kRing + 2 * kStages * kPiece,
                       kMost = kWeight + 2 * kPiece, kGates = kMost + 2 * kPromptRows * 4,
                       kWarps = kGates + 4 * kStages * 8, kBytes = kWarps + 8 * 1024 + 1024;
};

struct PromptTask {
  RowGroup group;
  int32_t kv_head, head, heads, length;
  Reach reach;
  int32_t first, last;  // pairs of tiles
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
// Segments of more than two tiles.
CARAT_D bool is_long(const PromptTask& p) { return p.length > 2 * kKvTile; }
// Whether the next scores are made between the values: where there are registers for both.
template <class S>
constexpr bool overlaps(bool is_long) {
  return S::kDim == 256 && !is_long;
}
// f(task) for this block's tasks. By whole warps.
template <class F>
CARAT_D void each_prompt_task(const AttentionPart& a, const DevStep* s, RowSet set, F f) {
  const int32_t per = a.by_width.quotient(kPromptRows), groups = group_count(s, set, per);
  const int32_t tasks = groups * a.kv.heads * a.chunks;
#pragma unroll 1
  for (int32_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    PromptTask p;
    const int32_t rest = task / groups;
    p.group = group_of(s, set, per, groups - 1 - (task - rest * groups));  // the longest first
    p.kv_head = a.by_chunks.quotient(rest);
    const int32_t from = (rest - p.kv_head * a.chunks) * a.width;
    p.head = p.kv_head * a.group + from;
    p.heads = a.group - from < a.width ? a.group - from : a.width;
    p.length = segment_of(a.kv.window, pos_of(s, step_row(s, set, p.group.m)));
#pragma unroll 1
    while (p.length != INT32_MAX) {
      p.reach = reach_of(a, s, set, p.group, p.length);
      p.first = p.reach.first / (2 * kKvTile), p.last = p.reach.last / (2 * kKvTile);
      if (p.reach.settled == INT32_MAX) f(p);
      p.length = p.reach.longer;
    }
  }
}

// Pieces of keys and values to the two rings, in the order in which they are taken.
template <class S>
struct PromptLoader {
  const AttentionPart& a;
  const DevStep* s;
  RowSet set;
  SharedAddress memory;
  // This thread copies unit `unit` of every 16th row.
  const int row = threadIdx.x % 128 / 8, unit = threadIdx.x % 8;
  static constexpr int kEach = kKvTile / 16;
  int slot[2] = {0, 0}, parity[2] = {1, 1};

  struct Tile {
    const uint8_t *k, *v;
    uint32_t seen;  // bit k: somebody sees row 16 k; others are zeros
  };
  CARAT_D Tile tile_at(const PromptTask& p, const SeqView& seq, int32_t tile) const {
    Tile x{nullptr, nullptr, 0};
    const int32_t begin = tile * kKvTile;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int32_t at = begin + row + 16 * k;
      x.seen |= uint32_t{at >= p.reach.first && at <= p.reach.last} << k;
    }
    if (begin > p.reach.last || begin + kKvTile <= p.reach.first) return x;
    x.k = k_row(a.kv, seq, begin, p.kv_head) + row * a.kv.k_row + 16 * unit;
    x.v = v_row(a.kv, seq, begin, p.kv_head) + row * a.kv.v_row + 16 * unit;
    return x;
  }
  // Columns of a tile; from: this thread's part of its first row.
  CARAT_D void push(int ring, const Tile& x, const uint8_t* from, int64_t pitch) {
    const int at = ring * S::kStages + slot[ring];
    gate_wait(memory + S::kGates + 8 * (2 * S::kStages + at), parity[ring]);
    if (++slot[ring] == S::kStages) slot[ring] = 0, parity[ring] ^= 1;
    const SharedAddress to = memory + S::kRing + at * S::kPiece + 128 * row + (unit ^ row % 8) * 16;
#pragma unroll
    for (int k = 0; k < kEach; ++k) copy16_async(to + 2048 * k, from + k * 16 * pitch, x.seen >> k & 1);
    arrive_after_copies(memory + S::kGates + 8 * at);
  }
  struct Two {
    Tile tile[2];
  };
  CARAT_D Two tiles_at(const PromptTask& p, const SeqView& seq, int32_t batch) const {
    return {{tile_at(p, seq, 2 * batch), tile_at(p, seq, 2 * batch + 1)}};
  }
  CARAT_D void push_keys(const Two& x, int c) {
#pragma unroll
    for (int ring = 0; ring < 2; ++ring) push(ring, x.tile[ring], x.tile[ring].k + 128 * c, a.kv.k_row);
  }
  CARAT_D void push_values(const Tile& x, int c) {
#pragma unroll
    for (int ring = 0; ring < 2; ++ring) push(ring, x, x.v + 128 * (ring * S::kChunks + c), a.kv.v_row);
  }
  // As PromptWalk::walk() takes them.
  CARAT_D void run() {
    each_prompt_task(a, s, set, [&](const PromptTask& p) {
      const SeqView& seq = *seq_of(s, step_row(s, set, p.group.m));
      const bool between = overlaps<S>(is_long(p));
      Two x = tiles_at(p, seq, p.first);
#pragma unroll 1
      for (int32_t batch = p.first; batch <= p.last; ++batch) {
        const Two next = batch < p.last ? tiles_at(p, seq, batch + 1) : Two{};
        const bool ahead = between && batch < p.last;
#pragma unroll 1
        for (int c = 0; (!between || batch == p.first) && c < S::kPieces; ++c) push_keys(x, c);
        if (is_long(p)) {
#pragma unroll
          for (int i = 0; i < 2; ++i)
#pragma unroll 1
            for (int c = 0; c < S::kChunks; ++c) push_values(x.tile[i], c);
        } else {
#pragma unroll 1
          for (int c = 0; c < S::kChunks; ++c)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              push_values(x.tile[i], c);
              if (ahead) push_keys(next, 2 * c + i);
            }
        }
        x = next;
      }
    });
    commit_copies();
    wait_copies<0>();
  }
};

}  // namespace carat::cuda
