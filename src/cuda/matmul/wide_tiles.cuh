// Products of many rows over packed weights on warpgroups (sm_90a). A code times its group's scale is an
// integer of two digits, 256 high + low, so that a block's sum S of numerics.md is two products of bytes over
// 256 columns, with no scale between them. A block of threads has 128 outputs (of gate and up: 64 each) and
// 128 rows: one warpgroup of 128 threads brings both sides to shared memory; two others have 64 outputs each
// and make digits of their codes in registers; one's floats go beside the other's products. Same bits as
// packed_tiles. Of experts there is a block for every tile, else one a processor that takes tiles, or pieces
// of them (wide_shares.cuh), one after the other: it loads the next one while the last one is written.
#pragma once
#include "cuda/device/warpgroup.cuh"
#include "cuda/matmul/packed_tiles.cuh"
#include "cuda/matmul/wide_out.cuh"
#include "cuda/matmul/wide_shares.cuh"

namespace carat::cuda {

inline constexpr int kWideRows = 128, kWideThreads = 384;
inline constexpr int kWideLoaders = kWideThreads - kWideConsumers;
inline constexpr int kSumRegs = 232, kLoaderRegs = 40;

// Where the parts of a stage are.
template <DType T>
struct WideStage {
  static constexpr int kTiles = kWideRows * 256, kSums = kTiles + kTileGroups * Frags<T>::kTile,
                       kD = kSums + (Frags<T>::kMins ? kWideRows * 32 : 0),
                       kBytes = (kD + kWideRows * 4 + 1023) / 1024 * 1024;
  static_assert(kSums % 128 == 0);
};
inline constexpr int kMostStages = 4;
struct WideHead {
  TileHead tile;    // if cut, only for the loading warpgroup
  WideShare share;  // if cut
  uint64_t full[kMostStages], empty[kMostStages];
};
inline constexpr int kWideHead = (sizeof(WideHead) + 1023) / 1024 * 1024;

// Which stage is next, and the parity of its turns.
struct WideTurn {
  int slot, parity;
  CARAT_D void next(int stages) {
    if (++slot == stages) slot = 0, parity ^= 1;
  }
};

CARAT_HD int32_t wide_outs(const TileJob& a) {  // tiles of outputs
  const int32_t per = a.paired() ? 64 : 128;
  return (a.m.w.rows + per - 1) / per;
}

// The codes' columns [column, column + 32).
CARAT_D uint64_t wide_columns(const uint8_t* stage, int column) {
  return codes_operand(shared_address(stage) + column / 128 * (kWideRows * 128) + column % 128);
}

// A warp's 16 outputs of a block of 256 columns as digits.
template <DType T>
struct Digits {
  using F = Frags<T>;
  using S = RowScales<T>;
  // The digits' value is so many times the weight's.
  static constexpr float kTimes = T == DType::q4_k ? 16.0f : 1.0f;
  uint2 scales[2];  // of rows g and g + 8; q6_k: none
  const uint8_t* units[2];

  CARAT_D void start(const uint8_t* tile, int row, int lane) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      units[k] = tile + 512 * S::unit(256) + 16 * (row + 8 * k + lane / 4);
      if constexpr (F::kMins) scales[k] = S::scales(units[k]);
    }
  }
  // Of group(step, e) as a of wide_mma.
  CARAT_D void make(const typename F::Raw& r, int step, int e, uint32_t (&low)[4],
                    uint32_t (&high)[4]) const {
    const int group = F::group(step, e);
    uint32_t factor[4], plus[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      plus[i] = 0;
      if constexpr (F::kMins) {
        const uint32_t w = group < 4 ? scales[i % 2].x : scales[i % 2].y;
        const int shift = 8 * (group % 4) - (T == DType::q4_k && e == 0 ? 4 : 0);
        factor[i] = T == DType::q4_k && e == 0 ? (shift < 0 ? w << 4 : w >> shift) & 0xff0 : w >> shift & 255;
      } else {
        factor[i] = static_cast<uint32_t>(S::scale16(units[i % 2], 2 * group + i / 2));
        plus[i] = (0x8000u - 32u * factor[i]) * 0x10001u;  // both halves stay above 0
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t even, odd;
      if constexpr (T == DType::q4_k) {
        const uint32_t mask = e == 0 ? 0x000f000fu : 0x00f000f0u;
        even = r.v[0][i] & mask, odd = r.v[0][i] >> 8 & mask;
      } else {
        uint32_t c = r.v[0][i] >> 4 * e & 0x0f0f0f0fu;
        if constexpr (T == DType::q6_k) c |= (r.high[i] >> 2 * (step % 2 + 2 * e) & 0x03030303u) << 4;
        if constexpr (T == DType::q5_k) c |= (r.high[i] >> (2 * step + e) & 0x01010101u) << 4;
        even = c & 0x00ff00ffu, odd = c >> 8 & 0x00ff00ffu;
      }
      even = even * factor[i] + plus[i], odd = odd * factor[i] + plus[i];
      low[i] = permute_bytes(even, odd, 0x6240), high[i] = permute_bytes(even, odd, 0x7351);
      if constexpr (T == DType::q6_k) high[i] ^= 0x80808080u;
    }
  }
  // Factors of rows g and g + 8, and minimums as a of wide_mma_f16: columns 2 t, 2 t + 1 of the sums, then 8
  // further, are one group each.
  CARAT_D void finish(const uint8_t* tile, int row, int lane, float (&of)[2], float (&least)[2],
                      uint32_t (&mins)[4]) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if constexpr (F::kMins) {
        const uint32_t w = u32_at(units[k]);
        of[k] = half_float(w & 0xffffu) * (1 / kTimes), least[k] = -half_float(w >> 16);
#pragma unroll
        for (int e = 0; e < 2; ++e)
          mins[k + 2 * e] =
              sub_halves((S::mins(units[k], e) >> lane % 4 * 8 & 255) * 0x10001u | 0x64006400u, 0x64006400u);
      } else {
        of[k] = half_at(tile + 13 * 512 + 2 * (row + 8 * k + lane / 4));
      }
    }
  }
};

