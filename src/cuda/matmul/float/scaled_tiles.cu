// Weights of 4 bits (mxfp4_a8, nvfp4_a8) times rows in e4m3 by block-scaled mma.sync (12.0, 12.1), of steps
// of any number of rows. A block has R rows and 32 or 128 outputs (of gate and up half of each), and goes
// through the columns 128 at a time; the next ones of both sides are on their way to shared memory meanwhile,
// as they lie in memory. mxfp4: an instruction takes 32 columns with both scales; sums of 256 columns are
// added up ascending. nvfp4's scales are no powers of two: an instruction has 16 columns (the others are
// zeros) and the row's scale, and the output's comes behind. The same sums for every R. Not measured: no such
// card was there.
#include <algorithm>

#include "cuda/device/scaled.cuh"
#include "cuda/matmul/float/scaled_rows.cuh"
#include "cuda/matmul/packed/tiles.cuh"

namespace carat::cuda {
namespace {

constexpr int kMostStages = 4;

struct ScaledHead {
  TileHead tile;
  const uint8_t* weights[128];
};

// By thread p: where the tile's outputs and rows are.
template <int R>
CARAT_D void find_scaled(const TileJob& a, int p, ScaledHead& h) {
  using S = ScaledShape<R>;
  constexpr int kHalf = S::kOuts / 2;
  if (p < S::kOuts) {
    const Tensor& w = a.paired() && p >= kHalf ? a.other : a.m.w;
    const int32_t n = a.paired() ? blockIdx.y * kHalf + p % kHalf : blockIdx.y * S::kOuts + p,
                  last = w.rows - 1;
    h.weights[p] = reinterpret_cast<const uint8_t*>(w.data) + h.tile.slice * w.slice_pitch +
                   (n < last ? n : last) * w.pitch;
  }
  if (p < R) {  // rows that are not there: the first one's
    const int32_t r = h.tile.first + (p < h.tile.count ? p : 0);
    const int32_t row = a.experts() ? a.pairs.order[r] : r;
    h.tile.row[p] = row, h.tile.from[p] = a.kind == TileJob::experts_up ? row / a.used : row;
  }
}

// Columns [128 i, 128 i + 128) of both sides on their way to a stage; of the last ones what is there.
template <DType T, int R>
CARAT_D void fill_scaled(const ScaledHead& h, const ScaledRows& rows, int32_t cols, int32_t i,
                         SharedAddress stage) {
  using S = ScaledShape<R>;
  const int32_t left = cols / info(T).elems * info(T).bytes - 4 * kStepWords<T> * i;  // bytes
  for (int u = threadIdx.x; u < S::kOuts * kStepWords<T>; u += S::kThreads) {
    const int r = u / kStepWords<T>, word = u % kStepWords<T>;
    if (4 * word < left)
      copy4_async(stage + static_cast<unsigned>(kCodesPitch * r + 4 * word),
                  h.weights[r] + 4 * (kStepWords<T> * i + word));
  }
  constexpr int kUnits = kScaledPitch / 16;
  for (int u = threadIdx.x; u < R * kUnits; u += S::kThreads) {
    const int r = u / kUnits, unit = u % kUnits;
    copy16_async(stage + static_cast<unsigned>(S::kCodes + kScaledPitch * r + 16 * unit),
                 rows.codes(i, h.tile.from[r]) + 16 * unit, r < h.tile.count);
  }
}

// A warp's sums over a stage's block of 32 columns, the BLOCK-th of its four. out: of the stage's outputs,
// the lane's first; row: of its rows. sum: where products of mxfp4 go; total: those of nvfp4.
template <DType T, int R, int BLOCK>
struct ScaledBlock {
  using S = ScaledShape<R>;
  using Sums = float[S::I][S::J][4];

