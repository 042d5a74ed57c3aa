// Products of one row over packed weights, as one stream of tiles a warp: each warp has a ring of tiles in
// shared memory that bulk copies fill before the inputs are there.
#pragma once
#include <algorithm>

#include "cuda/matmul/shares.cuh"
#include "cuda/ops/row_norms.cuh"

namespace carat::cuda {

template <DType T>
struct StreamShape {
  static constexpr int kWarps = 12, kThreads = 32 * (kWarps + 1);  // that multiply, and one that adds
  static constexpr int kSlots = 2;                                 // of a ring
  static constexpr int kRounds = 8;        // tiles of a warp that may wait to be added
  static constexpr int kMostBlocks = 256;  // scales of activations
  static constexpr int kRegisters = 80;    // so that attention has room beside (attention_single.cuh)
  // A slot: a tile as it lies in memory, then Stage's codes and sums of its block, unless the kernel has
  // them, kStage bytes a block, for all warps.
  static constexpr int kStage = Stage<1>::kBytes;
  static constexpr int kCodes = packed_tile(T, 256), kSums = kCodes + 256, kSlot = kCodes + kStage;
  static constexpr bool kNeedsSums = T != DType::q8_0;

  CARAT_HD static constexpr int32_t scales(int32_t blocks) { return (blocks + 3) / 4 * 16; }  // bytes
  static constexpr int kGates = kWarps * kSlots * 8 + kRounds * 16;
  // slots: of a ring that are used, of `slot` bytes; row: bytes of the whole row.
  static constexpr int32_t shared(int32_t blocks, int slots, int slot, int row) {
    return kRounds * kWarps * 128 + scales(blocks) + kGates + row + kWarps * slots * slot;
  }
};

// What a stream multiplies: products of one row.
struct ProductStream {
  static constexpr bool kChooses = false;
  static constexpr bool kNormed = false, kRoundsRow = false;
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
  static constexpr int kRow = 256 * 4;  // bytes of a slot more

