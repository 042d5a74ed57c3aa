// A warp's sums of a block of 256 columns by warpgroups' products. Where a code times its group's scale is an
// integer of one or two bytes (wide/digits.cuh), the block's sum S of numerics.md is one or two
// products of bytes over all columns, with no scale between them; where groups have float scales, every group
// is a product.
#pragma once
#include "cuda/device/warpgroup.cuh"
#include "cuda/matmul/wide/digits.cuh"

namespace carat::cuda {

// The codes' columns [column, column + 32) of a stage of ROWS rows.
template <int ROWS>
CARAT_D uint64_t wide_columns(const uint8_t* codes, int column) {
  return codes_operand(shared_address(codes) + column / 128 * (ROWS * 128) + column % 128);
}

// One block of one warp's: where its tile and the rows' codes are.
struct WideAt {
  const uint8_t *tile, *codes, *sums;
  int row;  // of the tile, the first
  int n;    // columns
};
template <class At>  // first: of the stage's rows; n: less than 256 in formats of groups alone
CARAT_D WideAt wide_at(const uint8_t* stage, int weights, int row, int first, int n) {
  return {stage + At::kTiles + weights * Frags<At::kType>::kTile, stage + 128 * first,
          stage + At::kSums + 32 * first, row, Frags<At::kType>::kGrouped ? n : 256};
}

// sums = (kFirst) or += the digits times b, each digit's for itself.
template <bool kFirst, int D, int N>
CARAT_D void multiply_digits(int32_t (&sums)[D][N], const uint32_t (&digits)[D][4], uint64_t b) {
  if constexpr (D == 2) wide_mma<false, kFirst>(sums[0], digits[0], b);
  wide_mma<true, kFirst>(sums[D - 1], digits[D - 1], b);
}

// Products run while the next ones' digits are made: one of two digits, three of one.
template <class At, int N>
CARAT_D void digit_products(const WideAt& at, int lane, float (&v)[N]) {
  using F = Frags<At::kType>;
  using Made = Digits<At::kType>;
  constexpr int kAhead = 4 / Made::kDigits;
  Made digits;
  digits.start(at.tile, at.row, lane);
  typename F::Raw raw = F::raw(at.tile, at.row, 0, lane);
  int32_t sums[Made::kDigits][N];
  uint32_t a[kAhead][Made::kDigits][4];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int step = i / 2, e = i % 2;
    auto& made = a[i % kAhead];
    digits.make(raw, step, e, made);
    const uint64_t operand = wide_columns<At::kRows>(at.codes, 32 * F::group(step, e));
    wide_fence();
    if (i == 0)
      multiply_digits<true>(sums, made, operand);
    else
      multiply_digits<false>(sums, made, operand);
    wide_commit();
    if (e == 1 && step < 3 && (step + 1) % Made::kRawSteps == 0)
      raw = F::raw(at.tile, at.row, step + 1, lane);
    if (i < 7) wide_wait<kAhead - 1>();
  }
  float of[2], least[2];
  uint32_t mins[4];
  digits.finish(at.tile, at.row, lane, of, least, mins);
  wide_wait<0>();
#pragma unroll
  for (int i = 0; i < N; ++i) {
    int32_t sum = sums[Made::kDigits - 1][i];
    if constexpr (Made::kDigits == 2) sum = sum * 256 + sums[0][i];
    v[i] = of[i % 4 / 2] * static_cast<float>(sum);
  }
  if constexpr (F::kMins) {
    float sub[N];
    wide_fence();
    wide_mma_f16(sub, mins, halves_operand(shared_address(at.sums)));
    wide_commit();
    wide_wait<0>();
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = fmaf(least[i % 4 / 2], sub[i], v[i]);
  }
}

// v += the sums of one group by its factors, of outputs g and g + 8.
template <int N>
CARAT_D void add_group(const float (&factors)[2], const int32_t (&sums)[N], float* v) {
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = fmaf(factors[i % 4 / 2], static_cast<float>(sums[i]), v[i]);
}
// A float scale for a group of 32 columns, or 16 (nvfp4: a product with the other half's codes at 0): every
// group's sums go to v by themselves, of one half of the rows while the other half's product runs.
template <class At, int N>
CARAT_D void group_products(const WideAt& at, int lane, float (&v)[N]) {
  constexpr DType T = At::kType;
  using F = Frags<T>;
  using S = RowScales<T>;
  constexpr int kParts = N > 16 ? 2 : 1, kEach = N / kParts, kOfGroup = F::kSixteen ? 2 : 1;
  const uint8_t* scales = at.tile + S::at(at.n) + S::kBytes * (at.row + lane / 4);
  int32_t sums[kParts][kEach];
  uint32_t factors[2] = {}, codes[4] = {}, a[2][4];
  float factor[2] = {}, running[2] = {};  // running: of the second part's product
  typename F::Raw raw;
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = 0;
#pragma unroll
  for (int i = 0; i < 8 * kOfGroup; ++i) {
    const int group = i / kOfGroup, step = group / 2, e = group % 2, half = i % kOfGroup;
    if (half == 0 && e == 0) {
      raw = F::raw(at.tile, at.row, step, lane, at.n);
#pragma unroll
      for (int k = 0; k < 2; ++k) factors[k] = S::factors(scales + 8 * S::kBytes * k, step);
    }
    if (half == 0) F::codes(raw, step, e, codes);
#pragma unroll
    for (int k = 0; k < 4; ++k) a[i % 2][k] = kOfGroup == 1 || k / 2 == half ? codes[k] : 0;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      factor[k] = S::factor(factors[k], kOfGroup * e + half) * (1.0f / F::kTimes);
      if (32 * group >= at.n) factor[k] = 0;  // behind the row's end, where an older block's codes lie
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      wide_fence();
      wide_mma<true, true>(sums[part], a[i % 2],
                           wide_columns<At::kRows>(at.codes + 256 * kEach * part, 32 * group));
      wide_commit();
      if (kParts == 1) {
        wide_wait<0>();
        add_group(factor, sums[0], v);
      } else if (part == 1) {
        wide_wait<1>();
        add_group(factor, sums[0], v);
        running[0] = factor[0], running[1] = factor[1];
      } else if (i > 0) {
        wide_wait<1>();
        add_group(running, sums[kParts - 1], v + kEach);
      }
    }
  }
  if constexpr (kParts == 2) {
    wide_wait<0>();
    add_group(running, sums[1], v + kEach);
  }
}

// v[4 j + k]: t of numerics.md without the activations' scale, of output g + k / 2 * 8 of the warp's and row
// 8 j + 2 t + k % 2.
template <class At, int N>
CARAT_D void wide_block(const WideAt& at, int lane, float (&v)[N]) {
  if constexpr (Frags<At::kType>::kGrouped)
    group_products<At>(at, lane, v);
  else
    digit_products<At>(at, lane, v);
}

// acc += v by the rows' scales.
template <int N>
CARAT_D void add_scaled(const float* scales, const float (&v)[N], float (&acc)[N]) {
  const auto* d = reinterpret_cast<const float2*>(scales) + threadIdx.x % 4;
#pragma unroll
  for (int j = 0; j < N / 4; ++j) {
    const float2 both = d[4 * j];
#pragma unroll
    for (int k = 0; k < 4; ++k) acc[4 * j + k] = fmaf(k % 2 ? both.y : both.x, v[4 * j + k], acc[4 * j + k]);
  }
}

}  // namespace carat::cuda
