// Attention of prompts (prompts/prompts.cuh): what the two warpgroups that multiply do with
// queries, keys and weights, however long segments are.
#pragma once
#include "cuda/attention/prompts/load.cuh"
#include "cuda/device/arrivals.cuh"
#include "cuda/matmul/wide/halves.cuh"

namespace carat::cuda {

// One of the two warpgroups that multiply.
template <class S>
struct PromptWalk {
  using Round = PromptRound<S>;
  const AttentionPart& a;
  const DevStep* s;
  const Tables& tables;
  RowSet set;
  unsigned char* memory;
  const SharedAddress base = shared_address(memory);
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, band = threadIdx.x / 32 % 4,
            group = threadIdx.x / 128;
  PromptWarp& own = *reinterpret_cast<PromptWarp*>(memory + S::kWarps + threadIdx.x / 32 * 1024);
  const PromptTask& p = own.task;
  bool fences = true;  // pieces may have been copied by threads
  int slot = 0, parity = 0, used = 0;
  float o[S::kChunks][8][4];  // of the whole row so far; where segments are long, of the segment
  float sum[4], top[2], total_sum[2], total_top[2];

  CARAT_D PromptWalk(const AttentionPart& args, const DevStep* step, const Tables& all, RowSet rows,
                     unsigned char* shared)
      : a(args), s(step), tables(all), set(rows), memory(shared) {}

  CARAT_D SharedAddress next_piece() {
    const int at = group * S::kStages + slot;
    gate_wait(base + S::kGates + 8 * at, parity);
    if (fences) show_to_products();
    if (++slot == S::kStages) slot = 0, parity ^= 1;
    return base + S::kRing + at * S::kPiece;
  }
  // The first piece that has not been given back is no longer needed.
  CARAT_D void give_back() {
    arrive_as_warp(base + S::kGates + 8 * (2 * S::kStages + group * S::kStages + used));
    if (++used == S::kStages) used = 0;
  }

  // Column i of the queries of pair `at`.
  CARAT_D uint16_t& query(int at, int32_t i) const {
    return *reinterpret_cast<uint16_t*>(memory + S::kQuery + i / 64 * S::kPiece + 128 * at +
                                        (i / 8 % 8 ^ at % 8) * 16 + i % 8 * 2);
  }
  // What meets the values, then what meets what is stored of the keys; zeros behind.
  CARAT_D void split_queries() const {
    const QuerySplit<S::kDim / 32, kKeyColumns / 32> split(a, tables, lane);
#pragma unroll 1
    for (int at = threadIdx.x / 32; at < kPromptRows; at += kPromptConsumers / 32) {
      const int32_t row = a.by_width.quotient(at), nth = at - row * a.width;
      const bool there = row < p.group.n && nth < p.heads;
      for (int i = lane; i < S::kQueries; i += 32) query(at, i) = 0;
      sync_warp();
      if (!there) continue;
      split.run(
          row_of<const float>(a.q, p.group.m + row) + int64_t{p.head + nth} * S::kDim,
          [&](int32_t i, float x) { query(at, i) = static_cast<uint16_t>(pack_halves(x, 0)); },
          [&](int32_t i, float x) { query(at, S::kDim + i) = static_cast<uint16_t>(pack_halves(x, 0)); });
    }
  }
  CARAT_D void take_queries() const {
    if constexpr (S::kSingle) return split_queries();
    constexpr int kUnits = S::kDim / 8;
    for (int i = threadIdx.x; i < kPromptRows * kUnits; i += kPromptConsumers) {
      const int at = i / kUnits, unit = i % kUnits;
      uint4 v{0, 0, 0, 0};
      const int32_t row = a.by_width.quotient(at), nth = at - row * a.width;
      if (row < p.group.n && nth < p.heads) {
        const auto* x = reinterpret_cast<const float4*>(row_of<const float>(a.q, p.group.m + row) +
                                                        int64_t{p.head + nth} * S::kDim + 8 * unit);
        const float4 x0 = x[0], x1 = x[1];
        v = uint4{pack_halves(x0.x, x0.y), pack_halves(x0.z, x0.w), pack_halves(x1.x, x1.y),
                  pack_halves(x1.z, x1.w)};
      }
      *reinterpret_cast<uint4*>(memory + S::kQuery + unit / 8 * S::kPiece + 128 * at +
                                (unit % 8 ^ at % 8) * 16) = v;
    }
  }
  CARAT_D void begin(const PromptTask& task) {
    sync_warp();
    if (lane == 0) own.task = task;
    if (lane < 16)
      own.pairs[lane] = pair_of(a, s, set, task.group, 16 * band + lane, task.head, task.heads, task.length);
    sync_warp();
    take_queries();
#pragma unroll
    for (int r = 0; r < 2; ++r) total_top[r] = -INFINITY, total_sum[r] = 0;
    if (S::kUnpacked && p.first > p.all_first) go_on();
    show_to_products();
    turn_wait(1, kPromptConsumers);
  }
  // Where a pair's state waits between the parts of an unpacked cache; null: there is no pair.
  CARAT_D float2* state(int r) const {
    const Pair of = own.pairs[g + 8 * r];
    return of.row < 0 ? nullptr : a.unpacked.states + int64_t{p.group.m + of.row} * a.heads + of.head;
  }
  CARAT_D void go_on() {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (const float2* v = state(r)) total_top[r] = v->x, total_sum[r] = v->y;
  }
  CARAT_D void leave_state() const {
    if (group || t) return;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (float2* v = state(r)) *v = float2{total_top[r], total_sum[r]};
  }

