// Products of one row over packed weights, as one stream of tiles a warp: each warp has a ring of tiles in
// shared memory that copies fill before the inputs are there.
#pragma once
#include <algorithm>

#include "cuda/device/warp_copies.cuh"
#include "cuda/matmul/rings.h"
#include "cuda/matmul/shares.cuh"
#include "cuda/ops/row_norms.cuh"

namespace carat::cuda {

inline constexpr int kMostScales = 256;  // of activations
inline constexpr int kStreamRegisters = kNarrowOnly ? 128 : 80;
template <DType TYPE, Rings RINGS>
struct StreamShape {
  static constexpr DType T = TYPE;
  static constexpr Rings G = RINGS;
  static constexpr int kWarps = G.warps, kThreads = 32 * (kWarps + 1);  // that multiply, and one that adds
  static constexpr int kSlots = G.slots, kRounds = G.rounds;
  // Where a kernel may begin beside the one before, so that attention has room (attention/single/single.cuh).
  static constexpr int kRegisters = kStreamRegisters;
  static constexpr bool kEarly = G.early;
  // A slot: a tile as it lies in memory, then Stage's codes and sums of its block, unless the kernel has
  // them, kStage bytes a block, for all warps.
  static constexpr int kStage = Stage<1>::kBytes;
  static constexpr int kCodes = packed_tile(T, 256), kSums = kCodes + 256;
  static constexpr bool kNeedsSums = T != DType::q8_0 && !coded(T) && !lattice(T);  // LaneBlock::dot()

  CARAT_HD static constexpr int32_t scales(int32_t blocks) { return scales_bytes(blocks); }
  static_assert(kStage == kStreamStage);
};

// What a stream multiplies: products of one row.
struct ProductStream {
  static constexpr bool kChooses = false;
  static constexpr bool kNormed = false, kRoundsRow = false;
  static constexpr RowKind kRow = RowKind::rounded;
  ProductJob products;
  Rounded x;

  CARAT_D const ProductJob& sums() const { return products; }  // for Adder
  CARAT_D const Rounded& acts(int32_t) const { return x; }     // of a group
  CARAT_D int32_t cols() const { return products.m[0].w.cols; }
  CARAT_D bool known(int32_t) const { return true; }  // its weights, before the inputs are there
  template <DType T>
  CARAT_D TileAt weights(const Deal& deal, int32_t at) const {
    // As product_tile(), by index: the row's weights are asked for in little code.
    const int32_t group = deal.group(at), tile = deal.tile(at);
    const int which = products.which(group);
    const bool up = products.paired && tile >= deal.blocks;
    const Tensor& w = up ? products.up : products.m[which].w;
    return tile_at<T>(w, 0, group - products.begin(which), up ? tile - deal.blocks : tile);
  }
  CARAT_D void take_scales(const Deal& deal, float* d, int lane) const {
    for (int32_t i = lane; i < deal.blocks; i += 32) d[i] = x.d[i];
  }
};

// The same of a row that norms leave, which are computed first.
struct NormedStream : ProductStream {
  static constexpr bool kNormed = true;
  static constexpr RowKind kRow = RowKind::normed;
  RowNorms norms;

  // The row to shared memory, rounded, and to memory what the norms write.
  CARAT_D void run(NormsAhead& ahead, uint8_t* row, float* d) const {
    CARAT_STATIC_SHARED float part[NormsAhead::N * 32];
    ahead.run(part, [&](int k) { ahead.store(k); });
    uint8_t* at = row + ahead.warp * Stage<1>::kBytes;
    if (256 * ahead.warp < norms.cols)
      round_block(ahead.v,
                  {reinterpret_cast<int8_t*>(at), reinterpret_cast<int16_t*>(at + 256), d + ahead.warp}, 0,
                  ahead.lane);
  }
};

// One product of a row that nobody has rounded: a warp rounds what its tile reads.
struct RoundingStream : ProductStream {
  static constexpr bool kRoundsRow = true, paired = false;
  static constexpr RowKind kRow = RowKind::floats;

