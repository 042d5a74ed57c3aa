// exp, tanh and the activations, step by step as the CPU's vectors compute them (cpu/math.inl): products have
// the same bits wherever their weights are.
#pragma once
#include "core/ops.h"
#include "cuda/quant/bits.cuh"

namespace carat::cuda {

CARAT_HD float exp_of(float x) {
  const float lo = -87.3f, hi = 88.3f, whole = 12582912.0f;  // 1.5 * 2^23: its last bit is worth 1
  float y = lo > x ? lo : x;                                 // a NaN stays one
  y = hi < y ? hi : y;
  const float shifted = y * 1.44269504f + whole, n = shifted - whole;
  float r = fmaf(n, -0.693359375f, y);
  r = fmaf(n, 2.12194440e-4f, r);
  float p = 1.0f / 5040;
  p = fmaf(p, r, 1.0f / 720);
  p = fmaf(p, r, 1.0f / 120);
  p = fmaf(p, r, 1.0f / 24);
  p = fmaf(p, r, 1.0f / 6);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  return x < lo ? 0.0f : p * as_float((as_bits(shifted) - as_bits(whole) + 127) << 23);
}

CARAT_HD float tanh_of(float x) {
  const float a = fabsf(x), s = x * x;
  if (a < 0.25f) {
    float p = -0.00886323552f;
    p = fmaf(p, s, 0.0218694885f);
    p = fmaf(p, s, -0.0539682540f);
    p = fmaf(p, s, 0.133333333f);
    p = fmaf(p, s, -0.333333333f);
    return fmaf(p * s, x, x);
  }
  const float big = 1.0f - 2.0f / (exp_of(2.0f * (12.0f < a ? 12.0f : a)) + 1.0f);
  return x < 0 ? 0.0f - big : big;
}

CARAT_HD float sigmoid(float x) { return 1.0f / (1.0f + exp_of(0.0f - x)); }

CARAT_HD float activate(Act act, float x) {
  if (act == Act::none) return x;
  const float s = sigmoid(act == Act::gelu_tanh ? x * fmaf(x * x, 0.0713548162726f, 1.59576912161f) : x);
  return act == Act::sigmoid ? s : x * s;  // silu, gelu_tanh
}

}  // namespace carat::cuda
