// Pointwise, LayerNorm and BandAttention: what towers for pictures and sounds have besides products.
#include "cuda/device/activate.cuh"
#include "cuda/ops/ops.h"

namespace carat::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

unsigned u(int64_t n) { return static_cast<unsigned>(n); }
int64_t up(int64_t n, int64_t d) { return (n + d - 1) / d; }

CARAT_D float activated(Act act, float x) {
  return act == Act::gelu ? 0.5f * x * (1 + erff(x * 0.707106781f)) : activate(act, x);
}
CARAT_D const float* of_row(const Tensor& t, int32_t m) {
  return row_of<const float>(t, t.rows == 1 ? 0 : m);
}

// Columns i .. i + N - 1 of a row, N of 4 read and written at once.
template <int N>
struct Columns {
  float v[N];
  CARAT_D Columns(const float* from) {
    if constexpr (N == 4) {
      const float4 x = *reinterpret_cast<const float4*>(from);
      v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    } else {
      v[0] = *from;
    }
  }
  CARAT_D void leave(float* to) const {
    if constexpr (N == 4)
      *reinterpret_cast<float4*>(to) = float4{v[0], v[1], v[2], v[3]};
    else
      *to = v[0];
  }
};

template <int N>
__global__ void __launch_bounds__(kThreads)
    pointwise_kernel(const PointwiseArgs a, const DevStep* s, RowSet set) {
  begin_kernel();
  const int32_t m = blockIdx.x, i = (blockIdx.y * kThreads + threadIdx.x) * N;
  if (m >= row_count(s, set) || i >= a.y.cols) return;
  Columns<N> y(row_of<const float>(a.x, m) + i);
  if (a.add.data) {
    const Columns<N> add(of_row(a.add, m) + i);
#pragma unroll
    for (int k = 0; k < N; ++k) y.v[k] = y.v[k] + add.v[k];
  }
#pragma unroll
  for (int k = 0; k < N; ++k) {
    float& v = y.v[k];
    v = v < a.low ? a.low : v;  // a NaN stays one
    v = v > a.high ? a.high : v;
    v = activated(a.act, v);
  }
  if (a.mul.data) {
    const Columns<N> mul(of_row(a.mul, m) + i);
#pragma unroll
    for (int k = 0; k < N; ++k) y.v[k] = y.v[k] * mul.v[k];
  }
  y.leave(row_of<float>(a.y, m) + i);
}

// A warp a row.
__global__ void __launch_bounds__(kThreads)
    layer_norm_kernel(const LayerNormArgs a, const DevStep* s, RowSet set) {
  begin_kernel();
  const int lane = threadIdx.x % 32;
  const int32_t m = blockIdx.x * kWarps + threadIdx.x / 32, n = a.y.cols;
  if (m >= row_count(s, set)) return;
  const float* x = row_of<const float>(a.x, m);
  float sum = 0;
  for (int32_t i = lane; i < n; i += 32) sum += x[i];
  const float mean = warp_sum_f(sum) / static_cast<float>(n);
  float squares = 0;
  for (int32_t i = lane; i < n; i += 32) squares = fmaf(x[i] - mean, x[i] - mean, squares);
  const float inv = 1 / sqrtf(warp_sum_f(squares) / static_cast<float>(n) + a.eps);
  float* y = row_of<float>(a.y, m);
  for (int32_t i = lane; i < n; i += 32) {
    float v = (x[i] - mean) * inv;
    if (a.weight.data) v = v * row_of<const float>(a.weight, 0)[i];
    if (a.bias.data) v = v + row_of<const float>(a.bias, 0)[i];
    y[i] = v;
  }
}

// A warp a row and a head: scores of the window in shared memory, then lanes have columns.
__global__ void __launch_bounds__(kThreads)
    band_kernel(const BandAttentionArgs a, const DevStep* s, RowSet set) {
  CARAT_STATIC_SHARED float scores[kWarps][kMostBand];
  begin_kernel();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t m = blockIdx.x, h = blockIdx.y * kWarps + warp, dim = a.y.cols / a.heads;
  if (m >= row_count(s, set) || h >= a.heads) return;
  int32_t first = m;
  while (first > 0 && m - first + 1 < a.ahead.rows && s->seq[first - 1] == s->seq[m]) --first;
  const float* q = row_of<const float>(a.q, m) + h * dim;
  float top = -INFINITY;
  for (int32_t j = first; j <= m; ++j) {
    const float *k = row_of<const float>(a.k, j) + h * dim,
                *more = row_of<const float>(a.ahead, m - j) + h * dim;
    float dot = 0;
    for (int32_t i = lane; i < dim; i += 32) dot = fmaf(q[i], k[i] + more[i], dot);
    dot = warp_sum_f(dot);
    if (a.softcap > 0) dot = a.softcap * tanhf(dot / a.softcap);
    if (lane == 0) scores[warp][j - first] = dot;
    top = fmaxf(top, dot);
  }
  sync_warp();
  const int32_t n = m - first + 1;
  float sum = 0;
  for (int32_t j = 0; j < n; ++j) sum += expf(scores[warp][j] - top);
  for (int32_t i = lane; i < dim; i += 32) {
    float y = 0;
    for (int32_t j = 0; j < n; ++j)
      y = fmaf(expf(scores[warp][j] - top), row_of<const float>(a.v, first + j)[h * dim + i], y);
    row_of<float>(a.y, m)[h * dim + i] = y / sum;
  }
}

}  // namespace

void run(const Context& c, const PointwiseArgs& a, RowSet rows) {
  const auto in_fours = [](const Tensor& t) {
    return !t.data || (reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.pitch % 16 == 0);
  };
  const bool fours =
      a.y.cols % 4 == 0 && in_fours(a.y) && in_fours(a.x) && in_fours(a.add) && in_fours(a.mul);
  launch(c.launcher, "pointwise", fours ? pointwise_kernel<4> : pointwise_kernel<1>,
         dim3(u(a.y.rows), u(up(a.y.cols, kThreads * (fours ? 4 : 1)))), kThreads, 0, a, c.step, rows);
}
void run(const Context& c, const LayerNormArgs& a, RowSet rows) {
  launch(c.launcher, "layer norm", layer_norm_kernel, dim3(u(up(a.y.rows, kWarps))), kThreads, 0, a, c.step,
         rows);
}
void run(const Context& c, const BandAttentionArgs& a, RowSet rows) {
  launch(c.launcher, "attention", band_kernel, dim3(u(a.y.rows), u(up(a.heads, kWarps))), kThreads, 0, a,
         c.step, rows);
}

}  // namespace carat::cuda
