// Products of a single row, or of pairs of a row and an expert, over weights in bf16, f16 or fp8 on the
// tensor cores: as float/rows.cu has them, bits included. All columns of a product are the row's. A
// warp's lanes split the row together, and each warp in turn adds a group's sums and writes its outputs,
// while the others go on. Of experts a block multiplies one row with one of its experts; where two rows chose
// the same expert, its weights are read twice.
#include "cuda/matmul/float/rows.cuh"

namespace carat::cuda {
namespace {

constexpr int kParts = 64;                 // of a row's 256 columns: operands of four, 16 bytes each
constexpr int kLeft = 2 * kRowWarps * 32;  // floats: what warps leave, of two rounds
constexpr int kShared = kRowWarps * (kRing + kParts * 16) + kLeft * 4;

// A block's rows of x and y, and the expert whose weights it reads: 0 where there are no experts, -1 if the
// row chose one that does not exist.
struct RowPlace {
  int32_t x, y, slice;

  CARAT_D explicit RowPlace(const RowsJob& job) : x(blockIdx.x), y(blockIdx.x), slice(0) {
    if (!job.experts()) return;
    const int32_t used = job.chosen.cols, m = y / used,
                  e = row_of<const int32_t>(job.chosen, m)[y - m * used];
    x = job.paired ? m : y, slice = e >= 0 && e < job.m.w.slices ? e : -1;
  }
  CARAT_D bool there(const RowsJob& job, int32_t rows) const {  // of a step of so many rows
    return slice >= 0 && y < rows * (job.experts() ? job.chosen.cols : 1);
  }
};

// A warp's block of columns of one row: every lane splits two operands of four columns, and all read them
// from shared memory, as the only row's and as those of rows that are not there. The next block's columns can
// be asked for as soon as this one is split.
template <DType T>
struct OneRow {
  float v[2][4], d = 0;
  uint4* parts;  // [kParts], the warp's

  CARAT_D void load(const RowsJob& job, int32_t m, int32_t block) {
    constexpr int kPair = FloatOf<T>::kPair;
    const float* x = row_of<const float>(job.m.x, m);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int unit = threadIdx.x % 32 + 32 * i;
      const int32_t k = block * 256 + unit / 4 * 16 + unit % 4 * FloatOf<T>::kLane, cols = job.m.w.cols;
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const int32_t at = k + kPair * p;
        float2 two = {0, 0};
        if (job.even) {
          if (at < cols) two = *reinterpret_cast<const float2*>(x + at);
        } else {
          if (at < cols) two.x = x[at];
          if (at + 1 < cols) two.y = x[at + 1];
        }
        v[i][2 * p] = two.x, v[i][2 * p + 1] = two.y;
      }
    }
  }
  CARAT_D void split(float times) {
    PartScale scale;
    if constexpr (T != DType::bf16) {
      uint32_t top = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t one = magnitude(v[i / 4][i % 4]);
        top = one > top ? one : top;
      }
      scale = part_scale<FloatOf<T>::kParts>(warp_max(top));
    }
    d = T == DType::bf16 ? 1 : scale.d * times;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      parts[threadIdx.x % 32 + 32 * i] = split_four<FloatOf<T>::kParts>(v[i], scale);
  }
  CARAT_D uint4 operand(int step) const { return parts[4 * step + threadIdx.x % 4]; }
};

// An output of a group by a lane: its sum, of gate and up those of gate in the lower half of the warp.
template <DType T, int U>
CARAT_D void write_output(const RowsJob& job, const RowPlace& place, int32_t group, float total) {
  const int lane = threadIdx.x % 32, unit = lane / kUnit;
  const int32_t slice = place.slice, n = job.first(group, unit, U) + lane % kUnit;
  const bool some = unit < U && n < job.m.w.rows;
  if constexpr (T == DType::fp8)
    if (some) total = total * e4m3_factor(job.weights(unit, slice, n), job.m.w.cols);
  float scale = job.m.scale, up_scale = job.up_scale;
  if (job.experts()) scale = expert_scale(job.scales, slice), up_scale = expert_scale(job.up_scales, slice);
  if (job.paired) {
    const float up = shuffle(total, lane % kUnit + kUnit);
    if (some && unit == 0)
      row_of<float>(job.m.y, place.y)[n] = activate(job.m.act, total * scale) * (up * up_scale);
  } else if (some) {
    if (job.experts())
      row_of<float>(job.m.y, place.y)[n] = total * scale;
    else
      finish(job.m, place.y, n, total);
  }
}

