// Rows of weights times rows of activations, one warp an output (docs/numerics.md, "Matrix products").
// Integer sums are exact; floats are added in the contract's order, or for float weights in one of the
// columns' own: lane l takes columns 2 l, 2 l + 1, 2 l + 64, ... ascending, then lanes meet in a butterfly.
// So a row's bits depend on nothing but the row.
#pragma once
#include "cuda/ops/ops.h"
#include "cuda/quant/weight_rows.cuh"

namespace carat::cuda {

// Activations of several rows: as they are, and rounded to int8 (only if some weight asks for it).
struct Acts {
  const float* x = nullptr;
  int64_t x_pitch = 0;  // floats
  const int8_t* q = nullptr;
  const int16_t* sums = nullptr;
  const float* d = nullptr;             // [rows][blocks]
  int32_t blocks = 0;                   // q: [rows][256 * blocks], sums: [rows][16 * blocks]
  const uint16_t* half_sums = nullptr;  // as sums

  CARAT_HD Acts from(int64_t row) const {
    return {x + row * x_pitch, x_pitch, q + row * 256 * blocks,       sums + row * 16 * blocks,
            d + row * blocks,  blocks,  half_sums + row * 16 * blocks};
  }
  // As block_sums() reads them, in the place of `sums`.
  CARAT_D Acts with_half_sums() const {
    Acts a = *this;
    a.sums = reinterpret_cast<const int16_t*>(half_sums);
    return a;
  }
};

// Pairs of columns that a lane asks for before it uses the first.
template <int MT>
CARAT_D void float_products(DType t, const uint8_t* w, int32_t cols, const Acts& a, int32_t rows, int lane,
                            float (&acc)[MT]) {
  constexpr int kAhead = MT == 1 ? 16 : 4;
  for (int32_t k0 = 2 * lane; k0 < cols; k0 += 64 * kAhead) {
    float v[kAhead][2], x[kAhead][2];
#pragma unroll
    for (int u = 0; u < kAhead; ++u)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int32_t k = k0 + 64 * u + e;
        v[u][e] = k < cols ? plain_weight(t, w, k) : 0;
        if (MT == 1) x[u][e] = k < cols ? a.x[k] : 0;
      }
#pragma unroll
    for (int u = 0; u < kAhead; ++u)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int32_t k = k0 + 64 * u + e;
        if (k >= cols) continue;
#pragma unroll
        for (int m = 0; m < MT; ++m)
          if (m < rows) acc[m] = fmaf(MT == 1 ? x[u][e] : a.x[m * a.x_pitch + k], v[u][e], acc[m]);
      }
  }
#pragma unroll
  for (int m = 0; m < MT; ++m) acc[m] = warp_sum_f(acc[m]);
  if (t != DType::fp8) return;
  const float factor = e4m3_factor(w, cols);
#pragma unroll
  for (int m = 0; m < MT; ++m) acc[m] = acc[m] * factor;
}

// acc[m] += products of one block of n columns, for all lanes alike.
template <class D, int MT>
CARAT_D void block_products(const D& format, const Part& p, int n, const int8_t* q, int64_t q_pitch,
                            const float* d, int32_t d_pitch, int32_t rows, int lane, float (&acc)[MT]) {
  const Sums sums = format.sums();
  const bool scaled = sums == Sums::scaled || sums == Sums::scaled_min,
             mins = sums == Sums::scaled_min || sums == Sums::grouped_min;
  constexpr uint32_t kOnes = 0x01010101u;
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    if (m >= rows) continue;
    const uint2 a = *reinterpret_cast<const uint2*>(q + m * q_pitch + 8 * lane);
    int32_t s = dot4(p.high, a.y, dot4(p.low, a.x, 0));
    int32_t sum = mins ? dot4(kOnes, a.y, dot4(kOnes, a.x, 0)) : 0;
    float t = 0;
    if (scaled) {
      t = p.d * static_cast<float>(warp_sum(s * p.scale));
      if (mins) t = fmaf(-p.m, static_cast<float>(warp_sum(sum * p.min)), t);
    } else {
      const int per = format.group_lanes(), groups = n / (8 * per);
      s += shuffle_xor(s, 1);
      if (per == 4) s += shuffle_xor(s, 2);
      if (mins) sum += shuffle_xor(sum, 1), sum += shuffle_xor(sum, 2);
      const float fs = static_cast<float>(s), fm = static_cast<float>(sum);
      for (int g = 0; g < groups; ++g) {
        t = fmaf(shuffle(p.d, g * per), shuffle(fs, g * per), t);
        if (mins) t = fmaf(shuffle(p.m, g * per), shuffle(fm, g * per), t);
      }
    }
    acc[m] = fmaf(d[m * d_pitch], t, acc[m]);
  }
}

// acc[m] = x[m] . w, m < rows, in all lanes. w: one row; a: from its first row on.
template <class D, int MT>
CARAT_D void products(const D& format, const WeightRow& w, int32_t cols, const Acts& a, int32_t rows,
                      int lane, const Tables& tables, float (&acc)[MT]) {
#pragma unroll
  for (int m = 0; m < MT; ++m) acc[m] = 0;
  if (format.floats()) return float_products<MT>(format.type(), w.p, cols, a, rows, lane, acc);
  const int64_t pitch = int64_t{256} * a.blocks;
#pragma unroll 2
  for (int32_t b = 0; b < a.blocks; ++b) {
    const int n = cols - 256 * b < 256 ? cols - 256 * b : 256;
    Part p;
    if (8 * lane < n) p = part_of(format, w, b, n, lane, tables);
    block_products<D, MT>(format, p, n, a.q + 256 * b, pitch, a.d + b, a.blocks, rows, lane, acc);
  }
}

CARAT_D Acts acts_of(const Tensor& x, const Rounded& r) {
  return {reinterpret_cast<const float*>(x.data), x.pitch / 4, r.q, r.sums, r.d, r.blocks, r.half_sums};
}

CARAT_D float expert_scale(const Tensor& t, int32_t e) {
  return t.data ? row_of<const float>(t, 0)[e] : 1.0f;
}

// The value of one lane, by a number the compiler knows.
template <int MT>
CARAT_D float pick(const float (&acc)[MT], int m) {
  float v = acc[0];
#pragma unroll
  for (int i = 1; i < MT; ++i)
    if (m == i) v = acc[i];
  return v;
}

}  // namespace carat::cuda
