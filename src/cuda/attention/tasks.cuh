// Which rows share a task of attention, what they see between them, and the tiles of positions they go
// through.
#pragma once
#include "cuda/attention/attention.cuh"

namespace carat::cuda {

struct RowGroup {  // rows m .. m + n - 1 of the set, of one sequence
  int32_t m, n;
};
CARAT_D int32_t run_count(const DevStep* s, RowSet set) {
  return set == RowSet::all ? s->n_runs : s->n_out_runs;
}
// Groups of up to `per` rows in a sequence's rows; those of another length (RunLengths) are another launch's.
CARAT_D int32_t groups_in(const RunLengths& of, const SeqRun& run, int32_t per) {
  return of.has(run.count) ? (run.count + per - 1) / per : 0;
}
// Sequences with a row each, one or many, are the common case: nothing is counted.
CARAT_D int32_t group_count(const RunLengths& of, const DevStep* s, RowSet set, int32_t per) {
  const int32_t rows = row_count(s, set), n = run_count(s, set);
  if (rows == n) return of.has(1) ? rows : 0;
  const SeqRun* runs = set == RowSet::all ? s->runs : s->out_runs;
  int32_t sum = 0;
#pragma unroll 1
  for (int32_t i = 0; i < n; ++i) sum += groups_in(of, runs[i], per);
  return sum;
}
CARAT_D RowGroup group_of(const RunLengths& of, const DevStep* s, RowSet set, int32_t per, int32_t which) {
  if (row_count(s, set) == run_count(s, set)) return {which, 1};
  const SeqRun* run = set == RowSet::all ? s->runs : s->out_runs;
  for (;; ++run) {
    const int32_t here = groups_in(of, *run, per);
    if (which < here) break;
    which -= here;
  }
  const int32_t left = run->count - which * per;
  return {run->first + which * per, left < per ? left : per};
}

// What the rows of a group whose segments have one length see between them.
struct Reach {
  int32_t first, last;       // of all of them
  int32_t all_from, all_to;  // seen by each
  int32_t settled;           // below it slots are positions
  int32_t longer;            // the next length in the group
};
CARAT_D int32_t warp_least(int32_t v) {
#pragma unroll 1
  for (int m = 16; m; m >>= 1) {
    const int32_t o = shuffle_xor(v, m);
    v = o < v ? o : v;
  }
  return v;
}
CARAT_D Reach reach_of(const AttentionPart& a, const DevStep* s, RowSet set, const RowGroup& g,
                       int32_t length) {
  if (g.n == 1) {
    const Seen v = seen_by(a, s, step_row(s, set, g.m));
    return {v.first, v.last, v.first, v.last, v.settled, INT32_MAX};
  }
  Reach r{INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX};  // `last`, `all_from` negated
  const auto least = [](int32_t& v, int32_t x) { v = x < v ? x : v; };
#pragma unroll 1
  for (int32_t i = threadIdx.x % 32; i < g.n; i += 32) {
    const Seen v = seen_by(a, s, step_row(s, set, g.m + i));
    const int32_t mine = segment_of(a.kv.window, pos_of(s, v.row));
    if (mine > length) least(r.longer, mine);
    if (mine != length) continue;
    least(r.first, v.first), least(r.last, -v.last), least(r.all_from, -v.first), least(r.all_to, v.last);
    least(r.settled, v.settled);
  }
  return {warp_least(r.first),  -warp_least(r.last),   -warp_least(r.all_from),
          warp_least(r.all_to), warp_least(r.settled), warp_least(r.longer)};
}

// Of the sequence of a row of the step; null: its cache is read as it is.
CARAT_D const UnpackedRun* unpacked_run(const AttentionPart& a, const DevStep* s, int32_t row) {
  const UnpackedRun* runs = s->unpacked[a.span];
  const int32_t seq = s->seq[row];
  for (int32_t i = 0; i < s->n_unpacked[a.span]; ++i)
    if (runs[i].seq == seq) return runs + i;
  return nullptr;
}
// Tiles of its that are in scratch, where tile n is at before + n. None: last < first.
struct UnpackedPart {
  int32_t first, last, before;
  CARAT_D UnpackedPart(const UnpackedTiles& u, const UnpackedRun& run) {
    const int32_t begin = u.part * u.tiles - run.at, end = begin + u.tiles;  // of the run's tiles
    first = run.first + (begin > 0 ? begin : 0);
    last = run.first + (end < run.count ? end : run.count) - 1;
    before = -begin - run.first;
  }
};
// Whether rows of a group are done by another kernel: f16 prompts on chains, or what was unpacked.
CARAT_D bool done_elsewhere(const AttentionPart& a, const DevStep* s, RowSet set, const RowGroup& g,
                            const Reach& reach) {
  if (a.forks) return reach.settled == INT32_MAX;
  return a.covered && unpacked_run(a, s, step_row(s, set, g.m)) != nullptr;
}

struct Pair {                      // a row and a query head
  int32_t row, head, first, last;  // row: of the group, -1: of another length
};
// Pair i of a task that has `heads` of its most from `head` on.
CARAT_D Pair pair_of(const AttentionPart& a, const DevStep* s, RowSet set, const RowGroup& g, int32_t i,
                     int32_t head, int32_t heads, int32_t length) {
  const int32_t row = a.by_width.quotient(i), nth = i - row * a.width;
  head += nth;
  if (row >= g.n || nth >= heads) return {-1, head, INT32_MAX, -1};
  const Seen v = seen_by(a, s, step_row(s, set, g.m + row));
  if (segment_of(a.kv.window, pos_of(s, v.row)) != length) return {-1, head, INT32_MAX, -1};
  return {row, head, v.first, v.last};
}

// Tiles in the order they are gone through: those that all rows find in the same place; then, where rows of
// a tree have positions of their own, the others once for every row.
struct TileList {
  int32_t first, shared, forked, own, count;
  CARAT_D TileList(int32_t from, int32_t to, int32_t settled, int32_t rows) {
    const int32_t fork = settled / kKvTile;
    first = from;
    forked = fork < from ? from : fork > to ? to + 1 : fork;
    shared = forked - from, own = to + 1 - forked;
    count = shared + own * rows;
  }
  CARAT_D int32_t tile(int32_t i) const { return i < shared ? first + i : forked + (i - shared) % own; }
  CARAT_D int32_t row(int32_t i) const { return i < shared ? -1 : (i - shared) / own; }
  CARAT_D bool last_of_row(int32_t i) const {
    return i < shared ? own == 0 && i + 1 == shared : (i - shared) % own == own - 1;
  }
};

}  // namespace carat::cuda
