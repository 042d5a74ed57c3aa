// What the two kernels of towers' attention have in common: rows of a query head, 16 a warp, lanes as of
// mma_f16; and how scores become weights. Keys, values, queries and weights are floats as two halves each, x
// = high + low, of which three products are made: what is left out is 2^-22 of the result. So magnitudes of
// queries, keys and values are up to 65,504.
#pragma once
#include "cuda/attention/tasks.cuh"

namespace carat::cuda {

inline constexpr int kWholeRows = 128;  // a block

CARAT_D void split_halves(float a, float b, uint32_t& high, uint32_t& low) {
  high = pack_halves(a, b);
  low = pack_halves(a - half_float(high & 0xffffu), b - half_float(high >> 16));
}
// Of the group's rows: the last positions that are seen by any, and by all.
struct WholeReach {
  int32_t most = -1, least = INT32_MAX;
  CARAT_D WholeReach(const AttentionPart& a, const DevStep* s, RowSet set, const RowGroup& group) {
    for (int32_t i = threadIdx.x % 32; i < group.n; i += 32) {
      const int32_t at = seen_by(a, s, step_row(s, set, group.m + i)).last;
      most = at > most ? at : most, least = at < least ? at : least;
    }
    most = -warp_least(-most), least = warp_least(least);
  }
  CARAT_D int32_t tiles() const { return most / kKvTile + 1; }
};

// KEYS, VALUES: columns of a head, zeros behind the last.
template <int KEYS, int VALUES>
struct WholeRows {
  static constexpr float kLift = 14;  // weights are up to 2^14: the least of them are halves, too
  const AttentionPart& a;
  const DevStep* s;
  RowSet set;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const RowGroup group;
  const int32_t head;
  const WholeReach reach;
  int32_t last[2];  // of the two rows that a lane has
  uint32_t q[2][KEYS / 16][4];
  float o[VALUES / 8][4], top[2], sum[2], fade[2];

  CARAT_D WholeRows(const AttentionPart& args, const DevStep* step, RowSet rows, const RowGroup& of,
                    int32_t of_head)
      : a(args), s(step), set(rows), group(of), head(of_head), reach(args, step, rows, of) {}

  CARAT_D int row_of_pair(int r) const { return 16 * warp + g + 8 * r; }
  CARAT_D void begin() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t i = row_of_pair(r);
      last[r] = i < group.n ? seen_by(a, s, step_row(s, set, group.m + i)).last : -1;
      top[r] = -INFINITY, sum[r] = 0;
#pragma unroll
      for (int c = 0; c < KEYS / 8; ++c) {
        const int32_t column = 8 * c + 2 * t;
        float2 x{0, 0};
        if (i < group.n && 8 * c < a.kv.dim) {  // rows may begin at any multiple of 4 bytes
          const float* from = row_of<const float>(a.q, group.m + i) + head * a.kv.dim + column;
          x = {from[0], from[1]};
        }
        split_halves(x.x, x.y, q[0][c / 2][c % 2 * 2 + r], q[1][c / 2][c % 2 * 2 + r]);
      }
    }
#pragma unroll
    for (int c = 0; c < VALUES / 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[c][e] = 0;
  }
  // Scores of a tile become weights; `fade`: what there is so far is to be multiplied by. MASKS: not all rows
  // may see all of the tile. CAPS: scores may have one.
  template <bool MASKS, bool CAPS>
  CARAT_D void weigh(int32_t tile, float (&x)[8][4]) {
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) x[j][e] = x[j][e] * a.scale;
    if (CAPS && a.softcap > 0) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) x[j][e] = a.softcap * tanhf(x[j][e] / a.softcap);
    }
    const int32_t begin = tile * kKvTile;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float now = top[r];
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          x[j][e] *= kLog2e;
          if (MASKS && begin + 8 * j + 2 * t + e % 2 > last[r]) x[j][e] = -INFINITY;
          now = fmaxf(now, x[j][e]);
        }
      now = fmaxf(now, shuffle_xor(now, 1));
      now = fmaxf(now, shuffle_xor(now, 2));
      const float safe = now == -INFINITY ? 0 : now;
      fade[r] = exp2f(top[r] - safe);
      top[r] = now, sum[r] *= fade[r];
      // Weights below 2^-126 count for nothing: the row's largest is 2^14.
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e)
          x[j][e] = exp2_flushed(x[j][e] - (safe - kLift)), sum[r] += x[j][e];
    }
  }
  CARAT_D void fade_values() {
#pragma unroll
    for (int c = 0; c < VALUES / 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[c][e] *= fade[e / 2];
  }
  // Weights of positions 16 k .. 16 k + 15 as halves, high and low.
  CARAT_D static void split_weights(const float (&x)[8][4], int k, uint32_t (&w)[2][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      split_halves(x[2 * k + i / 2][i % 2 * 2], x[2 * k + i / 2][i % 2 * 2 + 1], w[0][i], w[1][i]);
  }
  CARAT_D void leave() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += shuffle_xor(sum[r], 1);
      sum[r] += shuffle_xor(sum[r], 2);
      const int32_t i = row_of_pair(r);
      if (i >= group.n) continue;
      float* y = row_of<float>(a.y, group.m + i) + head * a.kv.dim + 2 * t;
#pragma unroll
      for (int c = 0; c < VALUES / 8; ++c)
        if (8 * c < a.kv.dim) y[8 * c] = o[c][2 * r] / sum[r], y[8 * c + 1] = o[c][2 * r + 1] / sum[r];
    }
  }
};

// f(group, head) for this block's tasks.
template <class F>
CARAT_D void each_whole_task(const AttentionPart& a, const DevStep* s, RowSet set, F f) {
  const int32_t groups = group_count(a.runs, s, set, kWholeRows), tasks = groups * a.heads;
#pragma unroll 1
  for (int32_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int32_t head = task / groups;
    f(group_of(a.runs, s, set, kWholeRows, task - head * groups), head);
  }
}

// On warpgroups; false: nothing for that kernel (whole/wide.cu).
bool attention_whole_wide(const Context& c, const AttentionPart& a, int32_t rows, RowSet set);

}  // namespace carat::cuda
