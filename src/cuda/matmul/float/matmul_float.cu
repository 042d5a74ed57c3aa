// Weights that are floats of one type.
#include <algorithm>
#include <type_traits>

#include "cuda/device/warp_copies.cuh"
#include "cuda/matmul/experts/routers.h"
#include "cuda/matmul/matmul.cuh"
#include "cuda/ops/row_norms.cuh"

namespace carat::cuda {
namespace {

// Many rows: a block has 4 E of them and so many outputs, a warp E of each; both sides pass through shared
// memory, kCols columns at a time.
constexpr int kSide = 4, kManyThreads = 32 * kSide * kSide;
constexpr int kCols = 128, kStages = 3;  // 96 KiB at most: cards before Hopper have 99
template <DType T, int E = 8>
struct ManyShape {
  static constexpr int kTile = E * kSide;
  static constexpr int kWeight = T == DType::f32 ? 4 : 2;  // bytes
  static constexpr int kX = kTile * kCols * kWeight, kStage = kX + kTile * kCols * 4;
};

// `bytes` of each of the tile's rows to shared memory, zeros behind `left` bytes; beyond the last row: the
// first again.
template <int TILE>
CARAT_D void ask_rows(const Tensor& t, int32_t first, int32_t rows, int32_t at, int bytes, int32_t left,
                      unsigned char* to) {
  const int units = bytes / 16;
  for (int i = threadIdx.x; i < TILE * units; i += kManyThreads) {
    const int r = i / units, offset = 16 * (i % units);
    copy16_async(shared_address(to + r * bytes + offset),
                 row_of<const uint8_t>(t, first + (r < rows ? r : 0)) + at + offset, offset < left);
  }
}
// Two columns from an even one on.
template <DType T>
CARAT_D float2 weight_pair(const unsigned char* w, int k) {
  if constexpr (T == DType::f32) return *reinterpret_cast<const float2*>(w + 4 * k);
  const uint32_t two = *reinterpret_cast<const uint32_t*>(w + 2 * k);
  return float2{bf16_float(two & 0xffff), bf16_float(two >> 16)};
}

// Every product in the order of float_products().
template <DType T, int kEach>
__global__ void __launch_bounds__(kManyThreads, 1)
    float_many(const MatmulArgs a, const DevStep* s, RowSet set) {
  using S = ManyShape<T, kEach>;
  constexpr int kTile = S::kTile;
  begin_kernel();
  CARAT_SHARED(memory);
  const int lane = threadIdx.x % 32, n1 = threadIdx.x / 32 % kSide * kEach,
            m1 = threadIdx.x / 32 / kSide * kEach;
  const int32_t n0 = blockIdx.x * kTile, m0 = blockIdx.y * kTile, rows = row_count(s, set) - m0,
                outs = a.w.rows - n0, parts = (a.w.cols + kCols - 1) / kCols;
  if (rows <= 0) return;
  const auto ask = [&](int32_t part) {
    if (part < parts) {
      unsigned char* to = memory + part % kStages * S::kStage;
      const int32_t k = part * kCols, left = a.w.cols - k;
      ask_rows<kTile>(a.w, n0, outs, k * S::kWeight, kCols * S::kWeight, left * S::kWeight, to);
      ask_rows<kTile>(a.x, m0, rows, 4 * k, 4 * kCols, 4 * left, to + S::kX);
    }
    commit_copies();
  };
  for (int i = 0; i < kStages - 1; ++i) ask(i);
  float acc[kEach][kEach] = {};
#pragma unroll 1
  for (int32_t part = 0; part < parts; ++part) {
    wait_copies<kStages - 2>();
    sync_block();  // for all; and nobody is at the stage before any more
    ask(part + kStages - 1);
    const unsigned char *w = memory + part % kStages * S::kStage, *x = w + S::kX;
#pragma unroll
    for (int half = 0; half < kCols / 64; ++half) {
      const int k = 64 * half + 2 * lane;
      float2 u[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j) u[j] = weight_pair<T>(w + (n1 + j) * kCols * S::kWeight, k);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float2 v = *reinterpret_cast<const float2*>(x + ((m1 + i) * kCols + k) * 4);
#pragma unroll
        for (int j = 0; j < kEach; ++j) acc[i][j] = fmaf(v.y, u[j].y, fmaf(v.x, u[j].x, acc[i][j]));
      }
    }
  }
  constexpr int kSums = kEach * kEach, kMine = (kSums + 31) / 32;
  float mine[kMine] = {};  // of the lane's rows and outputs
#pragma unroll
  for (int i = 0; i < kEach; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const float v = warp_sum_f(acc[i][j]);
      if (lane == (i * kEach + j) % 32) mine[(i * kEach + j) / 32] = v;
    }
#pragma unroll
  for (int q = 0; q < kMine; ++q) {
    const int m = m1 + (32 * q + lane) / kEach, n = n1 + lane % kEach;
    if (32 * q + lane < kSums && m < rows && n < outs) finish(a, m0 + m, n0 + n, mine[q]);
  }
}

// Few outputs of few rows (routers): a block has four outputs, a warp each, and a copy of the rows. The
// weights are on their way to shared memory before the inputs are there; in the order of float_products().
constexpr int kFewEach = 4;
struct FewJob {
  MatmulArgs m[kMatmulsAtOnce];
  int32_t end[kMatmulsAtOnce] = {};  // blocks up to the end of each
  int32_t blocks = 0;

