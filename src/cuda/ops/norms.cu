// RmsNorm: groups, whole rows, and chains of whole rows.
#include "cuda/ops/norm_element.cuh"
#include "cuda/ops/row_norms.cuh"

namespace carat::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kRowThreads = 1024;

// Groups, or rows that norm_row cannot take: a warp each; of one norm, or of two of the same shape.
__global__ void __launch_bounds__(kThreads)
    norm_groups(const RmsNormArgs one, const RmsNormArgs two, const DevStep* s, RowSet set, int32_t width,
                int32_t groups) {
  begin_kernel();
  const RmsNormArgs& a = blockIdx.z == 0 ? one : two;
  const int lane = threadIdx.x % 32, m = blockIdx.x;
  const int32_t g = blockIdx.y * kWarps + threadIdx.x / 32, first = g * width;
  if (m >= row_count(s, set) || g >= groups) return;
  const float* x = row_of<const float>(a.x, m) + first;
  const float inv = group_inverse_rms(x, width, a.eps, lane);
  for (int32_t i = lane; i < width; i += 32) norm_element(a, m, first, i, x[i] * inv);
}

CARAT_D void load_eight(const Tensor& t, int32_t m, int32_t first, float (&v)[8]) {
  cuda::load_eight(row_of<const float>(t, m) + first, v);
}
CARAT_D void store_eight(const Tensor& t, int32_t m, int32_t first, const float (&v)[8]) {
  cuda::store_eight(row_of<float>(t, m) + first, v);
}

// A whole row in a block, eight columns a thread; then, if b.y, the plain norm b of what came out. The last
// is rounded too if out.q.
template <bool kTwo>
__global__ void __launch_bounds__(kRowThreads)
    norm_row(const RmsNormArgs a, const RmsNormArgs b, const Rounded out, const DevStep* s, RowSet set) {
  CARAT_STATIC_SHARED float part[2][kRowThreads / 32];
  const int32_t m = blockIdx.x, first = 8 * threadIdx.x;
  const bool some = first < a.y.cols;
  float w[8], next_w[8], v[8], r[8];  // all on their way before anything is used
#pragma unroll
  for (int i = 0; i < 8; ++i) w[i] = next_w[i] = v[i] = r[i] = 0;
  if (some && a.weight.data) load_eight(a.weight, 0, first, w);
  if (kTwo && some && b.weight.data) load_eight(b.weight, 0, first, next_w);
  const auto* gains = row_of<const float>(a.gain, 0);
  const bool one_gain = a.gain.cols == 1;
  const float gain = a.gain.data && one_gain ? *gains : 1;
  begin_kernel();
  if (some) load_eight(a.x, m, first, v);
  if (some && a.residual.data) load_eight(a.residual, m, first, r);
  if (m >= row_count(s, set)) return;
  const float inv = inverse_rms(v, part[0], a.y.cols, a.eps);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] *= inv;
    if (a.weight.data) v[i] *= w[i];
    if (a.residual.data) v[i] += r[i];
    if (a.gain.data) v[i] *= one_gain ? gain : some ? gains[first + i] : 0;
    v[i] *= a.scale;
    if (!some) v[i] = 0;
  }
  if (some) store_eight(a.y, m, first, v);
  if constexpr (kTwo) {
    const float next = inverse_rms(v, part[1], b.y.cols, b.eps);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      v[i] *= next;
      if (b.weight.data) v[i] *= next_w[i];
      v[i] *= b.scale;
      if (!some) v[i] = 0;
    }
    if (some) store_eight(b.y, m, first, v);
  }
  if (out.q) round_block(v, out, int64_t{m} * out.blocks + threadIdx.x / 32, threadIdx.x % 32);
}

