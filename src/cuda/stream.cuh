// Products of one row over packed weights, as one stream of tiles a warp: each warp has a ring of tiles in
// shared memory that bulk copies fill before the inputs are there.
#pragma once
#include <algorithm>

#include "cuda/shares.cuh"

namespace carat::cuda {

template <DType T>
struct StreamShape {
  static constexpr int kWarps = 12, kThreads = 32 * (kWarps + 1);  // that multiply, and one that adds
  static constexpr int kSlots = 2;                                 // of a ring
  static constexpr int kRounds = 8;  // tiles of a warp that may wait to be added
  static constexpr int kMostBlocks = 256;
  // A slot: a tile as it lies in memory, then Stage's codes and sums of its block.
  static constexpr int kCodes = packed_tile(T, 256), kSums = kCodes + 256, kSlot = kCodes + Stage<1>::kBytes;
  static constexpr bool kNeedsSums = T != DType::q8_0;

  CARAT_HD static constexpr int32_t scales(int32_t blocks) { return (blocks + 3) / 4 * 16; }  // bytes
  static constexpr int32_t shared(int32_t blocks) {
    return kRounds * (kWarps * 128 + 16) + scales(blocks) + kWarps * kSlots * (kSlot + 8);
  }
};

template <DType T>
__global__ void __launch_bounds__(StreamShape<T>::kThreads, 1)
    packed_stream(const ProductJob job, const Deal deal, const Rounded r, const DevStep* s, RowSet set) {
#if !defined(__CUDA_ARCH__) || defined(CARAT_GATES)  // elsewhere nobody launches it
  using Shape = StreamShape<T>;
  constexpr int W = Shape::kWarps, S = Shape::kSlots, R = Shape::kRounds;
  CARAT_SHARED(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  auto* left = reinterpret_cast<float*>(memory);  // [R][W][32]
  float* d = left + R * W * 32;
  uint8_t* rings = reinterpret_cast<uint8_t*>(d) + Shape::scales(deal.blocks);
  uint8_t* ring = rings + warp * (S * Shape::kSlot);
  const SharedAddress gates = shared_address(rings + W * S * Shape::kSlot), come = gates + warp * (8 * S),
                      full = gates + W * (8 * S), free = full + 8 * R;
  const Share share(deal);
  const bool some = row_count(s, set) > 0;
  const auto ask = [&](int32_t task, int slot) {
    if (task >= share.total || lane != 0) return;
    const TileAt tile = deal.weights(job, share.at(task));
    const int bytes = packed_tile(T, tile.n);
    gate_arrive(come + 8 * slot, bytes);
    copy_bulk_once(shared_address(ring + slot * Shape::kSlot), tile.tile, bytes, come + 8 * slot);
  };
  if (warp < W) {
    if (lane == 0)
      for (int i = 0; i < S; ++i) gate_init(come + 8 * i, 2);
    sync_warp();
    for (int i = 0; i < S; ++i) ask(warp + i * W, i);
  } else {
    init_turns<W, R>(full, free, lane);
  }
  wait_inputs();
  let_next_start();
  if (!some) return;
  sync_block();
  const int8_t* codes = r.q;
  const int16_t* sums = r.sums;
  const int32_t rounds = (share.total + W - 1) / W;
  if (warp == W) {
    for (int32_t i = lane; i < deal.blocks; i += 32) d[i] = r.d[i];
    sync_warp();
    uint32_t* const handed = s->handed + kHanded * blockIdx.x;
    Adder<1> adder{job, deal, share, d, handed, handed - kHanded, 0, 1, lane};
    adder.run<W, R>(left, full, free, rounds);
    return;
  }
  const auto ask_row = [&](int32_t task, int slot) {
    if (task >= share.total || lane != 0) return;
    const int32_t b = deal.block(share.at(task));
    uint8_t* to = ring + slot * Shape::kSlot;
    gate_arrive(come + 8 * slot, Shape::kNeedsSums ? 256 + 32 : 256);
    copy_bulk(shared_address(to + Shape::kCodes), codes + int64_t{b} * 256, 256, come + 8 * slot);
    if (Shape::kNeedsSums)
      copy_bulk(shared_address(to + Shape::kSums), sums + int64_t{b} * 16, 32, come + 8 * slot);
  };
  for (int i = 0; i < S; ++i) ask_row(warp + i * W, i);
  int slot = 0, parity = 0;
  int32_t task = warp;
#pragma unroll 1
  for (int32_t c = 0; c < rounds; ++c, task += W) {
    const int at = c % R;
    float t[1] = {0};
    if (task < share.total) {
      gate_wait(come + 8 * slot, parity);
      const uint8_t* tile = ring + slot * Shape::kSlot;
      const int32_t cols = grouped(T) ? job.m[0].w.cols - 256 * deal.block(share.at(task)) : 256;
      LaneBlock<T> w;
      w.take(tile, lane, cols < 256 ? cols : 256,
             [](const uint8_t* p) { return *reinterpret_cast<const uint4*>(p); });
      w.template dot<1>(Stage<1>{ring + slot * Shape::kSlot + Shape::kCodes}, cols < 256 ? cols : 256, t);
    }
    gate_wait(free + 8 * at, 1 - c / R % 2);  // those without a tile, too: they must not arrive a turn early
    left[(at * W + warp) * 32 + lane] = t[0];
    arrive_as_warp(full + 8 * at);
    ask(task + S * W, slot), ask_row(task + S * W, slot);
    if (++slot == S) slot = 0, parity ^= 1;
  }
#endif
}

// False: for want of shared memory, or of bulk copies (sm_90).
template <DType T>
bool launch_stream(const Context& c, const ProductJob& job, const Rounded& x, RowSet rows) {
  using Shape = StreamShape<T>;
  if (!c.launcher.overlap || x.blocks > Shape::kMostBlocks || Shape::shared(x.blocks) > c.launcher.shared ||
      compiled_for(packed_stream<T>) < 90)
    return false;
  const int32_t grid = std::min(c.launcher.sms, job.groups());
  launch(in_order(c.launcher), job.paired ? "gate-up" : "matmul", packed_stream<T>,
         dim3(static_cast<unsigned>(grid)), Shape::kThreads, static_cast<size_t>(Shape::shared(x.blocks)),
         job, deal_of(job, x.blocks, grid), x, c.step, rows);
  return true;
}

}  // namespace carat::cuda