// The warpgroup that loads.
template <DType T>
CARAT_D void load_wide(const Rounded& x, const WidePiece& piece, WideHead& h, uint8_t* ring, int stages,
                       WideTurn& turn) {
  using At = WideStage<T>;
  constexpr int kPer = Frags<T>::kTile / 16;
  const int p = threadIdx.x % 128, lane = p % 32, warp = p / 32;
  const int part = p % 16, first = p / 16;
  const int64_t from = h.tile.from[p] * int64_t{x.blocks};
  const uint8_t* tiles = h.tile.group[warp] + 16 * lane;
  const int to_codes = part / 8 * (kWideRows * 128) + first * 128 + (part % 8 ^ first) * 16,
            to_tile = At::kTiles + warp * Frags<T>::kTile + 16 * lane,
            to_sums = At::kSums + p / 8 * 256 + p % 8 * 16;
#pragma unroll 1
  for (int32_t b = piece.from; b < piece.to; ++b) {
    const SharedAddress stage = shared_address(ring + turn.slot * At::kBytes);
    gate_wait(shared_address(&h.empty[turn.slot]), turn.parity);
    const int eighths = h.tile.count > kWideRows / 2 ? kWideRows / 8 : kWideRows / 16;
#pragma unroll 8
    for (int k = 0; k < eighths; ++k)
      copy16_async(stage + to_codes + 1024 * k, h.tile.codes[first + 8 * k] + 256 * b + 16 * part);
    const uint8_t* w = tiles + int64_t{b} * Frags<T>::kTile;
#pragma unroll 3
    for (int i = 0; i < kPer / 32; ++i) copy16_async(stage + to_tile + 512 * i, w + 512 * i);
    if (kPer % 32 && lane < kPer % 32)
      copy16_async(stage + to_tile + 512 * (kPer / 32), w + 512 * (kPer / 32));
    if constexpr (Frags<T>::kMins) {
      const uint16_t* sums = x.half_sums + (from + b) * 16;
      copy16_async(stage + to_sums, sums), copy16_async(stage + to_sums + 128, sums + 8);
    }
    copy4_async(stage + At::kD + 4 * p, x.d + from + b);
    arrive_after_copies(shared_address(&h.full[turn.slot]));
    turn.next(stages);
  }
}
template <DType T>
CARAT_D void load_pieces(const TileJob& a, const Rounded& x, WideHead& h, uint8_t* ring, int stages,
                         WideTurn& turn) {
  const int p = threadIdx.x % 128;
  WidePiece piece;
#pragma unroll 1
  for (int32_t i = 0; h.share.get(i, piece); ++i) {
    const WidePlace at = h.share.place(piece.tile, kWideRows);
    turn_wait(4, kWideLoaders);  // nobody reads the last one's
    if (p == 0) h.tile.slice = 0, h.tile.first = at.first, h.tile.count = at.count;
    turn_wait(4, kWideLoaders);
    find_rows<T>(a, x, kWideRows, at.n, p, h.tile);
    turn_wait(4, kWideLoaders);
    load_wide<T>(x, piece, h, ring, stages, turn);
  }
}

// One block of one warp's: where its tile and the rows' codes are.
struct WideAt {
  const uint8_t *tile, *stage;
  int row;  // of the tile, the first
};

