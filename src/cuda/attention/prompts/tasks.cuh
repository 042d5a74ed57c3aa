// Tasks of a prompt's attention, the rounds of two tiles that they go through, and where tiles are.
#pragma once
#include "cuda/attention/copies.cuh"

namespace carat::cuda {

inline constexpr int kPromptRows = 64;

// Where keys and values come from: a cache of halves; a packed one's tiles, decoded
// (prompts/unpacked.cu); the same of single copies of K = V, whose values are most of the keys,
// too.
enum class PromptSource { halves, unpacked, single };

// Whether y's rows can be written two columns at a time.
inline bool in_pairs(const Tensor& y) {
  return reinterpret_cast<uintptr_t>(y.data) % 8 == 0 && y.pitch % 8 == 0;
}

struct PromptTask {
  RowGroup group;
  int32_t kv_head, head, heads, length;
  Reach reach;
  int32_t first, last;          // pairs of tiles
  int32_t all_first, all_last;  // of all parts of an unpacked cache
  int32_t before;               // scratch has tile n at before + n
  // Where rows are protected: pairs of tiles below `twice_below` and those with positions from `recent` on
  // come as two rounds.
  int32_t twice_below, recent;
};
// Segments of more than two tiles, or tiles that come twice.
template <class S>
CARAT_D bool is_long(const PromptTask& p) {
  return S::kTwice || p.length > 2 * kKvTile;
}
// The pairs of tiles that this part of an unpacked cache has of a task's. False: none, or it is not unpacked.
CARAT_D bool cut_to_part(const AttentionPart& a, const DevStep* s, RowSet set, PromptTask& p) {
  const UnpackedRun* run = unpacked_run(a, s, step_row(s, set, p.group.m));
  if (!run) return false;
  const UnpackedPart part(a.unpacked, *run);
  p.before = part.before;
  if (p.first < part.first / 2) p.first = part.first / 2;
  if (p.last > part.last / 2) p.last = part.last / 2;
  return part.first <= part.last && p.first <= p.last;
}
// What comes twice: rows of a task protect the first positions and those from `recent` on. Segments of one
// tile have all tiles twice, so that none ends within a round.
CARAT_D void find_protected(const AttentionPart& a, const DevStep* s, RowSet set, PromptTask& p) {
  const int32_t sinks = a.copies.protect.sinks;
  p.twice_below = p.length > kKvTile ? (sinks + 2 * kKvTile - 1) / (2 * kKvTile) : INT32_MAX;
  p.recent = recent_from(a, s, set, p.group, p.length);
}
// f(task) for this block's tasks. By whole warps.
template <class S, class F>
CARAT_D void each_prompt_task(const AttentionPart& a, const DevStep* s, RowSet set, F f) {
  const int32_t per = a.by_width.quotient(S::kRows), groups = group_count(a.runs, s, set, per);
  const int32_t tasks = groups * a.kv.heads * a.chunks;
#pragma unroll 1
  for (int32_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    PromptTask p;
    const int32_t rest = task / groups;
    p.group = group_of(a.runs, s, set, per, groups - 1 - (task - rest * groups));  // the longest first
    p.kv_head = a.by_chunks.quotient(rest);
    const int32_t from = (rest - p.kv_head * a.chunks) * a.width;
    p.head = p.kv_head * a.group + from;
    p.heads = a.group - from < a.width ? a.group - from : a.width;
    p.length = segment_of(a.kv.window, pos_of(s, step_row(s, set, p.group.m)));
#pragma unroll 1
    while (p.length != INT32_MAX) {
      p.reach = reach_of(a, s, set, p.group, p.length);
      p.first = p.all_first = p.reach.first / (2 * kKvTile);
      p.last = p.all_last = p.reach.last / (2 * kKvTile);
      if constexpr (S::kTwice) find_protected(a, s, set, p);
      if constexpr (S::kUnpacked) {
        if (cut_to_part(a, s, set, p)) f(p);
      } else {
        if (p.reach.settled == INT32_MAX) f(p);
      }
      p.length = p.reach.longer;
    }
  }
}

// A round: two tiles that are gone through together. They are a pair, or one of it twice: first for what rows
// read of the cache, then for what they read of second copies (CopyList).
template <class S>
struct PromptRound {
  int32_t batch = 0, alone = -1;  // the pair; which of it comes twice, -1: neither
  int32_t number = 0;             // of a walk's rounds

