// Attention of prompts on warpgroups (sm_90a), heads of 256 and 512, caches of halves or decoded to halves,
// rows on chains, scores without a cap. A task is 64 pairs of a row and a query head as in
// attention_tiles.cuh, and so are its bits. It goes through the positions two tiles of 64 at a time: one
// warpgroup brings keys and values to shared memory, 64 columns at a time; each of two others multiplies the
// queries by one tile's keys, and then both tiles' weights by its half of the columns of the values.
#pragma once
#include "cuda/attention/attention_prompts_load.cuh"
#include "cuda/device/arrivals.cuh"
#include "cuda/matmul/wide_halves.cuh"

namespace carat::cuda {

// One of the two warpgroups that multiply.
template <class S>
struct PromptWalk {
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
  int slot = 0, parity = 0, used = 0;
  float o[S::kChunks][8][4];  // of the whole row so far; where segments are long, of the segment
  float sum[4], top[2], total_sum[2], total_top[2];

  CARAT_D PromptWalk(const AttentionPart& args, const DevStep* step, const Tables& all, RowSet rows,
                     unsigned char* shared)
      : a(args), s(step), tables(all), set(rows), memory(shared) {}

  CARAT_D SharedAddress next_piece() {
    const int at = group * S::kStages + slot;
    gate_wait(base + S::kGates + 8 * at, parity);
    show_to_products();
    if (++slot == S::kStages) slot = 0, parity ^= 1;
    return base + S::kRing + at * S::kPiece;
  }
  // The first piece that has not been given back is no longer needed.
  CARAT_D void give_back() {
    arrive_as_warp(base + S::kGates + 8 * (2 * S::kStages + group * S::kStages + used));
    if (++used == S::kStages) used = 0;
  }

  // As N products come to their end.
  template <int N>
  CARAT_D void give_back_each() {
    wide_wait<N - 1>();
    give_back();
    if constexpr (N > 1) give_back_each<N - 1>();
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
  CARAT_D void scores(float (&x)[8][4]) {
#pragma unroll
    for (int j = 0; j < 8; ++j)  // so that nobody keeps what was in them
#pragma unroll
      for (int e = 0; e < 4; ++e) x[j][e] = 0;
#pragma unroll 2
    for (int c = 0; c < S::kKeyPieces; ++c) {
      add_scores(c, x);
      wide_commit();
      if (c > 0) wide_wait<1>(), give_back();
    }
    wide_wait<0>();
    give_back();
  }
  // What a pair does not see is -inf; the largest of each goes to shared memory.
  CARAT_D void mask(int32_t tile, float (&x)[8][4]) const {
    const int32_t begin = tile * kKvTile;
    const bool all = begin >= p.reach.all_from && begin + kKvTile - 1 <= p.reach.all_to;
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
            if (at < of.first || at > of.last) x[j][2 * r + e] = -INFINITY;
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
      if (t == 0) tops(group)[16 * band + g + 8 * r] = most;
    }
  }
  CARAT_D float* tops(int i) const { return reinterpret_cast<float*>(memory + S::kMost) + i * kPromptRows; }

  // How the pairs go on with tile i of two. Returns what to take from the exponents of its scores.
  CARAT_D float2 turn(int i, bool fresh, bool last) {
    float safe[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float was = fresh ? -INFINITY : top[r], now = fmaxf(was, tops(i)[16 * band + g + 8 * r]);
      safe[r] = now == -INFINITY ? 0 : now;
      top[r] = now;
      typename PromptWarp::Turn u{exp2f(was - safe[r]), 1, 0, total_top[r] == -INFINITY};
      if (last && now != -INFINITY) {
        const float most = fmaxf(total_top[r], now);
        u.keep = weight_of(total_top[r], most), u.take = weight_of(now, most);
        total_top[r] = most;
      }
      if (t == 0) own.turns[i][g + 8 * r] = u;
    }
    return float2{safe[0], safe[1]};
  }
  CARAT_D void weigh(const float (&x)[8][4], float2 safe) const {
    unsigned char* to = memory + S::kWeight + group * S::kPiece + 128 * (16 * band + g) + 4 * t;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        *reinterpret_cast<uint32_t*>(to + 1024 * r + (j ^ g) * 16) = pack_halves(
            exp2_flushed(x[j][2 * r] - (r ? safe.y : safe.x)),
            exp2_flushed(x[j][2 * r + 1] - (r ? safe.y : safe.x)));  // far below the least half: 0
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
  template <bool MAYBE>
  CARAT_D void fade_values(int i, float (&to)[8][4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float fade = own.turns[i][g + 8 * r].fade;
      if (MAYBE && !ballot(fade != 1)) continue;  // as most of the time
#pragma unroll
      for (int j = 0; j < 8; ++j) to[j][2 * r] *= fade, to[j][2 * r + 1] *= fade;
    }
  }
  // to = or += the tile's weights times a piece of its values, once that is waited for.
  CARAT_D void add_values(bool fresh, const uint32_t (&w)[4][4], float (&to)[8][4]) {
    const uint64_t values = turned_operand(next_piece());
    wide_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) wide_values(to, w[k], behind(values, 2048 * k), fresh && k == 0);
  }

