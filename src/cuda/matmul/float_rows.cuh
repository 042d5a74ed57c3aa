// What float_row.cu and float_rows.cu multiply: their products, the place of a block of threads, and how a
// warp gets operands of its rows.
#pragma once
#include "cuda/matmul/float_parts.cuh"

namespace carat::cuda {

inline constexpr int kUnit = 16;  // outputs

struct RowsJob {
  MatmulArgs m;  // paired: with the gate's act and scale
  Tensor up;
  float up_scale = 1;
  bool paired = false, even = false;  // even: pairs of activations can be read at once
  // Experts only. chosen: i32 [rows][used]; scales: one an expert, or none.
  Tensor chosen, scales, up_scales;

  CARAT_HD bool experts() const { return chosen.data != nullptr; }
  CARAT_D const Tensor& weights(int unit) const { return paired && unit == 1 ? up : m.w; }
  CARAT_D const uint8_t* weights(int unit, int32_t slice, int32_t n) const {
    const Tensor& w = weights(unit);
    return row_of<const uint8_t>(w, n < w.rows ? n : w.rows - 1) + slice * w.slice_pitch;
  }
  // Groups of outputs that a block of threads has at a time: `units` units, or one of gate and up.
  CARAT_HD int32_t groups(int units) const {
    const int32_t per = paired ? kUnit : units * kUnit;
    return (m.w.rows + per - 1) / per;
  }
  // The first output of a unit of a group.
  CARAT_D int32_t first(int32_t group, int unit, int units) const {
    return (paired ? group : group * units + unit) * kUnit;
  }
};

// Single rows, or pairs of a row and an expert (float_row.cu).
void float_row_of(const Context& c, const RowsJob& job, RowSet rows);

// A lane's columns of a block of 256, in 16 steps of 16 columns: k + 16 s, one more, and two from kPair on;
// zeros behind the last. All are asked for at once.
template <DType T>
CARAT_D void load_block(const float* x, int32_t k, int32_t cols, bool even, float (&v)[16][4]) {
  constexpr int kPair = FloatOf<T>::kPair;
  if (even) {
#pragma unroll
    for (int s = 0; s < 16; ++s)
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int32_t at = k + 16 * s + kPair / 2 * i;
        const float2 two = x && at < cols ? *reinterpret_cast<const float2*>(x + at) : float2{0, 0};
        v[s][i] = two.x, v[s][i + 1] = two.y;
      }
  } else {
#pragma unroll
    for (int s = 0; s < 16; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t at = k + 16 * s + kPair / 2 * (i & 2) + i % 2;
        v[s][i] = x && at < cols ? x[at] : 0;
      }
  }
}

// A warp's block of columns of up to 8 rows, each lane with a part of the row that its group of four has:
// split here into operands of mma_part. Every lane of the warp calls everything.
template <DType T>
struct OwnRows {
  float v[16][4];
  PartScale scale;

  CARAT_D void load(const RowsJob& job, const Rounded&, int32_t m0, int32_t rows, int32_t block) {
    const int lane = threadIdx.x % 32, g = lane / 4;
    const float* x = g < rows ? row_of<const float>(job.m.x, m0 + g) : nullptr;
    load_block<T>(x, block * 256 + FloatOf<T>::kLane * (lane % 4), job.m.w.cols, job.even, v);
  }
  CARAT_D void find_scale(float times) {
    if constexpr (T == DType::bf16) return;
    uint32_t top = 0;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const uint32_t one = magnitude(v[i / 4][i % 4]);
      top = one > top ? one : top;
    }
    for (int d = 1; d < 4; d *= 2) {
      const uint32_t other = shuffle_xor(top, d);
      top = other > top ? other : top;
    }
    scale = part_scale<FloatOf<T>::kParts>(top);
    scale.d = scale.d * times;
  }
  CARAT_D uint4 operand(int, int step) const { return split_four<FloatOf<T>::kParts>(v[step], scale); }
  // What the block's sums of row m0 + m are multiplied by.
  CARAT_D float factor(int m) const {
    if constexpr (T == DType::bf16) return 1;
    return shuffle(scale.d, 4 * m);
  }
};

// The same of more rows, split before in global memory.
template <DType T>
struct SplitRows {
  const uint4* from;
  const float* d;
  int32_t rows, blocks;

  CARAT_D void load(const RowsJob&, const Rounded& x, int32_t m0, int32_t n, int32_t block) {
    const int lane = threadIdx.x % 32;
    rows = n, blocks = x.blocks;
    from =
        reinterpret_cast<const uint4*>(x.parts) + ((m0 + lane / 4) * int64_t{blocks} + block) * 64 + lane % 4;
    d = x.d + m0 * int64_t{blocks} + block;
  }
  CARAT_D void find_scale(float) {}
  CARAT_D uint4 operand(int j, int step) const {
    const bool there = 8 * j + static_cast<int>(threadIdx.x % 32) / 4 < rows;
    return there ? from[8 * j * int64_t{blocks} * 64 + 4 * step] : uint4{0, 0, 0, 0};
  }
  CARAT_D float factor(int m) const {
    if constexpr (T == DType::bf16) return 1;
    return m < rows ? d[m * int64_t{blocks}] : 0;
  }
};

}  // namespace carat::cuda