  // x = or += columns 64 c .. 64 c + 63 of the queries times the next piece, this warpgroup's tile's keys.
  CARAT_D void add_scores(int c, float (&x)[8][4]) {
    const uint64_t keys = codes_operand(next_piece()),
                   queries = codes_operand(base + S::kQuery + c * S::kPiece);
    wide_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      wide_scores(x, behind(queries, 32 * k), behind(keys, 32 * k), c == 0 && k == 0);
  }
  // Products that begin with `=` need no zeros; the compiler then need not keep the registers' old values.
  CARAT_D static void clear(float (&x)[8][4]) {
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) x[j][e] = 0;
  }
  CARAT_D void scores(float (&x)[8][4]) {
    clear(x);
#pragma unroll 2
    for (int c = 0; c < S::kKeyPieces; ++c) {
      add_scores(c, x);
      wide_commit();
      if (c > 0) wide_wait<1>(), give_back();
    }
    wide_wait<0>();
    give_back();
  }
  // What a pair does not see of this warpgroup's tile is -inf; the largest of each goes to shared memory.
  CARAT_D void mask(const Round& now, float (&x)[8][4]) const {
    const int32_t begin = now.tile(group) * kKvTile;
    const bool all = begin >= p.reach.all_from && begin + kKvTile - 1 <= p.reach.all_to && !now.one_tile();
    const float scale = a.scale * kLog2e;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) x[j][e] *= scale;
    if (!all) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Pair of = own.pairs[g + 8 * r];
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int32_t at = begin + 8 * j + 2 * t + e;
            const bool seen = at >= of.first && at <= of.last &&
                              (!now.one_tile() || a.copies.protect.covers(of.last, at) == now.second(group));
            if (!seen) x[j][2 * r + e] = -INFINITY;
          }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = -INFINITY;
