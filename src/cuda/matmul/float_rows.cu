// Products of few rows over weights in bf16, f16 or fp8 on the tensor cores. A warp takes a block of 256
// columns of one or two units of 16 outputs at a time (of gate and up: one of each): weights come through a
// ring of its own, which is filled before the inputs are there. Up to 8 rows are split in registers, more
// come split in parts. Sums over blocks are added ascending, as float_tiles.cu has them, so bits are the
// same. Of experts a block multiplies one row with one of its experts; where two rows chose the same expert,
// its weights are read twice.
#include <type_traits>

#include "cuda/matmul/float_parts.cuh"

namespace carat::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kUnit = 16, kSlots = 2;  // outputs
constexpr int kSlot = 4096;            // bytes: a row of 256 for a unit, of 128 for two
template <int MT, int U>
constexpr int kSums = U* kUnit* MT;  // floats that a warp leaves in a round
// Sums of two rounds where there is room: a round then waits for the block once.
template <int MT>
constexpr int kRoundsKept = MT == 8 ? 2 : 1;
template <int MT, int U>
constexpr int kShared = kWarps*(kSlots* kSlot + kRoundsKept<MT> * kSums<MT, U> * 4);  // bytes

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
  // The first output of a unit of a block that has `units`.
  CARAT_D int32_t first(int unit, int units) const {
    const auto block = static_cast<int32_t>(blockIdx.y);
    return (paired ? block : block * units + unit) * kUnit;
  }
};

// A block's first rows of x and y, and the expert whose weights it reads: 0 where there are no experts, -1 if
// the row chose one that does not exist.
struct RowsPlace {
  int32_t x, y, slice;
};
CARAT_D RowsPlace place_of(const RowsJob& job, int32_t rows) {
  const auto block = static_cast<int32_t>(blockIdx.x);
  if (!job.experts()) return {block * rows, block * rows, 0};
  const int32_t used = job.chosen.cols, m = block / used,
                e = row_of<const int32_t>(job.chosen, m)[block % used];
  return {job.paired ? m : block, block, e >= 0 && e < job.m.w.slices ? e : -1};
}
// How many rows a block has, if the step has `n` and a block takes `most`.
CARAT_D int32_t rows_of(const RowsJob& job, const RowsPlace& at, int32_t n, int32_t most) {
  if (job.experts()) return at.slice >= 0 && at.y / job.chosen.cols < n ? 1 : 0;
  return n - at.y < most ? n - at.y : most;
}

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
// split here into operands of mma_part. Every lane of the warp calls everything. (Split once for all lanes
// and read back from shared memory, a single row of FP8 was 15 % slower.)
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

