// Weights that are floats of one type.
#include <algorithm>
#include <type_traits>

#include "cuda/device/warp_copies.cuh"
#include "cuda/matmul/matmul.cuh"
#include "cuda/ops/row_norms.cuh"

namespace carat::cuda {
namespace {

// Many rows: a block has 4 E of them and so many outputs, a warp E of each; both sides pass through shared
// memory, kCols columns at a time.
constexpr int kSide = 4, kManyThreads = 32 * kSide * kSide;
constexpr int kCols = 128, kStages = 4;
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

// Few outputs of a single row: a warp an output. The weights are on their way to shared memory before
// the inputs are there; in the order of float_products().
template <DType T>
__global__ void __launch_bounds__(32) float_few(const MatmulArgs a, const DevStep* s, RowSet set) {
  CARAT_SHARED(memory);
  const int lane = threadIdx.x, n = blockIdx.x;
  const int32_t cols = a.w.cols, bytes = cols * ManyShape<T>::kWeight;
  unsigned char *w = memory + 16, *x = w + bytes;
  const SharedAddress gate = shared_address(memory);
  const auto bring = [&](unsigned char* to, const void* from, int32_t n_bytes) {
    if (has_part(lane)) ask_copies(gate, lane, {shared_address(to), from, n_bytes});
  };
  let_next_start();
  if (lane == 0) gate_init(gate, asks_arrive(2));
  sync_warp();
  bring(w, row_of<const unsigned char>(a.w, n), bytes);
  wait_inputs();
  bring(x, row_of<const unsigned char>(a.x, 0), 4 * cols);
  gate_wait(gate, 0);  // a block's memory must not go while copies come
  if (row_count(s, set) == 0) return;
  float acc = 0;
#pragma unroll 4
  for (int32_t k = 2 * lane; k < cols; k += 64) {
    const float2 u = weight_pair<T>(w, k), v = *reinterpret_cast<const float2*>(x + 4 * k);
    acc = fmaf(v.y, u.y, fmaf(v.x, u.x, acc));
  }
  acc = warp_sum_f(acc);
  if (lane == 0) finish(a, 0, n, acc);
}

// The same behind norms, of products that read their result: routers. A block has a few outputs, a warp each,
// and a copy of the row.
constexpr int kNormedOutputs = 4;
struct NormedJob {
  MatmulArgs m[kMatmulsAtOnce];
  int32_t end[kMatmulsAtOnce] = {};  // blocks up to the end of each
};
template <DType T>
struct NormedFew {
  static int threads(int32_t cols) { return std::max((cols + 255) / 256, kNormedOutputs) * 32; }
  static int32_t bytes(int32_t cols) { return 16 + cols * (kNormedOutputs * ManyShape<T>::kWeight + 4); }
};
template <DType T>
__global__ void __launch_bounds__(512)
    float_normed(const __grid_constant__ NormedJob job, const __grid_constant__ RowNorms norms,
                 const DevStep* s, RowSet set) {
  CARAT_SHARED(memory);
  CARAT_STATIC_SHARED float part[NormsAhead::N * 32];
  const int32_t at = blockIdx.x, which = which_of(job.end, at), block = at - (which ? job.end[which - 1] : 0);
  const MatmulArgs& a = job.m[which];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = block * kNormedOutputs + warp;
  const int32_t cols = a.w.cols, bytes = cols * ManyShape<T>::kWeight;
  unsigned char* w = memory + 16 + warp * bytes;
  auto* x = reinterpret_cast<float*>(memory + 16 + kNormedOutputs * bytes);
  const SharedAddress gate = shared_address(memory);
  const bool has = warp < kNormedOutputs && n < a.w.rows;
  let_next_start();
  if (warp == 0) {
    const int32_t left = a.w.rows - n, outs = left < kNormedOutputs ? left : kNormedOutputs;
    if (lane == 0) gate_init(gate, asks_arrive(outs));
    sync_warp();
    for (int i = 0; i < outs; ++i)
      if (has_part(lane))
        ask_copies(gate, lane,
                   {shared_address(w + i * bytes), row_of<const unsigned char>(a.w, n + i), bytes});
  }
  NormsAhead ahead(norms);
  wait_inputs();
  const bool some = row_count(s, set) > 0;
  if (some) ahead.ask();
  if (some)
    ahead.run(part, [&](int k) {
      ahead.store(k);
      if (ahead.some && reinterpret_cast<float*>(a.x.data) == norms.step[k].y)
        store_eight(x + ahead.first, ahead.v);
    });
  sync_block();
  gate_wait(gate, 0);  // a block's memory must not go while copies come
  if (has && some) {
    float acc = 0;
#pragma unroll 4
    for (int32_t k = 2 * lane; k < cols; k += 64) {
      const float2 u = weight_pair<T>(w, k), v = *reinterpret_cast<const float2*>(x + k);
      acc = fmaf(v.y, u.y, fmaf(v.x, u.x, acc));
    }
    acc = warp_sum_f(acc);
    if (lane == 0) finish(a, 0, n, acc);
  }
}

template <DType T>
bool normed_fits(const RowNorms& norms, const DeviceProps& device) {
  return norms.cols <= 4096 && NormedFew<T>::bytes(norms.cols) <= device.shared_per_block;
}

template <DType T>
void by_rows(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows) {
  const auto even = [](const Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.pitch % 16 == 0;
  };
  const int32_t few = 16 + a.w.cols * (ManyShape<T>::kWeight + 4);
  if (a.w.rows < kFewOutputs && a.y.rows == 1 && a.w.cols % 8 == 0 && few <= c.launcher.shared && even(a.w) &&
      even(a.x))
    return launch(c.launcher, "matmul", float_few<T>, dim3(static_cast<unsigned>(a.w.rows)), 32,
                  static_cast<size_t>(few), a, c.step, rows);
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
  NormedJob job;
  int32_t blocks = 0;
  for (size_t i = 0; i < kMatmulsAtOnce; ++i) {
    if (i < a.size()) job.m[i] = a[i], blocks += (a[i].w.rows + kNormedOutputs - 1) / kNormedOutputs;
    job.end[i] = blocks;
  }
  const auto run = [&](auto kernel, int threads, int32_t bytes) {
    launch(c.launcher, "norms, matmul", kernel, dim3(static_cast<unsigned>(blocks)), threads,
           static_cast<size_t>(bytes), job, norms, c.step, rows);
  };
  if (a[0].w.type == DType::f32)
    run(float_normed<DType::f32>, NormedFew<DType::f32>::threads(norms.cols),
        NormedFew<DType::f32>::bytes(norms.cols));
  else
    run(float_normed<DType::bf16>, NormedFew<DType::bf16>::threads(norms.cols),
        NormedFew<DType::bf16>::bytes(norms.cols));
}
void gate_up_bf16(const Context& c, const GateUpArgs& a, const Rounded& x, RowSet rows) {
  gate_up_by_rows<Fixed<DType::bf16>>(c, a, x, rows);
}
}  // namespace carat::cuda
