// Products of few rows over weights in bf16, f16 or fp8 on the tensor cores. A warp takes a block of 256
// columns of one or two units of 16 outputs at a time (of gate and up: one of each): weights come through a
// ring of its own, which is filled before the inputs are there and flows on to the next outputs of its block
// of threads. Up to 8 rows are split in the registers of those that multiply them, more come split in parts.
// Sums over blocks are added ascending, as float/tiles.cu has them, so bits are the same. Single rows
// and experts: float/row.cu.
#include <type_traits>

#include "cuda/matmul/float/rows.cuh"

namespace carat::cuda {
namespace {

template <int MT, int U>
constexpr int kSums = U* kUnit* MT;  // floats that a warp leaves in a round
// Sums of two rounds where there is room: a round then waits for the block once.
template <int MT>
constexpr int kRoundsKept = MT == 8 ? 2 : 1;
// Bytes: rings, sums, up's sums on their way to gate's.
template <int MT, int U>
constexpr int kShared = kRowWarps*(kRing + kRoundsKept<MT> * kSums<MT, U> * 4) + kSums<MT, 1> * 4;

template <DType T, int MT, int U>
__global__ void __launch_bounds__(kRowThreads, 2)
    float_rows(const RowsJob job, const Rounded x, const DevStep* step, RowSet set) {
  CARAT_SHARED(memory);
  using Ring = WeightRing<T, U>;
  constexpr int J = MT / 8, S = Ring::kSteps < 8 ? Ring::kSteps : 8;
  constexpr int kOwn = (kSums<MT, U> + kRowThreads - 1) / kRowThreads;
  constexpr bool kSplit = MT > kFewSplitRows, kOnce = kSplit;  // one group of outputs
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int32_t m0 = blockIdx.x * MT;
  auto* parts = reinterpret_cast<float*>(memory + kRowWarps * kRing);     // [rounds][warps][U][16][MT]
  float* const ups = parts + kRoundsKept<MT> * kRowWarps * kSums<MT, U>;  // [16][MT]
  Ring ring(job, memory, static_cast<int32_t>(gridDim.y));
  if (kOnce) ring.stride = ring.groups;
  const auto weights = [&](int unit, int32_t n) { return row_of<const uint8_t>(job.weights(unit), n); };
  for (int i = 0; i < kRingSlots; ++i) ring.ask(weights);
  begin_kernel();
  const int32_t there = row_count(step, set) - m0, rows = there < MT ? there : MT;
  if (rows <= 0) return wait_copies<0>();
  std::conditional_t<kSplit, SplitRows<T>, OwnRows<T>> given;
  int kept = 0;
#pragma unroll 1
  for (int32_t group = static_cast<int32_t>(blockIdx.y); group < ring.groups; group += ring.stride) {
    float total[kOwn] = {};
#pragma unroll 1
    for (int32_t c = 0; c < ring.rounds; ++c) {
      float* const round = parts + kept * kRowWarps * kSums<MT, U>;
      const int32_t task = warp + c * kRowWarps;
      if (task < ring.tasks) {
        float sum[U][J][4] = {};
        given.load(job, x, m0, rows, task);
        given.find_scale(sum_scale(job.m.w));
#pragma unroll(kSplit ? 1 : Ring::kChunks)
        for (int part = 0; part < Ring::kChunks; ++part) {
          ring.wait();
#pragma unroll
          for (int j = 0; j < J; ++j)
#pragma unroll
            for (int s0 = 0; s0 < Ring::kSteps; s0 += S) {
              uint4 b[S];
#pragma unroll
              for (int s = 0; s < S; ++s) b[s] = given.operand(j, part * Ring::kSteps + s0 + s);
              uint32_t codes[U][4];
#pragma unroll
              for (int s = 0; s < S; ++s)
#pragma unroll
                for (int u = 0; u < U; ++u) {
                  uint32_t a[4];
                  ring.operand(u, s0 + s, codes[u], a);
                  mma_part<FloatOf<T>::kParts>(sum[u][j], a, b[s].x, b[s].y);
                  mma_part<FloatOf<T>::kParts>(sum[u][j], a, b[s].z, b[s].w);
                }
            }
          sync_warp();
          ring.next(weights);
        }
        float* to = round + warp * kSums<MT, U>;
#pragma unroll
        for (int j = 0; j < J; ++j) {
          const float d0 = given.factor(8 * j + 2 * t), d1 = given.factor(8 * j + 2 * t + 1);
#pragma unroll
          for (int u = 0; u < U; ++u)
#pragma unroll
            for (int h = 0; h < 2; ++h)
              *reinterpret_cast<float2*>(to + (u * kUnit + g + 8 * h) * MT + 8 * j + 2 * t) =
                  float2{d0 * sum[u][j][2 * h], d1 * sum[u][j][2 * h + 1]};
        }
      } else {
#pragma unroll 1
        for (int part = 0; part < Ring::kChunks; ++part) ring.next(weights);
      }
      sync_block();
#pragma unroll
      for (int e = 0; e < kOwn; ++e) {
        const int own = threadIdx.x + e * kRowThreads;
#pragma unroll
        for (int w = 0; w < kRowWarps; ++w)
          if (c * kRowWarps + w < ring.tasks && own < kSums<MT, U>)
            total[e] = total[e] + round[w * kSums<MT, U> + own];
      }
      if constexpr (kRoundsKept<MT> == 1)
        sync_block();
      else
        kept ^= 1;
    }
    if constexpr (T == DType::fp8)
#pragma unroll
      for (int e = 0; e < kOwn; ++e) {
        const int own = threadIdx.x + e * kRowThreads, unit = own / (kUnit * MT);
        const int32_t n = job.first(group, unit, U) + own % (kUnit * MT) / MT;
        if (own < kSums<MT, U> && n < job.m.w.rows)
          total[e] = total[e] * e4m3_factor(job.weights(unit, 0, n), job.m.w.cols);
      }
    if (job.paired) {  // up to gate; read before the block waits for all again
#pragma unroll
      for (int e = 0; e < kOwn; ++e)
        if (const int own = threadIdx.x + e * kRowThreads; own >= kSums<MT, 1> && own < kSums<MT, U>)
          ups[own - kSums<MT, 1>] = total[e];
      sync_block();
    }
#pragma unroll
    for (int e = 0; e < kOwn; ++e) {
      const int own = threadIdx.x + e * kRowThreads, unit = own / (kUnit * MT), at = own % (kUnit * MT);
      const int32_t n = job.first(group, unit, U) + at / MT, m = at % MT;
      if (m >= rows || n >= job.m.w.rows || unit >= (job.paired ? 1 : U)) continue;
      if (job.paired)
        row_of<float>(job.m.y, m0 + m)[n] =
            activate(job.m.act, total[e] * job.m.scale) * (ups[own] * job.up_scale);
      else
        finish(job.m, m0 + m, n, total[e]);
    }
    if constexpr (kOnce) break;
  }
  wait_copies<0>();
}

template <DType T, int MT, int U>
void start(const Context& c, const RowsJob& job, const Rounded& x, RowSet rows) {
  const auto up = [](int64_t n, int64_t each) { return static_cast<int32_t>((n + each - 1) / each); };
  // Of few rows each block of threads has as many groups as the others, and all are there at once.
  const int32_t groups = job.groups(U), across = up(job.m.y.rows, MT),
                there = (c.launcher.shared < 2 * kShared<MT, U> ? 1 : 2) * c.launcher.sms,
                each = MT == 8 ? up(int64_t{groups} * across, there) : 1;
  // Blocks of the same weights side by side.
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(up(groups, each)));
  launch(c.launcher, job.paired ? "gate-up" : "matmul", float_rows<T, MT, U>, grid, kRowThreads,
         static_cast<size_t>(kShared<MT, U>), job, x, c.step, rows);
}
template <DType T, int U>
void by_rows(const Context& c, const RowsJob& job, const Rounded& x, RowSet rows) {
  if (job.m.y.rows <= kFewSplitRows) return start<T, 8, U>(c, job, x, rows);
  if (job.m.y.rows <= 16) return start<T, 16, U>(c, job, x, rows);
  start<T, 32, U>(c, job, x, rows);
}
template <DType T>
void by_units(const Context& c, RowsJob job, const Rounded& x, RowSet rows) {
  const Tensor& from = job.m.x;
  job.even = reinterpret_cast<uintptr_t>(from.data) % 8 == 0 && from.pitch % 8 == 0;
  // Two units where every multiprocessor gets some even so.
  const bool two = job.paired || job.m.w.rows >= 2 * kUnit * c.launcher.sms;
  two ? by_rows<T, 2>(c, job, x, rows) : by_rows<T, 1>(c, job, x, rows);
}
void run(const Context& c, const RowsJob& job, const Rounded& x, RowSet rows) {
  if (job.m.y.rows == 1) return float_row_of(c, job, rows);
  switch (job.m.w.type) {
    case DType::bf16: return by_units<DType::bf16>(c, job, x, rows);
    case DType::f16: return by_units<DType::f16>(c, job, x, rows);
    default: return by_units<DType::fp8>(c, job, x, rows);
  }
}

}  // namespace

void matmul_float_rows(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows) {
  RowsJob job;
  job.m = a;
  run(c, job, x, rows);
}
void gate_up_float_rows(const Context& c, const GateUpArgs& a, const Rounded& x, RowSet rows) {
  RowsJob job;
  job.m.y = a.y, job.m.x = a.x, job.m.w = a.gate, job.m.act = a.act, job.m.scale = a.gate_scale;
  job.paired = true, job.up = a.up, job.up_scale = a.up_scale;
  run(c, job, x, rows);
}

}  // namespace carat::cuda