// A whole row in a block, eight columns a thread: the chain's norms one after the other. Registers are few
// enough for the kernels around it to share a processor with it: the next one's weights come early.
constexpr int kChainThreads = 448;
__global__ void __launch_bounds__(kChainThreads, 2)
    norm_chain(const NormChain c, const DevStep* s, RowSet set) {
  constexpr int N = NormChain::kMost;
  CARAT_STATIC_SHARED float part[N][kChainThreads / 32];
  const int32_t m = blockIdx.x, first = 8 * threadIdx.x, cols = c.step[0].y.cols;
  const bool some = first < cols;
  float w[N][8], gain[N];  // all on their way before anything is used
#pragma unroll
  for (int k = 0; k < N; ++k) {
    gain[k] = k < c.n && c.step[k].gain.cols == 1 ? *row_of<const float>(c.step[k].gain, 0) : 1;
#pragma unroll
    for (int i = 0; i < 8; ++i) w[k][i] = 0;
    if (some && k < c.n && c.step[k].weight.data) load_eight(c.step[k].weight, 0, first, w[k]);
  }
  begin_kernel();
  float v[8], second[8], residual[8], head[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = second[i] = residual[i] = head[i] = 0;
  if (some) {
    load_eight(c.step[0].x, m, first, v);
    if (c.x[1] == NormChain::memory) load_eight(c.step[1].x, m, first, second);
    if (c.adds >= 0) load_eight(c.step[c.adds].residual, m, first, residual);
  }
  if (m >= row_count(s, set)) return;
  float inv = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if (k >= c.n) break;
    const RmsNormArgs& a = c.step[k];
    float before[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      before[i] = v[i];
      if (k == 1) head[i] = v[i];
      if (k > 0 && c.x[k] == NormChain::memory) v[i] = second[i];
      if (k > 0 && c.x[k] == NormChain::head) v[i] = head[i];
    }
    if (!c.same[k]) inv = inverse_rms(v, part[k], cols, a.eps);
    const bool last = a.residual.data && c.adds != k;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      v[i] *= inv;
      if (a.weight.data) v[i] *= w[k][i];
      if (a.residual.data) v[i] += last ? before[i] : residual[i];
      if (a.gain.data)
        v[i] *= a.gain.cols == 1 || !some ? gain[k] : row_of<const float>(a.gain, 0)[first + i];
      v[i] *= a.scale;
      if (!some) v[i] = 0;
    }
    if (some) store_eight(a.y, m, first, v);
    if (c.out[k].q)
      round_block(v, c.out[k], int64_t{m} * c.out[k].blocks + threadIdx.x / 32, threadIdx.x % 32);
  }
}

unsigned u(int64_t n) { return static_cast<unsigned>(n); }
int64_t up(int64_t n, int64_t d) { return (n + d - 1) / d; }

bool norm_rounds(const RmsNormArgs& a) {
  const auto even = [](const Tensor& t) {
    return !t.data || (reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.pitch % 16 == 0);
  };
  return !a.mul.data && (a.width == 0 || a.width == a.y.cols) && a.y.cols % 8 == 0 &&
         a.y.cols <= 8 * kRowThreads && even(a.x) && even(a.y) && even(a.weight) && even(a.residual);
}

}  // namespace