  PromptRound() = default;
  CARAT_D PromptRound(const PromptTask& p, int32_t pair)
      : batch(pair), alone(comes_twice(p, pair) ? 0 : -1) {}
  CARAT_D static bool comes_twice(const PromptTask& p, int32_t pair) {
    return S::kTwice && (pair < p.twice_below || (pair + 1) * 2 * kKvTile > p.recent);
  }
  CARAT_D bool one_tile() const { return S::kTwice && alone >= 0; }
  CARAT_D bool second(int i) const { return one_tile() && i == 1; }
  CARAT_D int32_t tile(int i) const { return 2 * batch + (one_tile() ? alone : i); }
  CARAT_D bool is_first_of(int32_t pair) const { return batch == pair && !(one_tile() && alone == 1); }
  CARAT_D bool is_last_of(int32_t pair) const { return batch == pair && !(one_tile() && alone == 0); }
  CARAT_D int parity() const { return (S::kTwice ? number : batch) % 2; }
  CARAT_D PromptRound next(const PromptTask& p) const {
    PromptRound behind = *this;
    if (is_last_of(batch))
      behind = PromptRound(p, batch + 1);
    else
      behind.alone = 1;
    behind.number = number + 1;
    return behind;
  }
};

// Where a tile is: row `row` of page `page`, of an unpacked cache of tile `page` in scratch; of second copies
// position `row` of sequence `page`.
struct PromptTile {
  int32_t page, row;
  int32_t first, last;  // rows of it that some pair sees; others are zeros
  bool second;
};
template <class S>
CARAT_D PromptTile prompt_tile(const AttentionPart& a, const DevStep* s, RowSet set, const PromptTask& p,
                               const int32_t* pages, const PromptRound<S>& round, int i) {
  const int32_t tile = round.tile(i), begin = tile * kKvTile;
  PromptTile x{0, 0, p.reach.first - begin, p.reach.last - begin, round.second(i)};
  if (x.last < 0 || x.first >= kKvTile) return x;
  if (x.second) {
    x.page = s->seq[step_row(s, set, p.group.m)], x.row = begin;
    return x;
  }
  if constexpr (S::kUnpacked) {
    x.page = p.before + tile, x.row = p.kv_head * kKvTile;
    return x;
  }
  const int32_t nth = a.kv.page.quotient(a.kv.in_ring(begin));
  x.page = pages[nth];
  x.row = p.kv_head * a.kv.page_tokens + a.kv.in_page(begin);
  return x;
}
// What those pages are of.
struct PromptRows {
  const uint8_t* cache;
  int64_t page_bytes, pitch;
};
template <bool UNPACKED>
CARAT_D PromptRows prompt_rows(const AttentionPart& a, bool values) {
  if constexpr (UNPACKED) {
    const UnpackedTiles& u = a.unpacked;
    const int64_t pitch = 2 * (values ? a.kv.dim : u.key_columns);
    return {values ? u.v : u.k, a.kv.heads * kKvTile * pitch, pitch};
  }
  return values ? PromptRows{a.kv.v, a.kv.v_page_bytes, a.kv.v_row}
                : PromptRows{a.kv.k, a.kv.k_page_bytes, a.kv.k_row};
}

// Eight columns from `column` on of a row of a tile of second copies; null: no row reads it there.
CARAT_D const uint8_t* second_copy(const AttentionPart& a, const DevStep* s, const PromptTask& p,
                                   const PromptTile& x, int row, bool values, int column) {
  const int32_t at = x.row + row;
  const bool there = row >= x.first && row <= x.last && (at < a.copies.protect.sinks || at >= p.recent) &&
                     column < (values ? a.kv.dim : a.copies.key_dim);
  if (!there) return nullptr;
  const SeqView& seq = s->seqs[x.page];
  return 2 * column + (values ? v_edge_row(a.kv, a.copies, seq, at, p.kv_head)
                              : k_edge_row(a.kv, a.copies, seq, at, p.kv_head));
}

// Long segments (is_long()): their pairs of tiles, and what is where. Rounds do not cross their ends.
template <class S>
struct LongSegments {
  using Round = PromptRound<S>;
  int32_t first, last, within;  // pairs of tiles of all of them; a mask, of the tiles of a segment
  CARAT_D explicit LongSegments(const PromptTask& p)
      : first(p.all_first), last(p.all_last), within(p.length / kKvTile - 1) {}
  CARAT_D bool begins(const Round& r) const { return r.is_first_of(first) || (r.tile(0) & within) == 0; }
  CARAT_D bool ends(const Round& r) const { return r.is_last_of(last) || ((r.tile(1) + 1) & within) == 0; }
  CARAT_D bool in_first(const Round& r) const { return (r.tile(0) & ~within) == (2 * first & ~within); }
};

}  // namespace carat::cuda
