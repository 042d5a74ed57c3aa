// QkvPrep's steps for a head, by a warp: element lane + 32 k is x[k], and zeros stand behind the last. They
// are those of prep.cu and of the attention of a single row, which prepares by itself
// (single/heads.cuh).
#pragma once
#include "cuda/kv/store.cuh"
#include "cuda/ops/ops.h"

namespace carat::cuda {

template <int EACH>
CARAT_D void load_head(const float* from, int32_t dim, int lane, float (&x)[EACH]) {
#pragma unroll
  for (int k = 0; k < EACH; ++k) x[k] = lane + 32 * k < dim ? from[lane + 32 * k] : 0;
}
// x[i] * (1 / rms) * w[i]; norm false: without the second factor.
template <int EACH>
CARAT_D void norm_head(bool norm, const float (&w)[EACH], float eps, int32_t dim, int lane,
                       float (&x)[EACH]) {
  float sum = 0;
#pragma unroll
  for (int k = 0; k < EACH; ++k)
    if (lane + 32 * k < dim) sum = fmaf(x[k], x[k], sum);
  const float inv = norm ? 1 / sqrtf(warp_sum_f(sum) / static_cast<float>(dim) + eps) : 1;
#pragma unroll
  for (int k = 0; k < EACH; ++k) x[k] = x[k] * inv * w[k];
}

// What pair i of a rotation turns by, of a row that stands at `pos`.
CARAT_D int32_t place_of(const DevStep* s, const Rope& rope, int32_t row, int32_t pos, int32_t i) {
  return rope.axis && s->place ? s->place[int64_t{3} * row + rope.axis[i]] : pos;
}
// Of pair i of a row at a position: cosine, sine.
CARAT_D float2 angle_of(const DevStep* s, const Rope& rope, int32_t row, int32_t pos, int32_t i) {
  const float angle = static_cast<float>(place_of(s, rope, row, pos, i) + rope.ahead) * rope.freq[i];
  return {cosf(angle), sinf(angle)};
}
CARAT_D void turn_pair(float2 angle, float& x, float& y) {
  const float a = x, b = y;
  x = a * angle.x - b * angle.y;
  y = b * angle.x + a * angle.y;
}

// As float_half(), in few instructions.
CARAT_D uint16_t stored_half(float x) {
  const uint32_t v = as_bits(x), nan = (v >> 16 & 0x8000) | 0x7e00 | (v >> 13 & 0x3ff);
  return static_cast<uint16_t>((v & 0x7fffffffu) > 0x7f800000u ? nan : pack_halves(x, 0));
}
}  // namespace carat::cuda
