// What float/row.cu and float/rows.cu have in common: their products, the ring that brings a
// warp's weights, and how a warp gets operands of several rows.
#pragma once
#include "cuda/matmul/float/parts.cuh"

namespace carat::cuda {

inline constexpr int kUnit = 16;                                                // outputs
inline constexpr int kRowThreads = 256, kRowWarps = kRowThreads / 32;           // of a block
inline constexpr int kRingSlots = 2, kSlot = 4096, kRing = kRingSlots * kSlot;  // of a warp; bytes

struct RowsJob {
  MatmulArgs m;  // paired: with the gate's act and scale
  Tensor up;
  float up_scale = 1;
  bool paired = false, even = false;  // even: pairs of activations can be read at once
  // Experts only. chosen: i32 [rows][used]; scales: one an expert, or none.
  Tensor chosen, scales, up_scales;

  CARAT_HD bool experts() const { return chosen.data != nullptr; }
  CARAT_D const Tensor& weights(int unit) const { return paired && unit == 1 ? up : m.w; }
  CARAT_D const uint8_t* weights(int unit, int32_t slice, int32_t n) const {
    const Tensor& w = weights(unit);
    return row_of<const uint8_t>(w, n < w.rows ? n : w.rows - 1) + slice * w.slice_pitch;
  }
  // Groups of outputs that a block of threads has at a time: `units` units, or one of gate and up.
  CARAT_HD int32_t groups(int units) const {
    const int32_t per = paired ? kUnit : units * kUnit;
    return (m.w.rows + per - 1) / per;
  }
  // The first output of a unit of a group.
  CARAT_D int32_t first(int32_t group, int unit, int units) const {
    return (paired ? group : group * units + unit) * kUnit;
  }
};

// A warp's ring of weights: chunks of its blocks of 256 columns (every kRowWarps-th of a group's), group
// after group. A chunk is kChunk columns of the group's U units.
template <DType T, int U>
struct WeightRing {
  static constexpr int kBytes = FloatOf<T>::kBytes, kRow = 256 / U;  // of an output of a chunk
  static constexpr int kChunk = kRow / kBytes, kChunks = 256 / kChunk, kSteps = kChunk / 16;
  const RowsJob& job;
  const SharedAddress ring;
  const int32_t groups, tasks, rounds;  // tasks: blocks of a row
  int32_t stride;                       // to the next group
  int32_t group, task;                  // asked for next,
  int part = 0, to = 0;                 // which chunk of it, and where it comes
  int from = 0;                         // the chunk that is multiplied next

  CARAT_D WeightRing(const RowsJob& of, unsigned char* memory, int32_t step)
      : job(of),
        ring(shared_address(memory) + static_cast<unsigned>(threadIdx.x / 32 * kRing)),
        groups(job.groups(U)),
        tasks((job.m.w.cols + 255) / 256),
        rounds((tasks + kRowWarps - 1) / kRowWarps),
        stride(step),
        group(blockIdx.y),
        task(threadIdx.x / 32) {}

