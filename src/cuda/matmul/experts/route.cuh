// A row's experts, by a warp that holds its logits: the operation Route, and experts that choose themselves.
#pragma once
#include "cuda/ops/ops.h"
#include "cuda/quant/bits.cuh"

namespace carat::cuda {

inline constexpr int32_t kHeldLogits = 256, kHeldChoices = 32;
inline bool routes_held(const RouteArgs& a) {
  return a.logits.cols <= kHeldLogits && a.top_k <= kHeldChoices && a.top_k <= a.logits.cols;
}

// Better first; a NaN is worse than what came before it and keeps its place by number.
CARAT_D bool better(float v, int32_t i, float w, int32_t j) {
  if (j < 0) return true;
  if (i < 0) return false;
  if (v > w) return true;
  if (w > v) return false;
  return i < j;
}
// The best of what the lanes have, in all of them.
CARAT_D void best_of_warp(float& v, int32_t& at) {
  for (int d = 16; d; d >>= 1) {
    const float w = shuffle_xor(v, d);
    const int32_t j = shuffle_xor(at, d);
    if (better(w, j, v, at)) v = w, at = j;
  }
}

// Bits that compare as the number does, above 0. Not for NaN.
CARAT_D uint32_t ordered(float v) {
  const uint32_t bits = as_bits(v + 0.0f);  // one zero
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// A choice's weight, whose logit and expert's scale lane k has for choice k.
CARAT_D float choice_weight(const RouteArgs& a, float logit, float scale, int lane) {
  const float e = expf(logit - shuffle(logit, 0));
  float sum = 0;
  for (int32_t k = 0; k < a.top_k; ++k) sum += shuffle(e, k);
  return lane < a.top_k ? e / sum * scale : 0;
}
CARAT_D float scale_of_expert(const RouteArgs& a, int32_t expert) {
  return a.expert_scale.data ? row_of<const float>(a.expert_scale, 0)[expert] : 1.0f;
}

// An expert from a kernel to one that begins before it has ended: a word with the step's number.
CARAT_D void tell_choice(const DevStep* s, uint32_t* at, int32_t expert) {
  renew_word(at, s->number << 9 | static_cast<uint32_t>(expert + 1));
}
CARAT_D int32_t told_choice(const DevStep* s, const uint32_t* at) {
  const uint32_t number = s->number << 9;
  uint32_t w = 0;
  do w = peek_word(at);
  while ((w & ~511u) != number);
  return static_cast<int32_t>(w & 511) - 1;
}

// What a warp chooses of up to kHeldLogits logits: lane k has choice k.
struct Choice {
  int32_t expert;
  float weight;
};
// kWeights false: weights are not wanted.
template <bool kWeights = true>
CARAT_D Choice choose(const RouteArgs& a, int32_t m, int lane) {
  constexpr int kHeld = kHeldLogits / 32;
  const float* l = row_of<const float>(a.logits, m);
  float held[kHeld];
  uint32_t key[kHeld];
  bool odd = false;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int32_t at = lane + 32 * i;
    const bool some = at < a.logits.cols;
    held[i] = some ? l[at] : 0;
    key[i] = some ? ordered(held[i]) : 0;
    odd |= held[i] != held[i];
  }
  const bool plain = !ballot(odd);  // else keys say no more than what is there
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (!plain) key[i] = lane + 32 * i < a.logits.cols;
  int32_t mine = 0;
  float chosen = 0;
  for (int32_t k = 0; k < a.top_k; ++k) {
    float v = 0;
    int32_t at = -1;
    if (plain) {
      uint32_t best = 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) best = key[i] > best ? key[i] : best;
      best = warp_max(best);
      uint32_t first = 0;  // the lowest number, turned over
#pragma unroll
      for (int i = kHeld - 1; i >= 0; --i)
        if (key[i] == best) first = ~static_cast<uint32_t>(lane + 32 * i), v = held[i];
      at = static_cast<int32_t>(~warp_max(first));
      v = shuffle(v, at % 32);
    } else {
#pragma unroll
      for (int i = 0; i < kHeld; ++i)
        if (key[i] && better(held[i], lane + 32 * i, v, at)) v = held[i], at = lane + 32 * i;
      best_of_warp(v, at);
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (at == lane + 32 * i) key[i] = 0;
    if (lane == k) mine = at, chosen = v;
  }
  const bool some = lane < a.top_k;
  if (!kWeights) return {some ? mine : -1, 0};
  const float weight = choice_weight(a, chosen, some ? scale_of_expert(a, mine) : 0, lane);
  return {some ? mine : -1, weight};
}

}  // namespace carat::cuda
