// Attention of prompts (prompts/prompts.cuh) in segments of one tile or of two: what each leaves is
// folded in registers, 64 columns at a time.
#pragma once
#include "cuda/attention/prompts/walk.cuh"

namespace carat::cuda {

// What stands in `to` fades, as tile i's turn says: seldom.
template <class S>
CARAT_D void PromptWalk<S>::fade_values(int i, float (&to)[8][4]) const {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float fade = own.turns[i][g + 8 * r].fade;
    if (!ballot(fade != 1)) continue;
#pragma unroll
    for (int j = 0; j < 8; ++j) to[j][2 * r] *= fade, to[j][2 * r + 1] *= fade;
  }
}
// to = or += the tile's weights times a piece of its values, once that is waited for.
template <class S>
CARAT_D void PromptWalk<S>::add_values(bool fresh, const uint32_t (&w)[4][4], float (&to)[8][4]) {
  const uint64_t values = turned_operand(next_piece());
  wide_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) wide_values(to, w[k], behind(values, 2048 * k), fresh && k == 0);
}
// A segment has ended; where a row saw nothing of it, nothing is taken.
template <class S>
CARAT_D void PromptWalk<S>::fold_part(int i, int c, const float (&part)[8][4]) {
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
template <class S>
CARAT_D void PromptWalk<S>::leave_output() const {
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
template <class S>
template <int TILES, bool AHEAD>
CARAT_D void PromptWalk<S>::short_values(float (&x)[8][4], float (&part)[8][4]) {
#pragma unroll
  for (int n = 0; n < 2 * S::kChunks; ++n) {
    const int c = n / 2, i = n % 2;
    const bool fresh = TILES == 1 || i == 0, last = TILES == 1 || i == 1;
    uint32_t w[4][4];
    take_weights(i, w);
    if (!fresh) fade_values(i, part);
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
template <class S>
template <int TILES>
CARAT_D void PromptWalk<S>::walk_short() {
  constexpr bool kBetween = overlaps<S>();
  float x[8][4], part[8][4];
#pragma unroll
  for (int c = 0; c < S::kChunks; ++c) clear(o[c]);
  if (kBetween) scores(x);
  const int32_t end = p.last;
#pragma unroll 1
  for (Round now(p, p.first); now.batch <= end; now = now.next(p)) {
    if (!kBetween) scores(x);
    mask(now, x);
    turn_wait(1, kPromptConsumers);
    const float2 safe0 = turn(now, 0, true, TILES == 1), safe1 = turn(now, 1, TILES == 1, true);
    uint32_t w[4][4];
    make_weights(x, group ? safe1 : safe0, w);
    put_weights(w);
    turn_wait(1, kPromptConsumers);
    if constexpr (!kBetween)
      short_values<TILES, false>(x, x);
    else if (now.batch < end)
      short_values<TILES, true>(x, part);
    else
      short_values<TILES, false>(x, part);
  }
  leave_output();
}

}  // namespace carat::cuda