void rms_norm(const Context& c, const RmsNormArgs& a, const RmsNormArgs* second, RowSet rows) {
  const int32_t width = a.width ? a.width : a.y.cols, groups = a.y.cols / width;
  launch(c.launcher, "norm", norm_groups, dim3(u(a.y.rows), u(up(groups, kWarps)), second ? 2 : 1), kThreads,
         0, a, second ? *second : a, c.step, rows, width, groups);
}
bool NormChain::add(const RmsNormArgs& b) {
  if (n == kMost || !norm_rounds(b)) return false;
  if (n == 0) {
    adds = b.residual.data ? 0 : -1;
    step[n++] = b;
    return true;
  }
  const auto is = [](const Tensor& p, const Tensor& q) { return p.data == q.data && p.pitch == q.pitch; };
  const auto apart = [&](const Tensor& p, const Tensor& q) {
    return !p.data || is(p, q) || p.data >= q.data + q.rows * q.pitch || q.data >= p.data + p.rows * p.pitch;
  };
  if (b.y.cols != step[0].y.cols || b.y.rows != step[0].y.rows) return false;
  for (int i = 0; i < n; ++i) {  // the same rows or other memory
    const RmsNormArgs& a = step[i];
    if (!apart(b.x, a.y) || !apart(b.residual, a.y) || !apart(a.x, b.y) || !apart(a.residual, b.y) ||
        !apart(a.y, b.y))
      return false;
    if (i < n - 1 && (is(b.residual, a.y) || (is(b.x, a.y) && i > 0)) && !is(step[n - 1].y, a.y))
      return false;
  }
  const bool goes_on = is(b.residual, step[n - 1].y);
  x[n] = is(b.x, step[n - 1].y) ? last : is(b.x, step[0].y) ? head : memory;
  if (x[n] == memory && n > 1) return false;
  const bool adds_other = b.residual.data && !goes_on;
  if (adds_other && adds >= 0) return false;
  // Of rows too wide for the chain's kernel there are plain pairs alone.
  if (b.y.cols > 8 * kChainThreads && (n > 1 || x[n] != last || b.residual.data || b.gain.data)) return false;
  if (adds_other) adds = static_cast<int8_t>(n);
  same[n] = x[n] == head && (n == 2 ? x[1] == last : x[n - 1] == head) && b.eps == step[n - 1].eps;
  step[n++] = b;
  return true;
}
bool NormChain::plain() const {
  return n == 2 && x[1] == last && !step[1].residual.data && !step[1].gain.data;
}
bool NormChain::rounds(int k) const { return k == n - 1 || step[0].y.cols <= 8 * kChainThreads; }
RowNorms row_norms(const NormChain& chain) {
  RowNorms r;
  const auto at = [](const Tensor& t) { return reinterpret_cast<float*>(t.data); };
  const RmsNormArgs& first = chain.step[0];
  if (first.y.rows != 1) return {};
  r.cols = first.y.cols;
  const Tensor second = chain.n > 1 && chain.x[1] == NormChain::memory ? chain.step[1].x : Tensor{},
               residual = chain.adds >= 0 ? chain.step[chain.adds].residual : Tensor{};
  r.x = at(first.x), r.second = at(second), r.residual = at(residual);
  for (int k = 0; k < chain.n; ++k) {
    const RmsNormArgs& a = chain.step[k];
    if (a.gain.data && a.gain.cols != 1) return {};
    for (const Tensor& t : {first.x, second, residual})
      if (t.data && a.y.data < t.data + t.pitch && t.data < a.y.data + a.y.pitch) return {};
    r.step[k] = {at(a.weight),
                 at(a.gain),
                 at(a.y),
                 chain.out[k],
                 a.eps,
                 a.scale,
                 k > 0 ? chain.x[k] : NormChain::memory,
                 a.residual.data != nullptr,
                 chain.adds == k,
                 chain.same[k]};
  }
  r.n = chain.n;
  return r;
}
void norms(const Context& c, const NormChain& chain, RowSet rows) {
  const RmsNormArgs &a = chain.step[0], &b = chain.step[1];
  const dim3 grid(u(a.y.rows));
  const int threads = static_cast<int>(32 * up(a.y.cols, 256));
  if (chain.n == 1)
    launch(c.launcher, "norm", norm_row<false>, grid, threads, 0, a, b, chain.out[0], c.step, rows);
  else if (chain.plain() && !chain.out[0].q)
    launch(c.launcher, "norms", norm_row<true>, grid, threads, 0, a, b, chain.out[1], c.step, rows);
  else
    launch(c.launcher, "norms", norm_chain, grid, threads, 0, chain, c.step, rows);
}

}  // namespace carat::cuda
