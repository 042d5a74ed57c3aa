// Products of few rows over weights in bf16, f16 or fp8 on the tensor cores. A warp takes a block of 256
// columns of one or two units of 16 outputs at a time (of gate and up: one of each): weights come through a
// ring of its own, which is filled before the inputs are there. Up to 8 rows are split in registers, more
// come split in parts. Sums over blocks are added ascending, as float_tiles.cu has them, so bits are the
// same. Of experts a block multiplies one row with one of its experts; where two rows chose the same expert,
// its weights are read twice.
#include "cuda/matmul/float_parts.cuh"

namespace carat::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kUnit = 16, kSlots = 2;           // outputs
constexpr int kSlot = 4096;                     // bytes: a row of 256 for a unit, of 128 for two
constexpr int kRing = kWarps * kSlots * kSlot;  // bytes of all rings
template <int MT, int U>
constexpr int kSums = U* kUnit* MT;  // floats that a warp leaves in a round

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

// Columns k, k + 1 and two from k + kPair on of a row, zeros behind the last.
template <DType T>
CARAT_D void load_four(const float* x, int32_t k, int32_t cols, bool even, float (&v)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const int32_t at = k + FloatOf<T>::kPair / 2 * i;
    const bool some = x && at < cols;
    if (even) {
      const float2 two = some ? *reinterpret_cast<const float2*>(x + at) : float2{0, 0};
      v[i] = two.x, v[i + 1] = two.y;
    } else {
      v[i] = some ? x[at] : 0, v[i + 1] = some ? x[at + 1] : 0;
    }
  }
}

// Of the row that the lane's group of four has; every lane of the warp calls it.
template <DType T>
CARAT_D PartScale scale_of_block(const float* x, int32_t k, int32_t cols, bool even) {
  if constexpr (T == DType::bf16) return {};
  uint32_t top = 0;
#pragma unroll 4
  for (int s = 0; s < 16; ++s) {
    float v[4];
    load_four<T>(x, k + 16 * s, cols, even, v);
#pragma unroll
    for (int i = 0; i < 4; ++i) top = magnitude(v[i]) > top ? magnitude(v[i]) : top;
  }
  for (int d = 1; d < 4; d *= 2) {
    const uint32_t other = shuffle_xor(top, d);
    top = other > top ? other : top;
  }
  return part_scale<FloatOf<T>::kParts>(top);
}

// Rows of a warp's block of columns as operands of mma_part: those of the file's `x`, or of its parts.
template <DType T, bool kSplit>
struct RowsOf {
  const RowsJob& job;
  const Rounded& x;
  int32_t m0, rows, cols;
  int g, t;

  CARAT_D const float* row(int j) const {
    return 8 * j + g < rows ? row_of<const float>(job.m.x, m0 + 8 * j + g) : nullptr;
  }
  CARAT_D PartScale scale(int32_t block) const {
    if constexpr (kSplit) return {};
    return scale_of_block<T>(row(0), block * 256 + FloatOf<T>::kLane * t, cols, job.even);
  }
  // Of eight rows the S steps of 16 columns from step `s0` of the block on.
  template <int S>
  CARAT_D void load(int j, int32_t block, int s0, const PartScale& scale, uint4 (&b)[S]) const {
    if constexpr (kSplit) {
      const auto* from = reinterpret_cast<const uint4*>(x.parts) +
                         ((m0 + 8 * j + g) * int64_t{x.blocks} + block) * 64 + 4 * s0 + t;
#pragma unroll
      for (int s = 0; s < S; ++s) b[s] = 8 * j + g < rows ? from[4 * s] : uint4{0, 0, 0, 0};
    } else {
      float v[S][4];
#pragma unroll
      for (int s = 0; s < S; ++s)
        load_four<T>(row(j), block * 256 + 16 * (s0 + s) + FloatOf<T>::kLane * t, cols, job.even, v[s]);
#pragma unroll
      for (int s = 0; s < S; ++s) b[s] = split_four<FloatOf<T>::kParts>(v[s], scale);
    }
  }
  // What the block's sums of row m0 + m are multiplied by; every lane calls it.
  CARAT_D float factor(int m, int32_t block, const PartScale& scale) const {
    if constexpr (T == DType::bf16) return 1;
    if constexpr (kSplit) return m < rows ? x.d[(m0 + m) * int64_t{x.blocks} + block] : 0;
    return shuffle(scale.d, 4 * m);
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
  auto* parts = reinterpret_cast<float*>(memory + kRing);  // [warps][U][16][MT]
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
  const RowsOf<T, kSplit> given{job, x, place.x, rows, cols, g, t};
  float total[kOwn] = {};
#pragma unroll 1
  for (int32_t c = 0; c < rounds; ++c) {
    const int32_t task = warp + c * kWarps;
    if (task < tasks) {
      float sum[U][J][4] = {};
      const PartScale scale = given.scale(task);
#pragma unroll 1
      for (int part = 0; part < kChunks; ++part) {
        wait_copies<kSlots - 1>();
        sync_warp();
        const int row = lane % 16;  // that the lane shows to load_matrices
        const SharedAddress slot = ring + static_cast<unsigned>(part % kSlots * kSlot + row * kRow);
        const auto weights = [&](int u, int piece, uint32_t(&a)[4]) {  // 16 columns; of codes 32
          load_matrices(
              a, slot + static_cast<unsigned>(u * (kSlot / 2) + 16 * ((2 * piece + lane / 16) ^ (row & 7))));
        };
#pragma unroll
        for (int j = 0; j < J; ++j)
#pragma unroll
          for (int s0 = 0; s0 < kSteps; s0 += S) {
            uint4 b[S];
            given.template load<S>(j, task, part * kSteps + s0, scale, b);
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
      float* to = parts + warp * kSums<MT, U>;
#pragma unroll
      for (int j = 0; j < J; ++j) {
        const float d0 = given.factor(8 * j + 2 * t, task, scale),
                    d1 = given.factor(8 * j + 2 * t + 1, task, scale);
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
        if (c * kWarps + w < tasks && own < kSums<MT, U>) total[e] = total[e] + parts[w * kSums<MT, U> + own];
    }
    if (c + 1 < rounds || job.paired) sync_block();
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
         kThreads, static_cast<size_t>(kRing + kWarps * kSums<MT, U> * 4), job, x, c.step, rows);
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
