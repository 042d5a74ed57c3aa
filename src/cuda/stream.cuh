// Products of one row over packed weights, as one stream of tiles a warp: a block a processor, and each warp
// has a ring of tiles in shared memory that bulk copies fill before the inputs are there. Which warp takes a
// tile has nothing to do with the order of sums: t of every tile (packed.cuh) goes to a warp that adds, the
// blocks of a row ascending.
#pragma once
#include <algorithm>

#include "cuda/matmul.cuh"
#include "cuda/packed.cuh"

namespace carat::cuda {

template <DType T>
struct StreamShape {
  static constexpr int kWarps = 12, kThreads = 32 * (kWarps + 1);  // that multiply, and one that adds
  static constexpr int kSlots = 2, kRounds = 4;        // of a ring; tiles of a warp between two barriers
  static constexpr int kLeft = kRounds * kWarps * 32;  // floats, twice
  static constexpr int kMostBlocks = 256;
  // A slot: a tile as it lies in memory, then Stage's codes and sums of its block.
  static constexpr int kCodes = packed_tile(T, 256), kSums = kCodes + 256, kSlot = kCodes + Stage<1>::kBytes;
  static constexpr bool kNeedsSums = T != DType::q8_0;

  CARAT_HD static constexpr int32_t scales(int32_t blocks) { return (blocks + 3) / 4 * 16; }  // bytes
  static constexpr int32_t shared(int32_t blocks) {
    return 8 * kLeft + scales(blocks) + kWarps * kSlots * (kSlot + 8);
  }
};

struct StreamDeal {
  int32_t groups, blocks, tiles;  // blocks: of a row; tiles: of a group, twice as many for gate and up
};
// Tasks of a block of threads: the tiles of every gridDim.x-th group.
struct StreamShare {
  int32_t tiles, total;

  CARAT_D explicit StreamShare(const StreamDeal& d) : tiles(d.tiles) {
    const auto step = static_cast<int32_t>(gridDim.x), left = d.groups - static_cast<int32_t>(blockIdx.x);
    total = left > 0 ? (left + step - 1) / step * tiles : 0;
  }
  CARAT_D int32_t group(int32_t task) const {
    return static_cast<int32_t>(blockIdx.x + task / tiles * gridDim.x);
  }
  CARAT_D int32_t tile(int32_t task) const { return task % tiles; }
};
CARAT_D int32_t block_of(const StreamDeal& d, int32_t tile) {
  return tile < d.blocks ? tile : tile - d.blocks;
}

// The warp that adds.
struct StreamAdder {
  const ProductJob& job;
  const StreamDeal& deal;
  const StreamShare& share;
  const float* d;  // scales of the activations
  int lane;
  float acc = 0, gate = 0;

  // t's of tasks [task, end).
  CARAT_D void take(const float* left, int32_t task, int32_t end) {
    while (task < end) {
      const int32_t tile = share.tile(task), b = block_of(deal, tile);
      const int32_t n = deal.blocks - b < end - task ? deal.blocks - b : end - task;
      add(left, b, n);
      if (tile + n == deal.tiles) {
        product_finish(job, share.group(task), 0, lane, gate, acc);
        acc = 0;
      } else if (tile + n == deal.blocks) {
        gate = acc, acc = 0;
      }
      task += n, left += 32 * n;
    }
  }

 private:
  CARAT_D void add(const float* left, int32_t b, int32_t n) {
    constexpr int kAhead = 8;
    int32_t i = 0;
    for (; i + kAhead <= n; i += kAhead) {
      float v[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) v[u] = left[32 * (i + u) + lane];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) acc = fmaf(d[b + i + u], v[u], acc);
    }
    for (; i < n; ++i) acc = fmaf(d[b + i], left[32 * i + lane], acc);
  }
};

