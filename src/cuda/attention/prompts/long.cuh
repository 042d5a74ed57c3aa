// Attention of prompts (prompts/prompts.cuh) in long segments (is_long()). The warpgroups are half a round
// apart, so that one multiplies while the other makes weights of its scores:
//   first:   scores of tile 2b   | values of 2b-1    | weights of 2b | values of 2b
//   second:  scores of tile 2b+1 | weights of 2b+1   | values of 2b  | values of 2b+1
// Each takes every tile's values in order, so sums are those of tiles/tiles.cuh.
#pragma once
#include "cuda/attention/prompts/walk.cuh"

namespace carat::cuda {

// Named barriers, at which one warpgroup arrives and the other waits.
enum class PromptSignal {
  weights_there = 2,  // + tile of two
  weights_taken = 4,  // + tile of two
  tops_there = 6      // of the first tile
};
CARAT_D void arrive_at(PromptSignal what, int tile = 0) {
  turn_arrive(static_cast<int>(what) + tile, kPromptConsumers);
}
CARAT_D void wait_at(PromptSignal what, int tile = 0) {
  turn_wait(static_cast<int>(what) + tile, kPromptConsumers);
}

// Two pieces, the second behind the first in shared memory.
template <class S>
CARAT_D SharedAddress PromptWalk<S>::next_two() {
  static_assert(S::kStages % 2 == 0 && S::kKeyPieces % 2 == 0 && S::kChunks % 2 == 0);
  const int at = group * S::kStages + slot;
  gate_wait(base + S::kGates + 8 * (at + lane / 16), parity);
  sync_warp();
  if (fences) show_to_products();
  if ((slot += 2) == S::kStages) slot = 0, parity ^= 1;
  return same_address(base + S::kRing + at * S::kPiece);
}
template <class S>
CARAT_D void PromptWalk<S>::give_back_two() {
  const SharedAddress gate = base + S::kGates + 8 * (2 * S::kStages + group * S::kStages + used);
  sync_warp();
  if (kEveryLaneArrives)
    gate_arrive(gate), gate_arrive(gate + 8);
  else if (lane < 2)
    gate_arrive(gate + 8 * lane);
  if ((used += 2) == S::kStages) used = 0;
}
// As scores().
template <class S>
CARAT_D void PromptWalk<S>::long_scores(float (&x)[8][4]) {
  clear(x);
#pragma unroll
  for (int c = 0; c < S::kKeyPieces; c += 2) {
    const uint64_t keys = codes_operand(next_two()),
                   queries = codes_operand(base + S::kQuery + c * S::kPiece);
    wide_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int at = k / 4 * S::kPiece + k % 4 * 32;
      wide_scores(x, behind(queries, at), behind(keys, at), c == 0 && k == 0);
    }
    wide_commit();
    if (c > 0) wide_wait<1>(), give_back_two();
  }
  wide_wait<0>();
  give_back_two();
  hold(x);
}
// This warpgroup's tile's scores x become weights w, for the other one, too.
template <class S>
CARAT_D void PromptWalk<S>::softmax_tile(const LongSegments<S>& segments, const Round& now, float (&x)[8][4],
                                         uint32_t (&w)[4][4]) {
  mask(now, x);
  if (group == 0)
    arrive_at(PromptSignal::tops_there);
  else
    wait_at(PromptSignal::tops_there);
  float2 safe = turn(now, 0, segments.begins(now), false);
  if (group == 1) safe = turn(now, 1, false, segments.ends(now));
  make_weights(x, safe, w);
  if (!now.is_first_of(p.first)) wait_at(PromptSignal::weights_taken, group);
  put_weights(w);
  arrive_at(PromptSignal::weights_there, group);
}
// o = or += tile i's weights times its values. BEHIND: those of the tile before are on their way.
template <class S>
template <bool BEHIND>
CARAT_D void PromptWalk<S>::add_tile(int i, bool fresh, const uint32_t (&w)[4][4]) {
  add_sum(i, fresh, false, w);
  const float fade[2] = {own.turns[i][g].fade, own.turns[i][g + 8].fade};
  const bool fades = !fresh && ballot(fade[0] != 1 || fade[1] != 1);  // seldom
#pragma unroll
  for (int c = 0; c < S::kChunks; c += 2) {
    if (BEHIND) wide_wait<S::kChunks / 2 - 1>(), give_back_two();  // the same columns of the tile before
    hold(o[c]), hold(o[c + 1]);
    if (fades)
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) o[c + n][j][e] *= fade[e / 2];
    const uint64_t values = turned_operand(next_two(), S::kPiece);
    wide_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) wide_values(o[c], o[c + 1], w[k], behind(values, 2048 * k), fresh && k == 0);
    wide_commit();
  }
}
template <class S>
CARAT_D void PromptWalk<S>::wait_values() {
  wide_wait<0>();
#pragma unroll
  for (int c = 0; c < S::kChunks; c += 2) give_back_two(), hold(o[c]), hold(o[c + 1]);
}
// A segment has ended: what rows have so far stands in y, and comes through the ring unless this is their
// first segment (more). Of the last one the quotient is left.
template <class S>
CARAT_D void PromptWalk<S>::fold_into_output(bool more, bool last) {
  // If y has few pieces, the next segment's may come to the same stages: then no stage is given back before
  // all of y is written and show_to_boxes() has run.
  constexpr int kPieces = 2 * S::kChunks;
  constexpr bool kHolds = kPieces <= S::kStages / 2;
#pragma unroll
  for (int c = 0; c < kPieces; ++c) {
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
    if (more && !kHolds) give_back();
  }
  show_to_boxes();
#pragma unroll
  for (int c = 0; kHolds && c < kPieces; ++c)
    if (more) give_back();
}
template <class S>
CARAT_D void PromptWalk<S>::end_segment(const LongSegments<S>& segments, const Round& now) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const auto u = own.turns[1][g + 8 * r];
    fold(total_sum[r], sum[2 * r], u.keep, u.take);
  }
  fold_into_output(!segments.in_first(now), now.is_last_of(segments.last));
}

