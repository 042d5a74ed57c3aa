// Products of many rows over packed weights on the tensor cores. A block has 64 or 32 rows of activations (of
// experts that few rows chose: 8 or 16) and 128 outputs (of gate and up: 64 each), a warp 32 or 16 outputs of
// all rows (what is not there, by eights, is not computed), and goes through the columns 256 at a time; the
// next blocks of both sides are on their way to shared memory meanwhile, as they lie in memory. Integer sums
// are exact, t and the sums over blocks follow the contract's order, so a row has the bits that products of
// few rows give it (docs/numerics.md).
#pragma once
#include <algorithm>

#include "cuda/matmul/matmul.cuh"
#include "cuda/matmul/packed/block_sums.cuh"

namespace carat::cuda {

inline constexpr int kTileGroups = 4;      // of 32 rows of weights
inline constexpr int kMostTileRows = 128;  // of all kernels whose blocks have a TileHead

// A tile of 8 J R rows, a warp with 16 I outputs of 8 J of them, and where the parts of a stage are.
template <DType T, int J, int I, int R>
struct PackedTile {
  static constexpr int kRows = 8 * J * R, kOutWarps = 2 * kTileGroups / I, kThreads = 32 * kOutWarps * R;
  static constexpr int kBlocks = J * R >= 8 ? 1 : J == 4 ? 2 : 3;  // at least, that share an SM's registers
  static constexpr int kHalvesPitch = 48;  // of rows' sums: eight rows' fall into different banks
  static constexpr int kX = kTileGroups * Frags<T>::kTile, kSums = kX + kRows * kRowPitch,
                       kD = kSums + kRows * kHalvesPitch, kBytes = kD + kRows * 4;
  static_assert(kX % 16 == 0 && kBytes % 16 == 0);
};
// In front of the stages.
struct TileHead {
  const uint8_t* group[kTileGroups];
  const int8_t* codes[kMostTileRows];  // of the tile's rows
  int32_t from[kMostTileRows];         // which rows of the activations they are
  int32_t row[kMostTileRows];          // of the output, by the tile's rows
  int32_t slice, count, first, padding;
};
static_assert(sizeof(TileHead) % 16 == 0);

// Until this thread's copies of the oldest of up to four stages are there; the next one is asked for behind
// it.
CARAT_D void wait_oldest_stage(int stages) {
  if (stages == 4)
    wait_copies<2>();
  else if (stages == 3)
    wait_copies<1>();
  else
    wait_copies<0>();
}

// Which of the tile's rows exist: [first, first + count), of the step or of an expert's pairs.
CARAT_D void place_tile(const TileJob& a, const DevStep* s, RowSet set, int32_t tile, int rows, TileHead& h) {
  const int lane = threadIdx.x % 32;
  if (threadIdx.x >= 32) return;
  if (!a.experts()) {
    const int32_t left = row_count(s, set) - tile * rows;
    if (lane == 0) h.slice = 0, h.first = tile * rows, h.count = left < rows ? left : rows;
    return;
  }
  const int32_t experts = a.m.w.slices, per = (experts + 31) / 32;
  const auto tiles_of = [&](int32_t e) {
    return e < experts ? (a.pairs.start[e + 1] - a.pairs.start[e] + rows - 1) / rows : 0;
  };
  int32_t mine = 0;
  for (int32_t e = lane * per; e < (lane + 1) * per; ++e) mine += tiles_of(e);
  int32_t upto = mine;
  for (int d = 1; d < 32; d *= 2) {
    const int32_t below = shuffle(upto, lane >= d ? lane - d : lane);
    if (lane >= d) upto += below;
  }
  if (lane == 31 && tile >= upto) h.count = 0;
  int32_t at = tile - (upto - mine);
  if (at < 0 || at >= mine) return;
  int32_t e = lane * per;
  while (at >= tiles_of(e)) at -= tiles_of(e++);
  const int32_t begin = a.pairs.start[e] + at * rows, left = a.pairs.start[e + 1] - begin;
  h.slice = e, h.first = begin, h.count = left < rows ? left : rows;
}

// Where the tile's p-th group of weights is, the group-th of w.
template <DType T>
CARAT_D void find_group(const Tensor& w, int32_t group, int p, TileHead& h) {
  const int32_t last = groups_of(w.rows) - 1;
  h.group[p] = tile_at<T>(w, h.slice, group < last ? group : last, 0).tile;
}
// Where its activations and outputs are, by thread p of `rows` or more.
CARAT_D void find_acts(const TileJob& a, const Rounded& x, int rows, int p, TileHead& h) {
  if (p < rows) {  // rows that are not there: the first one's
    const int32_t r = h.first + (p < h.count ? p : 0);
    const int32_t row = a.experts() ? a.pairs.order[r] : r;
    const int32_t from = a.kind == TileJob::experts_up ? row / a.used : row;
    h.row[p] = row, h.from[p] = from;
    h.codes[p] = x.q + from * int64_t{x.blocks} * 256;
  }
}

// Both, the n-th tile of outputs.
template <DType T>
CARAT_D void find_rows(const TileJob& a, const Rounded& x, int rows, int32_t n, int p, TileHead& h) {
  if (p < kTileGroups)
    find_group<T>(a.paired() && p >= 2 ? a.other : a.m.w, a.paired() ? n * 2 + p % 2 : n * 4 + p, p, h);
  find_acts(a, x, rows, p, h);
}

// What a thread brings to every stage: 16 bytes of units of its warp's group of weights, or of its two warps'
// by turns, and of a row's codes. All of a stage's copies at once would keep what the block reads of its
// shared memory waiting: they come by quarters.
template <DType T, class Tile>
struct TileFill {
  using F = Frags<T>;
  static constexpr int kStep = Tile::kThreads / 128, kUnits = F::kTile / 512, kRest = F::kTile % 512 / 16;
  const uint8_t* tile;
  SharedAddress to, codes;  // of the first stage
  int32_t count, first;

