// The fold of a window's segments by the block that has the last of them: the others send it what they leave
// as words. Sums are those of merge_kernel (attention.cu).
#pragma once
#include "cuda/attention/attention.cuh"

namespace carat::cuda {

// A query head, by kThreads threads of a block, two columns each. All threads of the block call run() or its
// barriers as often as each other.
struct SegmentFold {
  static constexpr int kDim = 256, kThreads = kDim / 2, kMost = 32;  // segments: one a lane
  static_assert(window_segments(1024) <= kMost);
  CARAT_HD static constexpr int bytes(int heads) { return (heads * (kDim + 2) + 2 * kDim) * 4; }

  const AttentionPart& a;
  const Tables& tables;
  int32_t n;  // segments
  int thread;

  // words: [n - 1][kDim + 2], the last segment is `own`. x: [kDim] in shared memory.
  CARAT_D void run(uint32_t* words, const float* own, float* x, int32_t head) const {
    constexpr int kBatch = 8, kEach = kDim / 32;
    const int lane = thread % 32;
    const Rotation<kEach> rotation(device_rotation(a.kv.v_type), true, kDim, tables, lane);
    uint32_t *states = words + lane * (kDim + 2) + kDim, *columns = words + 2 * thread;
    uint2 w[kBatch], state{1, 1};
    const auto look = [&](int32_t first) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        w[i] = first + i < n - 1 ? peek_words(columns + (first + i) * (kDim + 2)) : uint2{1, 1};
    };
    const auto there = [&] {
      bool all = true;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) all = all && w[i].x != 0 && w[i].y != 0;
      return all;
    };
    look(0);
    while (lane < n - 1) {
      state = peek_words(states);
      if (state.x != 0 && state.y != 0) break;
    }
    sync_warp();
    // Lane k: of segment k what the sum so far keeps of itself, and what it takes.
    const float top = lane + 1 < n    ? value_of(state.x)
                      : lane + 1 == n ? own[kDim]
                                      : -INFINITY,
                part = lane + 1 < n ? value_of(state.y) : own[kDim + 1];
    float most = top;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const float other = shuffle(most, lane < d ? lane : lane - d);
      most = fmaxf(most, other);
    }
    const float was = shuffle(most, lane == 0 ? 0 : lane - 1);
    const float keeps = lane == 0 ? 0 : weight_of(was, most), takes = weight_of(top, most);
    float2 mine{0, 0};
    float sum = 0;
    const auto add = [&](int32_t k, float2 v) {
      const float keep = shuffle(keeps, k), take = shuffle(takes, k);
      fold(mine.x, v.x, keep, take), fold(mine.y, v.y, keep, take), fold(sum, shuffle(part, k), keep, take);
    };
#pragma unroll 1
    for (int32_t first = 0; first < n - 1; first += kBatch) {
      if (first > 0) look(first);
      while (!there()) look(first);
      uint32_t* p = columns + first * (kDim + 2);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i >= n - 1) break;
        add(first + i, float2{value_of(w[i].x), value_of(w[i].y)});
        put_words(p + i * (kDim + 2), {0, 0});
      }
    }
    add(n - 1, *reinterpret_cast<const float2*>(own + 2 * thread));
    x[2 * thread] = mine.x / sum, x[2 * thread + 1] = mine.y / sum;
    sync_block();
    if (thread >= 32 && thread < 64 && lane < n - 1) put_words(states, {0, 0});  // all warps have them
    if (thread < 32) {
      write_head(a, x, row_of<float>(a.y, 0) + head * kDim, rotation, lane);
      if (a.rounded.q) round_head(a, x, 0, head, lane);
    }
    sync_block();
  }
};

}  // namespace carat::cuda
