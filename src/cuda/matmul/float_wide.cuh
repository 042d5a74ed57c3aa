// Products of many rows over weights in bf16, f16 or fp8 on warpgroups (sm_90a). One warpgroup brings both
// sides to shared memory, 64 columns at a time: weights as they lie, rows split in parts as chunks
// (float_parts.cuh). Two others multiply, 64 outputs each, or the same 64 outputs and half of the rows each
// where that leaves fewer processors without a tile. A block of threads a processor takes tiles, or pieces of
// them (wide_shares.cuh). Sums have the order of float_rows.cu, and so their bits.
#pragma once
#include "cuda/matmul/float_parts.cuh"
#include "cuda/matmul/wide_block.cuh"

namespace carat::cuda {

inline constexpr int kFloatStages = 10;  // at most
struct FloatWideHead {
  TileHead tile;                // of experts
  const uint8_t* weights[128];  // the tile's outputs, for the loading warpgroup
  WideShare share;
  uint64_t full[kFloatStages], empty[kFloatStages];
};
inline constexpr int kFloatWideHead = (sizeof(FloatWideHead) + 1023) / 1024 * 1024;

// A stage: a chunk of columns of `kOuts` outputs, of ROWS rows' higher parts, of their lower parts, and what
// the rows' sums of a block are multiplied by; of codes that is all one. The 16-byte unit u of output r at
// place().
template <DType T, int ROWS, bool NARROW>
struct FloatStage {
  static constexpr DType kType = T;
  static constexpr bool kNarrow = NARROW, kScaled = FloatOf<T>::kParts == DType::f16,
                        kCodes = FloatOf<T>::kCodes;
  static constexpr int kRows = ROWS, kOuts = NARROW ? 64 : 128, kCols = kCodes ? 128 : 64,
                       kChunks = 256 / kCols, kRow = kCols * FloatOf<T>::kBytes, kUnits = kRow / 16,
                       kHigh = kOuts * kRow, kLow = kHigh + ROWS * 128, kD = kLow + (kCodes ? 0 : ROWS * 128),
                       kBytes = (kD + (kScaled ? ROWS * 4 : 0) + 1023) / 1024 * 1024;
  // Where sums go on their way out: a stage, or memory of their own.
  static constexpr int kSums = (NARROW ? ROWS * kNarrowPitch : ROWS / 2 * kOutPitch) * 4,
                       kOut = kSums <= kBytes ? 0 : (kSums + 1023) / 1024 * 1024,
                       kRing = kFloatWideHead + kOut;
  CARAT_D static unsigned place(int r, int u) {
    return static_cast<unsigned>(kRow * r + 16 * (u ^ (T == DType::fp8 ? r >> 1 & 3 : r & 7)));
  }
};

// Output r of a tile, the n-th of its product's.
template <class At>
CARAT_D const uint8_t* float_weights(const WideJob& job, int which, int32_t slice, int32_t n, int r) {
  constexpr int kHalf = At::kOuts / 2;
  const bool up = job.a.paired() && r >= kHalf;
  const Tensor& w = up ? job.a.other : job.m(which).w;
  const int32_t at = job.a.paired() ? n * kHalf + r % kHalf : n * At::kOuts + r;
  return reinterpret_cast<const uint8_t*>(w.data) + slice * w.slice_pitch +
         int64_t{at < w.rows ? at : w.rows - 1} * w.pitch;
}

// The warpgroup that loads: chunks of 64 columns of both sides of a tile, [k, end).
template <class At, bool kExperts>
struct FloatLoader {
  static constexpr int kPass = kWideLoaders / At::kUnits, kBytes = FloatOf<At::kType>::kBytes;
  FloatWideHead& h;
  uint8_t* ring;
  int stages;
  FloatChunks rows;
  int32_t cols;
  WideTurn turn{0, 1};

  CARAT_D void run(int32_t k, int32_t end, int32_t first, int32_t count) {
    const int p = threadIdx.x % 128, u = p % At::kUnits, r0 = p / At::kUnits, n = (count + 7) / 8 * 8;
#pragma unroll 1
    for (; k < end; ++k) {
      const SharedAddress stage = shared_address(ring + turn.slot * At::kBytes),
                          full = shared_address(&h.full[turn.slot]);
      gate_wait(shared_address(&h.empty[turn.slot]), turn.parity);
      if (kExperts) {
        gather(stage, k, count);
      } else if (p == 0) {
        gate_arrive(full, n * (At::kCodes ? 128 : 256));
        copy_bulk(stage + At::kHigh, rows.high(k, first), n * 128, full);
        if (!At::kCodes) copy_bulk(stage + At::kLow, rows.low(k, first), n * 128, full);
      }
      if (At::kScaled && p < count)
        copy4_async(stage + At::kD + static_cast<unsigned>(4 * p),
                    rows.d(k / 4) + (kExperts ? h.tile.from[p] : first + p));
      const bool there = At::kCols * k + 16 / kBytes * u < cols;
      const int64_t from = there ? int64_t{At::kRow} * k + 16 * u : 0;
#pragma unroll
      for (int j = 0; j < At::kOuts / kPass; ++j) {
        const int r = r0 + kPass * j;
        copy16_async(stage + At::place(r, u), h.weights[r] + from, there);
      }
      arrive_after_copies(full);
      turn.next(stages);
    }
  }
  // Rows that lie apart.
  CARAT_D void gather(SharedAddress stage, int32_t k, int32_t count) const {
    const int u = threadIdx.x % 8, r0 = threadIdx.x % 128 / 8;
#pragma unroll 4
    for (int j = 0; j < At::kRows / 16; ++j) {
      const int r = r0 + 16 * j;
      if (r >= count) break;
      const int32_t from = h.tile.from[r];
      const auto to = static_cast<unsigned>(128 * r + 16 * (u ^ r % 8));
      copy16_async(stage + At::kHigh + to, rows.high(k, from) + 16 * (u ^ from % 8));
      if (!At::kCodes) copy16_async(stage + At::kLow + to, rows.low(k, from) + 16 * (u ^ from % 8));
    }
  }
};
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

// One of the warpgroups that multiply: acc of 2 N rows, blocks of 256 columns [from, to). The last chunk's
// stage is not given back.
template <class At, bool kExperts, int N>
struct FloatSums {
  static constexpr DType T = At::kType;
  FloatWideHead& h;
  const uint8_t* ring;
  int stages, lane, out, first;  // out: of the stage, the warpgroup's first
  float sum[N];
  uint32_t a[2][4], codes[4];

