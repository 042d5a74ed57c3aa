// Products of a single row, or of pairs of a row and an expert, over weights in bf16, f16 or fp8 on the
// tensor cores: as float_rows.cu has them, bits included, but shared out as products over packed weights are
// (shares.cuh). A warp takes 16 or 32 outputs of a block of 256 columns at a time, through a ring that flows
// on from tile to tile; another warp adds what they leave.
#include "cuda/matmul/float_rows.cuh"
#include "cuda/matmul/shares.cuh"

namespace carat::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * (kWarps + 1);
constexpr int kParts = 64;               // of a row's 256 columns: operands of four, 16 bytes each
constexpr int kSlots = 2, kSlot = 4096;  // of a warp's ring; bytes, 128 or 256 of each output
constexpr int kRounds = 4;               // tiles of a warp that may wait to be added
constexpr int kLeft = kRounds * kWarps * 32 * 4, kOnes = kRounds * kWarps * 4, kGates = kRounds * 16;
constexpr int kShared = kWarps * (kSlots * kSlot + kParts * 16) + kLeft + kOnes + kGates;

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

// What the adding warp does with a group's sums.
struct RowSums {
  static constexpr bool kRoundsRow = true;  // tiles have scales of their own
  const RowsJob& job;
  int32_t row, slice;
  int outputs;  // of a group
  bool paired;

  CARAT_D void finish(int32_t group, int lane, float gate, float v) const {
    const int32_t n = group * outputs + lane;
    if (lane >= outputs || n >= job.m.w.rows) return;
    if (job.m.w.type == DType::fp8) {
      v = v * e4m3_factor(job.weights(paired ? 1 : 0, slice, n), job.m.w.cols);
      if (paired) gate = gate * e4m3_factor(job.weights(0, slice, n), job.m.w.cols);
    }
    if (!job.experts() && !paired) return cuda::finish(job.m, row, n, v);
    const float scale = job.experts() ? expert_scale(job.scales, slice) : job.m.scale,
                up_scale = job.experts() ? expert_scale(job.up_scales, slice) : job.up_scale;
    row_of<float>(job.m.y, row)[n] = paired ? activate(job.m.act, gate * scale) * (v * up_scale) : v * scale;
  }
};

// What a warp asks for next: a part of a tile's columns.
struct Asked {
  int32_t task;
  int part = 0, slot = 0;
};

