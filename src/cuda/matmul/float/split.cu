// Activations in two parts each, for products over float weights (float/parts.cuh): as rows, for
// float/rows.cu and float/tiles.cu, or as chunks, for float/wide.cuh.
#include "cuda/kv/rows.cuh"
#include "cuda/matmul/float/parts.cuh"
#include "cuda/matmul/float/scaled_rows.cuh"

namespace carat::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// A warp a row's block of 256 columns.
template <DType T>
__global__ void __launch_bounds__(kThreads) split_rows_kernel(const Tensor x, const Rounded out, float times,
                                                              const DevStep* s, RowSet set, int32_t per_row) {
  begin_kernel();
  const int lane = threadIdx.x % 32;
  const int32_t r = blockIdx.x, b = blockIdx.y * (kThreads / 32) + threadIdx.x / 32;
  if (r >= row_count(s, set) * per_row || b >= out.blocks) return;
  const float* from = row_of<const float>(x, r);
  float v[2][4];
  uint32_t top = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int32_t k = 256 * b + (lane + 32 * i) / 4 * 16 + FloatOf<T>::kLane * (lane % 4) + e % 2 +
                        e / 2 * FloatOf<T>::kPair;
      v[i][e] = k < x.cols ? from[k] : 0;
      top = magnitude(v[i][e]) > top ? magnitude(v[i][e]) : top;
    }
  constexpr DType kParts = FloatOf<T>::kParts;
  const PartScale scale = part_scale<kParts>(kParts == DType::f16 ? warp_max(top) : 0);
  const int64_t at = r * int64_t{out.blocks} + b;
  if (kParts == DType::f16 && lane == 0) out.d[at] = scale.d * times;
#pragma unroll
  for (int i = 0; i < 2; ++i)
    reinterpret_cast<uint4*>(out.parts)[at * 64 + lane + 32 * i] = split_four<kParts>(v[i], scale);
}

// The same as chunks. A lane has the eight places of a unit of 16 bytes.
template <DType T>
__global__ void __launch_bounds__(kThreads)
    split_chunks_kernel(const Tensor x, const Rounded out, float times, const DevStep* s, RowSet set,
                        int32_t per_row) {
  begin_kernel();
  const int lane = threadIdx.x % 32;
  const int32_t r = blockIdx.x, b = blockIdx.y * kWarps + threadIdx.x / 32;
  if (r >= row_count(s, set) * per_row || b >= out.blocks) return;
  const float* from = row_of<const float>(x, r);
  float v[8];
  uint32_t top = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int32_t k = 256 * b + column_at<T>(8 * lane + i);
    v[i] = k < x.cols ? from[k] : 0;
    top = magnitude(v[i]) > top ? magnitude(v[i]) : top;
  }
  constexpr DType kParts = FloatOf<T>::kParts;
  const PartScale scale = part_scale<kParts>(kParts == DType::f16 ? warp_max(top) : 0);
  const FloatChunks at{out, x.rows};
  if (kParts == DType::f16 && lane == 0) at.d(b)[r] = scale.d * times;
  uint4 high, low;
  split_pair<kParts>(v[0], v[1], scale, high.x, low.x);
  split_pair<kParts>(v[2], v[3], scale, high.y, low.y);
  split_pair<kParts>(v[4], v[5], scale, high.z, low.z);
  split_pair<kParts>(v[6], v[7], scale, high.w, low.w);
  const int32_t chunk = 4 * b + lane / 8, unit = lane % 8 ^ r % 8;
  *reinterpret_cast<uint4*>(at.high(chunk, r) + 16 * unit) = high;
  *reinterpret_cast<uint4*>(at.low(chunk, r) + 16 * unit) = low;
}

