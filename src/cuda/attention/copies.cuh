// What attention has besides over single copies of K = V (KvSpec::pairs): a query in two parts, of which one
// meets the stored values and the other what is stored of the keys; and over protected rows (KvProtect):
// second copies.
#pragma once
#include "cuda/attention/tasks.cuh"

namespace carat::cuda {

inline constexpr int kKeyColumns =
    128;  // of queries in tiles that meet stored keys of single copies, at most
inline bool tiles_take(const DevCopies& c) {
  return c.pairs == 0 || (c.key_dim % 8 == 0 && c.key_dim <= kKeyColumns);
}

// As split_query() of core/kv_codec.h, by a warp: heads of up to 32 EACH, keys of up to 32 KEY elements.
template <int EACH, int KEY>
struct QuerySplit {
  const AttentionPart& a;
  const int lane;
  const Rotation<EACH> by_value;
  const Rotation<KEY> by_key;

  CARAT_D QuerySplit(const AttentionPart& args, const Tables& tables, int thread)
      : a(args),
        lane(thread),
        by_value(device_rotation(args.kv.v_type), false, args.kv.dim, tables, thread),
        by_key(device_rotation(args.kv.k_type), false, args.copies.key_dim, tables, thread) {}

  // value(i, x), i < dim: what meets the values. key(i, x), i < key_dim: what meets the keys.
  template <class V, class K>
  CARAT_D void run(const float* q, V value, K key) const {
    const int32_t dim = a.kv.dim, half = dim / 2, pairs = a.copies.pairs, n = a.copies.key_dim;
    float part[KEY];
#pragma unroll
    for (int k = 0; k < KEY; ++k) {
      const int32_t i = lane + 32 * k;
      part[k] = i < n ? q[i < pairs ? i : half + i - pairs] : 0;
    }
    by_key.turn(part, lane);
#pragma unroll
    for (int k = 0; k < KEY; ++k)
      if (lane + 32 * k < n) key(lane + 32 * k, part[k]);
    float v[EACH];
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      const int32_t i = lane + 32 * k;
      v[k] = i < dim && (i < half ? i : i - half) >= pairs ? q[i] * a.copies.gain[i] : 0;
    }
    by_value.turn(v, lane);
#pragma unroll
    for (int k = 0; k < EACH; ++k)
      if (lane + 32 * k < dim) value(lane + 32 * k, v[k]);
  }
};

// The row that a position p reads of position j: of the cache or of the second copy.
struct KeptRow {
  const uint8_t* row;
  DType type;
};
CARAT_D KeptRow key_read(const AttentionPart& a, const Seen& seen, int32_t p, int32_t j, int32_t head) {
  const int32_t slot = seen.slot(j);
  if (a.copies.protect.covers(p, j)) return {k_edge_row(a.kv, a.copies, *seen.seq, slot, head), DType::f16};
  return {k_row(a.kv, *seen.seq, slot, head), a.kv.k_type};
}
CARAT_D KeptRow value_read(const AttentionPart& a, const Seen& seen, int32_t p, int32_t j, int32_t head) {
  const int32_t slot = seen.slot(j);
  if (a.copies.protect.covers(p, j)) return {v_edge_row(a.kv, a.copies, *seen.seq, slot, head), DType::f16};
  return {v_row(a.kv, *seen.seq, slot, head), a.kv.v_type};
}

// The first of the last positions that a row at p reads of the second copy.
CARAT_D int32_t recent_from(const DevCopies& c, int32_t p) {
  return c.protect.recent > 0 ? p - c.protect.recent + 1 : INT32_MAX;
}
// The same of all rows of a group whose segments have one length.
CARAT_D int32_t recent_from(const AttentionPart& a, const DevStep* s, RowSet set, const RowGroup& g,
                            int32_t length) {
  int32_t from = INT32_MAX;
#pragma unroll 1
  for (int32_t i = threadIdx.x % 32; i < g.n; i += 32) {
    const int32_t p = pos_of(s, step_row(s, set, g.m + i)), mine = recent_from(a.copies, p);
    if (segment_of(a.kv.window, p) == length && mine < from) from = mine;
  }
  return warp_least(from);
}

// TileList where rows are protected: tiles in which some row of the group reads second copies come twice,
// first for what rows read of the cache, then for what they read of the copies. Who reads nothing the one
// time adds nothing, so that a row's sums are its own.
struct CopyList {
  struct Run {  // n tiles, of which the first `head` and the last `tail` come twice
    int32_t first, n, head, tail;
    CARAT_D Run(int32_t from, int32_t end, int32_t sinks, int32_t recent) : first(from), n(end - from) {
      const auto some = [](int32_t v, int32_t most) { return v < 0 ? 0 : v < most ? v : most; };
      head = some((sinks + kKvTile - 1) / kKvTile - first, n);
      tail = some(end - (recent < 0 ? 0 : recent / kKvTile), n - head);
    }
    CARAT_D int32_t count() const { return n + head + tail; }
    CARAT_D bool in_tail(int32_t i) const { return i >= n + head - tail; }
    CARAT_D int32_t tile(int32_t i) const {
      if (i < 2 * head) return first + i / 2;
      return first + (in_tail(i) ? n - tail + (i - (n + head - tail)) / 2 : i - head);
    }
    CARAT_D bool second(int32_t i) const {
      return i < 2 * head ? i % 2 != 0 : in_tail(i) && (i - (n + head - tail)) % 2 != 0;
    }
    CARAT_D bool ends(int32_t i) const {  // the tile's last time
      return second(i) || (i >= 2 * head && !in_tail(i));
    }
  };
  struct Entry {
    int32_t tile, row;  // row: whose alone, -1: of all
    bool second;        // what rows read of the second copies
    bool ends, last;    // the tile's last time; the last one of the row, or of all
  };
  Run shared, own;
  int32_t recent, count;  // recent: recent_from() of the group

  CARAT_D CopyList(int32_t from, int32_t to, int32_t settled, int32_t rows, int32_t sinks, int32_t recents)
      : CopyList(from, TileList(from, to, settled, 1).forked, to + 1, rows, sinks, recents, 0) {}
  CARAT_D Entry entry(int32_t i) const {
    const int32_t behind = i - shared.count();
    const bool alone = behind >= 0;
    const Run& run = alone ? own : shared;
    const int32_t at = alone ? behind % own.count() : i;
    return {run.tile(at), alone ? behind / own.count() : -1, run.second(at), run.ends(at),
            at + 1 == run.count() && (alone || own.n == 0)};
  }

 private:
  CARAT_D CopyList(int32_t from, int32_t fork, int32_t end, int32_t rows, int32_t sinks, int32_t recents, int)
      : shared(from, fork, sinks, recents), own(fork, end, sinks, recents), recent(recents) {
    count = shared.count() + own.count() * rows;
  }
};

}  // namespace carat::cuda