// v[4 j + k]: t of numerics.md without the activations' scale, of output g + k / 2 * 8 of the warp's and row
// 8 j + 2 t + k % 2. A pair of products runs while the next one's digits are made.
template <DType T, int N>
CARAT_D void wide_block(const WideAt& at, int lane, float (&v)[N]) {
  using F = Frags<T>;
  Digits<T> digits;
  digits.start(at.tile, at.row, lane);
  typename F::Raw raw = F::raw(at.tile, at.row, 0, lane);
  int32_t low[N], high[N];
  uint32_t a[2][2][4];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int step = i / 2, e = i % 2;
    auto& [lower, upper] = a[e];
    digits.make(raw, step, e, lower, upper);
    const uint64_t operand = wide_columns(at.stage, 32 * F::group(step, e));
    wide_fence();
    if (i == 0) {
      wide_mma<false, true>(low, lower, operand);
      wide_mma<true, true>(high, upper, operand);
    } else {
      wide_mma<false, false>(low, lower, operand);
      wide_mma<true, false>(high, upper, operand);
    }
    wide_commit();
    if (e == 1 && step < 3) raw = F::raw(at.tile, at.row, step + 1, lane);
    if (i < 7) wide_wait<1>();
  }
  float of[2], least[2];
  uint32_t mins[4];
  digits.finish(at.tile, at.row, lane, of, least, mins);
  wide_wait<0>();
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = of[i % 4 / 2] * static_cast<float>(high[i] * 256 + low[i]);
  if constexpr (F::kMins) {
    float sub[N];
    wide_fence();
    wide_mma_f16(sub, mins, halves_operand(shared_address(at.stage + WideStage<T>::kSums)));
    wide_commit();
    wide_wait<0>();
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = fmaf(least[i % 4 / 2], sub[i], v[i]);
  }
}

// acc: as v above, of 128 or 64 rows; `blocks` more are added. kHold: the last one's stage is not given back.
template <DType T, bool kHold, int N>
CARAT_D void sum_wide(int32_t blocks, WideHead& h, const uint8_t* ring, int stages, WideTurn& turn,
                      float (&acc)[N]) {
  using At = WideStage<T>;
  const int lane = threadIdx.x % 32, group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
#pragma unroll 1
  for (int32_t b = 0; b < blocks; ++b) {
    const uint8_t* stage = ring + turn.slot * At::kBytes;
    gate_wait(shared_address(&h.full[turn.slot]), turn.parity);
    show_to_products();
    const WideAt at{stage + At::kTiles + (2 * group + warp / 2) * Frags<T>::kTile, stage, warp % 2 * 16};
    float v[N];
    wide_block<T>(at, lane, v);
    const auto* d = reinterpret_cast<const float2*>(stage + At::kD) + lane % 4;
#pragma unroll
    for (int j = 0; j < N / 4; ++j) {
      const float2 both = d[4 * j];
#pragma unroll
      for (int k = 0; k < 4; ++k)
        acc[4 * j + k] = fmaf(k % 2 ? both.y : both.x, v[4 * j + k], acc[4 * j + k]);
    }
    if (kHold && b + 1 == blocks) break;
    arrive_as_warp(shared_address(&h.empty[turn.slot]));
    turn.next(stages);
  }
}

