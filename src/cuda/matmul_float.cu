// Weights that are floats of one type.
#include "cuda/matmul.cuh"

namespace carat::cuda {
namespace {

constexpr int kPart = 8, kAcross = 4, kDown = 2;  // rows and outputs a warp; warps across outputs, down rows
constexpr int kManyThreads = 32 * kAcross * kDown;

// Two columns from an even one on.
template <DType T>
CARAT_D float2 weight_pair(const uint8_t* w, int32_t k) {
  if constexpr (T == DType::f32) return *reinterpret_cast<const float2*>(w + 4 * k);
  const uint32_t two = *reinterpret_cast<const uint32_t*>(w + 2 * k);
  return float2{bf16_float(two & 0xffff), bf16_float(two >> 16)};
}

// Many rows: a warp has kPart of them and of the outputs, every product in the order of float_products().
template <DType T>
__global__ void __launch_bounds__(kManyThreads, 2)
    float_many(const MatmulArgs a, const DevStep* s, RowSet set) {
  begin_kernel();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t n0 = (blockIdx.x * kAcross + warp % kAcross) * kPart,
                m0 = (blockIdx.y * kDown + warp / kAcross) * kPart, rows = row_count(s, set) - m0;
  if (rows <= 0 || n0 >= a.w.rows) return;
  const auto* w = row_of<const uint8_t>(a.w, n0);
  const auto* x = row_of<const uint8_t>(a.x, m0);
  uint32_t to_w[kPart], to_x[kPart];
#pragma unroll
  for (int i = 0; i < kPart; ++i) {  // beyond the last: the first again
    to_w[i] = n0 + i < a.w.rows ? static_cast<uint32_t>(i * a.w.pitch) : 0;
    to_x[i] = i < rows ? static_cast<uint32_t>(i * a.x.pitch) : 0;
  }
  float acc[kPart][kPart] = {};
  for (int32_t k = 2 * lane; k < a.w.cols; k += 64) {
    float2 wide[kPart];
#pragma unroll
    for (int j = 0; j < kPart; ++j) wide[j] = weight_pair<T>(w + to_w[j], k);
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      const float2 v = *reinterpret_cast<const float2*>(x + to_x[i] + 4 * k);
#pragma unroll
      for (int j = 0; j < kPart; ++j) acc[i][j] = fmaf(v.y, wide[j].y, fmaf(v.x, wide[j].x, acc[i][j]));
    }
  }
#pragma unroll
  for (int i = 0; i < kPart; ++i)
#pragma unroll
    for (int j = 0; j < kPart; ++j) {
      const float v = warp_sum_f(acc[i][j]);
      if (lane == j && i < rows && n0 + j < a.w.rows) finish(a, m0 + i, n0 + j, v);
    }
}

template <DType T>
void by_rows(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows) {
  const auto even = [](const Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.data) % 8 == 0 && t.pitch % 8 == 0;
  };
  if (a.y.rows <= 32 || a.w.cols % 2 || !even(a.w) || !even(a.x))
    return matmul_by_rows<Fixed<T>>(c, a, x, rows);
  const auto grid = [](int64_t n, int64_t per) { return static_cast<unsigned>((n + per - 1) / per); };
  launch(c.launcher, "matmul", float_many<T>,
         dim3(grid(a.w.rows, kPart * kAcross), grid(a.y.rows, kPart * kDown)), kManyThreads, 0, a, c.step,
         rows);
}

}  // namespace

void matmul_f32(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows) {
  by_rows<DType::f32>(c, a, x, rows);
}
void matmul_bf16(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows) {
  by_rows<DType::bf16>(c, a, x, rows);
}
void gate_up_bf16(const Context& c, const GateUpArgs& a, const Rounded& x, RowSet rows) {
  gate_up_by_rows<Fixed<DType::bf16>>(c, a, x, rows);
}
}  // namespace carat::cuda