  CARAT_D float* output(int r) const {
    const Pair of = own.pairs[g + 8 * r];
    return of.row < 0 ? nullptr
                      : row_of<float>(a.y, p.group.m + of.row) + int64_t{of.head} * S::kDim +
                            group * (S::kDim / 2) + 2 * t;
  }
  // A segment has ended; where a row saw nothing of it, nothing is taken.
  CARAT_D void fold_part(int i, int c, const float (&part)[8][4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto u = own.turns[i][g + 8 * r];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        fold(o[c][j][2 * r], part[j][2 * r], u.keep, u.take);
        fold(o[c][j][2 * r + 1], part[j][2 * r + 1], u.keep, u.take);
      }
    }
  }
  // The same where segments are long, behind the second of two tiles: what rows have so far stands in y, and
  // comes through the ring unless this is their first segment (more). Of the last one the quotient is left.
  CARAT_D void fold_into_output(bool more, bool last) {
#pragma unroll
    for (int c = 0; c < 2 * S::kChunks; ++c) {
      const unsigned char* from = memory + 128 * (16 * band + g) + 8 * (t % 2);
      if (more) from += next_piece() - base;
      float2 v[2][4];
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          v[r][j] = own.turns[1][g + 8 * r].blank || !more
                        ? float2{0, 0}
                        : *reinterpret_cast<const float2*>(from + 1024 * r + ((2 * j + t / 2) ^ g) * 16);
      if (more) give_back();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const auto u = own.turns[1][g + 8 * r];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const auto& of = o[c / 2][4 * (c % 2) + j];
          fold(v[r][j].x, of[2 * r], u.keep, u.take), fold(v[r][j].y, of[2 * r + 1], u.keep, u.take);
        }
        if (last)
#pragma unroll
          for (int j = 0; j < 4; ++j) v[r][j] = float2{v[r][j].x / total_sum[r], v[r][j].y / total_sum[r]};
        auto* y = reinterpret_cast<float2*>(output(r));
        if (!y) continue;
#pragma unroll
        for (int j = 0; j < 4; ++j) y[16 * c + 4 * j] = v[r][j];
      }
    }
  }
  CARAT_D void leave_output() const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      auto* y = reinterpret_cast<float2*>(output(r));
      if (!y) continue;
#pragma unroll
      for (int c = 0; c < S::kChunks; ++c)