// A tile of 2 N rows at the most.
template <DType T, int N>
CARAT_D void compute_tile(const TileJob& a, int32_t blocks, WideHead& h, uint8_t* ring, int stages) {
  float acc[N];
#pragma unroll
  for (int k = 0; k < N; ++k) acc[k] = 0;
  WideTurn turn{0, 0};
  sum_wide<T, false>(blocks, h, ring, stages, turn, acc);
  let_next_start();
  const TileHead& tile = h.tile;
  write_wide<2 * N, true>(a, blockIdx.y, tile.slice, tile.count, acc, ring,
                          [&](int m) { return tile.row[m]; });
}
// A piece of one. Its sums go out by way of its last stage. The compiler is told what a warp's threads have
// in common, from the way through the pieces on: operands of products are then made once for all of them.
template <DType T, int N>
CARAT_D void compute_piece(const TileJob& a, const WidePiece& piece, WideHead& h, uint8_t* ring, int stages,
                           WideTurn& turn, const DevStep* s) {
  static_assert(kWideRows / 2 * kOutPitch * 4 <= WideStage<T>::kBytes);
  float acc[N];
#pragma unroll
  for (int k = 0; k < N; ++k) acc[k] = 0;
  if (piece.from > 0) take_over<kWideConsumers>(s->begun + int64_t{kBegunTile} * (blockIdx.x - 1), acc);
  uint8_t* memory = same_in_warp(reinterpret_cast<uint8_t*>(&h));
  turn = {same_in_warp(turn.slot), same_in_warp(turn.parity)};
  sum_wide<T, true>(same_in_warp(piece.to - piece.from), *reinterpret_cast<WideHead*>(memory),
                    memory + kWideHead, stages, turn, acc);
  if (piece.to < h.share.blocks) {
    hand_over<kWideConsumers>(s->begun + int64_t{kBegunTile} * blockIdx.x, acc);
  } else {
    const WidePlace at = h.share.place(piece.tile, kWideRows);
    write_wide<kWideRows / 2, false>(a, at.n, 0, at.count, acc, ring + turn.slot * WideStage<T>::kBytes,
                                     [&](int m) { return at.first + m; });
  }
  arrive_as_warp(shared_address(&h.empty[turn.slot]));
  turn.next(stages);
}
template <DType T>
CARAT_D void compute_pieces(const TileJob& a, WideHead& h, uint8_t* ring, int stages, const DevStep* s) {
  WideTurn turn{0, 0};
#pragma unroll 1
  for (int32_t i = 0;; ++i) {
    WidePiece piece;
    if (!same_in_warp(h.share.get(i, piece))) break;
    piece = {same_in_warp(piece.tile), same_in_warp(piece.from), same_in_warp(piece.to)};
    if (same_in_warp(h.share.place(piece.tile, kWideRows).count) > kWideRows / 2)
      compute_piece<T, kWideRows / 2>(a, piece, h, ring, stages, turn, s);
    else
      compute_piece<T, kWideRows / 4>(a, piece, h, ring, stages, turn, s);
  }
}

// kCut: a block a processor, which takes the tiles and pieces of its share. Of experts: a tile a block.
template <DType T, bool kCut>
__global__ void __launch_bounds__(kWideThreads, 1)
    wide_tiles(const TileJob a, const Rounded x, int stages, const DevStep* s, RowSet set) {
#if defined(CARAT_WIDE) || defined(CARAT_CUDA_EMULATE)
  CARAT_SHARED_1024(memory);
  auto& head = *reinterpret_cast<WideHead*>(memory);
  uint8_t* ring = memory + kWideHead;
  wait_inputs();
  if (!kCut) place_tile(a, s, set, blockIdx.x, kWideRows, head.tile);
  if (threadIdx.x == 64)
    for (int i = 0; i < stages; ++i) {
      gate_init(shared_address(&head.full[i]), kWideLoaders);
      gate_init(shared_address(&head.empty[i]), arrivals(kWideConsumers / 32));
    }
  if (kCut && threadIdx.x == 96)
    head.share = WideShare::of(row_count(s, set), kWideRows, wide_outs(a), x.blocks);
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
      load_pieces<T>(a, x, head, ring, stages, turn);
    else
      load_wide<T>(x, {0, 0, x.blocks}, head, ring, stages, turn);
    let_next_start();
  } else {
    more_registers<kSumRegs>();
    if constexpr (kCut)
      compute_pieces<T>(a, head, ring, stages, s);
    else if (head.tile.count > kWideRows / 2)
      compute_tile<T, kWideRows / 2>(a, x.blocks, head, ring, stages);
    else
      compute_tile<T, kWideRows / 4>(a, x.blocks, head, ring, stages);
  }
#endif
}

template <DType T>
bool wide_tiles_of(const Context& c, const TileJob& a, const Rounded& x, RowSet rows) {
  static_assert(kWideHead <= 4096);  // wide_shared()
  if (compiled_for(wide_tiles<T, false>) != 90) return false;
  const int64_t room = c.launcher.shared - kWideHead;
  const int64_t stages = std::min<int64_t>(room / WideStage<T>::kBytes, kMostStages);
  if (stages < 2 || !x.half_sums) return false;
  const int32_t tiles = (a.m.y.rows + kWideRows - 1) / kWideRows, outs = wide_outs(a);
  const auto bytes = static_cast<size_t>(kWideHead + stages * WideStage<T>::kBytes);
  const auto start = [&](const Launcher& l, auto kernel, dim3 grid) {
    launch(l, a.experts() ? "experts" : "matmul", kernel, grid, kWideThreads, bytes, a, x,
           static_cast<int>(stages), c.step, rows);
  };
  if (a.experts())
    start(c.launcher, wide_tiles<T, false>,
          dim3(static_cast<unsigned>(tiles + a.m.w.slices), static_cast<unsigned>(outs)));
  else
    start(in_order(c.launcher), wide_tiles<T, true>,
          dim3(static_cast<unsigned>(std::min(tiles * outs, c.launcher.sms))));
  return true;
}

}  // namespace carat::cuda
