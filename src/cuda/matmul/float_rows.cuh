// What float_rows.cu multiplies: its products, the place of a block of threads, and how a warp gets operands
// of its rows.
#pragma once
#include "cuda/matmul/float_parts.cuh"

namespace carat::cuda {

inline constexpr int kUnit = 16;   // outputs
inline constexpr int kParts = 64;  // of a row's 256 columns: operands of four, 16 bytes each

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

// A block's first rows of x and y, and the expert whose weights it reads: 0 where there are no experts, -1 if
// the row chose one that does not exist.
struct RowsPlace {
  int32_t x, y, slice;
};
CARAT_D RowsPlace place_of(const RowsJob& job, int32_t rows) {
  const auto block = static_cast<int32_t>(blockIdx.x);
  if (!job.experts()) return {block * rows, block * rows, 0};
  const int32_t used = job.chosen.cols, m = block / used,
                e = row_of<const int32_t>(job.chosen, m)[block % used];
  return {job.paired ? m : block, block, e >= 0 && e < job.m.w.slices ? e : -1};
}
// How many rows a block has, if the step has `n` and a block takes `most`.
CARAT_D int32_t rows_of(const RowsJob& job, const RowsPlace& at, int32_t n, int32_t most) {
  if (job.experts()) return at.slice >= 0 && at.y / job.chosen.cols < n ? 1 : 0;
  return n - at.y < most ? n - at.y : most;
}

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

// A warp's block of columns of one row: every lane splits two operands of four columns, and all read them
// from shared memory, as the only row's and as those of rows that are not there. The next block's columns can
// be asked for as soon as this one is split.
template <DType T>
struct OneRow {
  float v[2][4];
  float d;
  uint4* parts;  // [kParts], the warp's

  CARAT_D void load(const RowsJob& job, int32_t m, int32_t block) {
    constexpr int kPair = FloatOf<T>::kPair;
    const float* x = row_of<const float>(job.m.x, m);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int unit = threadIdx.x % 32 + 32 * i;
      const int32_t k = block * 256 + unit / 4 * 16 + unit % 4 * FloatOf<T>::kLane, cols = job.m.w.cols;
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const int32_t at = k + kPair * p;
        float2 two = {0, 0};
        if (job.even) {
          if (at < cols) two = *reinterpret_cast<const float2*>(x + at);
        } else {
          if (at < cols) two.x = x[at];
          if (at + 1 < cols) two.y = x[at + 1];
        }
        v[i][2 * p] = two.x, v[i][2 * p + 1] = two.y;
      }
    }
  }
  CARAT_D void split(float times) {
    PartScale scale;
    if constexpr (T != DType::bf16) {
      uint32_t top = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t one = magnitude(v[i / 4][i % 4]);
        top = one > top ? one : top;
      }
      scale = part_scale<FloatOf<T>::kParts>(warp_max(top));
    }
    d = T == DType::bf16 ? 1 : scale.d * times;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      parts[threadIdx.x % 32 + 32 * i] = split_four<FloatOf<T>::kParts>(v[i], scale);
  }
  CARAT_D uint4 operand(int, int step) const { return parts[4 * step + threadIdx.x % 4]; }
  CARAT_D float factor(int) const { return d; }
};

// The same of up to 8 rows, each lane with a part of the row that its group of four has: split here into
// operands of mma_part. Every lane of the warp calls everything.
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
