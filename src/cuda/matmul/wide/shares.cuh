// How products of many rows are shared out on warpgroups where tiles are cut: a block of threads a processor.
// Tiles are dealt in rounds, one a block, so that what runs at one time reads the same weights and the same
// rows at the same columns. The last round, which would leave many processors without a tile, and the one
// before it are cut: every block has an equal range of their columns, longer than a tile, so that no tile has
// more than two blocks. A block first does the beginning of a tile whose rest the next block has, then a
// whole tile, and last the end of the tile that the block before has begun. That one did its part at the
// start of its range, so nobody waits; and as one block's beginning is longer than the last one's by what
// ranges are longer than a tile, all are still near the same columns. The order of a row's sums is that of
// whole tiles.
#pragma once
#include "cuda/matmul/matmul.cuh"

namespace carat::cuda {

// Sums that are handed over cost about as much as two blocks of columns, pieces a little more than tiles:
// cuts must save more than so many blocks of columns, and one part in so many of all.
inline constexpr int kCutCost = 3, kWorthCutting = 32;

// Rounds of whole tiles, what is left behind them, and if that is worth cutting.
struct WideDeal {
  int32_t whole, left;
  bool cut;
  CARAT_HD static WideDeal of(int32_t tiles, int32_t blocks, int32_t grid) {
    const int32_t whole = tiles / grid, left = tiles % grid;
    const int64_t saved = int64_t{grid - left} * blocks - int64_t{kCutCost} * grid;
    return {whole, left, whole > 0 && left > 0 && saved * kWorthCutting > int64_t{whole + 1} * blocks * grid};
  }
};

struct WidePiece {
  int32_t tile, from, to;  // blocks of 256 columns
};
// Where a tile is: n-th of outputs, rows [first, first + count) as in TileHead.
struct WidePlace {
  int32_t n, first, count;
};

struct WideShare {
  int32_t rows, row_tiles, blocks;  // rows: of the step; blocks: of a row
  int32_t tiles, rounds, turn;      // rounds: of whole tiles
  int32_t from, to;                 // this block's range of the tiles behind them, in blocks of columns

  CARAT_D static WideShare of(int32_t rows, int32_t tile_rows, int32_t out_tiles, int32_t blocks) {
    const int32_t row_tiles = (rows + tile_rows - 1) / tile_rows, tiles = row_tiles * out_tiles;
    if (tiles == 0) return {0, 1, blocks, 0, 0, 0, 0, 0};
    const int32_t grid = gridDim.x;
    const auto [whole, left, cut] = WideDeal::of(tiles, blocks, grid);
    const int64_t range = cut ? int64_t{grid + left} * blocks : 0, i = blockIdx.x;
    // The last tile of rows may have few: so that it is not the same block's in every round, rounds are
    // turned until a block's tile of rows is the one behind its last.
    const int32_t turn = (row_tiles + 1 - grid % row_tiles) % row_tiles;
    return {rows,
            row_tiles,
            blocks,
            tiles,
            cut ? whole - 1 : whole + (left > 0 ? 1 : 0),
            turn,
            static_cast<int32_t>(range * i / grid),
            static_cast<int32_t>(range * (i + 1) / grid)};
  }

  CARAT_D WidePlace place(int32_t tile, int32_t tile_rows) const {
    const int32_t n = tile / row_tiles, first = (tile - n * row_tiles) * tile_rows, there = rows - first;
    return {n, first, there < tile_rows ? there : tile_rows};
  }
  // This block's piece i; false: it has no more.
  CARAT_D bool get(int32_t i, WidePiece& p) const {
    const int32_t grid = gridDim.x, at = blockIdx.x;
    if (i < rounds) {
      p = {i * grid + (at + i * turn) % grid, 0, blocks};
      return p.tile < tiles;
    }
    i -= rounds;
    const int32_t first = rounds * grid, last = to / blocks, next = (from + blocks - 1) / blocks;
    if (last * blocks < to && i-- == 0) {
      p = {first + last, 0, to - last * blocks};
      return true;
    }
    if (next < last && i-- == 0) {
      p = {first + next, 0, blocks};
      return true;
    }
    p = {first + next - 1, from - (next - 1) * blocks, blocks};
    return from < next * blocks && i == 0;
  }
};

// A thread's sums on their way to the next block, as words; who takes them leaves zeros.
template <int THREADS, int N>
CARAT_D void hand_over(uint32_t* to, const float (&acc)[N]) {
  static_assert(N * THREADS <= kBegunTile);
  to += 2 * threadIdx.x;
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    put_words(to + 2 * THREADS * i, {word_of(acc[2 * i]), word_of(acc[2 * i + 1])});
}
template <int THREADS, int N>
CARAT_D void take_over(uint32_t* from, float (&acc)[N]) {
  from += 2 * threadIdx.x;
  bool waits = true;
  while (waits) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const uint2 w = peek_words(from + 2 * THREADS * i);
      all &= w.x != 0 && w.y != 0;
      acc[2 * i] = value_of(w.x), acc[2 * i + 1] = value_of(w.y);
    }
    waits = ballot(!all) != 0;
  }
#pragma unroll
  for (int i = 0; i < N / 2; ++i) put_words(from + 2 * THREADS * i, {0, 0});
}

}  // namespace carat::cuda