template <DType T, int MT, int U>
__global__ void __launch_bounds__(kThreads, 2)
    float_rows(const RowsJob job, const Rounded x, const DevStep* step, RowSet set) {
  CARAT_SHARED(memory);
  constexpr int kBytes = FloatOf<T>::kBytes, kRow = 256 / U, kAcross = kRow / 16;  // of a chunk
  constexpr int J = MT / 8, kChunk = kRow / kBytes, kChunks = 256 / kChunk, kSteps = kChunk / 16;
  constexpr int S = kSteps < 8 ? kSteps : 8;
  constexpr int kOwn = (kSums<MT, U> + kThreads - 1) / kThreads;
  constexpr bool kSplit = MT > kFewSplitRows;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int32_t cols = job.m.w.cols, tasks = (cols + 255) / 256, rounds = (tasks + kWarps - 1) / kWarps;
  // Gate and up of experts wait for the choice before they let the next kernel start. That kernel is down,
  // which therefore reads the choice, and asks for weights, before it waits for its own inputs.
  const bool waits = job.experts() && job.paired;
  if (waits) wait_inputs(), let_next_start();
  const RowsPlace place = place_of(job, MT);
  const int32_t slice = place.slice < 0 ? 0 : place.slice;
  const SharedAddress ring = shared_address(memory) + static_cast<unsigned>(warp * kSlots * kSlot);
  auto* parts = reinterpret_cast<float*>(memory + kWarps * kSlots * kSlot);  // [rounds][warps][U][16][MT]
  const auto ask = [&](int32_t chunk) {
    const int32_t task = warp + chunk / kChunks * kWarps, k = task * 256 + chunk % kChunks * kChunk;
    if (task < tasks) {
#pragma unroll
      for (int i = 0; i < kSlot / 16 / 32; ++i) {
        const int at = lane + 32 * i, r = at / kAcross, u = at % kAcross, unit = r / kUnit;
        const bool there = k + 16 / kBytes * u < cols;
        copy16_async(
            ring + static_cast<unsigned>(chunk % kSlots * kSlot + r * kRow + 16 * (u ^ (r & 7))),
            job.weights(unit, slice, job.first(unit, U) + r % kUnit) + (there ? kBytes * k + 16 * u : 0),
            there);
      }
    }
    commit_copies();
  };
  for (int i = 0; i < kSlots; ++i) ask(i);
  if (!waits) begin_kernel();
  const int32_t rows = rows_of(job, place, row_count(step, set), MT);
  if (rows <= 0) return wait_copies<0>();
  float total[kOwn] = {};
#pragma unroll 1
  for (int32_t c = 0; c < rounds; ++c) {
    float* const round = parts + c % kRoundsKept<MT> * kWarps * kSums<MT, U>;
    const int32_t task = warp + c * kWarps;
    if (task < tasks) {
      float sum[U][J][4] = {};
      std::conditional_t<kSplit, SplitRows<T>, OwnRows<T>> given;
      given.load(job, x, place.x, rows, task);
      given.find_scale(sum_scale(job.m.w));
#pragma unroll(kSplit ? 1 : kChunks)
      for (int part = 0; part < kChunks; ++part) {
        wait_copies<kSlots - 1>();
        sync_warp();
        const int row = lane % 16;  // that the lane shows to load_matrices
        const SharedAddress slot =
            ring + static_cast<unsigned>((c * kChunks + part) % kSlots * kSlot + row * kRow);
        const auto weights = [&](int u, int piece, uint32_t(&a)[4]) {  // 16 columns; of codes 32
          load_matrices(
              a, slot + static_cast<unsigned>(u * (kSlot / 2) + 16 * ((2 * piece + lane / 16) ^ (row & 7))));
        };
#pragma unroll
        for (int j = 0; j < J; ++j)
#pragma unroll
          for (int s0 = 0; s0 < kSteps; s0 += S) {
            uint4 b[S];
#pragma unroll
            for (int s = 0; s < S; ++s) b[s] = given.operand(j, part * kSteps + s0 + s);
            uint32_t codes[U][4];
#pragma unroll
            for (int s = 0; s < S; ++s)
#pragma unroll
              for (int u = 0; u < U; ++u) {
                uint32_t a[4];
                if constexpr (T == DType::fp8) {
                  if (s % 2 == 0) weights(u, (s0 + s) / 2, codes[u]);
                  widen(codes[u], s % 2, a);
                } else {
                  weights(u, s0 + s, a);
                }
                mma_part<FloatOf<T>::kParts>(sum[u][j], a, b[s].x, b[s].y);
                mma_part<FloatOf<T>::kParts>(sum[u][j], a, b[s].z, b[s].w);
              }
          }
        sync_warp();
        ask(c * kChunks + part + kSlots);
      }
      float* to = round + warp * kSums<MT, U>;
#pragma unroll
      for (int j = 0; j < J; ++j) {
        const float d0 = given.factor(8 * j + 2 * t), d1 = given.factor(8 * j + 2 * t + 1);
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            *reinterpret_cast<float2*>(to + (u * kUnit + g + 8 * h) * MT + 8 * j + 2 * t) =
                float2{d0 * sum[u][j][2 * h], d1 * sum[u][j][2 * h + 1]};
      }
    }
    sync_block();
#pragma unroll
    for (int e = 0; e < kOwn; ++e) {
      const int own = threadIdx.x + e * kThreads;
#pragma unroll
      for (int w = 0; w < kWarps; ++w)
        if (c * kWarps + w < tasks && own < kSums<MT, U>) total[e] = total[e] + round[w * kSums<MT, U> + own];
    }
    if (kRoundsKept<MT> == 1 && c + 1 < rounds) sync_block();
  }
  wait_copies<0>();
  if constexpr (T == DType::fp8)
#pragma unroll
    for (int e = 0; e < kOwn; ++e) {
      const int own = threadIdx.x + e * kThreads, unit = own / (kUnit * MT);
      const int32_t n = job.first(unit, U) + own % (kUnit * MT) / MT;
      if (own < kSums<MT, U> && n < job.m.w.rows)
        total[e] = total[e] * e4m3_factor(job.weights(unit, slice, n), cols);
    }
  float scale = job.m.scale, up_scale = job.up_scale;
  if (job.experts()) scale = expert_scale(job.scales, slice), up_scale = expert_scale(job.up_scales, slice);
  if (job.paired) {  // up to gate
    sync_block();
#pragma unroll
    for (int e = 0; e < kOwn; ++e)
      if (const int own = threadIdx.x + e * kThreads; own < kSums<MT, U>) parts[own] = total[e];
    sync_block();
  }
#pragma unroll
  for (int e = 0; e < kOwn; ++e) {
    const int own = threadIdx.x + e * kThreads, unit = own / (kUnit * MT), at = own % (kUnit * MT);
    const int32_t n = job.first(unit, U) + at / MT, m = at % MT;
    if (m >= rows || n >= job.m.w.rows || unit >= (job.paired ? 1 : U)) continue;
    if (job.paired)
      row_of<float>(job.m.y, place.y + m)[n] =
          activate(job.m.act, total[e] * scale) * (parts[own + kUnit * MT] * up_scale);
    else if (job.experts())
      row_of<float>(job.m.y, place.y)[n] = total[e] * scale;
    else
      finish(job.m, place.y + m, n, total[e]);
  }
}

