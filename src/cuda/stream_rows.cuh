// Products of up to MT rows over packed weights on the tensor cores, shared out as shares.cuh says. Tiles
// pass through registers; rounded rows are in shared memory, as a whole or, where they are too wide, the
// block that a warp is at and its next.
#pragma once
#include "cuda/packed_frags.cuh"
#include "cuda/shares.cuh"

namespace carat::cuda {

template <DType T, int MT, bool WHOLE>
struct RowsShape {
  using F = Frags<T>;
  static constexpr int kWarps = 12, kThreads = 32 * (kWarps + 1);  // that multiply, and one that adds
  static constexpr int kRounds = MT > 8 ? 2 : 4;  // tiles of a warp that may wait to be added
  int32_t pitch, sum_pitch;                       // bytes of a row: codes, their sums
  int32_t sums, part;                             // of rows: their sums, the next part
  int32_t rows, d, left, gates, bytes;            // behind the warps' tiles

  CARAT_HD explicit RowsShape(int32_t blocks)
      : pitch(WHOLE ? 256 * blocks + 16 : kRowPitch),
        sum_pitch(!F::kMins ? 0
                  : WHOLE   ? 32 * blocks + 16
                            : 32) {
    sums = MT * pitch;
    part = sums + MT * sum_pitch;
    rows = kWarps * F::kTile;
    d = rows + (WHOLE ? 1 : 2 * kWarps) * part;
    left = d + (MT * blocks + 3) / 4 * 16;
    gates = left + kRounds * kWarps * MT * 128;
    bytes = gates + 8 * (1 + 2 * kRounds);
  }
};

template <class Shape>
CARAT_D void ask_whole_rows(const Shape& shape, const Acts& x, int32_t rows, uint8_t* to, SharedAddress gate,
                            int lane) {
  const int32_t codes = 256 * x.blocks, sums = Shape::F::kMins ? 32 * x.blocks : 0;
  if (lane == 0) gate_arrive(gate, rows * (codes + sums));
  sync_warp();
  if (lane >= rows) return;
  copy_bulk(shared_address(to + lane * shape.pitch), x.q + int64_t{lane} * codes, codes, gate);
  if (sums)
    copy_bulk(shared_address(to + shape.sums + lane * shape.sum_pitch), x.sums + int64_t{lane} * (sums / 2),
              sums, gate);
}

template <DType T, int MT, bool WHOLE>
__global__ void __launch_bounds__(RowsShape<T, MT, WHOLE>::kThreads, 1)
    packed_rows(const ProductJob job, const Deal deal, const Rounded r, const DevStep* s, RowSet set) {
#if !defined(__CUDA_ARCH__) || defined(CARAT_GATES)  // elsewhere nobody launches it
  using Shape = RowsShape<T, MT, WHOLE>;
  constexpr int W = Shape::kWarps, R = Shape::kRounds;
  CARAT_SHARED(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int32_t first = blockIdx.y * MT, wanted = row_count(s, set) - first, rows = wanted < MT ? wanted : MT,
                blocks = deal.blocks;
  if (rows <= 0) return begin_kernel();
  const Shape shape(blocks);
  auto* left = reinterpret_cast<float*>(memory + shape.left);  // [R][W][MT * 32], rows_place()
  auto* d = reinterpret_cast<float*>(memory + shape.d);
  const SharedAddress ready = shared_address(memory + shape.gates), full = ready + 8, free = full + 8 * R;
  const Share share(deal);
  const int32_t rounds = (share.total + W - 1) / W;
  int32_t at = warp < W && warp < share.total ? share.at(warp) : 0;
  LaneTile<T> w;
  if (warp < W && warp < share.total) {
    const TileAt tile = product_tile<T>(job, blocks, deal.group(at), deal.tile(at));
    w.load(tile.tile, lane, tile.n);
  }
  if (threadIdx.x == 0) gate_init(ready, 1);
  if (warp == W) init_turns<W, R>(full, free, lane);
  wait_inputs();
  sync_block();
  const Acts x = Acts{nullptr, 0, r.q, r.sums, r.d, r.blocks}.from(first);
  if (warp == W) {
    if (WHOLE) ask_whole_rows(shape, x, rows, memory + shape.rows, ready, lane);
    for (int32_t i = lane; i < MT * blocks; i += 32) d[i] = i % MT < rows ? x.d[i % MT * blocks + i / MT] : 0;
    sync_warp();
    uint32_t* const handed = s->handed + kHanded * (blockIdx.y * gridDim.x + blockIdx.x);
    Adder<MT> adder{job, deal, share, d, handed, handed - kHanded, first, rows, lane};
    adder.template run<W, R>(left, full, free, rounds);
    return;
  }
  uint8_t *mine = memory + warp * Frags<T>::kTile, *parts = memory + shape.rows;
  if (!WHOLE) parts += 2 * warp * shape.part;
  const auto ask = [&](int32_t b, int which) {
    uint8_t* to = parts + which * shape.part;
    stage_rows(x, b, rows, to, shape.pitch, Frags<T>::kMins ? to + shape.sums : nullptr, lane,
               [](uint8_t* p, const void* from) { copy16_async(shared_address(p), from); });
  };
  int32_t task = warp, b = deal.block(at);
  if (WHOLE)
    gate_wait(ready, 0);
  else if (task < share.total)
    ask(b, 0), commit_copies();
#pragma unroll 1
  for (int32_t c = 0; c < rounds; ++c, task += W) {
    gate_wait(free + 8 * (c % R), 1 - c / R % 2);  // those without a tile, too: none arrives a turn early
    if (task < share.total) {
      const int32_t n = Frags<T>::kGrouped ? job.m[0].w.cols - 256 * b : 256, cols = n < 256 ? n : 256;
      const uint8_t* codes = parts + (WHOLE ? 256 * b : c % 2 * shape.part);
      const uint8_t* sums = parts + shape.sums + (WHOLE ? 32 * b : c % 2 * shape.part);
      w.store(mine, lane, cols);
      if (!WHOLE) wait_copies<0>();
      sync_warp();
      if (task + W < share.total) {
        at = share.at(task + W);
        const TileAt next = product_tile<T>(job, blocks, deal.group(at), deal.tile(at));
        w.load(next.tile, lane, next.n);
        b = deal.block(at);
        if (!WHOLE) ask(b, 1 - c % 2);
      }
      if (!WHOLE) commit_copies();
      float* to = left + (c % R * W + warp) * (MT * 32);
      float even = 0;  // rows come in pairs
      block_sums<T, 2, MT / 8>({mine, codes, sums, shape.pitch, shape.sum_pitch}, cols, lane,
                               [&](int i, int j, int k, float v) {
                                 if (k % 2 == 0) return void(even = v);
                                 const int place = rows_place(16 * i + k / 2 * 8 + g, 8 * j + 2 * t);
                                 *reinterpret_cast<float2*>(to + place) = {even, v};
                               });
    }
    arrive_as_warp(full + 8 * (c % R));
    if (c + 2 == rounds) let_next_start();
  }
#endif
}

template <DType T, int MT, bool WHOLE>
bool launch_rows_as(const Context& c, const ProductJob& job, const Rounded& x, RowSet rows) {
  using Shape = RowsShape<T, MT, WHOLE>;
  const Shape shape(x.blocks);
  if (shape.bytes > c.launcher.shared || compiled_for(packed_rows<T, MT, WHOLE>) < 90) return false;
  const int32_t grid = c.launcher.sms, times = (job.m[0].y.rows + MT - 1) / MT;
  launch(in_order(c.launcher), job.paired ? "gate-up" : "matmul", packed_rows<T, MT, WHOLE>,
         dim3(static_cast<unsigned>(grid), static_cast<unsigned>(times)), Shape::kThreads,
         static_cast<size_t>(shape.bytes), job, deal_of(job.groups(), job.paired, x.blocks, grid), x, c.step,
         rows);
  return true;
}
// False: for want of shared memory, of bulk copies (sm_90), or of groups for all processors.
template <DType T, int MT>
bool launch_rows(const Context& c, const ProductJob& job, const Rounded& x, RowSet rows) {
  if (!c.launcher.overlap || job.groups() <= c.launcher.sms || job.m[0].y.rows > 2 * MT) return false;
  return launch_rows_as<T, MT, true>(c, job, x, rows) || launch_rows_as<T, MT, false>(c, job, x, rows);
}

}  // namespace carat::cuda
