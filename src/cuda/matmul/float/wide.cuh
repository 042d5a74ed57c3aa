// Products of many rows over weights in bf16, f16 or fp8 on warpgroups (sm_90a). One warpgroup brings both
// sides to shared memory, 64 columns at a time (of codes 128): weights as they lie, rows split in parts as
// chunks (float/parts.cuh). Two others multiply, 64 outputs each, or the same 64 outputs and half of
// the rows each where that leaves fewer processors without a tile. A block of threads a processor takes
// tiles, or pieces of them (wide/shares.cuh). Sums have the order of float/rows.cu, and so
// their bits.
#pragma once
#include "cuda/matmul/float/wide_block.cuh"

namespace carat::cuda {

template <class At>
CARAT_D void load_floats(const WideJob& job, const Rounded& x, FloatWideHead& h, uint8_t* ring, int stages) {
  const int p = threadIdx.x % 128;
  const int32_t cols = job.a.m.w.cols, chunks = (cols + At::kCols - 1) / At::kCols;
  FloatLoader<At, false> loader{h, ring, stages, {x, job.a.m.y.rows}, cols};
  WidePiece piece;
#pragma unroll 1
  for (int32_t i = 0; h.share.get(i, piece); ++i) {
    const WidePlace place = h.share.place(piece.tile, At::kRows);
    const int which = job.which(place.n);
    turn_wait(4, kWideLoaders);  // all have copied the last one
    if (p < At::kOuts) h.weights[p] = float_weights<At>(job, which, 0, place.n - job.begin(which), p);
    turn_wait(4, kWideLoaders);
    const int32_t end = At::kChunks * piece.to;
    loader.run(At::kChunks * piece.from, end < chunks ? end : chunks, place.first, place.count);
  }
}

template <class At, int N>
CARAT_D void float_piece(const WideJob& job, const WidePiece& piece, const Rounded& x, FloatWideHead& h,
                         uint8_t* ring, int stages, WideTurn& turn, const DevStep* s) {
  float acc[N];
#pragma unroll
  for (int k = 0; k < N; ++k) acc[k] = 0;
  if (piece.from > 0) take_over<kWideConsumers>(s->begun + int64_t{kBegunTile} * (blockIdx.x - 1), acc);
  turn = {same_in_warp(turn.slot), same_in_warp(turn.parity)};
  auto sums = float_sums<At, false, N>(same_in_warp(reinterpret_cast<uint8_t*>(&h)), stages);
  const int32_t chunks = (job.a.m.w.cols + At::kCols - 1) / At::kCols;
#pragma unroll 1
  for (int32_t b = piece.from; b < piece.to; ++b) {
    const int32_t left = chunks - At::kChunks * b;
    sums.block(left < At::kChunks ? left : At::kChunks, b + 1 == piece.to, turn, acc);
  }
  if (piece.to < h.share.blocks) {
    hand_over<kWideConsumers>(s->begun + int64_t{kBegunTile} * blockIdx.x, acc);
  } else {
    const WidePlace at = h.share.place(piece.tile, At::kRows);
    const int which = job.which(at.n);
    const int32_t n = at.n - job.begin(which);
    by_factors<At>(
        job, which, 0, n, sums.first, at.count, [&](int m) { return x.d[at.first + m]; }, acc);
    uint8_t* stage = ring + (At::kOut ? -At::kOut : turn.slot * At::kBytes);
    const auto row = [&](int m) { return at.first + m; };
    if constexpr (At::kNarrow)
      write_narrow(job.a, job.m(which), n, at.count, sums.first, acc, stage, kWideConsumers, row);
    else
      write_wide<At::kRows / 2, false>(job.a, job.m(which), n, 0, at.count, acc, stage, row);
  }
  arrive_as_warp(shared_address(&h.empty[turn.slot]));
  turn.next(stages);
}
template <class At>
CARAT_D void float_pieces(const WideJob& job, const Rounded& x, FloatWideHead& h, uint8_t* ring, int stages,
                          const DevStep* s) {
  constexpr int kMost = At::kNarrow ? At::kRows / 4 : At::kRows / 2;  // of a thread's sums
  WideTurn turn{0, 0};
#pragma unroll 1
  for (int32_t i = 0;; ++i) {
    WidePiece piece;
    if (!same_in_warp(h.share.get(i, piece))) break;
    piece = {same_in_warp(piece.tile), same_in_warp(piece.from), same_in_warp(piece.to)};
    const int32_t count = same_in_warp(h.share.place(piece.tile, At::kRows).count);
    constexpr int kLess = kMost / 2 < 4 ? 4 : kMost / 2;
    if (kLess < kMost && count <= At::kRows / 2)
      float_piece<At, kLess>(job, piece, x, h, ring, stages, turn, s);
    else
      float_piece<At, kMost>(job, piece, x, h, ring, stages, turn, s);
  }
}
// A tile of an expert's rows.
template <class At, int N>
CARAT_D void float_expert(const WideJob& job, const Rounded& x, FloatWideHead& h, uint8_t* ring, int stages) {
  float acc[N];
#pragma unroll
  for (int k = 0; k < N; ++k) acc[k] = 0;
  WideTurn turn{0, 0};
  auto sums = float_sums<At, true, N>(same_in_warp(reinterpret_cast<uint8_t*>(&h)), stages);
  const int32_t chunks = (job.a.m.w.cols + At::kCols - 1) / At::kCols;
#pragma unroll 1
  for (int32_t k = 0; k < chunks; k += At::kChunks)
    sums.block(chunks - k < At::kChunks ? chunks - k : At::kChunks, false, turn, acc);
  let_next_start();
  by_factors<At>(
      job, 0, h.tile.slice, blockIdx.y, 0, h.tile.count, [&](int m) { return x.d[h.tile.from[m]]; }, acc);
  write_wide<At::kRows / 2, true>(job.a, job.a.m, blockIdx.y, h.tile.slice, h.tile.count, acc, ring,
                                  [&](int m) { return h.tile.row[m]; });
}

CARAT_D void init_float_stages(FloatWideHead& h, int stages, int loaders) {
  for (int i = 0; i < stages; ++i) {
    gate_init(shared_address(&h.full[i]), loaders);
    gate_init(shared_address(&h.empty[i]), arrivals(kWideConsumers / 32));
  }
}
template <class At>
__global__ void __launch_bounds__(kWideThreads, 1)
    float_wide(const WideJob job, const Rounded x, int stages, const DevStep* s, RowSet set) {
#if defined(CARAT_WIDE) || defined(CARAT_CUDA_EMULATE)
  CARAT_SHARED_1024(memory);
  auto& head = *reinterpret_cast<FloatWideHead*>(memory);
  uint8_t* ring = memory + At::kRing;
  wait_inputs();
  if (threadIdx.x == 64) init_float_stages(head, stages, kWideLoaders + 1);  // one tells of the rows' bytes
  if (threadIdx.x == 96) head.share = WideShare::of(row_count(s, set), At::kRows, job.outs(), x.blocks);
  sync_block();
  if (threadIdx.x >= kWideConsumers) {
    fewer_registers<kLoaderRegs>();
    load_floats<At>(job, x, head, ring, stages);
    let_next_start();
  } else {
    more_registers<kSumRegs>();
    float_pieces<At>(job, x, head, ring, stages, s);
  }
#endif
}
template <class At>
__global__ void __launch_bounds__(kWideThreads, 1)
    float_wide_experts(const WideJob job, const Rounded x, int stages, const DevStep* s, RowSet set) {
#if defined(CARAT_WIDE) || defined(CARAT_CUDA_EMULATE)
  CARAT_SHARED_1024(memory);
  auto& head = *reinterpret_cast<FloatWideHead*>(memory);
  uint8_t* ring = memory + At::kRing;
  TileHead& tile = head.tile;
  const TileJob& a = job.a;
  const auto p = static_cast<int>(threadIdx.x);
  wait_inputs();
  place_tile(a, s, set, blockIdx.x, At::kRows, tile);
  if (p == 64) init_float_stages(head, stages, kWideLoaders);
  sync_block();
  if (tile.count <= 0) return;
  if (p < tile.count) {
    const int32_t pair = a.pairs.order[tile.first + p];
    tile.row[p] = pair, tile.from[p] = a.kind == TileJob::experts_up ? pair / a.used : pair;
  }
  if (p >= kWideConsumers) head.weights[p % 128] = float_weights<At>(job, 0, tile.slice, blockIdx.y, p % 128);
  sync_block();
  if (p >= kWideConsumers) {
    fewer_registers<kLoaderRegs>();
    const int32_t cols = a.m.w.cols;
    FloatLoader<At, true> loader{
        head, ring, stages, {x, a.kind == TileJob::experts_up ? a.m.y.rows / a.used : a.m.y.rows}, cols};
    loader.run(0, (cols + At::kCols - 1) / At::kCols, 0, tile.count);
    let_next_start();
  } else {
    more_registers<kSumRegs>();
    if (tile.count > At::kRows / 2)
      float_expert<At, At::kRows / 2>(job, x, head, ring, stages);
    else
      float_expert<At, At::kRows / 4>(job, x, head, ring, stages);
  }
#endif
}

template <class At, class Kernel>
void start_float_wide(const Context& c, const Launcher& l, const char* name, Kernel kernel, dim3 grid,
                      const WideJob& job, const Rounded& x, RowSet rows) {
  const int64_t room = (c.launcher.shared - At::kRing) / At::kBytes;
  const auto stages = static_cast<int>(std::min<int64_t>(room, kFloatStages));
  launch(l, name, kernel, grid, kWideThreads, static_cast<size_t>(At::kRing + stages * At::kBytes), job, x,
         stages, c.step, rows);
}
template <DType T, int ROWS>
void float_wide_products(const Context& c, const TileJob& a, const Rounded& x, RowSet rows,
                         const MatmulArgs* more, int n) {
  const int32_t tiles = (a.m.y.rows + ROWS - 1) / ROWS;
  const WideJob job = shaped(a, more, n, tiles, c.launcher.sms, ROWS == 128 ? 0.6 : 0.55);
  const dim3 grid(static_cast<unsigned>(std::min(tiles * job.outs(), c.launcher.sms)));
  const auto start = [&](auto at) {
    using At = decltype(at);
    start_float_wide<At>(c, in_order(c.launcher), "matmul", float_wide<At>, grid, job, x, rows);
  };
  if (job.narrow)
    start(FloatStage<T, ROWS, true>());
  else
    start(FloatStage<T, ROWS, false>());
}
template <DType T, int ROWS>
void float_wide_experts_of(const Context& c, const TileJob& a, const Rounded& x, RowSet rows) {
  using At = FloatStage<T, ROWS, false>;
  const WideJob job = wide_job(a, nullptr, 0, false);
  // Of few rows not every expert has some: blocks without a tile would cost more than those that have one.
  const int32_t tiles = std::min(a.m.y.rows, (a.m.y.rows + ROWS - 1) / ROWS + a.m.w.slices);
  start_float_wide<At>(c, c.launcher, "experts", float_wide_experts<At>,
                       dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(job.outs())), job, x, rows);
}
template <DType T>
void float_wide_by_rows(const Context& c, const TileJob& a, const Rounded& x, RowSet rows,
                        const MatmulArgs* more, int n) {
  constexpr bool kFewest = FloatOf<T>::kCodes;  // rows of any number come here
  if (a.experts()) {
    const int32_t each = a.m.y.rows / a.m.w.slices;
    if (each > 24) return float_wide_experts_of<T, 128>(c, a, x, rows);
    if (each > 4 || !kFewest) return float_wide_experts_of<T, 32>(c, a, x, rows);
    if constexpr (kFewest) float_wide_experts_of<T, 16>(c, a, x, rows);
    return;
  }
  if (a.m.y.rows > 64) return float_wide_products<T, 128>(c, a, x, rows, more, n);
  if (a.m.y.rows > 32) return float_wide_products<T, 64>(c, a, x, rows, more, n);
  if (a.m.y.rows > 8 || !kFewest) return float_wide_products<T, 32>(c, a, x, rows, more, n);
  if constexpr (kFewest) float_wide_products<T, 16>(c, a, x, rows, more, n);
}

}  // namespace carat::cuda
