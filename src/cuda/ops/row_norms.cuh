// A chain of norms of a single row at the beginning of a kernel that reads its result: every block computes
// all of it, eight columns a thread. Sums are those of norms.cu.
#pragma once
#include "cuda/quant/rounding.cuh"

namespace carat::cuda {

CARAT_D void load_eight(const float* p, float (&v)[8]) {
  const auto* q = reinterpret_cast<const float4*>(p);
  const float4 a = q[0], b = q[1];
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
CARAT_D void store_eight(float* p, const float (&v)[8]) {
  auto* q = reinterpret_cast<float4*>(p);
  q[0] = float4{v[0], v[1], v[2], v[3]}, q[1] = float4{v[4], v[5], v[6], v[7]};
}

// 1 / rms of a row of `cols` that lies in a block of threads, eight columns in each, zeros behind the last.
CARAT_D float inverse_rms(const float (&v)[8], float* part, int32_t cols, float eps) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = fmaf(v[i], v[i], sum);
  sum = warp_sum_f(sum);
  if (lane == 0) part[warp] = sum;
  sync_block();
  sum = warp_sum_f(256 * lane < cols ? part[lane] : 0);
  return 1 / sqrtf(sum / static_cast<float>(cols) + eps);
}

struct NormsAhead {
  static constexpr int N = NormChain::kMost;
  const RowNorms& a;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = 8 * static_cast<int>(threadIdx.x);
  const bool some = first < a.cols;
  float w[N][8], gain[N];
  float v[8] = {};  // behind ask(), the row; then the result of the last step so far
  float second[8] = {}, residual[8] = {};

  // What steps do not write: on its way before the inputs are there.
  CARAT_D explicit NormsAhead(const RowNorms& norms) : a(norms) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      gain[k] = k < a.n && a.step[k].gain ? *a.step[k].gain : 1;
#pragma unroll
      for (int i = 0; i < 8; ++i) w[k][i] = 1;
      if (k < a.n && a.step[k].weight && some) load_eight(a.step[k].weight + first, w[k]);
    }
  }

  // The rows on their way.
  CARAT_D void ask() {
    if (!some) return;
    load_eight(a.x + first, v);
    if (a.second) load_eight(a.second + first, second);
    if (a.residual) load_eight(a.residual + first, residual);
  }
  // put(k), while v is step k's result, zeros behind the last column; a warp has the block of 256 columns
  // with its number. By all threads of the block, eight columns each or more. part: [N][32] in shared memory.
  template <class Put>
  CARAT_D void run(float* part, const Put& put) {
    float head[8] = {}, inv = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (k >= a.n) break;
      const RowNorms::Step& s = a.step[k];
      float before[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        before[i] = v[i];
        if (k == 1) head[i] = v[i];
        if (k > 0 && s.from == NormChain::memory) v[i] = second[i];
        if (k > 0 && s.from == NormChain::head) v[i] = head[i];
      }
      if (!s.same) inv = inverse_rms(v, part + 32 * k, a.cols, s.eps);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        v[i] *= inv;
        if (s.weight) v[i] *= w[k][i];
        if (s.adds) v[i] += s.adds_memory ? residual[i] : before[i];
        if (s.gain) v[i] *= gain[k];
        v[i] *= s.scale;
        if (!some) v[i] = 0;
      }
      if (256 * warp < a.cols) put(k);
    }
  }
  // Step k's result to memory, by one block of the grid: its own for every step, as far as there are so many.
  CARAT_D void store(int k) const {
    const auto own = static_cast<uint32_t>(k);
    if (blockIdx.x != (own < gridDim.x ? own : 0)) return;
    if (some) store_eight(a.step[k].y + first, v);
    if (a.step[k].out.q) round_block(v, a.step[k].out, warp, lane);
  }
};

}  // namespace carat::cuda