// U: units of 16 outputs that a tile has.
template <DType T, int U>
__global__ void __launch_bounds__(kThreads, 2)
    float_row(const __grid_constant__ RowsJob job, const __grid_constant__ Deal deal, const DevStep* step,
              RowSet set) {
  CARAT_SHARED(memory);
  constexpr int kBytes = FloatOf<T>::kBytes, kRow = 256 / U, kAcross = kRow / 16;  // of a part
  constexpr int kPart = kRow / kBytes, kPartsOf = 256 / kPart, kSteps = kPart / 16;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int32_t cols = job.m.w.cols;
  auto* left = reinterpret_cast<float*>(memory);  // [kRounds][kWarps][32]
  float* ones = left + kLeft / 4;                 // what tiles leave has been multiplied with its scale
  const SharedAddress full = shared_address(ones) + kOnes, free = full + 8 * kRounds;
  uint8_t* rings = memory + kLeft + kOnes + kGates;
  // Gate and up of experts wait for the choice before they let the next kernel start. That kernel is down,
  // which therefore reads the choice, and asks for weights, before it waits for its own inputs.
  const bool waits = job.experts() && job.paired;
  if (waits) wait_inputs(), let_next_start();
  const RowPlace place(job);
  const int32_t slice = place.slice < 0 ? 0 : place.slice;
  const Share share(deal, deal.border(blockIdx.y), deal.border(blockIdx.y + 1));
  const SharedAddress ring = shared_address(rings) + static_cast<unsigned>(warp * kSlots * kSlot);
  Asked asked{warp};
  const auto ask = [&] {
    constexpr int kAtOnce = 32 / kAcross;  // outputs: units of 16 bytes are dealt to lanes
    if (asked.task < share.total) {
      const int32_t at = share.at(asked.task), group = deal.group(at),
                    k = deal.block(at) * 256 + asked.part * kPart;
      const Tensor& w = job.weights(deal.tile(at) < deal.blocks ? 0 : 1);
      const int r0 = lane / kAcross, u = lane % kAcross;
      const bool there = k + 16 / kBytes * u < cols;
      const uint8_t* from =
          row_of<const uint8_t>(w, 0) + slice * w.slice_pitch + (there ? kBytes * k + 16 * u : 0);
#pragma unroll
      for (int i = 0; i < kSlot / 16 / 32; ++i) {
        const int r = r0 + kAtOnce * i;
        const int32_t n = group * (U * kUnit) + r, last = w.rows - 1;
        copy16_async(ring + static_cast<unsigned>(asked.slot + r * kRow + 16 * (u ^ (r & 7))),
                     from + (n < last ? n : last) * w.pitch, there);
      }
    }
    commit_copies();
    asked.slot ^= kSlot;
    if (++asked.part == kPartsOf) asked.part = 0, asked.task += kWarps;
  };
  if (warp < kWarps) {
    for (int i = 0; i < kSlots; ++i) ask();
  } else {
    init_turns<kWarps, kRounds>(full, free, lane);
    for (int i = lane; i < kRounds * kWarps; i += 32) ones[i] = 1;
  }
  if (!waits) begin_kernel();
  sync_block();
  if (!place.there(job, row_count(step, set))) return wait_copies<0>();
  const int32_t rounds = (share.total + kWarps - 1) / kWarps;
  if (warp == kWarps) {
    const RowSums sums{job, place.y, slice, U * kUnit, job.paired};
    uint32_t* handed = step->handed + kHanded * static_cast<int64_t>(blockIdx.x * gridDim.y + blockIdx.y);
    Adder<1, 1, RowSums> adder{sums, deal, share, ones, handed, handed - kHanded, 0, 1, lane, 0};
    return adder.template run<kWarps, kRounds>(left, full, free, rounds);
  }
  OneRow<T> given;
  given.parts = reinterpret_cast<uint4*>(rings + kWarps * kSlots * kSlot) + warp * kParts;
  const auto load = [&](int32_t task) {
    if (task < share.total) given.load(job, place.x, deal.block(share.at(task)));
  };
  load(warp);
  int slot = 0;
#pragma unroll 1
  for (int32_t c = 0, task = warp; c < rounds; ++c, task += kWarps) {
    float sum[U][4] = {};
    if (task < share.total) {
      given.split(sum_scale(job.m.w));
      load(task + kWarps);
#pragma unroll
      for (int part = 0; part < kPartsOf; ++part) {
        wait_copies<kSlots - 1>();
        sync_warp();
        const int row = lane % 16;  // that the lane shows to load_matrices
        const SharedAddress chunk = ring + static_cast<unsigned>(slot + row * kRow);
        const auto weights = [&](int u, int piece, uint32_t(&a)[4]) {  // 16 columns; of codes 32
          load_matrices(a, chunk + static_cast<unsigned>(u * (kUnit * kRow) +
                                                         16 * ((2 * piece + lane / 16) ^ (row & 7))));
        };
        uint32_t codes[U][4];
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          const uint4 b = given.operand(part * kSteps + s);
#pragma unroll
          for (int u = 0; u < U; ++u) {
            uint32_t a[4];
            if constexpr (T == DType::fp8) {
              if (s % 2 == 0) weights(u, s / 2, codes[u]);
              widen(codes[u], s % 2, a);
            } else {
              weights(u, s, a);
            }
            mma_part<FloatOf<T>::kParts>(sum[u], a, b.x, b.y);
            mma_part<FloatOf<T>::kParts>(sum[u], a, b.z, b.w);
          }
        }
        sync_warp();
        ask();
        slot ^= kSlot;
      }
    }
    const int at = c % kRounds;
    gate_wait(free + 8 * at, 1 - c / kRounds % 2);
    // All columns of the product are the row's: lane t of four leaves sums t of its outputs.
    const float low = t % 2 ? sum[0][2] : sum[0][0], high = t % 2 ? sum[U - 1][2] : sum[U - 1][0];
    if (t < 2 * U)
      left[(at * kWarps + warp) * 32 + t / 2 * kUnit + g + t % 2 * 8] = given.d * (t < 2 ? low : high);
    arrive_as_warp(full + 8 * at);
  }
  wait_copies<0>();
}

template <DType T>
void start(const Context& c, RowsJob job, RowSet rows) {
  const auto even = [](const Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.data) % 8 == 0 && t.pitch % 8 == 0;
  };
  job.even = even(job.m.x);
  // All blocks of threads are there at once, and each has as many tiles as the others; smaller ones where
  // some would have none.
  const int32_t across = job.m.y.rows, blocks = (job.m.w.cols + 255) / 256,
                there = (c.launcher.shared < 2 * kShared ? 1 : 2) * c.launcher.sms,
                most = std::max(1, there / across);
  const auto groups = [&](int units) { return (job.m.w.rows + units * kUnit - 1) / (units * kUnit); };
  const auto with = [&](auto kernel, int32_t n) {
    const int32_t among = std::min(most, n);
    launch(in_order(c.launcher),
           job.experts() ? "experts"
           : job.paired  ? "gate-up"
                         : "matmul",
           kernel, dim3(static_cast<unsigned>(across), static_cast<unsigned>(among)), kThreads,
           static_cast<size_t>(kShared), job, deal_of(n, job.paired, blocks, among), c.step, rows);
  };
  if (groups(2) < most)
    with(float_row<T, 1>, groups(1));
  else
    with(float_row<T, 2>, groups(2));
}

}  // namespace

void float_row_of(const Context& c, const RowsJob& job, RowSet rows) {
  switch (job.m.w.type) {
    case DType::bf16: return start<DType::bf16>(c, job, rows);
    case DType::f16: return start<DType::f16>(c, job, rows);
    default: return start<DType::fp8>(c, job, rows);
  }
}

}  // namespace carat::cuda