  CARAT_D TileFill(const TileHead& h, const uint8_t* ring) : count(h.count), first(threadIdx.x / 128) {
    const int group = threadIdx.x / 32 % kTileGroups, unit = 16 * (threadIdx.x % 32) + 512 * first;
    tile = h.group[group] + unit;
    to = shared_address(ring + group * F::kTile + unit);
    codes = shared_address(ring + Tile::kX + threadIdx.x / 16 * kRowPitch + 16 * (threadIdx.x % 16));
  }
  // Columns [256 b, 256 b + n) of both sides.
  CARAT_D void quarter(int which, const Rounded& x, const TileHead& h, int32_t b, int n, uint8_t* ring,
                       int slot) const {
    constexpr int kEach = (kUnits + kStep - 1) / kStep;
    const int units = F::kGrouped ? packed_tile(T, n) / 512 : kUnits;
    const uint8_t* from = tile + int64_t{b} * F::kTile;
    const SharedAddress stage = to + slot * Tile::kBytes;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (i * 4 / kEach == which && kStep * i + first < units)
        copy16_async(stage + 512 * kStep * i, from + 512 * kStep * i);
    constexpr int kOnce = Tile::kThreads / 16, kTimes = (Tile::kRows + kOnce - 1) / kOnce;  // rows at once
    const int32_t column = 256 * b + 16 * (threadIdx.x % 16);
#pragma unroll
    for (int i = 0; i < kTimes; ++i) {
      const int r = threadIdx.x / 16 + kOnce * i;
      if (i * 4 / kTimes == which && r < Tile::kRows)
        copy16_async(codes + slot * Tile::kBytes + kOnce * i * kRowPitch, h.codes[r] + column, r < count);
    }
    if (which < 3) return;
    if (kRest && threadIdx.x % 32 < kRest && first == 0)
      copy16_async(stage + 512 * units, from + 512 * units);
    scales(x, h, b, ring + slot * Tile::kBytes);
  }

