// How products of few rows over packed weights are shared out: a block of threads a processor, each with as
// many tiles as any other, so that groups of outputs are cut between two of them. Which block and which warp
// take a tile has nothing to do with the order of sums: t of every tile (packed/rows.cuh) goes to a
// warp that adds, the blocks of a row ascending; sums of a cut group go from one such warp to the next.
#pragma once
#include <type_traits>

#include "cuda/device/arrivals.cuh"
#include "cuda/device/divider.cuh"
#include "cuda/matmul/matmul.cuh"
#include "cuda/matmul/packed/rows.cuh"

namespace carat::cuda {

// Tiles are counted through all groups: `at`.
struct Deal {
  int32_t groups, blocks, tiles;  // blocks: of a row; tiles: of a group, twice as many for gate and up
  uint64_t part;                  // 2^32 / tiles, rounded up: counts stay below 2^32 / tiles
  bool cut;                       // groups between blocks of threads, so that these have as many tiles each
  int32_t early;                  // the first groups, whose weights are known first (EarlyShare); 0 for Share
  int32_t from;                   // the first block of threads that has some,
  Divider among;                  // and how many have

  // Where the share of a block of threads begins: of the early groups, of those behind them.
  CARAT_D int32_t early_border(uint32_t block) const { return border(early, false, block); }
  CARAT_D int32_t border(uint32_t block) const { return early * tiles + border(groups - early, cut, block); }
  CARAT_D int32_t group(int32_t at) const {
    return static_cast<int32_t>(static_cast<uint32_t>(at) * part >> 32);
  }
  CARAT_D int32_t tile(int32_t at) const { return at - group(at) * tiles; }  // of its group
  CARAT_D int32_t block(int32_t at) const {                                  // of a row
    const int32_t t = tile(at);
    return t < blocks ? t : t - blocks;
  }

 private:
  // block: `from` or behind it.
  CARAT_D int32_t border(int32_t of, bool in_tiles, uint32_t block) const {
    const int32_t n = in_tiles ? of * tiles : of;
    return among.quotient(n * (static_cast<int32_t>(block) - from)) * (in_tiles ? 1 : tiles);
  }
};
inline Deal deal_of(int32_t groups, bool paired, int32_t blocks, int32_t among, int32_t early = 0,
                    int32_t from = 0) {
  const int32_t others = groups - early;
  const int32_t tiles = blocks * (paired ? 2 : 1);  // groups * tiles * among is far below 2^31
  return {groups,
          blocks,
          tiles,
          ((uint64_t{1} << 32) + static_cast<uint64_t>(tiles) - 1) / static_cast<uint64_t>(tiles),
          others >= among && others % among != 0,
          early,
          from,
          Divider(among)};
}
// What a block of threads takes, in this order: the beginning of a group whose rest the next block has, whole
// groups, and the end of the group that the block before has begun.
struct Share {
  int32_t begun, whole, total;           // tasks up to the end of each
  int32_t begun_at, whole_at, ended_at;  // their first tiles, counted from the first group on

  CARAT_D explicit Share(const Deal& d) : Share(d, d.border(blockIdx.x), d.border(blockIdx.x + 1)) {}
  CARAT_D Share(const Deal& d, int32_t from, int32_t to) {
    const int32_t last = d.group(to) * d.tiles;
    const int32_t next = (d.group(from + d.tiles - 1)) * d.tiles;  // the first group that begins here
    begun_at = last, whole_at = next, ended_at = from;
    begun = to - last;
    whole = begun + last - next;
    total = to - from;
  }
  CARAT_D int32_t at(int32_t task) const {
    return task < begun ? begun_at + task : task < whole ? whole_at + task - begun : ended_at + task - whole;
  }
  // Whether `task` comes behind the last one of a group that the next block ends.
  CARAT_D bool hands_over(int32_t task) const { return task == begun; }
};
// The same behind whole ones of the deal's early groups.
struct EarlyShare {
  int32_t early_at, early;
  Share rest;
  int32_t begun, whole, total;