// Codes of rows, or what they stand for. A block a row.
CARAT_D float row_top(const float* x, int32_t cols) {
  CARAT_STATIC_SHARED uint32_t tops[kWarps];
  uint32_t top = 0;
  for (int32_t k = threadIdx.x; k < cols; k += kThreads) top = magnitude(x[k]) > top ? magnitude(x[k]) : top;
  top = warp_max(top);
  if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
  sync_block();
  return as_float(warp_max(tops[threadIdx.x % kWarps]));
}
struct E4m3Scale {
  float d, inv;
  CARAT_D explicit E4m3Scale(float top) {  // NaN, or an infinity: products show it
    const bool finite = as_bits(top) < 0x7f800000u, some = finite && top >= 7.888609052210118e-31f;  // 2^-100
    d = some ? top / 448 : finite ? 0 : as_float(0x7fc00000u), inv = some ? 448 / top : 0;
  }
  CARAT_D uint32_t code(float v) const { return inv > 0 ? float_e4m3(v * inv) : 0; }
};
__global__ void __launch_bounds__(kThreads)
    split_codes_kernel(const Tensor x, const Rounded out, const DevStep* s, RowSet set, int32_t per_row) {
  begin_kernel();
  const int32_t r = blockIdx.x;
  if (r >= row_count(s, set) * per_row) return;
  const float* from = row_of<const float>(x, r);
  const E4m3Scale scale(row_top(from, x.cols));
  const FloatChunks at{out, x.rows};
  if (threadIdx.x == 0) at.d(0)[r] = scale.d;
  for (int32_t u = threadIdx.x; u < 16 * out.blocks; u += kThreads) {
    uint32_t w[4] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int32_t k = 16 * u + i;
      if (k < x.cols) w[i / 4] |= scale.code(from[k]) << i % 4 * 8;
    }
    *reinterpret_cast<uint4*>(at.high(u / 8, r) + 16 * (u % 8 ^ r % 8)) = uint4{w[0], w[1], w[2], w[3]};
  }
}
// Of 32 columns by four lanes, a power of two: the smallest with which codes reach no further than 448.
struct BlockScale {
  uint32_t exponent;  // of d, as in a float; 255: NaN
  bool some;
  CARAT_D explicit BlockScale(uint32_t top) {
    const uint32_t other = shuffle_xor(top, 1);
    top = other > top ? other : top;
    const uint32_t further = shuffle_xor(top, 2);
    top = further > top ? further : top;
    constexpr uint32_t kInf = 0x7f800000u, kTiny = (127u - 100u) << 23, k448 = 0x600000u;  // its fraction
    some = top < kInf && top >= kTiny;
    exponent = some ? (top >> 23) - 8 + ((top & 0x7fffffu) > k448) : top < kInf ? 127 : 255;
  }
  CARAT_D uint32_t code(float v) const { return some ? float_e4m3(v * as_float((254 - exponent) << 23)) : 0; }
  CARAT_D float d() const { return as_float(exponent == 255 ? 0x7fc00000u : exponent << 23); }
};
// Eight columns of a row from k on, zeros behind the last.
CARAT_D uint32_t take_eight(const float* x, int32_t cols, int32_t k, float (&v)[8]) {
  uint32_t top = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = k + i < cols ? x[k + i] : 0;
    top = magnitude(v[i]) > top ? magnitude(v[i]) : top;
  }
  return top;
}
// f(row, the first of a lane's eight columns, those, their block's scale), a warp a row's 256 columns.
template <class F>
CARAT_D void each_block(const Tensor& x, const DevStep* s, RowSet set, int32_t per_row, F f) {
  const int lane = threadIdx.x % 32;
  const int32_t r = blockIdx.x, k = 256 * (blockIdx.y * kWarps + threadIdx.x / 32) + 8 * lane;
  if (r >= row_count(s, set) * per_row || k - 8 * lane >= x.cols) return;
  float v[8];
  const BlockScale scale(take_eight(row_of<const float>(x, r), x.cols, k, v));
  f(r, k, v, scale);
}
// Codes and scales for float/scaled_tiles.cu.
__global__ void __launch_bounds__(kThreads)
    split_scaled_kernel(const Tensor x, const Rounded out, const DevStep* s, RowSet set, int32_t per_row) {
  begin_kernel();
  each_block(x, s, set, per_row, [&](int32_t r, int32_t k, const float(&v)[8], const BlockScale& scale) {
    uint32_t w[2] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i / 4] |= scale.code(v[i]) << i % 4 * 8;
    uint8_t* codes = ScaledRows{out}.codes(k / kScaledCols, r);
    *reinterpret_cast<uint2*>(codes + k % kScaledCols) = uint2{w[0], w[1]};
    if (k % 32 == 0) codes[kScaledCols + k % kScaledCols / 32] = static_cast<uint8_t>(scale.exponent);
  });
}
// What they stand for.
__global__ void __launch_bounds__(kThreads)
    round_blocks_kernel(const Tensor x, const Tensor y, const DevStep* s, RowSet set, int32_t per_row) {
  begin_kernel();
  each_block(x, s, set, per_row, [&](int32_t r, int32_t k, const float(&v)[8], const BlockScale& scale) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (k + i < x.cols) row_of<float>(y, r)[k + i] = scale.d() * e4m3_float(scale.code(v[i]));
  });
}
__global__ void __launch_bounds__(kThreads)
    round_to_e4m3_kernel(const Tensor x, const Tensor y, const DevStep* s, RowSet set, int32_t per_row) {
  begin_kernel();
  const int32_t r = blockIdx.x;
  if (r >= row_count(s, set) * per_row) return;
  const float* from = row_of<const float>(x, r);
  float* to = row_of<float>(y, r);
  const E4m3Scale scale(row_top(from, x.cols));
  for (int32_t k = threadIdx.x; k < x.cols; k += kThreads) to[k] = scale.d * e4m3_float(scale.code(from[k]));
}