  explicit FewJob(const std::vector<MatmulArgs>& a) {
    for (size_t i = 0; i < kMatmulsAtOnce; ++i) {
      if (i < a.size()) m[i] = a[i], blocks += (a[i].w.rows + kFewEach - 1) / kFewEach;
      end[i] = blocks;
    }
  }
};
// A block's product and outputs.
struct FewPart {
  const MatmulArgs& a;
  int32_t n, outs;  // the first one, how many

  CARAT_D explicit FewPart(const FewJob& job)
      : FewPart(job, which_of(job.end, static_cast<int32_t>(blockIdx.x))) {}
  CARAT_D FewPart(const FewJob& job, int which)
      : a(job.m[which]), n((blockIdx.x - (which ? job.end[which - 1] : 0)) * kFewEach) {
    outs = a.w.rows - n < kFewEach ? a.w.rows - n : kFewEach;
  }
  // By a warp: their weights, in `bytes` each.
  CARAT_D void ask(unsigned char* w, int32_t bytes, SharedAddress gate, int lane) const {
    if (lane == 0) gate_init(gate, asks_arrive(outs));
    sync_warp();
    for (int i = 0; i < outs; ++i)
      if (has_part(lane))
        ask_copies(gate, lane,
                   {shared_address(w + i * bytes), row_of<const unsigned char>(a.w, n + i), bytes});
  }
};
// y of up to ROWS rows, and the warp's output.
template <DType T, int ROWS>
CARAT_D void few_sums(const FewPart& part, const unsigned char* w, const float* x, int32_t rows, int out,
                      int lane) {
  const int32_t cols = part.a.w.cols;
  float acc[ROWS] = {};
#pragma unroll 4
  for (int32_t k = 2 * lane; k < cols; k += 64) {
    const float2 u = weight_pair<T>(w, k);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const float2 v = *reinterpret_cast<const float2*>(x + (i < rows ? i : 0) * cols + k);
      acc[i] = fmaf(v.y, u.y, fmaf(v.x, u.x, acc[i]));
    }
  }
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const float v = warp_sum_f(acc[i]);
    if (lane == 0 && i < rows) finish(part.a, i, part.n + out, v);
  }
}
template <DType T>
struct FewShape {
  static constexpr int kThreads = 32 * kFewEach, kHead = 16;
  static int32_t bytes(int32_t cols, int32_t rows) {
    return kHead + cols * (kFewEach * ManyShape<T>::kWeight + 4 * rows);
  }
};
template <DType T>
__global__ void __launch_bounds__(FewShape<T>::kThreads)
    float_few(const __grid_constant__ FewJob job, const DevStep* s, RowSet set) {
  using Shape = FewShape<T>;
  CARAT_SHARED(memory);
  const FewPart part(job);
  const MatmulArgs& a = part.a;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t cols = a.w.cols, bytes = cols * ManyShape<T>::kWeight, rows = row_count(s, set);
  unsigned char* w = memory + Shape::kHead;
  auto* x = reinterpret_cast<float*>(w + kFewEach * bytes);
  const SharedAddress come = shared_address(memory), inputs = come + 8;
  let_next_start();
  if (warp == 0) part.ask(w, bytes, come, lane);
  if (warp == 0 && lane == 0) gate_init(inputs, asks_arrive(rows > 0 ? rows : 1));
  wait_inputs();
  sync_block();
  if (warp == 0 && has_part(lane))
    for (int32_t m = 0; m < rows; ++m)
      ask_copies(inputs, lane, {shared_address(x + m * cols), row_of<const float>(a.x, m), 4 * cols});
  gate_wait(come, 0);  // a block's memory must not go while copies come
  if (rows == 0) return;
  gate_wait(inputs, 0);
  if (warp >= part.outs) return;
  if (rows == 1)
    few_sums<T, 1>(part, w + warp * bytes, x, 1, warp, lane);
  else
    few_sums<T, kRouterRows>(part, w + warp * bytes, x, rows, warp, lane);
}