  // row(unit, n): the weights of output n.
  template <class Row>
  CARAT_D void ask(Row row) {
    constexpr int kAcross = kRow / 16, kAtOnce = 32 / kAcross;  // units of 16 bytes are dealt to lanes
    const int lane = threadIdx.x % 32, r0 = lane / kAcross, u = lane % kAcross;
    const int32_t k = task * 256 + part * kChunk;
    if (group < groups && task < tasks) {
      const bool there = k + 16 / kBytes * u < job.m.w.cols;
      const int32_t begin = there ? kBytes * k + 16 * u : 0;
#pragma unroll
      for (int i = 0; i < kSlot / 16 / 32; ++i) {
        const int r = r0 + kAtOnce * i, unit = kAtOnce * i / kUnit;
        const int32_t n = job.first(group, unit, U) + r0 + kAtOnce * i % kUnit,
                      last = job.weights(unit).rows - 1;
        copy16_async(ring + static_cast<unsigned>(to + r * kRow + 16 * (u ^ (r & 7))),
                     row(unit, n < last ? n : last) + begin, there);
      }
    }
    commit_copies();
    to ^= kSlot;
    if (++part < kChunks) return;
    part = 0, task += kRowWarps;
    if (task >= rounds * kRowWarps) task = threadIdx.x / 32, group += stride;
  }
  // The next chunk has come.
  CARAT_D void wait() const {
    wait_copies<kRingSlots - 1>();
    sync_warp();
  }
  // Of 16 columns of it and a unit, as a of mma_part. codes: fp8's of an even step and the next.
  CARAT_D void operand(int unit, int step, uint32_t (&codes)[4], uint32_t (&a)[4]) const {
    const int lane = threadIdx.x % 32, row = lane % 16;  // that the lane shows to load_matrices
    const SharedAddress chunk = ring + static_cast<unsigned>(from + row * kRow);
    const auto load = [&](int piece, uint32_t(&to_lane)[4]) {  // 16 columns; of codes 32
      load_matrices(to_lane, chunk + static_cast<unsigned>(unit * (kSlot / 2) +
                                                           16 * ((2 * piece + lane / 16) ^ (row & 7))));
    };
    if constexpr (T == DType::fp8) {
      if (step % 2 == 0) load(step / 2, codes);
      widen(codes, step % 2, a);
    } else {
      load(step, a);
    }
  }
  // The warp has multiplied it: another one comes in its place.
  template <class Row>
  CARAT_D void next(Row row) {
    ask(row);
    from ^= kSlot;
  }
};

// Single rows, or pairs of a row and an expert (float/row.cu).
void float_row_of(const Context& c, const RowsJob& job, RowSet rows);

// A lane's columns of a block of 256, in 16 steps of 16 columns: k + 16 s, one more, and two from kPair on;
// zeros behind the last. All are asked for at once.
template <DType T>
CARAT_D void load_block(const float* x, int32_t k, int32_t cols, bool even, float (&v)[16][4]) {
  constexpr int kPair = FloatOf<T>::kPair;
  if (even) {
#pragma unroll
    for (int s = 0; s < 16; ++s)
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int32_t at = k + 16 * s + kPair / 2 * i;
        const float2 two = x && at < cols ? *reinterpret_cast<const float2*>(x + at) : float2{0, 0};
        v[s][i] = two.x, v[s][i + 1] = two.y;
      }
  } else {
#pragma unroll
    for (int s = 0; s < 16; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t at = k + 16 * s + kPair / 2 * (i & 2) + i % 2;
        v[s][i] = x && at < cols ? x[at] : 0;
      }
  }
}

// A warp's block of columns of up to 8 rows, each lane with a part of the row that its group of four has:
// split here into operands of mma_part. Every lane of the warp calls everything.
template <DType T>
struct OwnRows {
  float v[16][4];
  PartScale scale;

  CARAT_D void load(const RowsJob& job, const Rounded&, int32_t m0, int32_t rows, int32_t block) {
    const int lane = threadIdx.x % 32, g = lane / 4;
    const float* x = g < rows ? row_of<const float>(job.m.x, m0 + g) : nullptr;
    load_block<T>(x, block * 256 + FloatOf<T>::kLane * (lane % 4), job.m.w.cols, job.even, v);
  }
  CARAT_D void find_scale(float times) {
    if constexpr (T == DType::bf16) return;
    uint32_t top = 0;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const uint32_t one = magnitude(v[i / 4][i % 4]);
      top = one > top ? one : top;
    }
    for (int d = 1; d < 4; d *= 2) {
      const uint32_t other = shuffle_xor(top, d);
      top = other > top ? other : top;
    }
    scale = part_scale<FloatOf<T>::kParts>(top);
    scale.d = scale.d * times;
  }
  CARAT_D uint4 operand(int, int step) const { return split_four<FloatOf<T>::kParts>(v[step], scale); }
  // What the block's sums of row m0 + m are multiplied by.
  CARAT_D float factor(int m) const {
    if constexpr (T == DType::bf16) return 1;
    return shuffle(scale.d, 4 * m);
  }
};

// The same of more rows, split before in global memory.
template <DType T>
struct SplitRows {
  const uint4* from;
  const float* d;
  int32_t rows, blocks;

  CARAT_D void load(const RowsJob&, const Rounded& x, int32_t m0, int32_t n, int32_t block) {
    const int lane = threadIdx.x % 32;
    rows = n, blocks = x.blocks;
    from =
        reinterpret_cast<const uint4*>(x.parts) + ((m0 + lane / 4) * int64_t{blocks} + block) * 64 + lane % 4;
    d = x.d + m0 * int64_t{blocks} + block;
  }
  CARAT_D void find_scale(float) {}
  CARAT_D uint4 operand(int j, int step) const {
    const bool there = 8 * j + static_cast<int>(threadIdx.x % 32) / 4 < rows;
    return there ? from[8 * j * int64_t{blocks} * 64 + 4 * step] : uint4{0, 0, 0, 0};
  }
  CARAT_D float factor(int m) const {
    if constexpr (T == DType::bf16) return 1;
    return m < rows ? d[m * int64_t{blocks}] : 0;
  }
};

}  // namespace carat::cuda
