// Products of up to MT rows over packed weights on the tensor cores, shared out as shares.cuh says. Tiles
// pass through registers; rounded rows are in shared memory, as a whole or, where they are too wide, the
// block that a warp is at and its next.
#pragma once
#include "cuda/matmul/packed/block_sums.cuh"
#include "cuda/matmul/packed/stream.cuh"

namespace carat::cuda {

// Whole rows come in so many parts, each with blocks that follow each other, by a gate of its own.
inline constexpr int kRowParts = 4;
CARAT_D int part_of(int32_t b, int32_t per) {
  int part = 0;
#pragma unroll
  for (int i = 1; i < kRowParts; ++i) part += b >= i * per;
  return part;
}

template <DType T, int MT, bool WHOLE, bool NARROW = false>
struct RowsShape {
  using F = Frags<T>;
  static constexpr int kWarps = NARROW ? narrow_rows(T).warps : 12, kAdders = MT / 4,
                       kThreads = 32 * (kWarps + kAdders);  // who multiplies, adds
  static constexpr int kParts = WHOLE ? kRowParts : 1;      // in which rows come
  // Tiles of a warp that may wait to be added.
  static constexpr int kRounds = NARROW ? narrow_rows(T).rounds : MT > 8 ? 2 : 4;
  int32_t pitch, sum_pitch;             // bytes of a row: codes, their sums
  int32_t sums, part;                   // of rows: their sums, the next part
  int32_t rows, d, left, gates, bytes;  // behind the warps' tiles