  CARAT_D static void run(const uint8_t* out, const uint8_t* row, Sums& sum, Sums& total) {
    const int t = threadIdx.x % 4;
    uint32_t b[S::J][2], scale[S::J];
#pragma unroll
    for (int j = 0; j < S::J; ++j) {
      const uint8_t* at = row + 8 * kScaledPitch * j;
      b[j][0] = u32_at(at + 32 * BLOCK + 4 * t), b[j][1] = u32_at(at + 32 * BLOCK + 16 + 4 * t);
      scale[j] = u32_at(at + kScaledCols);
    }
#pragma unroll
    for (int i = 0; i < S::I; ++i) {
      const uint8_t *upper = out + 16 * kCodesPitch * i, *lower = upper + 8 * kCodesPitch;
      if constexpr (T == DType::mxfp4_a8) {
        const uint32_t u = shared_word(upper + 4 * t, 17 * BLOCK + 1),
                       l = shared_word(lower + 4 * t, 17 * BLOCK + 1);
        const uint32_t w[4] = {low_codes(u), low_codes(l), high_codes(u), high_codes(l)};
        const uint32_t own = (t % 2 ? lower : upper)[17 * BLOCK];
#pragma unroll
        for (int j = 0; j < S::J; ++j) mma_scaled<BLOCK>(sum[i][j], w, b[j][0], b[j][1], own, scale[j]);
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          constexpr int kBlock = BLOCK / 2 * 36;
          const int part = BLOCK % 2 * 2 + half, code = kBlock + 4 + 8 * part + t % 2 * 4;
          const uint32_t u = u32_at(upper + code), l = u32_at(lower + code);
          const uint32_t first = low_codes(t < 2 ? u : u >> 4), second = low_codes(t < 2 ? l : l >> 4);
          const uint32_t w[4] = {half ? 0 : first, half ? 0 : second, half ? first : 0, half ? second : 0};
          const float factor[2] = {ue4m3_float(upper[kBlock + part]), ue4m3_float(lower[kBlock + part])};
#pragma unroll
          for (int j = 0; j < S::J; ++j) {
            float v[4] = {0, 0, 0, 0};
            mma_scaled<BLOCK>(v, w, b[j][0], b[j][1], 127, scale[j]);
#pragma unroll
            for (int e = 0; e < 4; ++e) total[i][j][e] = fmaf(factor[e / 2], v[e], total[i][j][e]);
          }
        }
      }
    }
  }
};

// Sums of up meet those of gate: warps of the upper outputs give (false: and have no more to do).
template <int R>
CARAT_D bool exchange_scaled(float (&sum)[ScaledShape<R>::I][ScaledShape<R>::J][4],
                             const float (&total)[ScaledShape<R>::I][ScaledShape<R>::J][4], bool gives,
                             unsigned char* memory) {
  using S = ScaledShape<R>;
  constexpr int kHalf = S::kAcross / 2, kSums = S::I * S::J * 4;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* at =
      reinterpret_cast<float*>(memory) + (warp / S::kAcross * kHalf + warp % kHalf) * (32 * kSums) + lane;
  wait_copies<0>();
  sync_block();
  if (gives)
#pragma unroll
    for (int i = 0; i < kSums; ++i) at[32 * i] = total[i / 4 / S::J][i / 4 % S::J][i % 4];
  sync_block();
  if (!gives)
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum[i / 4 / S::J][i / 4 % S::J][i % 4] = at[32 * i];
  return !gives;
}

// n: of the lane's first output; m: of its first row, of the tile's.
template <int R>
CARAT_D void write_scaled(const TileJob& a, const TileHead& h, int32_t n, int m,
                          const float (&total)[ScaledShape<R>::I][ScaledShape<R>::J][4],
                          const float (&up)[ScaledShape<R>::I][ScaledShape<R>::J][4]) {
  using S = ScaledShape<R>;
#pragma unroll
  for (int j = 0; j < S::J; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = m + 8 * j + e % 2;
      if (row >= h.count) continue;
#pragma unroll
      for (int i = 0; i < S::I; ++i) {
        const int32_t out = n + 16 * i + e / 2 * 8;
        if (out < a.m.w.rows) finish_tile(a, h.slice, h.row[row], out, total[i][j][e], up[i][j][e]);
      }
    }
}

template <DType T, int R>
__global__ void __launch_bounds__(ScaledShape<R>::kThreads, R == 128 ? 1 : 2)
    scaled_tiles(const TileJob a, const Rounded x, int stages, const DevStep* s, RowSet set) {
#if defined(CARAT_SCALED) || defined(CARAT_CUDA_EMULATE)
  using S = ScaledShape<R>;
  CARAT_SHARED(ring);
  CARAT_STATIC_SHARED ScaledHead h;  // scaled_tiles_compiled() looks whether there is any
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
  const int wn = warp % S::kAcross * (16 * S::I), wm = warp / S::kAcross * 32;
  begin_kernel();
  place_tile(a, s, set, blockIdx.x, R, h.tile);
  sync_block();
  if (h.tile.count <= 0) return;
  find_scaled<R>(a, threadIdx.x, h);
  sync_block();
  const int32_t cols = a.m.w.cols, steps = (cols + kScaledCols - 1) / kScaledCols;
  const auto ask = [&](int32_t i, int slot) {
    if (i < steps)
      fill_scaled<T, R>(h, {x}, cols, i, shared_address(ring) + static_cast<unsigned>(slot * S::kStage));
    commit_copies();
  };
  for (int i = 0; i + 1 < stages; ++i) ask(i, i);
  float sum[S::I][S::J][4] = {}, total[S::I][S::J][4] = {};
  int slot = 0;
#pragma unroll 1
  for (int32_t i = 0; i < steps; ++i) {
    wait_oldest_stage(stages);
    sync_block();
    ask(i + stages - 1, slot == 0 ? stages - 1 : slot - 1);
    const uint8_t* stage = ring + slot * S::kStage;
    slot = slot + 1 == stages ? 0 : slot + 1;
    const uint8_t *out = stage + kCodesPitch * (wn + g), *row = stage + S::kCodes + kScaledPitch * (wm + g);
    const int32_t left = cols - kScaledCols * i;
    ScaledBlock<T, R, 0>::run(out, row, sum, total);
    if (left > 32) ScaledBlock<T, R, 1>::run(out, row, sum, total);
    if (left > 64) ScaledBlock<T, R, 2>::run(out, row, sum, total);
    if (left > 96) ScaledBlock<T, R, 3>::run(out, row, sum, total);
    if constexpr (T == DType::mxfp4_a8) {
      if (i % 2 == 0 && i + 1 != steps) continue;
#pragma unroll
      for (int k = 0; k < S::I * S::J * 4; ++k) {
        float& v = sum[k / 4 / S::J][k / 4 % S::J][k % 4];
        float& all = total[k / 4 / S::J][k / 4 % S::J][k % 4];
        all = all + v, v = 0;
      }
    }
  }
  constexpr int kHalf = S::kOuts / 2;
  if (a.paired() && !exchange_scaled<R>(sum, total, wn >= kHalf, ring)) return;
  write_scaled<R>(a, h.tile, blockIdx.y * (a.paired() ? kHalf : S::kOuts) + wn + g, wm + 2 * (lane % 4),
                  total, sum);
#endif
}

template <DType T, int R>
void start(const Context& c, const TileJob& a, const Rounded& x, RowSet rows) {
  using S = ScaledShape<R>;
  // Two blocks of few rows a processor, which has 1 KiB more than a block may have.
  const int64_t room = c.launcher.shared / (R == 128 ? 1 : 2) - int64_t{sizeof(ScaledHead)};
  const auto stages = static_cast<int>(std::clamp<int64_t>(room / S::kStage, 2, kMostStages));
  const int32_t per = a.paired() ? S::kOuts / 2 : S::kOuts, tiles = (a.m.y.rows + R - 1) / R;
  launch(c.launcher, a.experts() ? "experts" : "matmul", scaled_tiles<T, R>,
         dim3(static_cast<unsigned>(tiles + (a.experts() ? a.m.w.slices : 0)),
              static_cast<unsigned>((a.m.w.rows + per - 1) / per)),
         S::kThreads, static_cast<size_t>(stages) * S::kStage, a, x, stages, c.step, rows);
}
template <DType T>
void by_rows(const Context& c, const TileJob& a, const Rounded& x, RowSet rows) {
  const int32_t each = a.experts() ? a.m.y.rows / a.m.w.slices : a.m.y.rows;  // of an expert on average
  if (each > 64) return start<T, 128>(c, a, x, rows);
  if (each > 8) return start<T, 32>(c, a, x, rows);
  start<T, 8>(c, a, x, rows);
}

}  // namespace

void scaled_tiles_of(const Context& c, const TileJob& a, const Rounded& x, RowSet rows) {
  if (a.m.w.type == DType::mxfp4_a8) return by_rows<DType::mxfp4_a8>(c, a, x, rows);
  by_rows<DType::nvfp4_a8>(c, a, x, rows);
}
// Code for another device, or for every 12.x, has an empty kernel.
bool scaled_tiles_compiled() {
#ifdef CARAT_CUDA_EMULATE
  return true;
#else
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(
             &attributes, reinterpret_cast<const void*>(scaled_tiles<DType::mxfp4_a8, 8>)) == cudaSuccess &&
         attributes.sharedSizeBytes > 0;
#endif
}

}  // namespace carat::cuda