  CARAT_D explicit EarlyShare(const Deal& d)
      : early_at(d.early_border(blockIdx.x)),
        early(d.early_border(blockIdx.x + 1) - early_at),
        rest(d),
        begun(early + rest.begun),
        whole(early + rest.whole),
        total(early + rest.total) {}
  CARAT_D int32_t at(int32_t task) const { return task < early ? early_at + task : rest.at(task - early); }
  CARAT_D bool hands_over(int32_t task) const { return task == begun && begun > early; }
};

// By a warp: gates of R rounds of t's that W warps leave and A add.
template <int W, int R, int A = 1>
CARAT_D void init_turns(SharedAddress full, SharedAddress free, int lane) {
  if (lane >= R) return;
  gate_init(full + 8 * lane, arrivals(W));
  gate_init(free + 8 * lane, arrivals(A));
}

// Where t of an output and a row stands among those of a task of several rows: eight rows of an output
// together.
CARAT_HD constexpr int rows_place(int output, int row) { return row / 8 * 256 + output * 8 + row % 8; }

// A warp that adds, MT rows of the OF that a task has. JOB: ProductJob, or one that says what scales a group
// has and what becomes of its sums.
template <int MT, int OF = MT, class JOB = ProductJob, class SHARE = Share>
struct Adder {
  const JOB& job;
  const Deal& deal;
  const SHARE& share;
  const float* d;       // [blocks][OF]: scales of the activations, of a job's first groups; or [R][W]
  uint32_t* handed;     // where this block's sums of the group that it begins go
  uint32_t* taken;      // and those of the block before come from; both [gate and up][MT][32]
  int32_t first, rows;  // of the step: the first of the MT, and how many are there
  int lane, from;       // from: the first of the MT among the OF
  const float* first_left = nullptr;
  float acc[MT] = {}, gate[MT] = {};

  // left: [R][W][OF * 32] (rows_place; of one row [32]), t's of R rounds of W tasks each; `full` and `free`
  // have a gate for each (init_turns).
  template <int W, int R>
  CARAT_D void run(const float* left, SharedAddress full, SharedAddress free, int32_t rounds) {
    first_left = left;
#pragma unroll 1
    for (int32_t c = 0; c < rounds; ++c) {
      gate_wait(full + 8 * (c % R), c / R % 2);
      const int32_t end = (c + 1) * W;
      take(left + c % R * W * OF * 32, c * W, end < share.total ? end : share.total);
      arrive_as_warp(free + 8 * (c % R));
    }
  }

 private:
  // t's of tasks [task, end).
  CARAT_D void take(const float* left, int32_t task, int32_t end) {
    while (task < end) {
      const int32_t at = share.at(task), tile = deal.tile(at), b = deal.block(at);
      if (task == share.whole) take_over();
      const int32_t stop = task < share.begun && share.begun < end ? share.begun : end;
      const int32_t n = deal.blocks - b < stop - task ? deal.blocks - b : stop - task;
      add(left, scales(deal.group(at), b, left), n);
      task += n, left += OF * 32 * n;
      if (tile + n == deal.tiles) {
        finish_group(deal.group(at));
        clear();
      } else if (tile + n == deal.blocks) {
#pragma unroll
        for (int m = 0; m < MT; ++m) gate[m] = acc[m];
        clear();
      }
      if (share.hands_over(task)) hand_over();
    }
  }