#pragma unroll
      for (int j = 0; j < 8; ++j) most = fmaxf(most, fmaxf(x[j][2 * r], x[j][2 * r + 1]));
      most = fmaxf(most, shuffle_xor(most, 1));
      most = fmaxf(most, shuffle_xor(most, 2));
      if (t == 0) tops(now, group)[16 * band + g + 8 * r] = most;
    }
    sync_warp();
  }
  CARAT_D float* tops(const Round& now, int i) const {
    return reinterpret_cast<float*>(memory + S::kMost) + (now.parity() * 2 + i) * kPromptRows;
  }

  // How the pairs go on with tile i of two. Returns what to take from the exponents of its scores.
  CARAT_D float2 turn(const Round& now, int i, bool fresh, bool last) {
    float safe[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float was = fresh ? -INFINITY : top[r], most = fmaxf(was, tops(now, i)[16 * band + g + 8 * r]);
      safe[r] = most == -INFINITY ? 0 : most;
      top[r] = most;
      typename PromptWarp::Turn u{exp2f(was - safe[r]), 1, 0, total_top[r] == -INFINITY};
      if (last && most != -INFINITY) {
        const float all = fmaxf(total_top[r], most);
        u.keep = weight_of(total_top[r], all), u.take = weight_of(most, all);
        total_top[r] = all;
      }
      if (t == 0) own.turns[i][g + 8 * r] = u;
    }
    sync_warp();
    return float2{safe[0], safe[1]};
  }
  // A tile's scores as weights, operands of products with values: 16 keys each.
  CARAT_D void make_weights(const float (&x)[8][4], float2 safe, uint32_t (&w)[4][4]) const {
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        w[j / 2][j % 2 * 2 + r] = pack_halves(
            exp2_flushed(x[j][2 * r] - (r ? safe.y : safe.x)),
            exp2_flushed(x[j][2 * r + 1] - (r ? safe.y : safe.x)));  // far below the least half: 0
  }
  // To where both warpgroups take them from.
  CARAT_D void put_weights(const uint32_t (&w)[4][4]) const {
    unsigned char* to = memory + S::kWeight + group * S::kPiece + 128 * (16 * band + g) + 4 * t;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        *reinterpret_cast<uint32_t*>(to + 1024 * r + (j ^ g) * 16) = w[j / 2][j % 2 * 2 + r];
  }
  CARAT_D void take_weights(int i, uint32_t (&w)[4][4]) const {
    const int row = lane % 16;
    const SharedAddress from = base + S::kWeight + i * S::kPiece + 128 * (16 * band + row);
#pragma unroll
    for (int k = 0; k < 4; ++k) load_matrices(w[k], from + ((2 * k + lane / 16) ^ row % 8) * 16);
  }
  CARAT_D void add_sum(int i, bool fresh, bool last, const uint32_t (&w)[4][4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[e] = fresh ? 0 : sum[e] * own.turns[i][g + 8 * (e / 2)].fade;
#pragma unroll
    for (int k = 0; k < 4; ++k) mma_f16(sum, w[k], 0x3c003c00u, 0x3c003c00u);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto u = own.turns[i][g + 8 * r];
      if (last) fold(total_sum[r], sum[2 * r], u.keep, u.take);
    }
  }

  CARAT_D float* output(int r) const {
    const Pair of = own.pairs[g + 8 * r];
    return of.row < 0 ? nullptr
                      : row_of<float>(a.y, p.group.m + of.row) + int64_t{of.head} * S::kDim +
                            group * (S::kDim / 2) + 2 * t;
  }

  // Segments of one tile or of two (prompts/short.cuh).
  template <int TILES>
  CARAT_D void walk_short();
  template <int TILES, bool AHEAD>
  CARAT_D void short_values(float (&x)[8][4], float (&part)[8][4]);
  CARAT_D void fade_values(int i, float (&to)[8][4]) const;
  CARAT_D void add_values(bool fresh, const uint32_t (&w)[4][4], float (&to)[8][4]);
  CARAT_D void fold_part(int i, int c, const float (&part)[8][4]);
  CARAT_D void leave_output() const;

  // Longer ones (prompts/long.cuh).
  CARAT_D void walk_long();
  CARAT_D void walk_first(const LongSegments<S>& segments, float (&x)[8][4], uint32_t (&w)[4][4]);
  CARAT_D void walk_second(const LongSegments<S>& segments, float (&x)[8][4], uint32_t (&w)[4][4]);
  CARAT_D SharedAddress next_two();
  CARAT_D void give_back_two();
  CARAT_D void long_scores(float (&x)[8][4]);
  CARAT_D void softmax_tile(const LongSegments<S>& segments, const Round& now, float (&x)[8][4],
                            uint32_t (&w)[4][4]);
  template <bool BEHIND>
  CARAT_D void add_tile(int i, bool fresh, const uint32_t (&w)[4][4]);
  CARAT_D void wait_values();
  CARAT_D void second_values(const LongSegments<S>& segments, const Round& now);
  CARAT_D void end_segment(const LongSegments<S>& segments, const Round& now);
  CARAT_D void fold_into_output(bool more, bool last);

  CARAT_D void run() {
    each_prompt_task<S>(a, s, set, [&](const PromptTask& task) {
      begin(task);
      if (is_long<S>(p))
        walk_long();
      else if (p.length > kKvTile)
        walk_short<2>();
      else
        walk_short<1>();
    });
  }
};

}  // namespace carat::cuda
