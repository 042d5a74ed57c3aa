// What products of many rows on warpgroups have in common (sm_90a). One warpgroup of 128 threads brings both
// sides to shared memory; others have 64 outputs each and multiply what they make of the codes in registers
// (wide/sums.cuh). Same bits as packed_tiles. A block of threads a processor takes tiles, or pieces of
// them (wide/shares.cuh), one after the other: it loads the next one while the last one is written.
#pragma once
#include "cuda/device/arrivals.cuh"
#include "cuda/device/warpgroup.cuh"
#include "cuda/matmul/packed/tiles.cuh"
#include "cuda/matmul/wide/out.cuh"
#include "cuda/matmul/wide/shares.cuh"

namespace carat::cuda {

// Where the parts of a stage of ROWS rows are, and what is in front of all stages. Sums of 64 rows leave by
// way of a stage.
template <DType T, int ROWS>
struct WideStage {
  static constexpr DType kType = T;
  static constexpr int kRows = ROWS, kTiles = ROWS * 256, kSums = kTiles + kTileGroups * Frags<T>::kTile,
                       kD = kSums + (Frags<T>::kMins ? ROWS * 32 : 0), kEnd = kD + ROWS * 4,
                       kOut = 64 * kOutPitch * 4, kBytes = ((kEnd > kOut ? kEnd : kOut) + 1023) / 1024 * 1024;
  static_assert(kSums % 128 == 0);
};
inline constexpr int kWideLoaders = 128, kWideThreads = kWideConsumers + kWideLoaders, kMostStages = 5;
inline constexpr int kSumRegs = 232, kLoaderRegs = 40;  // of what a block's threads begin with
struct WideHead {
  TileHead tile;    // if cut, only for the loading warpgroup
  WideShare share;  // if cut
  uint64_t full[kMostStages], empty[kMostStages];
};
inline constexpr int kWideHead = (sizeof(WideHead) + 1023) / 1024 * 1024;
static_assert(kWideHead <= 4096);  // wide_shared()

CARAT_D void init_stages(WideHead& h, int stages, int warps) {  // warps: that a stage is for
  for (int i = 0; i < stages; ++i) {
    gate_init(shared_address(&h.full[i]), kWideLoaders);
    gate_init(shared_address(&h.empty[i]), arrivals(warps));
  }
}

// Which stage is next, and the parity of its turns.
struct WideTurn {
  int slot, parity;
  CARAT_D void next(int stages) {
    if (++slot == stages) slot = 0, parity ^= 1;
  }
};

// Up to four products of the same rows, whose tiles of outputs are counted through all of them.
struct WideJob {
  TileJob a;  // experts; gate and up; or the first product
  MatmulArgs more[kMatmulsAtOnce - 1];
  int32_t end[kMatmulsAtOnce] = {};  // tiles up to the end of each
  bool narrow = false;

