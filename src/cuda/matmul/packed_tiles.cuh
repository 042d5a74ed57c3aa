// Products of many rows over packed weights on the tensor cores. A block has 32, 64 or 128 rows of
// activations (of experts that few rows chose: 8 or 16) and 128 outputs (of gate and up: 64 each), a warp 32
// of both, or all of fewer rows (what is not there, by eights, is not computed), and goes through the columns
// 256 at a time; the next blocks of both sides are on their way to shared memory meanwhile, as they lie in
// memory. Integer sums are exact, t and the sums over blocks follow the contract's order, so a row has the
// bits that products of few rows give it (docs/numerics.md).
#pragma once
#include "cuda/matmul/block_sums.cuh"
#include "cuda/matmul/matmul.cuh"

namespace carat::cuda {

inline constexpr int kTileGroups = 4;           // of 32 rows of weights
inline constexpr int kPackedTileThreads = 512;  // at most: four for each row

// Where the parts of a stage are, by the tile's rows.
template <DType T>
struct TileStage {
  static constexpr int kX = kTileGroups * Frags<T>::kTile;
  int rows;
  CARAT_HD int sums() const { return kX + rows * kRowPitch; }
  CARAT_HD int d() const { return sums() + rows * 32; }
  CARAT_HD int bytes() const { return d() + rows * 4; }
  static_assert(kX % 16 == 0);
};
// In front of the stages.
struct TileHead {
  const uint8_t* group[kTileGroups];
  const int8_t* codes[kPackedTileThreads / 4];  // of the tile's rows
  int32_t from[kPackedTileThreads / 4];         // which rows of the activations they are
  int32_t row[kPackedTileThreads / 4];          // of the output, by the tile's rows
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

// Columns [256 b, 256 b + n) of both sides on their way to a stage. J: eights of rows that a warp has. A
// warp, or several, brings a group of weights, 512 bytes at a time.
template <DType T, int J>
CARAT_D void fill_stage(const Rounded& x, const TileHead& h, TileStage<T> at, int32_t b, int n,
                        uint8_t* stage) {
  constexpr int kWhole = Frags<T>::kTile / 512, kRest = Frags<T>::kTile % 512 / 16;
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32 % kTileGroups, first = threadIdx.x / 128,
            step = at.rows / (8 * J), units = packed_tile(T, n) / 512;
  const uint8_t* tile = h.group[group] + int64_t{b} * Frags<T>::kTile + 16 * lane;
  const SharedAddress to = shared_address(stage + group * Frags<T>::kTile + 16 * lane);
  const auto unit = [&](int i) { copy16_async(to + 512 * i, tile + 512 * i); };
  if (step == 1 && n == 256) {
#pragma unroll
    for (int i = 0; i < kWhole; ++i) unit(i);
  } else {
    for (int i = first; i < units; i += step) unit(i);
  }
  if (kRest && lane < kRest && first == 0) unit(units);
  const int part = threadIdx.x % 16, each = at.rows / J;
#pragma unroll
  for (int k = 0; k < J; ++k) {
    const int r = threadIdx.x / 16 + k * each;
    copy16_async(shared_address(stage + at.kX + r * kRowPitch + 16 * part), h.codes[r] + 256 * b + 16 * part,
                 r < h.count);
  }
  const int r = threadIdx.x / 4;
  if (r >= h.count) return;  // the first row's would be read by all processors at once
  const int64_t block = h.from[r] * int64_t{x.blocks} + b;
  if (Frags<T>::kSums && part % 4 < 2)
    copy16_async(shared_address(stage + at.sums() + r * 32 + 16 * (part % 4)),
                 x.sums + block * 16 + 8 * (part % 4));
  if (part % 4 == 2) copy4_async(shared_address(stage + at.d() + 4 * r), x.d + block);
}

// A sum's way out. v: of gate, or the only one; up: of the other.
CARAT_D void finish_tile(const TileJob& a, int32_t slice, int32_t row, int32_t n, float v, float up) {
  switch (a.kind) {
    case TileJob::matmul: return finish(a.m, row, n, v);
    case TileJob::gate_up:
      row_of<float>(a.m.y, row)[n] = activate(a.m.act, v * a.m.scale) * (up * a.other_scale);
      return;
    case TileJob::experts_up:
      row_of<float>(a.m.y, row)[n] = activate(a.m.act, v * expert_scale(a.expert_scales, slice)) *
                                     (up * expert_scale(a.other_scales, slice));
      return;
    case TileJob::experts_down: row_of<float>(a.m.y, row)[n] = v * expert_scale(a.expert_scales, slice);
  }
}

// The block's sums, [rows][kSumPitch], in the memory that the stages had.
inline constexpr int kSumPitch = 32 * kTileGroups + 4;  // lanes of leave_sums() hit different banks
constexpr int64_t sum_bytes(int rows) { return int64_t{rows} * kSumPitch * 4; }
// A warp's: 32 outputs of 8 J rows.
template <int J>
CARAT_D void leave_sums(float* sums, const float (&acc)[2][J][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* at = sums + (warp / 4 * (8 * J) + 2 * (lane % 4)) * kSumPitch + warp % 4 * 32 + lane / 4;
#pragma unroll
  for (int j = 0; j < J; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int i = 0; i < 4; ++i) at[(8 * j + e) * kSumPitch + 8 * i] = acc[i / 2][j][i % 2 * 2 + e];
}
// All threads write them out, a row's outputs side by side. Not unrolled: a sum's way out is long code, and
// what is run of it is little.
CARAT_D void write_tile(const TileJob& a, const TileHead& h, int32_t tile, const float* sums) {
  const int outs = a.paired() ? 16 * kTileGroups : 32 * kTileGroups, each = blockDim.x / outs;
  const int at = threadIdx.x % outs, up = a.paired() ? outs : 0;  // up's sums lie behind those of gate
  const int32_t n = tile * outs + at;
  if (n >= a.m.w.rows) return;
#pragma unroll 1
  for (int m = threadIdx.x / outs; m < h.count; m += each)
    finish_tile(a, h.slice, h.row[m], n, sums[m * kSumPitch + at], sums[m * kSumPitch + up + at]);
}

template <DType T, int J>
__global__ void __launch_bounds__(kPackedTileThreads)
    packed_tiles(const TileJob a, const Rounded x, TileStage<T> at, int stages, const DevStep* s,
                 RowSet set) {
  CARAT_SHARED(memory);
  auto& head = *reinterpret_cast<TileHead*>(memory);
  uint8_t* ring = memory + sizeof(TileHead);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int wn = warp % 4 * 32, wm = warp / 4 * (8 * J);  // the warp's outputs and rows
  wait_inputs();
  place_tile(a, s, set, blockIdx.x, at.rows, head);
  sync_block();
  if (head.count <= 0) return;
  find_rows<T>(a, x, at.rows, blockIdx.y, threadIdx.x, head);
  sync_block();
  const auto columns = [&](int32_t b) { return block_columns(a.m.w.cols, b); };
  const int bytes = at.bytes();
  const auto fill = [&](int32_t b, int slot) {
    if (b < x.blocks) fill_stage<T, J>(x, head, at, b, columns(b), ring + slot * bytes);
    commit_copies();
  };
  constexpr int kPair = J == 1 ? 1 : 2;
  const int there = head.count - wm;
  float acc[2][J][4] = {};
  for (int32_t b = 0; b + 1 < stages; ++b) fill(b, b);
  int slot = 0;  // b % stages
  for (int32_t b = 0; b < x.blocks; ++b) {
    if (stages == 1) sync_block(), fill(b, 0);
    wait_oldest_stage(stages);
    sync_block();
    if (stages > 1) fill(b + stages - 1, slot == 0 ? stages - 1 : slot - 1);
    const uint8_t* stage = ring + slot * bytes;
    slot = slot + 1 == stages ? 0 : slot + 1;
    const BlockAt from{stage + wn / kGroup * Frags<T>::kTile, stage + at.kX + wm * kRowPitch,
                       stage + at.sums() + wm * 32};
    const auto* d = reinterpret_cast<const float2*>(stage + at.d()) + wm / 2 + lane % 4;
    const auto sum = [&](auto eights) {  // of rows that are there
      block_sums<T, 2, eights.value>(from, columns(b), lane, [&](int i, int j, int k, float v) {
        acc[i][j][k] = fmaf(k % 2 ? d[4 * j].y : d[4 * j].x, v, acc[i][j][k]);
      });
    };
    if (J == 4 && there > 16)
      sum(std::integral_constant<int, J>());
    else if (J >= 2 && there > 8)
      sum(std::integral_constant<int, kPair>());
    else if (there > 0)
      sum(std::integral_constant<int, 1>());
  }
  let_next_start();
  wait_copies<0>();
  sync_block();  // all warps have read the last stage
  auto* sums = reinterpret_cast<float*>(memory + sizeof(TileHead));
  leave_sums(sums, acc);
  sync_block();
  write_tile(a, head, blockIdx.y, sums);
}

template <DType T, int J>
bool packed_tiles_of(const Context& c, const TileJob& a, const Rounded& x, TileStage<T> at, RowSet rows) {
  const int64_t room = c.launcher.shared - int64_t{sizeof(TileHead)};
  if (at.rows == 128 && room < 2 * at.bytes()) at.rows = 64;
  const int64_t most = at.rows == 128 ? 3 : 2;  // smaller ones share a processor
  const int64_t stages = room / at.bytes() < most ? room / at.bytes() : most;
  if (stages < 1) return false;
  const int32_t per = a.paired() ? 64 : 128, tiles = (a.m.y.rows + at.rows - 1) / at.rows;
  const int64_t ring = std::max(stages * at.bytes(), sum_bytes(at.rows));
  launch(c.launcher, a.experts() ? "experts" : "matmul", packed_tiles<T, J>,
         dim3(static_cast<unsigned>(tiles + (a.experts() ? a.m.w.slices : 0)),
              static_cast<unsigned>((a.m.w.rows + per - 1) / per)),
         16 / J * at.rows, static_cast<size_t>(int64_t{sizeof(TileHead)} + ring), a, x, at,
         static_cast<int>(stages), c.step, rows);
  return true;
}
// Rows of a tile by how many there are, of an expert on average: some have twice as many.
template <DType T>
bool packed_tiles_of(const Context& c, const TileJob& a, const Rounded& x, RowSet rows) {
  if (!a.experts()) {
    // Smaller ones where there would be fewer than processors: then the step waits for one tile.
    const int32_t n = a.m.y.rows, outs = (a.m.w.rows + 127) / 128 * (a.paired() ? 2 : 1);
    int of = n > 64 ? 128 : n > 32 ? 64 : 32;
    while (of > 32 && (n + of - 1) / of * outs < c.launcher.sms) of /= 2;
    return packed_tiles_of<T, 4>(c, a, x, {of}, rows);
  }
  const int32_t each = a.m.y.rows / a.m.w.slices;
  if (each <= 4) return packed_tiles_of<T, 1>(c, a, x, {8}, rows);
  if (each <= 10) return packed_tiles_of<T, 2>(c, a, x, {16}, rows);
  return packed_tiles_of<T, 4>(c, a, x, {each > 32 ? 64 : 32}, rows);
}

}  // namespace carat::cuda