  CARAT_D const RoundingStream& sums() const { return *this; }
  CARAT_D const float* row(int32_t b) const { return row_of<const float>(products.m[0].x, 0) + 256 * b; }
  CARAT_D void finish(int32_t group, int lane, float, float v) const {
    const int32_t n = group * kGroup + lane;
    if (n < products.m[0].w.rows) cuda::finish(products.m[0], 0, n, v);
  }
};

// S slots of a ring.
template <DType T, int S, class JOB>
CARAT_D void stream_tiles(const JOB& job, const Deal& deal, int32_t scales, const DevStep* s, RowSet set) {
  using Shape = StreamShape<T>;
  constexpr int W = Shape::kWarps, R = Shape::kRounds;
  CARAT_SHARED(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  auto* left = reinterpret_cast<float*>(memory);  // [R][W][32]
  float* d = left + R * W * 32;
  constexpr bool kNormed = JOB::kNormed;
  constexpr int kSlot = JOB::kRoundsRow ? Shape::kSlot + RoundingStream::kRow
                        : kNormed       ? Shape::kCodes
                                        : Shape::kSlot;
  const SharedAddress gates = shared_address(reinterpret_cast<uint8_t*>(d) + Shape::scales(scales)),
                      come = gates + warp * (8 * S), full = gates + W * (8 * S), free = full + 8 * R;
  uint8_t* row = reinterpret_cast<uint8_t*>(d) + Shape::scales(scales) + Shape::kGates;  // if normed
  // The rings' first slots, then the second: where nobody has a second tile there is no room for it.
  uint8_t* ring = row + (kNormed ? scales * Shape::kStage : 0) + warp * kSlot;
  using Shares = std::conditional_t<JOB::kChooses, EarlyShare, Share>;
  const Shares share(deal);
  const bool some = row_count(s, set) > 0;
  const auto ask = [&](int32_t task, int slot) {
    if (task >= share.total || lane != 0) return;
    const TileAt tile = job.template weights<T>(deal, share.at(task));
    const int bytes = packed_tile(T, tile.n);
    gate_arrive(come + 8 * slot, bytes);
    copy_bulk_once(shared_address(ring + slot * (W * kSlot)), tile.tile, bytes, come + 8 * slot);
  };
  const auto known = [&](int32_t task) {
    return task >= share.total || job.known(deal.group(share.at(task)));
  };
  if (warp < W) {
    if (lane == 0)
      for (int i = 0; i < S; ++i) gate_init(come + 8 * i, kNormed ? 1 : 2);
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
    if (kNormed || task >= share.total || lane != 0) return;
    const int32_t at = share.at(task), b = deal.block(at);
    const Rounded& x = job.acts(deal.group(at));
    uint8_t* to = ring + slot * (W * kSlot);
    if constexpr (JOB::kRoundsRow) {
      const int32_t behind = job.cols() - 256 * b, n = behind < 256 ? behind : 256;
      gate_arrive(come + 8 * slot, 4 * n);
      copy_bulk(shared_address(to + Shape::kSlot), job.row(b), 4 * n, come + 8 * slot);
      return;
    }
    gate_arrive(come + 8 * slot, Shape::kNeedsSums ? 256 + 32 : 256);
    copy_bulk(shared_address(to + Shape::kCodes), x.q + int64_t{b} * 256, 256, come + 8 * slot);
    if (Shape::kNeedsSums)
      copy_bulk(shared_address(to + Shape::kSums), x.sums + int64_t{b} * 16, 32, come + 8 * slot);
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
    auto* x = reinterpret_cast<float*>(tile + Shape::kSlot);
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
      w.template dot<1>(Stage<1>{kNormed ? row + b * Shape::kStage : tile + Shape::kCodes},
                        cols < 256 ? cols : 256, t);
    }
    gate_wait(free + 8 * at, 1 - c / R % 2);  // those without a tile, too: they must not arrive a turn early
    left[(at * W + warp) * 32 + lane] = t[0];
    if constexpr (JOB::kRoundsRow)
      if (lane == 0)
        d[at * W + warp] = *reinterpret_cast<const float*>(ring + slot * (W * kSlot) + Shape::kSlot);
    arrive_as_warp(full + 8 * at);
    ask(task + S * W, slot), ask_row(task + S * W, slot);
    if (++slot == S) slot = 0, parity ^= 1;
  }
}

template <DType T, class JOB>
__global__ void __launch_bounds__(StreamShape<T>::kThreads) __maxnreg__(StreamShape<T>::kRegisters)
    packed_stream(const __grid_constant__ JOB job, const Deal deal, int32_t scales, const DevStep* s,
                  RowSet set) {
#if !defined(__CUDA_ARCH__) || defined(CARAT_GATES)  // elsewhere nobody launches it
  stream_tiles<T, StreamShape<T>::kSlots>(job, deal, scales, s, set);
#endif
}
// Products of the same row over two formats: the blocks of threads are shared out by bytes. One slot for the
// wider tiles, so that attention, which comes behind q, k and v, finds room beside them.
template <class JOB>
struct StreamPair {
  JOB first, second;
};
template <DType T, DType T2, class JOB>
__global__ void __launch_bounds__(StreamShape<T>::kThreads) __maxnreg__(StreamShape<T>::kRegisters)
    packed_streams(const __grid_constant__ StreamPair<JOB> jobs, const Deal first, const Deal second,
                   int32_t scales, const DevStep* s, RowSet set) {
#if !defined(__CUDA_ARCH__) || defined(CARAT_GATES)
  if (static_cast<int32_t>(blockIdx.x) < second.from)
    stream_tiles<T, StreamShape<T>::kSlots>(jobs.first, first, scales, s, set);
  else
    stream_tiles<T2, 1>(jobs.second, second, scales, s, set);
#endif
}

// A job's `groups` of 32 outputs, of gate and up if paired; `scales` of activations. False: for want of
// shared memory, or of bulk copies (sm_90).
template <DType T, class JOB>
constexpr int32_t stream_shared(int32_t scales, int slots) {
  using Shape = StreamShape<T>;
  return JOB::kNormed      ? Shape::shared(scales, slots, Shape::kCodes, scales * Shape::kStage)
         : JOB::kRoundsRow ? Shape::shared(scales, slots, Shape::kSlot + RoundingStream::kRow, 0)
                           : Shape::shared(scales, slots, Shape::kSlot, 0);
}
template <DType T, class JOB>
bool stream_fits(int32_t scales, int64_t shared) {
  return scales <= StreamShape<T>::kMostBlocks &&
         stream_shared<T, JOB>(scales, StreamShape<T>::kSlots) <= shared &&
         compiled_for(packed_stream<T, JOB>) >= 90;
}
template <DType T, class JOB>
void run_stream(const Context& c, const char* what, const JOB& job, int32_t groups, bool paired,
                int32_t blocks, int32_t scales, RowSet rows, int32_t early = 0) {
  const int32_t grid = std::min(c.launcher.sms, groups);
  const Deal deal = deal_of(groups, paired, blocks, grid, early);
  const bool few = early == 0 && (groups + grid - 1) / grid * deal.tiles <= StreamShape<T>::kWarps;
  launch(in_order(c.launcher), what, packed_stream<T, JOB>, dim3(static_cast<unsigned>(grid)),
         StreamShape<T>::kThreads,
         static_cast<size_t>(stream_shared<T, JOB>(scales, few ? 1 : StreamShape<T>::kSlots)), job, deal,
         scales, c.step, rows);
}
template <DType T>
bool launch_stream(const Context& c, const ProductJob& job, const Rounded& x, RowSet rows) {
  if (!c.launcher.overlap || !stream_fits<T, ProductStream>(x.blocks, c.launcher.shared)) return false;
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
template <DType T, DType T2, class JOB>
bool streams_fit(int32_t scales, const DeviceProps& device) {
  return device.sms > 1 && stream_fits<T, JOB>(scales, device.shared_per_block) &&
         stream_fits<T2, JOB>(scales, device.shared_per_block) &&
         compiled_for(packed_streams<T, T2, JOB>) >= 90;
}
template <DType T, DType T2, class JOB>
void run_streams(const Context& c, const char* what, const JOB& job, const JOB& job2, int32_t blocks,
                 RowSet rows) {
  const int32_t groups = job.products.groups(), groups2 = job2.products.groups(),
                grid = std::min(c.launcher.sms, groups + groups2),
                among = second_share<T, T2>(grid, groups, groups2);
  launch(in_order(c.launcher), what, packed_streams<T, T2, JOB>, dim3(static_cast<unsigned>(grid)),
         StreamShape<T>::kThreads,
         static_cast<size_t>(std::max(stream_shared<T, JOB>(blocks, StreamShape<T>::kSlots),
                                      stream_shared<T2, JOB>(blocks, 1))),
         StreamPair<JOB>{job, job2}, deal_of(groups, false, blocks, grid - among),
         deal_of(groups2, false, blocks, among, 0, grid - among), blocks, c.step, rows);
}
// Norms ahead: of rows that the block's threads hold, eight columns each. Wider ones come later than one
// block's norms would, since every block has to wait for them.
template <DType T>
bool packed_normed_fits(const RowNorms& norms, const DeviceProps& device) {
  return norms.cols <= 8 * StreamShape<T>::kThreads &&
         stream_fits<T, NormedStream>(norms.blocks(), device.shared_per_block);
}
template <DType T>
void packed_normed(const Context& c, const RowNorms& norms, const ProductJob& job, RowSet rows) {
  run_stream<T>(c, job.paired ? "norms, gate-up" : "norms, matmul", NormedStream{{job, {}}, norms},
                job.groups(), job.paired, norms.blocks(), norms.blocks(), rows);
}

// Scales of a product that rounds its row itself are those of the tasks that wait to be added.
template <DType T>
constexpr int32_t kTaskScales = StreamShape<T>::kWarps* StreamShape<T>::kRounds;
template <DType T>
bool packed_rounding_fits(const DeviceProps& device) {
  return stream_fits<T, RoundingStream>(kTaskScales<T>, device.shared_per_block);
}
template <DType T>
void packed_rounding(const Context& c, const ProductJob& job, RowSet rows) {
  run_stream<T>(c, "rounding, matmul", RoundingStream{{job, {}}}, job.groups(), false,
                (job.m[0].w.cols + 255) / 256, kTaskScales<T>, rows);
}

}  // namespace carat::cuda