// The same of a single row behind norms, of products that read their result.
int normed_threads(int32_t cols) { return std::max((cols + 255) / 256, kFewEach) * 32; }
template <DType T>
__global__ void __launch_bounds__(512)
    float_normed(const __grid_constant__ FewJob job, const __grid_constant__ RowNorms norms, const DevStep* s,
                 RowSet set) {
  CARAT_SHARED(memory);
  CARAT_STATIC_SHARED float partial[NormsAhead::N * 32];
  const FewPart part(job);
  const MatmulArgs& a = part.a;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t bytes = a.w.cols * ManyShape<T>::kWeight;
  unsigned char* w = memory + FewShape<T>::kHead;
  auto* x = reinterpret_cast<float*>(w + kFewEach * bytes);
  const SharedAddress come = shared_address(memory);
  let_next_start();
  if (warp == 0) part.ask(w, bytes, come, lane);
  NormsAhead ahead(norms);
  wait_inputs();
  const bool some = row_count(s, set) > 0;
  if (some) ahead.ask();
  if (some)
    ahead.run(partial, [&](int k) {
      ahead.store(k);
      if (ahead.some && reinterpret_cast<float*>(a.x.data) == norms.step[k].y)
        store_eight(x + ahead.first, ahead.v);
    });
  sync_block();
  gate_wait(come, 0);  // a block's memory must not go while copies come
  if (some && warp < part.outs) few_sums<T, 1>(part, w + warp * bytes, x, 1, warp, lane);
}

template <DType T>
bool normed_fits(const RowNorms& norms, const DeviceProps& device) {
  return norms.cols <= 4096 && FewShape<T>::bytes(norms.cols, 1) <= device.shared_per_block;
}

bool even(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.pitch % 16 == 0; }
bool few_fit(const MatmulArgs& a, int64_t shared) {
  const int32_t bytes = a.w.type == DType::f32 ? FewShape<DType::f32>::bytes(a.w.cols, a.y.rows)
                                               : FewShape<DType::bf16>::bytes(a.w.cols, a.y.rows);
  return a.w.rows < kFewOutputs && a.y.rows <= kRouterRows && a.w.cols % 8 == 0 && bytes <= shared &&
         even(a.w) && even(a.x);
}

