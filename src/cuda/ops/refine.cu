// Refine and Fold: rows and what their rounding leaves, side by side, and the sums of their products.
#include "cuda/device/activate.cuh"
#include "cuda/ops/ops.h"
#include "cuda/quant/rounding.cuh"

namespace carat::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// A warp a block of 256 columns: both rows of y, and both rounded.
__global__ void __launch_bounds__(kThreads)
    refine_kernel(const RefineArgs a, const Rounded out, const DevStep* s, RowSet set) {
  begin_kernel();
  const int lane = threadIdx.x % 32;
  const int32_t m = blockIdx.x, b = blockIdx.y * kWarps + threadIdx.x / 32;
  if (m >= row_count(s, set) || b >= out.blocks) return;
  const int n = a.x.cols - 256 * b - 8 * lane;  // of the lane's columns
  const float* x = row_of<const float>(a.x, m) + 256 * b + 8 * lane;
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = i < n ? x[i] : 0;
  const RoundedEight first = round_eight(v);
  leave_rounded(first, out, int64_t{2 * m} * out.blocks + b, lane);
  float *y = row_of<float>(a.y, 2 * m) + 256 * b + 8 * lane,
        *left = row_of<float>(a.y, 2 * m + 1) + 256 * b + 8 * lane;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const auto q = static_cast<int8_t>(first.word[i / 4] >> 8 * (i & 3));
    const float rest = fmaf(-first.d, static_cast<float>(q), v[i]);
    if (i < n) y[i] = v[i], left[i] = rest;
    v[i] = i < n ? rest : 0;
  }
  leave_rounded(round_eight(v), out, int64_t{2 * m + 1} * out.blocks + b, lane);
}

CARAT_D float folded(float first, float second, float softcap) {
  const float v = first + second;
  return softcap > 0 ? softcap * tanh_of(v / softcap) : v;
}
// N columns a thread.
template <int N>
__global__ void __launch_bounds__(kThreads) fold_kernel(const FoldArgs a, const DevStep* s, RowSet set) {
  begin_kernel();
  const int32_t m = blockIdx.x, i = (blockIdx.y * kThreads + threadIdx.x) * N;
  if (m >= row_count(s, set) || i >= a.y.cols) return;
  const float *first = row_of<const float>(a.x, 2 * m) + i, *second = row_of<const float>(a.x, 2 * m + 1) + i;
  float* y = row_of<float>(a.y, m) + i;
  if constexpr (N == 4) {
    const float4 u = *reinterpret_cast<const float4*>(first), v = *reinterpret_cast<const float4*>(second);
    *reinterpret_cast<float4*>(y) = {folded(u.x, v.x, a.softcap), folded(u.y, v.y, a.softcap),
                                     folded(u.z, v.z, a.softcap), folded(u.w, v.w, a.softcap)};
  } else {
    *y = folded(*first, *second, a.softcap);
  }
}

unsigned u(int64_t n) { return static_cast<unsigned>(n); }
int64_t up(int64_t n, int64_t d) { return (n + d - 1) / d; }

}  // namespace

void refine(const Context& c, const RefineArgs& a, const Rounded& out, RowSet rows) {
  launch(c.launcher, "rounding", refine_kernel, dim3(u(a.x.rows), u(up(out.blocks, kWarps))), kThreads, 0, a,
         out, c.step, rows);
}
void run(const Context& c, const FoldArgs& a, RowSet rows) {
  const auto even = [](const Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.pitch % 16 == 0;
  };
  const int each = a.y.cols % 4 == 0 && even(a.y) && even(a.x) ? 4 : 1;
  launch(c.launcher, "fold", each == 4 ? fold_kernel<4> : fold_kernel<1>,
         dim3(u(a.y.rows), u(up(a.y.cols, kThreads * each))), kThreads, 0, a, c.step, rows);
}

}  // namespace carat::cuda