#pragma unroll
        for (int j = 0; j < 8; ++j)
          y[32 * c + 4 * j] = float2{o[c][j][2 * r] / total_sum[r], o[c][j][2 * r + 1] / total_sum[r]};
    }
  }

  // Both tiles' values; between them, if AHEAD, this warpgroup's scores x of the next two. No branch stands
  // between products that run and their end. Segments of one tile or of two. part: any values; without AHEAD
  // it may be x.
  template <int TILES, bool AHEAD>
  CARAT_D void short_values(float (&x)[8][4], float (&part)[8][4]) {
#pragma unroll
    for (int n = 0; n < 2 * S::kChunks; ++n) {
      const int c = n / 2, i = n % 2;
      const bool fresh = TILES == 1 || i == 0, last = TILES == 1 || i == 1;
      uint32_t w[4][4];
      take_weights(i, w);
      if (!fresh) fade_values<true>(i, part);
      add_values(fresh, w, part);
      wide_commit();
      if (AHEAD) add_scores(n, x), wide_commit();
      if (c == 0) add_sum(i, fresh, last, w);
      wide_wait<AHEAD ? 1 : 0>();
      if (AHEAD && n > 0) give_back();
      give_back();
      if (last) fold_part(i, c, part);
    }
    if (AHEAD) wide_wait<0>(), give_back();
  }
  CARAT_D void long_values(const LongSegments& segments, int32_t batch) {
    const bool fresh = segments.begins(batch), last = segments.ends(batch);
    uint32_t w[2][4][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      take_weights(i, w[i]);
#pragma unroll
      for (int c = 0; c < S::kChunks; ++c) {
        if (i) wide_wait<S::kChunks - 1>(), give_back();  // the same columns of the tile before
        fade_values<false>(i, o[c]);                      // beside products; a branch would wait for them
        add_values(fresh && i == 0, w[i], o[c]);
        wide_commit();
      }
      add_sum(i, fresh && i == 0, last && i == 1, w[i]);
    }
    give_back_each<S::kChunks>();
    if (last) fold_into_output(!segments.in_first(batch), batch == segments.last);
  }
  // TILES of a segment, 0: more than two.
  template <int TILES>
  CARAT_D void walk() {
#pragma unroll
    for (int c = 0; c < S::kChunks; ++c)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[c][j][e] = 0;
    constexpr bool kBetween = overlaps<S>(TILES == 0);
    float x[8][4], part[8][4];
    if (kBetween) scores(x);
    const LongSegments segments(p);
    const int32_t end = p.last;
#pragma unroll 1
    for (int32_t batch = p.first; batch <= end; ++batch) {
      const bool fresh = TILES || segments.begins(batch), last = TILES || segments.ends(batch);
      if (!kBetween) scores(x);
      mask(2 * batch + group, x);
      turn_wait(1, kPromptConsumers);
      const float2 safe0 = turn(0, fresh, TILES == 1), safe1 = turn(1, TILES == 1, last);
      weigh(x, group ? safe1 : safe0);
      turn_wait(1, kPromptConsumers);
      if constexpr (TILES == 0)
        long_values(segments, batch);
      else if constexpr (!kBetween)
        short_values<TILES, false>(x, x);
      else if (batch < end)
        short_values<TILES, true>(x, part);
      else
        short_values<TILES, false>(x, part);
    }
    if constexpr (TILES != 0)
      leave_output();  // else it is as the last segment left it
    else if (S::kUnpacked && end < p.all_last)
      leave_state();
  }
  CARAT_D void run() {
    each_prompt_task<S>(a, s, set, [&](const PromptTask& task) {
      begin(task);
      if (is_long(p))
        walk<0>();
      else if (p.length > kKvTile)
        walk<2>();
      else
        walk<1>();
    });
  }
};

template <int DIM, PromptSource SOURCE>
__global__ void __launch_bounds__(kPromptThreads, 1)
    prompt_attention(const AttentionPart a, const DevStep* s, const Tables* tables, RowSet set,
                     const __grid_constant__ KvBoxes boxes) {
#if defined(CARAT_WIDE) || defined(CARAT_CUDA_EMULATE)
  using S = PromptShape<DIM, SOURCE>;
  CARAT_SHARED(shared);
  unsigned char* memory = shared + (1024 - shared_address(shared) % 1024) % 1024;
  if (threadIdx.x < 4 * S::kStages)
    gate_init(shared_address(memory) + S::kGates + 8 * threadIdx.x,
              threadIdx.x < 2 * S::kStages ? 32 : arrivals(4));
  sync_block();
  begin_kernel();
  if (threadIdx.x >= kPromptConsumers) {
    fewer_registers<S::kLoaderRegs>();
    PromptLoader<S>{a, s, set, boxes, shared_address(memory)}.run();
  } else {
    more_registers<S::kConsumerRegs>();
    PromptWalk<S>(a, s, *tables, set, memory).run();
  }
#endif
}

// False: nothing for these kernels.
template <int DIM, PromptSource SOURCE>
bool prompts_take(const Context& c, const AttentionPart& a, int32_t rows) {
  using S = PromptShape<DIM, SOURCE>;
  const auto even = [](const Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.pitch % 16 == 0;
  };
  return rows >= kPromptRows && c.launcher.major == 9 && compiled_for(prompt_attention<DIM, SOURCE>) == 90 &&
         S::kBytes <= c.launcher.shared && a.softcap <= 0 && even(a.q) && even(a.y);
}
template <int DIM, PromptSource SOURCE>
void launch_prompts(const Context& c, const AttentionPart& a, int32_t rows, RowSet set,
                    const KvBoxes& boxes) {
  const int32_t per = kPromptRows / a.width;
  const int64_t tasks = (int64_t{(rows + per - 1) / per} + 7) * a.kv.heads * a.chunks;
  launch(c.launcher, "attention", prompt_attention<DIM, SOURCE>,
         dim3(static_cast<unsigned>(std::min<int64_t>(tasks, c.launcher.sms))), kPromptThreads,
         static_cast<size_t>(PromptShape<DIM, SOURCE>::kBytes), a, c.step, c.tables, set, boxes);
}
template <int DIM>
bool attend_prompt(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  KvBoxes boxes;
  if (!prompts_take<DIM, PromptSource::halves>(c, a, rows) || a.kv.page_tokens % kKvTile ||
      !make_boxes(boxes, a.kv))
    return false;
  launch_prompts<DIM, PromptSource::halves>(c, a, rows, set, boxes);
  return true;
}

}  // namespace carat::cuda