template <DType T>
void by_rows(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows) {
  if (few_fit(a, c.launcher.shared)) return routers(c, {a}, rows);
  constexpr int kBytes = kStages * ManyShape<T>::kStage;
  if (a.y.rows <= 32 || a.w.cols % 8 || kBytes > c.launcher.shared || !even(a.w) || !even(a.x))
    return matmul_by_rows<Fixed<T>>(c, a, x, rows);
  const auto many = [&](auto each) {
    using S = ManyShape<T, decltype(each)::value>;
    const auto grid = [](int64_t n) { return static_cast<unsigned>((n + S::kTile - 1) / S::kTile); };
    launch(c.launcher, "matmul", float_many<T, decltype(each)::value>, dim3(grid(a.w.rows), grid(a.y.rows)),
           kManyThreads, kStages * S::kStage, a, c.step, rows);
  };
  // A router of some streams would be eight blocks of the large ones: the same sums by smaller ones.
  const int64_t blocks = int64_t{(a.w.rows + 31) / 32} * ((a.y.rows + 31) / 32);
  if (blocks <= std::max(4, c.launcher.sms / 8))
    many(std::integral_constant<int, 2>());
  else
    many(std::integral_constant<int, 8>());
}

}  // namespace

void matmul_f32(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows) {
  by_rows<DType::f32>(c, a, x, rows);
}
void matmul_bf16(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows) {
  by_rows<DType::bf16>(c, a, x, rows);
}
bool norms_fit_float(const RowNorms& norms, const MatmulArgs& a, const DeviceProps& device) {
  bool reads = false;
  for (int k = 0; k < norms.n; ++k) reads |= reinterpret_cast<float*>(a.x.data) == norms.step[k].y;
  if (!reads || a.w.cols != norms.cols || a.w.rows >= kFewOutputs || a.w.cols % 8 ||
      reinterpret_cast<uintptr_t>(a.w.data) % 16 || a.w.pitch % 16)
    return false;
  return a.w.type == DType::f32 ? normed_fits<DType::f32>(norms, device)
         : a.w.type == DType::bf16 && kernel_of({}, Product::matmul, a.w, a.w, 1, 1) == Kernel::f32_rows
             ? normed_fits<DType::bf16>(norms, device)
             : false;
}
void matmul_float(const Context& c, const RowNorms& norms, const std::vector<MatmulArgs>& a, RowSet rows) {
  const FewJob job(a);
  const auto run = [&](auto kernel, int threads, int32_t bytes) {
    launch(c.launcher, "norms, matmul", kernel, dim3(static_cast<unsigned>(job.blocks)), threads,
           static_cast<size_t>(bytes), job, norms, c.step, rows);
  };
  if (a[0].w.type == DType::f32)
    run(float_normed<DType::f32>, normed_threads(norms.cols), FewShape<DType::f32>::bytes(norms.cols, 1));
  else
    run(float_normed<DType::bf16>, normed_threads(norms.cols), FewShape<DType::bf16>::bytes(norms.cols, 1));
}
bool router_fits(const MatmulArgs& a, const DeviceProps& device) {
  return (a.w.type == DType::f32 || a.w.type == DType::bf16) && few_fit(a, device.shared_per_block) &&
         kernel_of(launcher_of(device), Product::matmul, a.w, a.w, a.y.rows, a.y.rows) == Kernel::f32_rows;
}
void routers(const Context& c, const std::vector<MatmulArgs>& a, RowSet rows) {
  const FewJob job(a);
  const auto run = [&](auto kernel, int32_t bytes) {
    launch(c.launcher, "matmul", kernel, dim3(static_cast<unsigned>(job.blocks)), 32 * kFewEach,
           static_cast<size_t>(bytes), job, c.step, rows);
  };
  if (a[0].w.type == DType::f32)
    run(float_few<DType::f32>, FewShape<DType::f32>::bytes(a[0].w.cols, a[0].y.rows));
  else
    run(float_few<DType::bf16>, FewShape<DType::bf16>::bytes(a[0].w.cols, a[0].y.rows));
}
void gate_up_bf16(const Context& c, const GateUpArgs& a, const Rounded& x, RowSet rows) {
  gate_up_by_rows<Fixed<DType::bf16>>(c, a, x, rows);
}
}  // namespace carat::cuda
