// Products with few rows over packed weights: a warp takes tiles of 32 rows x 256 columns, a lane one row.
// Sums of a tile are integers or in the contract's order; tiles of a row are added ascending
// (docs/numerics.md).
#pragma once
#include "cuda/matmul/lane_block.cuh"
#include "cuda/matmul/matmul.cuh"

namespace carat::cuda {

// Work of a block of threads: tasks, each a tile, dealt to warps.
struct Tasks {
  int32_t count, warps;
  CARAT_HD explicit Tasks(int32_t n) : count(n) {
    const int32_t rounds = (n + kMostWarps - 1) / kMostWarps;
    warps = (n + rounds - 1) / rounds;
  }
  static constexpr int kMostWarps = 12;
  // Bytes of shared memory: what tasks leave, and what a warp needs.
  CARAT_HD int64_t shared(int rows, int a_warp) const {
    return int64_t{count} * rows * 128 + int64_t{warps} * a_warp;
  }
};
inline constexpr int kPackedThreads = 32 * Tasks::kMostWarps;

// Of a row's b-th block.
CARAT_HD int block_columns(int32_t cols, int32_t b) { return cols - 256 * b < 256 ? cols - 256 * b : 256; }

struct TileAt {  // where a task's weights are
  const uint8_t* tile;
  int32_t n;  // columns
};
template <DType T>
CARAT_HD TileAt tile_at(const Tensor& w, int32_t slice, int32_t group, int32_t b) {
  const auto* p = reinterpret_cast<const uint8_t*>(w.data) + slice * w.slice_pitch + group * kGroup * w.pitch;
  return {p + int64_t{b} * packed_tile(T, 256), block_columns(w.cols, b)};
}

// Tile `tile` of a group of outputs: of its row of `blocks`, or of gate and then up.
template <DType T>
CARAT_D TileAt product_tile(const ProductJob& job, int32_t blocks, int32_t group, int32_t tile) {
  if (job.paired)
    return tile < blocks ? tile_at<T>(job.m[0].w, 0, group, tile)
                         : tile_at<T>(job.up, 0, group, tile - blocks);
  const int which = job.which(group);
  return tile_at<T>(job.m[which].w, 0, group - job.begin(which), tile);
}
// What becomes of a lane's sum, or two.
CARAT_D void product_finish(const ProductJob& job, int32_t group, int32_t m, int lane, float gate,
                            float sum) {
  const int which = job.which(group);
  const MatmulArgs& a = job.m[which];
  const int32_t n = (group - job.begin(which)) * kGroup + lane;
  if (n >= a.w.rows) return;
  if (job.paired)
    row_of<float>(a.y, m)[n] = activate(a.act, gate * a.scale) * (sum * job.up_scale);
  else
    finish(a, m, n, sum);
}

// The first task's weights, on their way: a kernel may ask for them before its inputs are there. at(task):
// TileAt.
template <class W, class At>
CARAT_D W ask_first(const Tasks& tasks, At at) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  W w;
  if (warp < tasks.count) {
    const TileAt tile = at(warp);
    w.load(tile.tile, lane, tile.n);
  }
  return w;
}

// left[task][MT][32] in shared memory: t of every task. w: from ask_first(). from(task): activations of
// `rows` rows; block(task): which of their blocks.
template <DType T, int MT>
struct LaneTasks {
  using Weights = LaneBlock<T>;
  static constexpr int kBytes = Stage<MT>::kBytes;  // of shared memory a warp

  template <class At, class From, class Block>
  CARAT_D static void run(const Tasks& tasks, float* left, uint8_t* memory, LaneBlock<T>& w, int32_t rows,
                          At at, From from, Block block) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Stage<MT> x{memory + warp * kBytes};
    for (int32_t task = warp; task < tasks.count; task += tasks.warps) {
      const TileAt tile = at(task);
      if (task != warp) w.load(tile.tile, lane, tile.n);
      x.fill(from(task), block(task), rows, lane);
      sync_warp();
      float t[MT];
      w.template dot<MT>(x, tile.n, t);
#pragma unroll
      for (int m = 0; m < MT; ++m) left[(task * MT + m) * 32 + lane] = t[m];
      sync_warp();
    }
  }
};

// The sum over the blocks of one row, ascending: left as run_tasks() leaves it, from the first block's task
// on.
template <int MT>
CARAT_D float add_up(const float* left, const float* d, int32_t blocks, int m, int lane) {
  float acc = 0;
#pragma unroll 4
  for (int32_t b = 0; b < blocks; ++b) acc = fmaf(d[b], left[(b * MT + m) * 32 + lane], acc);
  return acc;
}

}  // namespace carat::cuda