template <DType T, int MT, int U>
void start(const Context& c, const RowsJob& job, const Rounded& x, RowSet rows) {
  const int32_t per = job.paired ? kUnit : U * kUnit;
  const auto grid = [](int32_t n, int32_t each) { return static_cast<unsigned>((n + each - 1) / each); };
  // Blocks of the same weights side by side.
  launch(c.launcher,
         job.experts() ? "experts"
         : job.paired  ? "gate-up"
                       : "matmul",
         float_rows<T, MT, U>, dim3(grid(job.m.y.rows, job.experts() ? 1 : MT), grid(job.m.w.rows, per)),
         kThreads, static_cast<size_t>(kShared<MT, U>), job, x, c.step, rows);
}
template <DType T, int U>
void by_rows(const Context& c, const RowsJob& job, const Rounded& x, RowSet rows) {
  if (job.experts() || job.m.y.rows <= kFewSplitRows) return start<T, 8, U>(c, job, x, rows);
  if (job.m.y.rows <= 16) return start<T, 16, U>(c, job, x, rows);
  start<T, 32, U>(c, job, x, rows);
}
template <DType T>
void by_units(const Context& c, RowsJob job, const Rounded& x, RowSet rows) {
  const Tensor& from = job.m.x;
  job.even = reinterpret_cast<uintptr_t>(from.data) % 8 == 0 && from.pitch % 8 == 0;
  // Two units where every multiprocessor gets some even so.
  const int64_t outputs = int64_t{job.m.w.rows} * (job.experts() ? job.m.y.rows : 1);
  const bool two = job.paired || outputs >= 2 * kUnit * c.launcher.sms;
  two ? by_rows<T, 2>(c, job, x, rows) : by_rows<T, 1>(c, job, x, rows);
}
void run(const Context& c, const RowsJob& job, const Rounded& x, RowSet rows) {
  switch (job.m.w.type) {
    case DType::bf16: return by_units<DType::bf16>(c, job, x, rows);
    case DType::f16: return by_units<DType::f16>(c, job, x, rows);
    default: return by_units<DType::fp8>(c, job, x, rows);
  }
}

}  // namespace

void matmul_float_rows(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows) {
  RowsJob job;
  job.m = a;
  run(c, job, x, rows);
}
void gate_up_float_rows(const Context& c, const GateUpArgs& a, const Rounded& x, RowSet rows) {
  RowsJob job;
  job.m.y = a.y, job.m.x = a.x, job.m.w = a.gate, job.m.act = a.act, job.m.scale = a.gate_scale;
  job.paired = true, job.up = a.up, job.up_scale = a.up_scale;
  run(c, job, x, rows);
}

void experts_up_float_rows(const Context& c, const ExpertsArgs& a, float* hidden, RowSet rows) {
  RowsJob job;
  job.m.y = make_tensor(hidden, DType::f32, a.y.rows * a.weights.cols, a.gate.rows);
  job.m.x = a.x, job.m.w = a.gate, job.m.act = a.act, job.chosen = a.experts, job.scales = a.gate_scale;
  job.paired = true, job.up = a.up, job.up_scales = a.up_scale;
  run(c, job, {}, rows);
}
void experts_down_float_rows(const Context& c, const ExpertsArgs& a, const float* hidden, float* out,
                             RowSet rows) {
  const int32_t pairs = a.y.rows * a.weights.cols;
  RowsJob job;
  job.m.y = make_tensor(out, DType::f32, pairs, a.down.rows);
  job.m.x = make_tensor(const_cast<float*>(hidden), DType::f32, pairs, a.down.cols), job.m.w = a.down;
  job.chosen = a.experts, job.scales = a.down_scale;
  run(c, job, {}, rows);
}

}  // namespace carat::cuda