  CARAT_HD int32_t outs() const { return end[kMatmulsAtOnce - 1]; }
  CARAT_HD int which(int32_t n) const { return which_of(end, n); }
  CARAT_HD int32_t begin(int which) const { return which == 0 ? 0 : end[which - 1]; }
  CARAT_HD const MatmulArgs& m(int which) const { return which == 0 ? a.m : more[which - 1]; }
};
inline WideJob wide_job(const TileJob& a, const MatmulArgs* more, int n, bool narrow) {
  WideJob job{a, {}, {}, narrow};
  const int32_t per = (a.paired() ? 64 : 128) / (narrow ? 2 : 1);
  int32_t tiles = 0;
  for (int i = 0; i < static_cast<int>(kMatmulsAtOnce); ++i) {
    if (i > 0 && i <= n) job.more[i - 1] = more[i - 1];
    if (i <= n) tiles += (job.m(i).w.rows + per - 1) / per;
    job.end[i] = tiles;
  }
  return job;
}

// Tiles as they keep processors busiest. narrow: what a narrow one costs of a wide one.
inline WideJob shaped(const TileJob& a, const MatmulArgs* more, int n, int32_t row_tiles, int32_t sms,
                      double narrow_cost) {
  const auto rounds = [&](const WideJob& job) {  // of tiles, one a processor
    const int32_t tiles = job.outs() * row_tiles;
    return tiles > sms ? static_cast<double>(tiles) / sms : 1.0;
  };
  const WideJob wide = wide_job(a, more, n, false), narrow = wide_job(a, more, n, true);
  return rounds(wide) > narrow_cost * rounds(narrow) ? narrow : wide;
}

// The warpgroup that loads.
template <class At, bool kNarrow>
CARAT_D void load_wide(int32_t cols, const Rounded& x, const WidePiece& piece, WideHead& h, uint8_t* ring,
                       int stages, WideTurn& turn) {
  constexpr DType T = At::kType;
  // Of a narrow tile, two warps have a group of weights.
  constexpr int kPer = Frags<T>::kTile / 16, kWarps = kNarrow ? 2 : 1;
  const int p = threadIdx.x % 128, lane = p % 32, warp = p / 32, weights = warp / kWarps;
  const int part = p % 16, first = p / 16;
  const int64_t from = h.tile.from[p % At::kRows] * int64_t{x.blocks};
  // Rows that are not there are not read: the first row's would be read by all processors at once.
  const bool there = p < h.tile.count, whole = h.tile.count == At::kRows;
  const uint8_t* tiles = h.tile.group[weights] + 16 * lane;
  const int to_codes = part / 8 * (At::kRows * 128) + first * 128 + (part % 8 ^ first) * 16,
            to_tile = At::kTiles + weights * Frags<T>::kTile + 16 * lane,
            to_sums = At::kSums + p / 8 * 256 + p % 8 * 16;
#pragma unroll 1
  for (int32_t b = piece.from; b < piece.to; ++b) {
    const SharedAddress stage = shared_address(ring + turn.slot * At::kBytes);
    gate_wait(shared_address(&h.empty[turn.slot]), turn.parity);
    const auto codes = [&](int k, bool read) {
      copy16_async(stage + to_codes + 1024 * k, h.tile.codes[first + 8 * k] + 256 * b + 16 * part, read);
    };
    if (whole) {
#pragma unroll 8
      for (int k = 0; k < At::kRows / 8; ++k) codes(k, true);
    } else {
#pragma unroll 1
      for (int k = 0; 8 * k < h.tile.count; ++k) codes(k, first + 8 * k < h.tile.count);
    }
    const uint8_t* w = tiles + int64_t{b} * Frags<T>::kTile;
    const int units = Frags<T>::kGrouped ? packed_tile(T, block_columns(cols, b)) / 512 : kPer / 32;
#pragma unroll 3
    for (int i = warp % kWarps; i < units; i += kWarps) copy16_async(stage + to_tile + 512 * i, w + 512 * i);
    if (kPer % 32 && lane < kPer % 32 && warp % kWarps == 0)
      copy16_async(stage + to_tile + 512 * units, w + 512 * units);
    if (Frags<T>::kMins && p < At::kRows) {
      const uint16_t* sums = x.half_sums + (from + b) * 16;
      copy16_async(stage + to_sums, sums, there), copy16_async(stage + to_sums + 128, sums + 8, there);
    }
    if (there) copy4_async(stage + At::kD + 4 * p, x.d + from + b);
    arrive_after_copies(shared_address(&h.full[turn.slot]));
    turn.next(stages);
  }
}
template <class At, bool kNarrow>
CARAT_D void load_pieces(const WideJob& job, const Rounded& x, WideHead& h, uint8_t* ring, int stages,
                         WideTurn& turn) {
  const int p = threadIdx.x % 128;
  WidePiece piece;
#pragma unroll 1
  for (int32_t i = 0; h.share.get(i, piece); ++i) {
    const WidePlace place = h.share.place(piece.tile, At::kRows);
    turn_wait(4, kWideLoaders);  // all have copied the last one
    // Of a step that is not full, what lies behind its rows is read, too: whole tiles come without
    // conditions, and sums of those rows are not written.
    const int32_t there = job.a.m.y.rows - place.first;
    if (p == 0)
      h.tile.slice = 0, h.tile.first = place.first, h.tile.count = there < At::kRows ? there : At::kRows;
    turn_wait(4, kWideLoaders);
    const int which = job.which(place.n);
    if (kNarrow || which > 0) {
      const int32_t groups = kNarrow ? 2 : kTileGroups, n = place.n - job.begin(which);
      const bool up = job.a.paired() && p == 1;  // narrow: a group of each
      if (p < groups)
        find_group<At::kType>(up ? job.a.other : job.m(which).w, job.a.paired() ? n : n * groups + p, p,
                              h.tile);
      find_acts(job.a, x, At::kRows, p, h.tile);
    } else {
      find_rows<At::kType>(job.a, x, At::kRows, place.n, p, h.tile);
    }
    turn_wait(4, kWideLoaders);
    load_wide<At, kNarrow>(job.a.m.w.cols, x, piece, h, ring, stages, turn);
  }
}

}  // namespace carat::cuda