dim3 blocks_of(const Tensor& x) {
  return dim3(static_cast<unsigned>(x.rows),
              static_cast<unsigned>((x.cols + 256 * kWarps - 1) / (256 * kWarps)));
}
template <DType T>
void split(const Context& c, float times, const Tensor& x, const Rounded& out, RowSet rows, int32_t per_row) {
  launch(c.launcher, "splitting", out.chunks ? split_chunks_kernel<T> : split_rows_kernel<T>,
         dim3(static_cast<unsigned>(x.rows), static_cast<unsigned>((out.blocks + kWarps - 1) / kWarps)),
         kThreads, 0, x, out, times, c.step, rows, per_row);
}

}  // namespace

void split_rows(const Context& c, const Tensor& w, const Tensor& x, const Rounded& out, RowSet rows,
                int32_t per_row) {
  const float times = sum_scale(w);
  switch (w.type) {
    case DType::bf16: return split<DType::bf16>(c, times, x, out, rows, per_row);
    case DType::f16: return split<DType::f16>(c, times, x, out, rows, per_row);
    case DType::fp8_a8:
      return launch(c.launcher, "rounding to e4m3", split_codes_kernel, dim3(static_cast<unsigned>(x.rows)),
                    kThreads, 0, x, out, c.step, rows, per_row);
    case DType::mxfp4_a8:
    case DType::nvfp4_a8:
      return launch(c.launcher, "rounding to e4m3", split_scaled_kernel, blocks_of(x), kThreads, 0, x, out,
                    c.step, rows, per_row);
    default: return split<DType::fp8>(c, times, x, out, rows, per_row);
  }
}

void round_to_e4m3(const Context& c, DType w, const Tensor& x, const Tensor& y, RowSet rows,
                   int32_t per_row) {
  if (info(w).elems > 1)
    return launch(c.launcher, "rounding to e4m3", round_blocks_kernel, blocks_of(x), kThreads, 0, x, y,
                  c.step, rows, per_row);
  launch(c.launcher, "rounding to e4m3", round_to_e4m3_kernel, dim3(static_cast<unsigned>(x.rows)), kThreads,
         0, x, y, c.step, rows, per_row);
}

}  // namespace carat::cuda