  CARAT_D const RoundingStream& sums() const { return *this; }
  CARAT_D const float* row(int32_t b) const { return row_of<const float>(products.m[0].x, 0) + 256 * b; }
  CARAT_D void finish(int32_t group, int lane, float, float v) const {
    const int32_t n = group * kGroup + lane;
    if (n < products.m[0].w.rows) cuda::finish(products.m[0], 0, n, v);
  }
};

template <class Shape, class JOB>
CARAT_D void stream_tiles(const JOB& job, const Deal& deal, int32_t scales, const DevStep* s, RowSet set) {
  constexpr DType T = Shape::T;
  constexpr int W = Shape::kWarps, R = Shape::kRounds, S = Shape::kSlots;
  CARAT_SHARED(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  auto* left = reinterpret_cast<float*>(memory);  // [R][W][32]
  float* d = left + R * W * 32;
  constexpr bool kNormed = JOB::kNormed;
  constexpr int kSlot = ring_slot(T, JOB::kRow), kFloats = Shape::kCodes + Shape::kStage;
  const SharedAddress gates = shared_address(reinterpret_cast<uint8_t*>(d) + Shape::scales(scales)),
                      come = gates + warp * (8 * S), full = gates + W * (8 * S), free = full + 8 * R;
  uint8_t* row = reinterpret_cast<uint8_t*>(d) + Shape::scales(scales) + gates_bytes(Shape::G);  // if normed
  // The rings' first slots, then the second: where nobody has a second tile there is no room for it.
  uint8_t* ring = row + (kNormed ? scales * Shape::kStage : 0) + warp * kSlot;
  using Shares = std::conditional_t<JOB::kChooses, EarlyShare, Share>;
  const Shares share(deal);
  const bool some = row_count(s, set) > 0;
  const auto ask = [&](int32_t task, int slot) {
    if (task >= share.total || !has_part(lane)) return;
    const TileAt tile = job.template weights<T>(deal, share.at(task));
    ask_copy_once(come + 8 * slot, lane,
                  {shared_address(ring + slot * (W * kSlot)), tile.tile, packed_tile(T, tile.n)});
  };
  const auto known = [&](int32_t task) {
    return task >= share.total || job.known(deal.group(share.at(task)));
  };
  if (warp < W) {
    if (lane == 0)
      for (int i = 0; i < S; ++i) gate_init(come + 8 * i, asks_arrive(kNormed ? 1 : 2));
    sync_warp();
#pragma unroll 1
    for (int i = 0; i < (kNormed ? 1 : S); ++i)
      if (known(warp + i * W)) ask(warp + i * W, i);
  } else {
    init_turns<W, R>(full, free, lane);
  }
  if constexpr (kNormed) {
    NormsAhead ahead(job.norms);
    wait_inputs();
    let_next_start();
    if (some) ahead.ask();  // the row before more tiles, which it would come behind
    if (some && warp < W)
#pragma unroll 1
      for (int i = 1; i < S; ++i) ask(warp + i * W, i);
    if (some) job.run(ahead, row, d);
  } else {
    wait_inputs();
    let_next_start();
  }
  if (!some) return;
  const auto ask_row = [&](int32_t task, int slot) {
    if (kNormed || task >= share.total || !has_part(lane)) return;
    const int32_t at = share.at(task), b = deal.block(at);
    const Rounded& x = job.acts(deal.group(at));
    uint8_t* to = ring + slot * (W * kSlot);
    if constexpr (JOB::kRoundsRow) {
      const int32_t behind = job.cols() - 256 * b, n = behind < 256 ? behind : 256;
      ask_copies(come + 8 * slot, lane, {shared_address(to + kFloats), job.row(b), 4 * n});
      return;
    }
    ask_copies(come + 8 * slot, lane, {shared_address(to + Shape::kCodes), x.q + int64_t{b} * 256, 256},
               {shared_address(to + Shape::kSums), x.sums + int64_t{b} * 16, Shape::kNeedsSums ? 32 : 0});
  };
  if (warp < W)
#pragma unroll 1
    for (int i = 0; i < S; ++i) ask_row(warp + i * W, i);
  if constexpr (JOB::kChooses)
    if (warp == W) job.choose(s, lane);
  sync_block();
  const int32_t rounds = (share.total + W - 1) / W;
  if (warp == W) {
    if constexpr (!kNormed && !JOB::kRoundsRow) job.take_scales(deal, d, lane);
    sync_warp();
    uint32_t* const handed = s->handed + kHanded * blockIdx.x;
    Adder<1, 1, std::remove_cvref_t<decltype(job.sums())>, Shares> adder{
        job.sums(), deal, share, d, handed, handed - kHanded, 0, 1, lane, 0};
    adder.template run<W, R>(left, full, free, rounds);
    return;
  }
  if constexpr (JOB::kChooses)
#pragma unroll 1
    for (int i = 0; i < S; ++i)
      if (!known(warp + i * W)) ask(warp + i * W, i);
  // The scale takes the place of the first column.
  const auto round_row = [](uint8_t* tile, int n, int lane_at) {
    auto* x = reinterpret_cast<float*>(tile + kFloats);
    const Stage<1> stage{tile + Shape::kCodes};
    float v[8];
    load_columns(x, n, v, lane_at);
    round_block(v, {reinterpret_cast<int8_t*>(stage.p), reinterpret_cast<int16_t*>(stage.p + 256), x}, 0,
                lane_at);
    sync_warp();
  };
  int slot = 0, parity = 0;
  int32_t task = warp;
#pragma unroll 1
  for (int32_t c = 0; c < rounds; ++c, task += W) {
    const int at = c % R;
    float t[1] = {0};
    if (task < share.total) {
      gate_wait(come + 8 * slot, parity);
      uint8_t* tile = ring + slot * (W * kSlot);
      const int32_t b = kNormed || JOB::kRoundsRow || grouped(T) ? deal.block(share.at(task)) : 0,
                    cols = JOB::kRoundsRow || grouped(T) ? job.cols() - 256 * b : 256;
      if constexpr (JOB::kRoundsRow) round_row(tile, cols < 256 ? cols : 256, lane);
      LaneBlock<T> w;
      w.take(tile, lane, cols < 256 ? cols : 256,
             [](const uint8_t* p) { return *reinterpret_cast<const uint4*>(p); });
      if constexpr (Shape::kEarly) {
        sync_warp();
        ask(task + S * W, slot);
      }
      w.template dot<1>(Stage<1>{kNormed ? row + b * Shape::kStage : tile + Shape::kCodes},
                        cols < 256 ? cols : 256, t);
    }
    gate_wait(free + 8 * at, 1 - c / R % 2);  // those without a tile, too: they must not arrive a turn early
    left[(at * W + warp) * 32 + lane] = t[0];
    if constexpr (JOB::kRoundsRow)
      if (lane == 0) d[at * W + warp] = *reinterpret_cast<const float*>(ring + slot * (W * kSlot) + kFloats);
    arrive_as_warp(full + 8 * at);
    if constexpr (!Shape::kEarly) ask(task + S * W, slot);
    ask_row(task + S * W, slot);
    if (++slot == S) slot = 0, parity ^= 1;
  }
}

// A Hopper's rings, or those of a narrow device.
template <DType T, class JOB, bool NARROW>
using StreamOf = StreamShape<T, NARROW ? narrow_rings(T, JOB::kRow) : Rings{}>;

template <class S, class JOB>
__global__ void __launch_bounds__(S::kThreads) __maxnreg__(S::kRegisters)
    packed_stream(const __grid_constant__ JOB job, const Deal deal, int32_t scales, const DevStep* s,
                  RowSet set) {
  if constexpr (!kNarrowOnly || S::kSlots == 1) stream_tiles<S>(job, deal, scales, s, set);
}
// Products of the same row over two formats: the blocks of threads are shared out by bytes. One slot for the
// wider tiles, so that attention, which comes behind q, k and v, finds room beside them.
template <class JOB>
struct StreamPair {
  JOB first, second;
};
template <DType T, class JOB, bool NARROW>
using SecondOf = StreamShape<T, NARROW ? narrow_rings(T, JOB::kRow) : Rings{.slots = 1}>;
template <class S, class S2, class JOB>
__global__ void __launch_bounds__(S::kThreads) __maxnreg__(S::kRegisters)
    packed_streams(const __grid_constant__ StreamPair<JOB> jobs, const Deal first, const Deal second,
                   int32_t scales, const DevStep* s, RowSet set) {
  if constexpr (!kNarrowOnly || S::kSlots == 1) {
    if (static_cast<int32_t>(blockIdx.x) < second.from)
      stream_tiles<S>(jobs.first, first, scales, s, set);
    else
      stream_tiles<S2>(jobs.second, second, scales, s, set);
  }
}

// A job's `groups` of 32 outputs, of gate and up if paired; `scales` of activations. False: for want of
// shared memory.
template <class S, class JOB>
int32_t bytes_of(int32_t scales, int slots = S::kSlots) {
  return stream_bytes(S::T, JOB::kRow, scales, S::G, slots);
}
template <DType T, class JOB, bool NARROW>
bool stream_fits_as(int32_t scales, int64_t shared) {
  using S = StreamOf<T, JOB, NARROW>;
  return NARROW == is_narrow(shared) && scales <= kMostScales && bytes_of<S, JOB>(scales) <= shared;
}
template <DType T, class JOB>
bool stream_fits(int32_t scales, int64_t shared) {
  return stream_fits_as<T, JOB, false>(scales, shared) || stream_fits_as<T, JOB, true>(scales, shared);
}
template <DType T, class JOB, bool NARROW>
void run_stream_as(const Context& c, const char* what, const JOB& job, int32_t groups, bool paired,
                   int32_t blocks, int32_t scales, RowSet rows, int32_t early) {
  using S = StreamOf<T, JOB, NARROW>;
  const int32_t grid = std::min(c.launcher.sms, groups);
  const Deal deal = deal_of(groups, paired, blocks, grid, early);
  const bool few = early == 0 && (groups + grid - 1) / grid * deal.tiles <= S::kWarps;
  launch(in_order(c.launcher), what, packed_stream<S, JOB>, dim3(static_cast<unsigned>(grid)), S::kThreads,
         static_cast<size_t>(bytes_of<S, JOB>(scales, few ? 1 : S::kSlots)), job, deal, scales, c.step, rows);
}
template <DType T, class JOB>
void run_stream(const Context& c, const char* what, const JOB& job, int32_t groups, bool paired,
                int32_t blocks, int32_t scales, RowSet rows, int32_t early = 0) {
  if (is_narrow(c.launcher.shared))
    run_stream_as<T, JOB, true>(c, what, job, groups, paired, blocks, scales, rows, early);
  else
    run_stream_as<T, JOB, false>(c, what, job, groups, paired, blocks, scales, rows, early);
}
template <DType T>
bool launch_stream(const Context& c, const ProductJob& job, const Rounded& x, RowSet rows) {
  if (!stream_fits<T, ProductStream>(x.blocks, c.launcher.shared)) return false;
  run_stream<T>(c, job.paired ? "gate-up" : "matmul", ProductStream{job, x}, job.groups(), job.paired,
                x.blocks, x.blocks, rows);
  return true;
}

// The second product's share of blocks of threads, at least one, by bytes.
template <DType T, DType T2>
int32_t second_share(int32_t grid, int32_t groups, int32_t groups2) {
  const int64_t bytes = int64_t{groups} * packed_tile(T, 256),
                bytes2 = int64_t{groups2} * packed_tile(T2, 256);
  return static_cast<int32_t>(
      std::clamp<int64_t>((grid * bytes2 + (bytes + bytes2) / 2) / (bytes + bytes2), 1, grid - 1));
}
template <DType T, DType T2, class JOB, bool NARROW>
bool streams_fit_as(int32_t scales, const DeviceProps& device) {
  return device.sms > 1 && stream_fits_as<T, JOB, NARROW>(scales, device.shared_per_block) &&
         stream_fits_as<T2, JOB, NARROW>(scales, device.shared_per_block);
}
template <DType T, DType T2, class JOB>
bool streams_fit(int32_t scales, const DeviceProps& device) {
  return streams_fit_as<T, T2, JOB, false>(scales, device) ||
         streams_fit_as<T, T2, JOB, true>(scales, device);
}
template <DType T, DType T2, class JOB, bool NARROW>
void run_streams_as(const Context& c, const char* what, const JOB& job, const JOB& job2, int32_t blocks,
                    RowSet rows) {
  using S = StreamOf<T, JOB, NARROW>;
  using S2 = SecondOf<T2, JOB, NARROW>;
  static_assert(S::kThreads == S2::kThreads);
  const int32_t groups = job.products.groups(), groups2 = job2.products.groups(),
                grid = std::min(c.launcher.sms, groups + groups2),
                among = second_share<T, T2>(grid, groups, groups2);
  launch(in_order(c.launcher), what, packed_streams<S, S2, JOB>, dim3(static_cast<unsigned>(grid)),
         S::kThreads, static_cast<size_t>(std::max(bytes_of<S, JOB>(blocks), bytes_of<S2, JOB>(blocks))),
         StreamPair<JOB>{job, job2}, deal_of(groups, false, blocks, grid - among),
         deal_of(groups2, false, blocks, among, 0, grid - among), blocks, c.step, rows);
}
template <DType T, DType T2, class JOB>
void run_streams(const Context& c, const char* what, const JOB& job, const JOB& job2, int32_t blocks,
                 RowSet rows) {
  if (is_narrow(c.launcher.shared))
    run_streams_as<T, T2, JOB, true>(c, what, job, job2, blocks, rows);
  else
    run_streams_as<T, T2, JOB, false>(c, what, job, job2, blocks, rows);
}
// Norms ahead: of rows that the block's threads hold, eight columns each. Wider ones come later than one
// block's norms would, since every block has to wait for them.
template <DType T, bool NARROW>
bool normed_fits_as(const RowNorms& norms, int64_t shared) {
  return norms.cols <= 8 * StreamOf<T, NormedStream, NARROW>::kThreads &&
         stream_fits_as<T, NormedStream, NARROW>(norms.blocks(), shared);
}
template <DType T>
bool packed_normed_fits(const RowNorms& norms, const DeviceProps& device) {
  return normed_fits_as<T, false>(norms, device.shared_per_block) ||
         normed_fits_as<T, true>(norms, device.shared_per_block);
}
template <DType T>
void packed_normed(const Context& c, const RowNorms& norms, const ProductJob& job, RowSet rows) {
  run_stream<T>(c, job.paired ? "norms, gate-up" : "norms, matmul", NormedStream{{job, {}}, norms},
                job.groups(), job.paired, norms.blocks(), norms.blocks(), rows);
}

// Scales of a product that rounds its row itself are those of the tasks that wait to be added.
template <DType T, bool NARROW>
constexpr int32_t kTaskScales = task_scales(StreamOf<T, RoundingStream, NARROW>::G);
template <DType T>
bool packed_rounding_fits(const DeviceProps& device) {
  const int64_t shared = device.shared_per_block;
  return stream_fits_as<T, RoundingStream, false>(kTaskScales<T, false>, shared) ||
         stream_fits_as<T, RoundingStream, true>(kTaskScales<T, true>, shared);
}
template <DType T>
void packed_rounding(const Context& c, const ProductJob& job, RowSet rows) {
  run_stream<T>(c, "rounding, matmul", RoundingStream{{job, {}}}, job.groups(), false,
                (job.m[0].w.cols + 255) / 256,
                is_narrow(c.launcher.shared) ? kTaskScales<T, true> : kTaskScales<T, false>, rows);
}

}  // namespace carat::cuda
