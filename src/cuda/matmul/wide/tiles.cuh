// Products of many rows over packed weights on warpgroups (wide/block.cuh): a block of threads has 128
// outputs (of gate and up: 64 each) and 128 rows, two warpgroups 64 outputs each; one's floats go beside the
// other's products. Of experts there is a block for every tile, else one a processor. Where that leaves many
// processors without a tile, tiles are narrow: both warpgroups have the same 64 outputs, and half of the rows
// each.
#pragma once
#include "cuda/matmul/wide/short.cuh"

namespace carat::cuda {

inline constexpr int kWideRows = 128;

// acc: as v of wide_block(), of 2 N rows; `blocks` more are added, of `cols` columns or the first of so many.
// kHold: the last one's stage is not given back.
template <class At, bool kHold, bool kNarrow, int N>
CARAT_D void sum_wide(int32_t blocks, int32_t cols, WideHead& h, const uint8_t* ring, int stages,
                      WideTurn& turn, float (&acc)[N]) {
  const int lane = threadIdx.x % 32, group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
#pragma unroll 1
  for (int32_t b = 0; b < blocks; ++b) {
    const uint8_t* stage = ring + turn.slot * At::kBytes;
    gate_wait(shared_address(&h.full[turn.slot]), turn.parity);
    show_to_products();
    const int weights = (kNarrow ? 0 : 2 * group) + warp / 2, first = kNarrow ? group * 2 * N : 0;
    float v[N];
    wide_block<At>(wide_at<At>(stage, weights, warp % 2 * 16, first, block_columns(cols, b)), lane, v);
    add_scaled(reinterpret_cast<const float*>(stage + At::kD) + first, v, acc);
    if (kHold && b + 1 == blocks) break;
    arrive_as_warp(shared_address(&h.empty[turn.slot]));
    turn.next(stages);
  }
}

// A tile of 2 N rows at the most.
template <class At, int N>
CARAT_D void compute_tile(const TileJob& a, int32_t blocks, WideHead& h, uint8_t* ring, int stages) {
  float acc[N];
#pragma unroll
  for (int k = 0; k < N; ++k) acc[k] = 0;
  WideTurn turn{0, 0};
  sum_wide<At, false, false>(blocks, a.m.w.cols, h, ring, stages, turn, acc);
  let_next_start();
  const TileHead& tile = h.tile;
  write_wide<2 * N, true>(a, a.m, blockIdx.y, tile.slice, tile.count, acc, ring,
                          [&](int m) { return tile.row[m]; });
}
// A piece of one. Its sums go out by way of its last stage. The compiler is told what a warp's threads have
// in common, from the way through the pieces on: operands of products are then made once for all of them.
template <class At, int N, bool kNarrow>
CARAT_D void compute_piece(const WideJob& job, const WidePiece& piece, WideHead& h, uint8_t* ring, int stages,
                           WideTurn& turn, const DevStep* s) {
  static_assert(kWideRows / 2 * kOutPitch * 4 <= At::kBytes);
  static_assert(kWideRows * kNarrowPitch * 4 <= At::kBytes);
  float acc[N];
#pragma unroll
  for (int k = 0; k < N; ++k) acc[k] = 0;
  if (piece.from > 0) take_over<kWideConsumers>(s->begun + int64_t{kBegunTile} * (blockIdx.x - 1), acc);
  uint8_t* memory = same_in_warp(reinterpret_cast<uint8_t*>(&h));
  turn = {same_in_warp(turn.slot), same_in_warp(turn.parity)};
  sum_wide<At, true, kNarrow>(same_in_warp(piece.to - piece.from), job.a.m.w.cols - 256 * piece.from,
                              *reinterpret_cast<WideHead*>(memory), memory + kWideHead, stages, turn, acc);
  if (piece.to < h.share.blocks) {
    hand_over<kWideConsumers>(s->begun + int64_t{kBegunTile} * blockIdx.x, acc);
  } else {
    const WidePlace at = h.share.place(piece.tile, kWideRows);
    const int which = job.which(at.n);
    const int32_t n = at.n - job.begin(which);
    uint8_t* stage = ring + turn.slot * At::kBytes;
    const auto row = [&](int m) { return at.first + m; };
    if constexpr (kNarrow)
      write_narrow(job.a, job.m(which), n, at.count, threadIdx.x / 128 * 2 * N, acc, stage, kWideConsumers,
                   row);
    else
      write_wide<kWideRows / 2, false>(job.a, job.m(which), n, 0, at.count, acc, stage, row);
  }
  arrive_as_warp(shared_address(&h.empty[turn.slot]));
  turn.next(stages);
}
template <class At, bool kNarrow>
CARAT_D void compute_pieces(const WideJob& job, WideHead& h, uint8_t* ring, int stages, const DevStep* s) {
  constexpr int kMost = kNarrow ? kWideRows / 4 : kWideRows / 2;  // of a thread's sums
  WideTurn turn{0, 0};
#pragma unroll 1
  for (int32_t i = 0;; ++i) {
    WidePiece piece;
    if (!same_in_warp(h.share.get(i, piece))) break;
    piece = {same_in_warp(piece.tile), same_in_warp(piece.from), same_in_warp(piece.to)};
    const int32_t count = same_in_warp(h.share.place(piece.tile, kWideRows).count);
    if (count > kWideRows / 2)
      compute_piece<At, kMost, kNarrow>(job, piece, h, ring, stages, turn, s);
    else
      compute_piece<At, kMost / 2, kNarrow>(job, piece, h, ring, stages, turn, s);
  }
}

// kCut: a block a processor, which takes the tiles and pieces of its share. Of experts: a tile a block.
template <DType T, bool kCut>
__global__ void __launch_bounds__(kWideThreads, 1)
    wide_tiles(const WideJob job, const Rounded x, int stages, const DevStep* s, RowSet set) {
#if defined(CARAT_WIDE) || defined(CARAT_CUDA_EMULATE)
  CARAT_SHARED_1024(memory);
  using At = WideStage<T, kWideRows>;
  const TileJob& a = job.a;
  auto& head = *reinterpret_cast<WideHead*>(memory);
  uint8_t* ring = memory + kWideHead;
  wait_inputs();
  if (!kCut) place_tile(a, s, set, blockIdx.x, kWideRows, head.tile);
  if (threadIdx.x == 64) init_stages(head, stages, kWideConsumers / 32);
  if (kCut && threadIdx.x == 96)
    head.share = WideShare::of(row_count(s, set), kWideRows, job.outs(), x.blocks);
  sync_block();
  if (!kCut) {
    if (head.tile.count <= 0) return;
    find_rows<T>(a, x, kWideRows, blockIdx.y, threadIdx.x, head.tile);
    sync_block();
  }
  if (threadIdx.x >= kWideConsumers) {
    fewer_registers<kLoaderRegs>();
    WideTurn turn{0, 1};
    if constexpr (kCut)
      if (job.narrow)
        load_pieces<At, true>(job, x, head, ring, stages, turn);
      else
        load_pieces<At, false>(job, x, head, ring, stages, turn);
    else
      load_wide<At, false>(a.m.w.cols, x, {0, 0, x.blocks}, head, ring, stages, turn);
    let_next_start();
  } else {
    more_registers<kSumRegs>();
    if constexpr (kCut)
      if (job.narrow)
        compute_pieces<At, true>(job, head, ring, stages, s);
      else
        compute_pieces<At, false>(job, head, ring, stages, s);
    else if (head.tile.count > kWideRows / 2)
      compute_tile<At, kWideRows / 2>(a, x.blocks, head, ring, stages);
    else if (head.tile.count > kWideRows / 4)
      compute_tile<At, kWideRows / 4>(a, x.blocks, head, ring, stages);
    else
      compute_tile<At, kWideRows / 8>(a, x.blocks, head, ring, stages);
  }
#endif
}

template <DType T>
bool wide_tiles_of(const Context& c, const TileJob& a, const Rounded& x, RowSet rows, const MatmulArgs* more,
                   int n) {
  using At = WideStage<T, kWideRows>;
  if (compiled_for(wide_tiles<T, false>) != 90) return false;
  if (!a.experts() && a.m.y.rows <= kShortRows) return short_tiles_of<T>(c, a, x, rows, more, n);
  const int64_t stages = std::min<int64_t>((c.launcher.shared - kWideHead) / At::kBytes, kMostStages);
  if (stages < 2) return false;
  const int32_t tiles = (a.m.y.rows + kWideRows - 1) / kWideRows;
  const WideJob job = a.experts() || a.paired() ? wide_job(a, more, n, false)
                                                : shaped(a, more, n, tiles, c.launcher.sms, 0.625);
  const auto bytes = static_cast<size_t>(kWideHead + stages * At::kBytes);
  const auto start = [&](const Launcher& l, auto kernel, dim3 grid) {
    launch(l, a.experts() ? "experts" : "matmul", kernel, grid, kWideThreads, bytes, job, x,
           static_cast<int>(stages), c.step, rows);
  };
  if (a.experts())
    start(c.launcher, wide_tiles<T, false>,
          dim3(static_cast<unsigned>(tiles + a.m.w.slices), static_cast<unsigned>(job.outs())));
  else
    start(in_order(c.launcher), wide_tiles<T, true>,
          dim3(static_cast<unsigned>(std::min(tiles * job.outs(), c.launcher.sms))));
  return true;
}

}  // namespace carat::cuda