// U: units of 16 outputs of a group; of gate and up one each.
template <DType T, int U>
__global__ void __launch_bounds__(kRowThreads, 2)
    float_row(const RowsJob job, const DevStep* step, RowSet set) {
  CARAT_SHARED(memory);
  using Ring = WeightRing<T, U>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  // Gate and up of experts wait for the choice before they let the next kernel start. That kernel is down,
  // which therefore reads the choice, and asks for weights, before it waits for its own inputs.
  const bool waits = job.experts() && job.paired;
  if (waits) wait_inputs(), let_next_start();
  const RowPlace place(job);
  const int32_t slice = place.slice < 0 ? 0 : place.slice;
  auto* left = reinterpret_cast<float*>(memory + kRowWarps * kRing);  // [rounds][warps][32]
  Ring ring(job, memory, static_cast<int32_t>(gridDim.y));
  const uint8_t* first[U];  // of the expert's weights
#pragma unroll
  for (int u = 0; u < U; ++u)
    first[u] = row_of<const uint8_t>(job.weights(u), 0) + slice * job.weights(u).slice_pitch;
  const auto weights = [&](int unit, int32_t n) { return first[unit] + n * job.weights(unit).pitch; };
  for (int i = 0; i < kRingSlots; ++i) ring.ask(weights);
  if (!waits) begin_kernel();
  if (!place.there(job, row_count(step, set))) return wait_copies<0>();
  OneRow<T> given;
  given.parts = reinterpret_cast<uint4*>(left + kLeft) + warp * kParts;
  given.load(job, place.x, warp);
  int kept = 0, adds = 0;
#pragma unroll 1
  for (int32_t group = static_cast<int32_t>(blockIdx.y); group < ring.groups; group += ring.stride) {
    float total = 0;
#pragma unroll 1
    for (int32_t c = 0; c < ring.rounds; ++c) {
      float* const round = left + kept * (kRowWarps * 32);
      const int32_t task = warp + c * kRowWarps;
      if (task < ring.tasks) {
        float sum[U][4] = {};
        given.split(sum_scale(job.m.w));
        given.load(job, place.x, task + kRowWarps < ring.tasks ? task + kRowWarps : warp);
#pragma unroll
        for (int part = 0; part < Ring::kChunks; ++part) {
          ring.wait();
          uint4 b[Ring::kSteps];
#pragma unroll
          for (int s = 0; s < Ring::kSteps; ++s) b[s] = given.operand(part * Ring::kSteps + s);
          uint32_t codes[U][4];
#pragma unroll
          for (int s = 0; s < Ring::kSteps; ++s)
#pragma unroll
            for (int u = 0; u < U; ++u) {
              uint32_t a[4];
              ring.operand(u, s, codes[u], a);
              mma_part<FloatOf<T>::kParts>(sum[u], a, b[s].x, b[s].y);
              mma_part<FloatOf<T>::kParts>(sum[u], a, b[s].z, b[s].w);
            }
          sync_warp();
          ring.next(weights);
        }
        // Lane t of four leaves sums t of its outputs.
        const float low = t % 2 ? sum[0][2] : sum[0][0], high = t % 2 ? sum[U - 1][2] : sum[U - 1][0];
        if (t < 2 * U) round[warp * 32 + t / 2 * kUnit + g + t % 2 * 8] = given.d * (t < 2 ? low : high);
      } else {
#pragma unroll 1
        for (int part = 0; part < Ring::kChunks; ++part) ring.next(weights);
      }
      sync_block();
      if (warp == adds && lane < U * kUnit) {
#pragma unroll
        for (int w = 0; w < kRowWarps; ++w)
          if (c * kRowWarps + w < ring.tasks) total = total + round[w * 32 + lane];
      }
      kept ^= 1;
    }
    if (warp == adds) write_output<T, U>(job, place, group, total);
    adds = (adds + 1) % kRowWarps;
  }
  wait_copies<0>();
}

template <DType T>
void start(const Context& c, RowsJob job, RowSet rows) {
  const auto up = [](int64_t n, int64_t each) { return static_cast<int32_t>((n + each - 1) / each); };
  const Tensor& x = job.m.x;
  job.even = reinterpret_cast<uintptr_t>(x.data) % 8 == 0 && x.pitch % 8 == 0;
  const auto with = [&](auto kernel, int units) {
    // Each block of threads has as many groups as the others, and all are there at once.
    const int32_t groups = job.groups(units), across = job.m.y.rows,
                  there = (c.launcher.shared < 2 * kShared ? 1 : 2) * c.launcher.sms,
                  each = up(int64_t{groups} * across, there);
    // Blocks of the same weights side by side.
    const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(up(groups, each)));
    launch(c.launcher,
           job.experts() ? "experts"
           : job.paired  ? "gate-up"
                         : "matmul",
           kernel, grid, kRowThreads, static_cast<size_t>(kShared), job, c.step, rows);
  };
  // Two units where every multiprocessor gets some even so.
  if (job.paired || int64_t{job.m.w.rows} * job.m.y.rows >= 2 * kUnit * c.launcher.sms)
    with(float_row<T, 2>, 2);
  else
    with(float_row<T, 1>, 1);
}

}  // namespace

void float_row_of(const Context& c, const RowsJob& job, RowSet rows) {
  switch (job.m.w.type) {
    case DType::bf16: return start<DType::bf16>(c, job, rows);
    case DType::f16: return start<DType::f16>(c, job, rows);
    default: return start<DType::fp8>(c, job, rows);
  }
}

void experts_up_float_rows(const Context& c, const ExpertsArgs& a, float* hidden, RowSet rows) {
  RowsJob job;
  job.m.y = make_tensor(hidden, DType::f32, a.y.rows * a.weights.cols, a.gate.rows);
  job.m.x = a.x, job.m.w = a.gate, job.m.act = a.act, job.chosen = a.experts, job.scales = a.gate_scale;
  job.paired = true, job.up = a.up, job.up_scales = a.up_scale;
  float_row_of(c, job, rows);
}
void experts_down_float_rows(const Context& c, const ExpertsArgs& a, const float* hidden, float* out,
                             RowSet rows) {
  const int32_t pairs = a.y.rows * a.weights.cols;
  RowsJob job;
  job.m.y = make_tensor(out, DType::f32, pairs, a.down.rows);
  job.m.x = make_tensor(const_cast<float*>(hidden), DType::f32, pairs, a.down.cols), job.m.w = a.down;
  job.chosen = a.experts, job.scales = a.down_scale;
  float_row_of(c, job, rows);
}

}  // namespace carat::cuda
