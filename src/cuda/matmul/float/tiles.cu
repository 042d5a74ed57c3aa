// Products of many rows over weights in bf16, f16 or fp8 on the tensor cores (sm_80 and later). A block has R
// rows of activations and 128 outputs (of gate and up: 64 each), and goes through the columns 64 at a time.
// Rows come split in parts (float/parts.cuh). Sums of 256 columns are added up ascending, as in
// float/rows.cu.
#include <algorithm>

#include "cuda/matmul/float/parts.cuh"
#include "cuda/matmul/packed/tiles.cuh"

namespace carat::cuda {
namespace {

constexpr int kThreads = 256, kOuts = 128, kCols = 64, kMostStages = 4;
template <DType T>
constexpr int kRow = kCols* FloatOf<T>::kBytes;  // bytes of a stage's output
template <DType T>
constexpr int kWeights = kOuts* kRow<T>;
template <DType T, int R>
constexpr int kStage = kWeights<T> + R* kCols * 4;
struct FloatHead {
  TileHead tile;
  const uint8_t* weights[kOuts];
};
static_assert(sizeof(FloatHead) % 16 == 0);

// By thread p: where the tile's outputs and rows are.
CARAT_D void find_floats(const TileJob& a, const Rounded& x, int rows, int p, FloatHead& h) {
  if (p < kOuts) {
    const Tensor& w = a.paired() && p >= 64 ? a.other : a.m.w;
    const int32_t n = a.paired() ? blockIdx.y * 64 + p % 64 : blockIdx.y * kOuts + p, last = w.rows - 1;
    h.weights[p] = reinterpret_cast<const uint8_t*>(w.data) + h.tile.slice * w.slice_pitch +
                   (n < last ? n : last) * w.pitch;
  }
  if (p < rows) {  // rows that are not there: the first one's
    const int32_t r = h.tile.first + (p < h.tile.count ? p : 0);
    const int32_t row = a.experts() ? a.pairs.order[r] : r;
    const int32_t from = a.kind == TileJob::experts_up ? row / a.used : row;
    h.tile.row[p] = row, h.tile.from[p] = from;
    h.tile.codes[p] = reinterpret_cast<const int8_t*>(x.parts + from * int64_t{x.blocks} * 256);
  }
}

// Where unit u of 16 bytes of output r stands: eight outputs' in different banks.
template <DType T>
CARAT_D unsigned place_of(int r, int u) {
  return static_cast<unsigned>(kRow<T> * r + 16 * (u ^ (T == DType::fp8 ? r >> 1 & 3 : r & 7)));
}
template <DType T, int R>
CARAT_D void fill(const FloatHead& h, int32_t cols, int32_t k, SharedAddress stage) {
  constexpr int kUnits = kRow<T> / 16, kPass = kThreads / kUnits, kBytes = FloatOf<T>::kBytes;
  const int u = threadIdx.x % kUnits, r0 = threadIdx.x / kUnits;
  const bool there = k + 16 / kBytes * u < cols;
#pragma unroll
  for (int i = 0; i < kOuts / kPass; ++i) {
    const int r = r0 + kPass * i;
    copy16_async(stage + place_of<T>(r, u), h.weights[r] + (there ? kBytes * k + 16 * u : 0), there);
  }
  const int part = threadIdx.x % 16, x0 = threadIdx.x / 16;
#pragma unroll
  for (int i = 0; i < R / 16; ++i) {
    const int r = x0 + 16 * i;
    copy16_async(stage + static_cast<unsigned>(kWeights<T> + 256 * r + 16 * (part ^ (r & 1) << 2)),
                 h.tile.codes[r] + 4 * int64_t{k} + 16 * part, r < h.tile.count);
  }
}

template <DType T, int R>
__global__ void __launch_bounds__(kThreads, R == 128 ? 1 : 2)
    float_tiles(const TileJob a, const Rounded x, int stages, const DevStep* s, RowSet set) {
  CARAT_SHARED(memory);
  constexpr bool kScaled = FloatOf<T>::kParts == DType::f16;
  constexpr int kAcross = 256 / R, I = R / 32;  // warps side by side, with I x 16 outputs each
  auto& h = *reinterpret_cast<FloatHead*>(memory);
  unsigned char* ring = memory + sizeof(FloatHead);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int wn = warp % kAcross * (16 * I), wm = warp / kAcross * 32;
  begin_kernel();
  place_tile(a, s, set, blockIdx.x, R, h.tile);
  sync_block();
  if (h.tile.count <= 0) return;
  find_floats(a, x, R, threadIdx.x, h);
  sync_block();
  const int32_t cols = a.m.w.cols, steps = (cols + kCols - 1) / kCols;
  const auto ask = [&](int32_t i, int slot) {
    if (i < steps)
      fill<T, R>(h, cols, i * kCols, shared_address(ring) + static_cast<unsigned>(slot * kStage<T, R>));
    commit_copies();
  };
  for (int i = 0; i + 1 < stages; ++i) ask(i, i);
  float sum[I][4][4] = {}, total[I][4][4] = {}, d[4][2] = {};
  int slot = 0;
#pragma unroll 1
  for (int32_t i = 0; i < steps; ++i) {
    wait_oldest_stage(stages);
    sync_block();
    ask(i + stages - 1, slot == 0 ? stages - 1 : slot - 1);
    const unsigned char* stage = ring + slot * kStage<T, R>;
    slot = slot + 1 == stages ? 0 : slot + 1;
    if (kScaled && i % 4 == 0)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          d[j][e] = x.d[int64_t{h.tile.from[wm + 8 * j + 2 * t + e]} * x.blocks + i / 4];
    const int row = wn + lane % 16;
    const auto weights = [&](int n, int piece, uint32_t(&w)[4]) {  // 16 columns; of codes 32
      load_matrices(w, shared_address(stage) + place_of<T>(row + 16 * n, 2 * piece + lane / 16));
    };
    const unsigned char* rows = stage + kWeights<T> + 256 * (wm + g);
    uint32_t codes[I][4];
#pragma unroll
    for (int k = 0; k < kCols / 16; ++k) {
      uint32_t w[I][4];
#pragma unroll
      for (int n = 0; n < I; ++n)
        if constexpr (T == DType::fp8) {
          if (k % 2 == 0) weights(n, k / 2, codes[n]);
          widen(codes[n], k % 2, w[n]);
        } else {
          weights(n, k, w[n]);
        }
      uint4 v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        v[j] = *reinterpret_cast<const uint4*>(rows + 256 * 8 * j + 16 * ((4 * k + t) ^ (g & 1) << 2));
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int n = 0; n < I; ++n) mma_part<FloatOf<T>::kParts>(sum[n][j], w[n], v[j].x, v[j].y);
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int n = 0; n < I; ++n) mma_part<FloatOf<T>::kParts>(sum[n][j], w[n], v[j].z, v[j].w);
    }
    if (i % 4 != 3 && i + 1 != steps) continue;
#pragma unroll
    for (int n = 0; n < I; ++n)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float v = kScaled ? d[j][e % 2] * sum[n][j][e] : sum[n][j][e];
          total[n][j][e] = total[n][j][e] + v, sum[n][j][e] = 0;
        }
  }
  if constexpr (T == DType::fp8)