 private:
  // The rows' own, and their sums.
  CARAT_D void scales(const Rounded& x, const TileHead& h, int32_t b, uint8_t* stage) const {
#pragma unroll
    for (int i = 0; i < (4 * Tile::kRows + Tile::kThreads - 1) / Tile::kThreads; ++i) {
      const int r = threadIdx.x / 4 + Tile::kThreads / 4 * i, part = threadIdx.x % 4;
      if (r >= count) return;  // the first row's would be read by all SMs at once
      const int64_t block = h.from[r] * int64_t{x.blocks} + b;
      if (F::kSums && part < 2)
        copy16_async(shared_address(stage + Tile::kSums + r * Tile::kHalvesPitch + 16 * part),
                     x.half_sums + block * 16 + 8 * part);
      if (part == 2) copy4_async(shared_address(stage + Tile::kD + 4 * r), x.d + block);
    }
  }
};

// What a sum becomes. v: of gate, or the only one; up: of the other.
CARAT_D float finished_tile(const TileJob& a, int32_t slice, int32_t row, int32_t n, float v, float up) {
  switch (a.kind) {
    case TileJob::matmul: return finished(a.m, row, n, v);
    case TileJob::gate_up: return activate(a.m.act, v * a.m.scale) * (up * a.other_scale);
    case TileJob::experts_up:
      return activate(a.m.act, v * expert_scale(a.expert_scales, slice)) *
             (up * expert_scale(a.other_scales, slice));
    case TileJob::experts_down: break;
  }
  return v * expert_scale(a.expert_scales, slice);
}
CARAT_D void finish_tile(const TileJob& a, int32_t slice, int32_t row, int32_t n, float v, float up) {
  row_of<float>(a.m.y, row)[n] = finished_tile(a, slice, row, n, v, up);
}

// The block's sums, [rows][kSumPitch], in the memory that the stages had.
inline constexpr int kSumPitch = 32 * kTileGroups + 4;  // lanes of leave_sums() hit different banks
constexpr int64_t sum_bytes(int rows) { return int64_t{rows} * kSumPitch * 4; }
// A warp's: 16 I outputs, from `first` on, of 8 J rows.
template <int I, int J>
CARAT_D void leave_sums(float* sums, const float (&acc)[I][J][4], int first) {
  const int lane = threadIdx.x % 32;
  float* at = sums + 2 * (lane % 4) * kSumPitch + first + lane / 4;
#pragma unroll
  for (int j = 0; j < J; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int i = 0; i < 2 * I; ++i) at[(8 * j + e) * kSumPitch + 8 * i] = acc[i / 2][j][i % 2 * 2 + e];
}
// All threads write them out, a row's outputs side by side, four rows' before any is written: a thread with
// one at a time would wait for each.
CARAT_D void write_tile(const TileJob& a, const TileHead& h, int32_t tile, const float* sums) {
  const int outs = a.paired() ? 16 * kTileGroups : 32 * kTileGroups, each = blockDim.x / outs;
  const int at = threadIdx.x % outs, up = a.paired() ? outs : 0;  // up's sums lie behind those of gate
  const int32_t n = tile * outs + at;
  if (n >= a.m.w.rows) return;
#pragma unroll 1
  for (int first = threadIdx.x / outs; first < h.count; first += 4 * each) {
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (const int m = first + i * each; m < h.count)
        y[i] =
            finished_tile(a, h.slice, h.row[m], n, sums[m * kSumPitch + at], sums[m * kSumPitch + up + at]);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (const int m = first + i * each; m < h.count) row_of<float>(a.m.y, h.row[m])[n] = y[i];
  }
}

template <DType T, int J, int I, int R>
__global__ void __launch_bounds__(PackedTile<T, J, I, R>::kThreads, PackedTile<T, J, I, R>::kBlocks)
    packed_tiles(const TileJob a, const Rounded x, int stages, const DevStep* s, RowSet set) {
  using Tile = PackedTile<T, J, I, R>;
  CARAT_SHARED(memory);
  auto& head = *reinterpret_cast<TileHead*>(memory);
  uint8_t* ring = memory + sizeof(TileHead);
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % Tile::kOutWarps * (16 * I),
            row = threadIdx.x / 32 / Tile::kOutWarps * (8 * J);  // of the warp's outputs, and of its rows
  wait_inputs();
  place_tile(a, s, set, blockIdx.x, Tile::kRows, head);
  sync_block();
  if (head.count <= 0) return;
  find_rows<T>(a, x, Tile::kRows, blockIdx.y, threadIdx.x, head);
  sync_block();
  const TileFill<T, Tile> filling(head, ring);
  const auto columns = [&](int32_t b) { return Frags<T>::kGrouped ? block_columns(a.m.w.cols, b) : 256; };
  const auto fill = [&](int32_t b, int slot, int quarter) {
    if (b < x.blocks) filling.quarter(quarter, x, head, b, columns(b), ring, slot);
    if (quarter == 3) commit_copies();
  };
  const auto fill_all = [&](int32_t b, int slot) {
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) fill(b, slot, quarter);
  };
  float acc[I][J][4] = {};
  if (stages == 2) fill_all(0, 0);
#pragma unroll 1
  for (int32_t b = 0; b < x.blocks; ++b) {
    if (stages == 1) sync_block(), fill_all(b, 0);
    wait_copies<0>();
    sync_block();
    const int slot = stages == 2 ? b % 2 : 0;
    const uint8_t* stage = ring + slot * Tile::kBytes;
    const BlockAt from{.tiles = stage + first / kGroup * Frags<T>::kTile,
                       .codes = stage + Tile::kX + row * kRowPitch,
                       .sums = stage + Tile::kSums + row * Tile::kHalvesPitch,
                       .sum_pitch = Tile::kHalvesPitch,
                       .row = first % kGroup};
    const auto* d = reinterpret_cast<const float2*>(stage + Tile::kD) + row / 2 + lane % 4;
    const auto sum = [&](auto eights) {  // of rows that are there
      block_sums<T, I, eights.value>(
          from, columns(b), lane,
          [&](int i, int j, int k, float v) {
            acc[i][j][k] = fmaf(k % 2 ? d[4 * j].y : d[4 * j].x, v, acc[i][j][k]);
          },
          [&](int step) {
            if (stages == 2) fill(b + 1, 1 - slot, step);
          });
    };
    const int count = filling.count - row;
    if (J == 8 && count > 32)
      sum(std::integral_constant<int, J>());
    else if (J >= 4 && count > 16)
      sum(std::integral_constant<int, std::min(J, 4)>());
    else if (J >= 2 && count > 8)
      sum(std::integral_constant<int, std::min(J, 2)>());
    else
      sum(std::integral_constant<int, 1>());
  }
  let_next_start();
  wait_copies<0>();
  sync_block();  // all warps have read the last stage
  auto* sums = reinterpret_cast<float*>(memory + sizeof(TileHead));
  leave_sums(sums + row * kSumPitch, acc, first);
  sync_block();
  write_tile(a, head, blockIdx.y, sums);
}