 private:
  // Of the activations, from block b on.
  CARAT_D const float* scales(int32_t group, int32_t b, const float* left) const {
    if constexpr (std::is_same_v<JOB, ProductJob>)
      return d + b * OF + from;
    else if constexpr (JOB::kRoundsRow)
      return d + (left - first_left) / 32;
    else
      return d + job.scales_at(group) + b;
  }
  // As product_finish(), but rows wait for nothing of each other.
  CARAT_D void finish_group(int32_t group) {
    if constexpr (!std::is_same_v<JOB, ProductJob>) {
      job.finish(group, lane, gate[0], acc[0]);
    } else if (job.paired) {
      const MatmulArgs& a = job.m[0];
#pragma unroll
      for (int m = 0; m < MT; ++m) gate[m] = gate[m] * a.scale;
      activate_all(a.act, gate);
#pragma unroll
      for (int m = 0; m < MT; ++m) acc[m] = gate[m] * (acc[m] * job.up_scale);
      store(a, group * kGroup + lane);
    } else {
      const int which = job.which(group);
      finish_rows(job.m[which], (group - job.begin(which)) * kGroup + lane);
    }
  }
  CARAT_D void finish_rows(const MatmulArgs& a, int32_t n) {
    if (a.bias.data || a.act != Act::none || a.softcap > 0 || a.mul.data || a.residual.data) {
#pragma unroll 1
      for (int m = 0; m < rows && n < a.w.rows; ++m) finish(a, first + m, n, pick<MT>(acc, m));
      return;
    }
#pragma unroll
    for (int m = 0; m < MT; ++m) acc[m] = acc[m] * a.scale;
    store(a, n);
  }
  CARAT_D void store(const MatmulArgs& a, int32_t n) const {
    if (n >= a.w.rows) return;
    float* y = row_of<float>(a.y, first) + n;
#pragma unroll
    for (int m = 0; m < MT; ++m)
      if (m < rows) y[m * (a.y.pitch / 4)] = acc[m];
  }
  // The usual one without a choice for every row.
  CARAT_D static void activate_all(Act act, float (&v)[MT]) {
    if (MT > 1 && act == Act::gelu_tanh) {
#pragma unroll
      for (int m = 0; m < MT; ++m) v[m] = activate(Act::gelu_tanh, v[m]);
    } else {
#pragma unroll
      for (int m = 0; m < MT; ++m) v[m] = activate(act, v[m]);
    }
  }
  CARAT_D void clear() {
#pragma unroll
    for (int m = 0; m < MT; ++m) acc[m] = 0;
  }
  // Sums of a group from one block of threads to the next, as words; who takes them leaves zeros.
  CARAT_D void hand_over() {
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      if (m >= rows) break;
      put_word(handed + 32 * m + lane, word_of(acc[m]));
      if (job.paired) put_word(handed + 32 * (MT + m) + lane, word_of(gate[m]));
    }
    clear();
  }
  CARAT_D void take_over() {
    take_all(taken + lane, acc);
    if (job.paired) take_all(taken + 32 * MT + lane, gate);
  }
  CARAT_D void take_all(uint32_t* words, float (&to)[MT]) {
    bool all = false;
    while (!all) {
      all = true;
      uint32_t w[MT];
#pragma unroll
      for (int m = 0; m < MT; ++m) w[m] = m < rows ? peek_word(words + 32 * m) : 1;
#pragma unroll
      for (int m = 0; m < MT; ++m) all = all && w[m] != 0, to[m] = value_of(w[m]);
    }
#pragma unroll
    for (int m = 0; m < MT; ++m)
      if (m < rows) put_word(words + 32 * m, 0);
  }
  // Of one row, a round's tiles: all on their way before the first is added.
  CARAT_D void add_at_once(const float* left, const float* of, int32_t n) {
    constexpr int kMost = Tasks::kMostWarps;
    float v[kMost], f[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) v[i] = i < n ? left[i * 32 + lane] : 0, f[i] = i < n ? of[i] : 0;
#pragma unroll
    for (int i = 0; i < kMost; ++i)
      if (i < n) acc[0] = fmaf(f[i], v[i], acc[0]);
  }
  CARAT_D void add(const float* left, const float* of, int32_t n) {
    if constexpr (MT == 1)
      add_at_once(left, of, n);
    else
#pragma unroll 2
      for (int32_t i = 0; i < n; ++i, left += OF * 32, of += OF)
#pragma unroll
        for (int m = 0; m < MT; m += 4) {
          const auto v = *reinterpret_cast<const float4*>(left + rows_place(lane, from + m)),
                     f = *reinterpret_cast<const float4*>(of + m);
          acc[m] = fmaf(f.x, v.x, acc[m]), acc[m + 1] = fmaf(f.y, v.y, acc[m + 1]);
          acc[m + 2] = fmaf(f.z, v.z, acc[m + 2]), acc[m + 3] = fmaf(f.w, v.w, acc[m + 3]);
        }
  }
};

}  // namespace carat::cuda
