// What products of many rows over float weights have in common on warpgroups (float/wide.cuh): stages
// of shared memory, the warpgroup that loads, and those that multiply.
#pragma once
#include "cuda/matmul/float/parts.cuh"
#include "cuda/matmul/wide/block.cuh"

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

// The warpgroup that loads: chunks of columns of both sides of a tile, [k, end).
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
// One of the warpgroups that multiply, 64 outputs by 2 N rows.
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

  // acc += the next block of 256 columns, which has so many chunks. hold: the last one's stage is not given
  // back.
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
          wide_mma_e4m3(sum, behind(codes_of, 32 * k), behind(high, 32 * k), k == 0 ? c : 1);
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

}  // namespace carat::cuda