#pragma unroll
    for (int n = 0; n < I; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float factor = e4m3_factor(h.weights[wn + 16 * n + g + 8 * half], cols);
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) total[n][j][2 * half + e] = total[n][j][2 * half + e] * factor;
      }
  wait_copies<0>();
  sync_block();  // all warps have read the last stage
  auto* sums = reinterpret_cast<float*>(ring);
  static_assert(2 * kStage<T, R> >= sum_bytes(R));
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e)
#pragma unroll
      for (int n = 0; n < I; ++n)
        sums[(wm + 8 * j + 2 * t + e % 2) * kSumPitch + wn + 16 * n + e / 2 * 8 + g] = total[n][j][e];
  sync_block();
  write_tile(a, h.tile, blockIdx.y, sums);
}

template <DType T, int R>
void start(const Context& c, const TileJob& a, const Rounded& x, RowSet rows) {
  const int64_t room = (c.launcher.shared - int64_t{sizeof(FloatHead)}) / (R == 128 ? 1 : 2);
  const auto stages = static_cast<int>(std::clamp<int64_t>(room / kStage<T, R>, 2, kMostStages));
  const int32_t per = a.paired() ? 64 : kOuts, tiles = (a.m.y.rows + R - 1) / R;
  launch(c.launcher, a.experts() ? "experts" : "matmul", float_tiles<T, R>,
         dim3(static_cast<unsigned>(tiles + (a.experts() ? a.m.w.slices : 0)),
              static_cast<unsigned>((a.m.w.rows + per - 1) / per)),
         kThreads, sizeof(FloatHead) + static_cast<size_t>(stages) * kStage<T, R>, a, x, stages, c.step,
         rows);
}
// Rows of a tile: what the last multiprocessor to end has to do, where smaller tiles are the slower ones.
int32_t rows_of_tile(const TileJob& a, int32_t sms) {
  if (a.experts()) {
    const int32_t each = a.m.y.rows / a.m.w.slices;
    return each > 96 ? 128 : each > 32 ? 64 : 32;
  }
  const int32_t per = a.paired() ? 64 : kOuts, outs = (a.m.w.rows + per - 1) / per;
  const auto cost = [&](int32_t r, int32_t percent) {
    return int64_t{(a.m.y.rows + r - 1) / r * outs + sms - 1} / sms * r * percent;
  };
  const int64_t big = cost(128, 100), middle = cost(64, 110), small = cost(32, 130);
  return big <= middle && big <= small ? 128 : middle <= small ? 64 : 32;
}
template <DType T>
void by_size(const Context& c, const TileJob& a, const Rounded& x, RowSet rows) {
  switch (rows_of_tile(a, c.launcher.sms)) {
    case 128: return start<T, 128>(c, a, x, rows);
    case 64: return start<T, 64>(c, a, x, rows);
    default: return start<T, 32>(c, a, x, rows);
  }
}

}  // namespace

void float_tiles_of(const Context& c, const TileJob& a, const Rounded& x, RowSet rows) {
  switch (a.m.w.type) {
    case DType::bf16: return by_size<DType::bf16>(c, a, x, rows);
    case DType::f16: return by_size<DType::f16>(c, a, x, rows);
    default: return by_size<DType::fp8>(c, a, x, rows);
  }
}

}  // namespace carat::cuda