// False: not one stage fits.
template <DType T, int J, int I = 2, int R = 1>
bool launch_tiles(const Context& c, const TileJob& a, const Rounded& x, RowSet rows) {
  using Tile = PackedTile<T, J, I, R>;
  constexpr int64_t kHead = sizeof(TileHead);
  const int64_t stages = std::min<int64_t>(2, (c.launcher.shared - kHead) / Tile::kBytes);
  if (stages < 1) return false;
  const int32_t per = a.paired() ? 64 : 128, tiles = (a.m.y.rows + Tile::kRows - 1) / Tile::kRows;
  const int64_t ring = std::max(stages * Tile::kBytes, sum_bytes(Tile::kRows));
  launch(c.launcher, a.experts() ? "experts" : "matmul", packed_tiles<T, J, I, R>,
         dim3(static_cast<unsigned>(tiles + (a.experts() ? a.m.w.slices : 0)),
              static_cast<unsigned>((a.m.w.rows + per - 1) / per)),
         Tile::kThreads, static_cast<size_t>(kHead + ring), a, x, static_cast<int>(stages), c.step, rows);
  return true;
}
// Rows of a tile by how many there are, of an expert on average: some have twice as many.
template <DType T>
bool packed_tiles_of(const Context& c, const TileJob& a, const Rounded& x, RowSet rows) {
  const int32_t n = a.m.y.rows, each = a.experts() ? n / a.m.w.slices : n;
  if (a.experts() && each <= 4) return launch_tiles<T, 1>(c, a, x, rows);
  if (a.experts() && each <= 10) return launch_tiles<T, 2>(c, a, x, rows);
  // Smaller ones where there would be fewer than SMs: then the step waits for one tile.
  const int32_t outs = (a.m.w.rows + 127) / 128 * (a.paired() ? 2 : 1);
  const bool large = each > 32 && (a.experts() || (n + 63) / 64 * outs >= c.launcher.sms);
  if (!large) return launch_tiles<T, 4>(c, a, x, rows);
  // Formats with two sums of a group would spill: their warps have 16 outputs.
  if constexpr (Frags<T>::kSixteen) {
    return launch_tiles<T, 8, 1>(c, a, x, rows) || launch_tiles<T, 4>(c, a, x, rows);
  } else {
    // Four warps with 255 registers a thread, where two such blocks share an SM; else eight with half the
    // rows.
    if (2 * (int64_t{sizeof(TileHead)} + 2 * PackedTile<T, 8, 2, 1>::kBytes) <= c.launcher.shared)
      return launch_tiles<T, 8>(c, a, x, rows);
    return launch_tiles<T, 4, 2, 2>(c, a, x, rows) || launch_tiles<T, 4>(c, a, x, rows);
  }
}

}  // namespace carat::cuda