  CARAT_HD constexpr explicit RowsShape(int32_t blocks)
      : pitch(WHOLE ? 256 * blocks + 16 : kRowPitch),
        sum_pitch(!F::kSums ? 0
                  : WHOLE   ? 32 * blocks + 16
                            : 32) {
    sums = MT * pitch;
    part = sums + MT * sum_pitch;
    rows = kWarps * F::kTile;
    d = rows + (WHOLE ? 1 : 2 * kWarps) * part;
    left = d + (MT * blocks + 3) / 4 * 16;
    gates = left + kRounds * kWarps * MT * 128;
    bytes = gates + 8 * (kParts + 2 * kRounds);
  }
};

// By a warp: part after part of `per` blocks, from the one on that is wanted first.
template <class Shape>
CARAT_D void ask_whole_rows(const Shape& shape, const Acts& x, int32_t rows, uint8_t* to, SharedAddress gates,
                            int32_t per, int wanted, int lane) {
#pragma unroll 1
  for (int i = 0; i < Shape::kParts; ++i) {
    const int part = (wanted + i) % Shape::kParts;
    const int32_t b = part * per, n = x.blocks - b < per ? x.blocks - b : per,
                  sums = Shape::F::kSums ? 32 * n : 0;
    if (n <= 0) continue;
    if (!bulk_copies()) {
#pragma unroll 1
      for (int32_t m = 0; m < rows; ++m) {
        const int64_t from = int64_t{m} * x.blocks + b;
        copy_by_lanes({shared_address(to + m * shape.pitch + 256 * b), x.q + 256 * from, 256 * n}, lane);
        copy_by_lanes(
            {shared_address(to + shape.sums + m * shape.sum_pitch + 32 * b), x.sums + 16 * from, sums}, lane);
      }
      arrive_after_copies(gates + 8 * part);
      continue;
    }
    if (lane == 0) gate_arrive(gates + 8 * part, rows * (256 * n + sums));
    sync_warp();
    if (lane >= rows) continue;
    const int64_t from = int64_t{lane} * x.blocks + b;
    copy_bulk(shared_address(to + lane * shape.pitch + 256 * b), x.q + 256 * from, 256 * n, gates + 8 * part);
    if (sums)
      copy_bulk(shared_address(to + shape.sums + lane * shape.sum_pitch + 32 * b), x.sums + 16 * from, sums,
                gates + 8 * part);
  }
}

template <DType T, int MT, bool WHOLE, bool NARROW = false>
CARAT_D void rows_tiles(const ProductJob& job, const Deal& deal, const Rounded& r, const DevStep* s,
                        RowSet set) {
  using Shape = RowsShape<T, MT, WHOLE, NARROW>;
  constexpr int W = Shape::kWarps, R = Shape::kRounds, A = Shape::kAdders;
  CARAT_SHARED(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int32_t first = blockIdx.y * MT, wanted = row_count(s, set) - first, rows = wanted < MT ? wanted : MT,
                blocks = deal.blocks;
  if (rows <= 0) return begin_kernel();
  const Shape shape(blocks);
  auto* left = reinterpret_cast<float*>(memory + shape.left);  // [R][W][MT * 32], rows_place()
  auto* d = reinterpret_cast<float*>(memory + shape.d);
  const SharedAddress ready = shared_address(memory + shape.gates), full = ready + 8 * Shape::kParts,
                      free = full + 8 * R;
  const Share share(deal);
  const int32_t rounds = (share.total + W - 1) / W;
  int32_t at = warp < W && warp < share.total ? share.at(warp) : 0;
  LaneTile<T> w;
  if (warp < W && warp < share.total) {
    const TileAt tile = product_tile<T>(job, blocks, deal.group(at), deal.tile(at));
    w.load(tile.tile, lane, tile.n);
  }
  if (threadIdx.x < Shape::kParts) gate_init(ready + 8 * threadIdx.x, asks_arrive(1));
  if (warp == W) init_turns<W, R, A>(full, free, lane);
  wait_inputs();
  sync_block();
  const Acts x = acts_of({}, r).from(first).with_half_sums();
  const int32_t per = (blocks + Shape::kParts - 1) / Shape::kParts;
  if (warp >= W) {
    if (WHOLE && warp == W)
      ask_whole_rows(shape, x, rows, memory + shape.rows, ready, per, part_of(deal.block(share.at(0)), per),
                     lane);
    constexpr int H = MT / A;
    const int from = (warp - W) * H, mine = rows - from < H ? rows - from : H;
    for (int32_t i = lane; i < H * blocks; i += 32) {
      const int m = from + i % H;
      d[i / H * MT + m] = m < rows ? x.d[m * blocks + i / H] : 0;
    }
    sync_warp();
    uint32_t* const handed = s->handed + kHanded * (blockIdx.y * gridDim.x + blockIdx.x) + 2 * 32 * from;
    Adder<H, MT> adder{job, deal, share, d, handed, handed - kHanded, first + from, mine, lane, from};
    adder.template run<W, R>(left, full, free, rounds);
    // A part that no tile has wanted must have come, too, before its memory is another block's.
    for (int32_t part = 0; WHOLE && warp == W && part * per < blocks; ++part) gate_wait(ready + 8 * part, 0);
    return;
  }
  uint8_t *mine = memory + warp * Frags<T>::kTile, *parts = memory + shape.rows;
  if (!WHOLE) parts += 2 * warp * shape.part;
  const auto ask = [&](int32_t b, int which) {
    uint8_t* to = parts + which * shape.part;
    stage_rows(x, b, rows, to, shape.pitch, Frags<T>::kSums ? to + shape.sums : nullptr, lane,
               [](uint8_t* p, const void* from) { copy16_async(shared_address(p), from); });
  };
  int32_t task = warp, b = deal.block(at);
  uint32_t there = 0;  // parts of rows
  if (!WHOLE && task < share.total) ask(b, 0), commit_copies();
#pragma unroll 1
  for (int32_t c = 0; c < rounds; ++c, task += W) {
    gate_wait(free + 8 * (c % R), 1 - c / R % 2);  // those without a tile, too: none arrives a turn early
    if (task < share.total) {
      const int32_t n = Frags<T>::kGrouped ? job.m[0].w.cols - 256 * b : 256, cols = n < 256 ? n : 256;
      const uint8_t* codes = parts + (WHOLE ? 256 * b : c % 2 * shape.part);
      const uint8_t* sums = parts + shape.sums + (WHOLE ? 32 * b : c % 2 * shape.part);
      w.store(mine, lane, cols);
      if constexpr (WHOLE) {
        const int part = part_of(b, per);
        if (!(there >> part & 1)) gate_wait(ready + 8 * part, 0), there |= 1u << part;
      } else {
        wait_copies<0>();
      }
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
}

template <DType T, int MT, bool WHOLE, bool NARROW>
__global__ void __launch_bounds__(RowsShape<T, MT, WHOLE, NARROW>::kThreads, 1)
    packed_rows(const ProductJob job, const Deal deal, const Rounded r, const DevStep* s, RowSet set) {
  if constexpr (!kNarrowOnly || NARROW) rows_tiles<T, MT, WHOLE, NARROW>(job, deal, r, s, set);
}
// Products of the same rows over two formats: the blocks of threads are shared out by bytes.
template <DType T, DType T2, int MT>
__global__ void __launch_bounds__(RowsShape<T, MT, true>::kThreads, 1)
    packed_rows_pair(const __grid_constant__ StreamPair<ProductJob> jobs, const Deal first, const Deal second,
                     const Rounded r, const DevStep* s, RowSet set) {
  if (static_cast<int32_t>(blockIdx.x) < second.from)
    rows_tiles<T, MT, true>(jobs.first, first, r, s, set);
  else
    rows_tiles<T2, MT, true>(jobs.second, second, r, s, set);
}

template <DType T, int MT, bool WHOLE, bool NARROW = false>
bool launch_rows_as(const Context& c, const ProductJob& job, const Rounded& x, RowSet rows) {
  using Shape = RowsShape<T, MT, WHOLE, NARROW>;
  const Shape shape(x.blocks);
  if (shape.bytes > c.launcher.shared) return false;
  const int32_t grid = c.launcher.sms, times = (job.m[0].y.rows + MT - 1) / MT;
  launch(in_order(c.launcher), job.paired ? "gate-up" : "matmul", packed_rows<T, MT, WHOLE, NARROW>,
         dim3(static_cast<unsigned>(grid), static_cast<unsigned>(times)), Shape::kThreads,
         static_cast<size_t>(shape.bytes), job, deal_of(job.groups(), job.paired, x.blocks, grid), x, c.step,
         rows);
  return true;
}
template <DType T, DType T2, int MT>
int32_t rows_pair_bytes(int32_t blocks) {
  return std::max(RowsShape<T, MT, true>(blocks).bytes, RowsShape<T2, MT, true>(blocks).bytes);
}
template <DType T, DType T2, int MT>
bool rows_pair_fits(int32_t blocks, const DeviceProps& device) {
  return device.sms > 1 && rows_pair_bytes<T, T2, MT>(blocks) <= device.shared_per_block;
}
template <DType T, DType T2, int MT>
void run_rows_pair(const Context& c, const ProductJob& job, const ProductJob& job2, const Rounded& x,
                   RowSet rows) {
  const int32_t grid = std::min(c.launcher.sms, job.groups() + job2.groups()),
                among = second_share<T, T2>(grid, job.groups(), job2.groups()),
                times = (job.m[0].y.rows + MT - 1) / MT;
  launch(in_order(c.launcher), "matmul", packed_rows_pair<T, T2, MT>,
         dim3(static_cast<unsigned>(grid), static_cast<unsigned>(times)), RowsShape<T, MT, true>::kThreads,
         static_cast<size_t>(rows_pair_bytes<T, T2, MT>(x.blocks)), StreamPair<ProductJob>{job, job2},
         deal_of(job.groups(), false, x.blocks, grid - among),
         deal_of(job2.groups(), false, x.blocks, among, 0, grid - among), x, c.step, rows);
}
// False: for want of shared memory, or of groups for all processors.
template <DType T, int MT>
bool launch_rows(const Context& c, const ProductJob& job, const Rounded& x, RowSet rows) {
  if (job.groups() <= c.launcher.sms || job.m[0].y.rows > (MT == 16 ? kBandRows : 2 * MT)) return false;
  if (!is_narrow(c.launcher.shared))
    return launch_rows_as<T, MT, true>(c, job, x, rows) || launch_rows_as<T, MT, false>(c, job, x, rows);
  if constexpr (MT == kNarrowRows) {
    static_assert(RowsShape<T, MT, false, true>(kNarrowBlocks).bytes <= kNarrowBytes);
    return job.m[0].y.rows <= MT && (launch_rows_as<T, MT, true, true>(c, job, x, rows) ||
                                     launch_rows_as<T, MT, false, true>(c, job, x, rows));
  }
  return false;
}

}  // namespace carat::cuda