  CARAT_D void weights(SharedAddress stage, int k) {  // columns 16 k .. of a chunk; of codes twice as many
    if constexpr (T == DType::fp8) {
      if (k % 2 == 0) load_matrices(codes, stage + At::place(row(), k + lane / 16));
      widen(codes, k % 2, a[k % 2]);
    } else {
      load_matrices(a[k % 2], stage + At::place(row(), 2 * k + lane / 16));
    }
  }
  // Of the stage's outputs, that the lane shows to load_matrices.
  CARAT_D int row() const { return out + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane % 16; }
  CARAT_D void give_back(int slot) { arrive_as_warp(shared_address(&h.empty[slot])); }

  CARAT_D void block(int chunks, bool hold, WideTurn& turn, float (&acc)[N]) {
    int before = 0;
#pragma unroll 1
    for (int c = 0;; ++c) {
      gate_wait(shared_address(&h.full[turn.slot]), turn.parity);
      if (kExperts || At::kCodes) show_to_products();
      const SharedAddress stage = shared_address(ring + turn.slot * At::kBytes);
      const uint64_t high = codes_operand(stage + At::kHigh + static_cast<unsigned>(128 * first)),
                     low = codes_operand(stage + At::kLow + static_cast<unsigned>(128 * first));
      if constexpr (At::kCodes) {
        const uint64_t codes_of = codes_operand(stage + static_cast<unsigned>(128 * out));
        wide_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k)
          wide_mma_codes8(sum, behind(codes_of, 32 * k), behind(high, 32 * k), k == 0 ? c : 1);
        wide_commit();
        if (c > 0) wide_wait<1>(), give_back(before);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          weights(stage, k);
          wide_fence();
          wide_mma_parts<T == DType::bf16>(sum, a[k % 2], behind(high, 32 * k), k == 0 ? c : 1);
          wide_mma_parts<T == DType::bf16>(sum, a[k % 2], behind(low, 32 * k), 1);
          wide_commit();
          wide_wait<1>();
          if (k == 0 && c > 0) give_back(before);
        }
      }
      if (c + 1 == chunks) break;
      before = turn.slot;
      turn.next(stages);
    }
    wide_wait<0>();
    add(ring + turn.slot * At::kBytes, acc);
    if (hold) return;
    give_back(turn.slot);
    turn.next(stages);
  }
  CARAT_D void add(const uint8_t* stage, float (&acc)[N]) const {
    const auto* d = reinterpret_cast<const float2*>(stage + At::kD + 4 * first) + lane % 4;
#pragma unroll
    for (int j = 0; j < N / 4; ++j) {
      const float2 both = At::kScaled ? d[4 * j] : float2{1, 1};
#pragma unroll
      for (int k = 0; k < 4; ++k) {  // products by powers of two are exact
        const float v = At::kScaled ? (k % 2 ? both.y : both.x) * sum[4 * j + k] : sum[4 * j + k];
        acc[4 * j + k] = acc[4 * j + k] + v;
      }
    }
  }
};

// What a thread of a warpgroup that multiplies has: outputs from `out` on, rows from `first` on.
template <class At, bool kExperts, int N>
CARAT_D FloatSums<At, kExperts, N> float_sums(uint8_t* memory, int stages) {
  const int lane = threadIdx.x % 32, group = same_in_warp(threadIdx.x / 128);
  return {*reinterpret_cast<FloatWideHead*>(memory),
          memory + At::kRing,
          stages,
          lane,
          At::kNarrow ? 0 : 64 * group,
          At::kNarrow ? group * 2 * N : 0,
          {},
          {},
          {}};
}
// FP8's factors of outputs, and of codes what the rows' are multiplied by. d(m): of the tile's row m.
template <class At, int N, class D>
CARAT_D void by_factors(const WideJob& job, int which, int32_t slice, int32_t n, int first, int32_t count,
                        D d, float (&acc)[N]) {
  if constexpr (FloatOf<At::kType>::kBytes != 1) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32,
            outs = (At::kNarrow ? warp % 4 : warp) * 16 + lane / 4;
  if constexpr (At::kCodes) {
#pragma unroll
    for (int i = 0; i < N; i += 4)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int m = first + 2 * i + lane % 4 * 2 + k;
        const float f = m < count ? d(m) : 0;
        acc[i + k] = acc[i + k] * f, acc[i + 2 + k] = acc[i + 2 + k] * f;
      }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float factor =
        e4m3_factor(float_weights<At>(job, which, slice, n, outs + 8 * half), job.a.m.w.cols) /
        (At::kCodes ? 256 : 1);
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i % 4 / 2 == half) acc[i] = acc[i] * factor;
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