template <DType T>
__global__ void __launch_bounds__(StreamShape<T>::kThreads, 1)
    packed_stream(const ProductJob job, const StreamDeal deal, const Rounded r, const DevStep* s,
                  RowSet set) {
  using Shape = StreamShape<T>;
  constexpr int W = Shape::kWarps, S = Shape::kSlots;
  CARAT_SHARED(memory);
  let_next_start();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  auto* left = reinterpret_cast<float*>(memory);
  float* d = left + 2 * Shape::kLeft;
  uint8_t* rings = reinterpret_cast<uint8_t*>(d) + Shape::scales(deal.blocks);
  uint8_t* ring = rings + warp * (S * Shape::kSlot);
  const SharedAddress come = shared_address(rings + W * S * Shape::kSlot + warp * (8 * S));
  const StreamShare share(deal);
  const bool some = row_count(s, set) > 0;
  const auto ask = [&](int32_t task, int slot) {
    if (task >= share.total || lane != 0) return;
    const TileAt tile = product_tile(job, deal.blocks, share.group(task), share.tile(task));
    const int bytes = packed_tile(T, tile.n);
    gate_arrive(come + 8 * slot, bytes);
    copy_bulk_once(shared_address(ring + slot * Shape::kSlot), tile.tile, bytes, come + 8 * slot);
  };
  if (warp < W) {
    if (lane == 0)
      for (int i = 0; i < S; ++i) gate_init(come + 8 * i, 2);
    sync_warp();
    for (int i = 0; i < S; ++i) ask(warp + i * W, i);
  }
  wait_inputs();
  if (!some) return;
  const int8_t* codes = r.q;
  const int16_t* sums = r.sums;
  const int32_t rounds = (share.total + W - 1) / W, chunks = (rounds + Shape::kRounds - 1) / Shape::kRounds;
  if (warp == W) {
    for (int32_t i = lane; i < deal.blocks; i += 32) d[i] = r.d[i];
    sync_warp();
    StreamAdder adder{job, deal, share, d, lane};
    for (int32_t c = 0; c < chunks; ++c) {
      sync_block();
      const int32_t from = c * Shape::kRounds * W, end = from + Shape::kRounds * W;
      adder.take(left + c % 2 * Shape::kLeft, from, end < share.total ? end : share.total);
    }
    return;
  }
  const auto ask_row = [&](int32_t task, int slot) {
    if (task >= share.total || lane != 0) return;
    const int32_t b = block_of(deal, share.tile(task));
    uint8_t* to = ring + slot * Shape::kSlot;
    gate_arrive(come + 8 * slot, Shape::kNeedsSums ? 256 + 32 : 256);
    copy_bulk(shared_address(to + Shape::kCodes), codes + int64_t{b} * 256, 256, come + 8 * slot);
    if (Shape::kNeedsSums)
      copy_bulk(shared_address(to + Shape::kSums), sums + int64_t{b} * 16, 32, come + 8 * slot);
  };
  for (int i = 0; i < S; ++i) ask_row(warp + i * W, i);
  int slot = 0, parity = 0;
  int32_t task = warp;
  for (int32_t c = 0; c < chunks; ++c) {
    float* to = left + c % 2 * Shape::kLeft + 32 * warp + lane;
#pragma unroll 1
    for (int k = 0; k < Shape::kRounds; ++k, task += W, to += 32 * W) {
      if (task < share.total) {
        gate_wait(come + 8 * slot, parity);
        const uint8_t* tile = ring + slot * Shape::kSlot;
        const int32_t cols = grouped(T) ? job.m[0].w.cols - 256 * block_of(deal, share.tile(task)) : 256;
        LaneBlock<T> w;
        w.take(tile, lane, cols < 256 ? cols : 256,
               [](const uint8_t* p) { return *reinterpret_cast<const uint4*>(p); });
        float t[1];
        w.template dot<1>(Stage<1>{ring + slot * Shape::kSlot + Shape::kCodes}, cols < 256 ? cols : 256, t);
        *to = t[0];
      }
      sync_warp();
      ask(task + S * W, slot), ask_row(task + S * W, slot);
      if (++slot == S) slot = 0, parity ^= 1;
    }
    sync_block();
  }
}

// False: for want of shared memory, or of bulk copies (sm_90).
template <DType T>
bool launch_stream(const Context& c, const ProductJob& job, const Rounded& x, RowSet rows) {
  using Shape = StreamShape<T>;
  if (!c.launcher.overlap || x.blocks > Shape::kMostBlocks || Shape::shared(x.blocks) > c.launcher.shared)
    return false;
  const StreamDeal deal{job.groups(), x.blocks, x.blocks * (job.paired ? 2 : 1)};
  launch(c.launcher, job.paired ? "gate-up" : "matmul", packed_stream<T>,
         dim3(static_cast<unsigned>(std::min(c.launcher.sms, deal.groups))), Shape::kThreads,
         static_cast<size_t>(Shape::shared(x.blocks)), job, deal, x, c.step, rows);
  return true;
}

}  // namespace carat::cuda