// The first warpgroup's values of a second tile.
template <class S>
CARAT_D void PromptWalk<S>::second_values(const LongSegments<S>& segments, const Round& now) {
  wait_at(PromptSignal::weights_there, 1);
  turn(now, 1, false, segments.ends(now));
  uint32_t w[4][4];
  take_weights(1, w);
  if (!now.is_last_of(p.last)) arrive_at(PromptSignal::weights_taken, 1);
  add_tile<false>(1, false, w);
  wait_values();
  if (segments.ends(now)) end_segment(segments, now);
}
template <class S>
CARAT_D void PromptWalk<S>::walk_first(const LongSegments<S>& segments, float (&x)[8][4],
                                       uint32_t (&w)[4][4]) {
  const int32_t end = p.last;
  Round now(p, p.first);
  long_scores(x);
  softmax_tile(segments, now, x, w);
  add_tile<false>(0, true, w);
  wait_values();
#pragma unroll 1
  while (!now.is_last_of(end)) {
    const Round next = now.next(p);
    fences = now.is_first_of(p.first) || next.batch + 1 >= end || now.one_tile() || next.one_tile();
    long_scores(x);
    second_values(segments, now);
    softmax_tile(segments, next, x, w);
    add_tile<false>(0, segments.begins(next), w);
    wait_values();
    now = next;
  }
  second_values(segments, now);
}
template <class S>
CARAT_D void PromptWalk<S>::walk_second(const LongSegments<S>& segments, float (&x)[8][4],
                                        uint32_t (&w)[4][4]) {
  const int32_t end = p.last;
  Round now(p, p.first);
#pragma unroll 1
  for (bool more = true; more; now = now.next(p)) {
    more = !now.is_last_of(end);
    fences = now.is_first_of(p.first) || now.batch + 1 >= end || now.one_tile();
    long_scores(x);
    softmax_tile(segments, now, x, w);
    wait_at(PromptSignal::weights_there, 0);
    uint32_t w0[4][4];
    take_weights(0, w0);
    if (more) arrive_at(PromptSignal::weights_taken, 0);
    add_tile<false>(0, segments.begins(now), w0);
    add_tile<true>(1, false, w);
    wait_values();
    if (segments.ends(now)) end_segment(segments, now);
  }
}
template <class S>
CARAT_D void PromptWalk<S>::walk_long() {
  const LongSegments<S> segments(p);
  float x[8][4];
  uint32_t w[4][4];
#pragma unroll
  for (int c = 0; c < S::kChunks; ++c) clear(o[c]);
  if (group == 0)
    walk_first(segments, x, w);
  else
    walk_second(segments, x, w);
  fences = true;
  if (S::kUnpacked && p.last < p.all_last) leave_state();
}

}  // namespace carat::cuda
