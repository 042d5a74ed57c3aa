// Attention of towers (Dao, "FlashAttention-2", arXiv 2307.08691): a block has 128 rows and a query head, and
// goes through the positions 64 at a time; no matrix of scores is in memory. Keys, values, queries and
// weights are floats as two halves each, x = high + low, of which three products are made: what is left out
// is 2^-22 of the result. So magnitudes of keys and values are up to 65,504.
#include "cuda/attention/attention_tasks.cuh"

namespace carat::cuda {
namespace {

constexpr int kThreads = 256, kRows = 128, kAtRow = kThreads / kKvTile;  // threads that bring a position
constexpr float kLift = 14;  // weights are up to 2^14: the least of them are halves, too

// PAD: columns of a head, zeros behind the last.
template <int PAD>
struct WholeShape {
  static constexpr int kPitch = 2 * PAD + 16, kPart = kKvTile * kPitch;  // rows lie in different banks
  static constexpr int kKeys = 0, kValues = 2 * kPart, kRaw = 4 * kPart;
  static constexpr int kEights = (PAD / 8 + kAtRow - 1) / kAtRow;  // a thread, of keys and of values
  static constexpr int kBytes = kRaw + 4 * kEights * kThreads * 16;
};

CARAT_D void split_halves(float a, float b, uint32_t& high, uint32_t& low) {
  high = pack_halves(a, b);
  low = pack_halves(a - half_float(high & 0xffffu), b - half_float(high >> 16));
}

template <int PAD>
struct WholeWalk {
  using S = WholeShape<PAD>;
  const AttentionPart& a;
  const DevStep* s;
  RowSet set;
  unsigned char* memory;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4,
            row = threadIdx.x / kAtRow, first = threadIdx.x % kAtRow;  // of a tile; of its eights
  RowGroup group;
  int32_t head, last[2];  // of the two rows that a lane has
  int32_t most, least;    // of `last`, of all rows
  uint32_t q[2][PAD / 16][4];
  float o[PAD / 8][4], top[2], sum[2];

  CARAT_D WholeWalk(const AttentionPart& args, const DevStep* step, RowSet rows, unsigned char* shared,
                    const RowGroup& of, int32_t of_head)
      : a(args), s(step), set(rows), memory(shared), group(of), head(of_head) {}

  CARAT_D int row_of_pair(int r) const { return 16 * warp + g + 8 * r; }
  CARAT_D void begin() {
    most = -1, least = INT32_MAX;
    for (int32_t i = lane; i < group.n; i += 32) {
      const int32_t at = seen_by(a, s, step_row(s, set, group.m + i)).last;
      most = at > most ? at : most, least = at < least ? at : least;
    }
    most = -warp_least(-most), least = warp_least(least);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t i = row_of_pair(r);
      last[r] = i < group.n ? seen_by(a, s, step_row(s, set, group.m + i)).last : -1;
      top[r] = -INFINITY, sum[r] = 0;
#pragma unroll
      for (int c = 0; c < PAD / 8; ++c) {
        const int32_t column = 8 * c + 2 * t;
        float2 x{0, 0};
        if (i < group.n && 8 * c < a.kv.dim) {  // rows may begin at any multiple of 4 bytes
          const float* from = row_of<const float>(a.q, group.m + i) + head * a.kv.dim + column;
          x = {from[0], from[1]};
        }
        split_halves(x.x, x.y, q[0][c / 2][c % 2 * 2 + r], q[1][c / 2][c % 2 * 2 + r]);
      }
    }
#pragma unroll
    for (int c = 0; c < PAD / 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[c][e] = 0;
  }

  // This thread's part of a tile on its way: eights first, first + kAtRow, ... of a position.
  CARAT_D unsigned char* raw(bool values, int n, int half) const {
    return memory + S::kRaw + (((values ? S::kEights : 0) + n) * 2 + half) * (kThreads * 16) +
           16 * threadIdx.x;
  }
  CARAT_D void ask(const SeqView& seq, int32_t tile) const {
    const int32_t p = tile * kKvTile + row;
    const bool there = p <= most;
    const int32_t slot = there ? p : most;
    const uint8_t *k = k_row(a.kv, seq, slot, head / a.group), *v = v_row(a.kv, seq, slot, head / a.group);
#pragma unroll
    for (int n = 0; n < S::kEights; ++n) {
      const int eight = first + n * kAtRow;
      if (8 * eight >= a.kv.dim) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        copy16_async(shared_address(raw(false, n, half)), k + 32 * eight + 16 * half, there);
        copy16_async(shared_address(raw(true, n, half)), v + 32 * eight + 16 * half, there);
      }
    }
    commit_copies();
  }
  // The same part as halves.
  CARAT_D void split() const {
#pragma unroll
    for (int n = 0; n < S::kEights; ++n) {
      const int eight = first + n * kAtRow;
      if (eight >= PAD / 8) continue;
#pragma unroll
      for (int values = 0; values < 2; ++values) {
        uint4 high{0, 0, 0, 0}, low{0, 0, 0, 0};
        if (8 * eight < a.kv.dim) {
          const float4 x = *reinterpret_cast<const float4*>(raw(values, n, 0)),
                       y = *reinterpret_cast<const float4*>(raw(values, n, 1));
          split_halves(x.x, x.y, high.x, low.x), split_halves(x.z, x.w, high.y, low.y);
          split_halves(y.x, y.y, high.z, low.z), split_halves(y.z, y.w, high.w, low.w);
        }
        unsigned char* to = memory + (values ? S::kValues : S::kKeys) + row * S::kPitch + 16 * eight;
        *reinterpret_cast<uint4*>(to) = high;
        *reinterpret_cast<uint4*>(to + S::kPart) = low;
      }
    }
  }

  CARAT_D void scores(float (&x)[8][4]) const {
    const SharedAddress keys =
        shared_address(memory) +
        static_cast<unsigned>(S::kKeys + (lane / 16 * 8 + lane % 8) * S::kPitch + lane / 8 % 2 * 16);
#pragma unroll
    for (int c = 0; c < PAD / 16; ++c)
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        uint32_t high[4], low[4];
        const SharedAddress at = keys + static_cast<unsigned>(8 * j * S::kPitch + 32 * c);
        load_matrices(high, at);
        load_matrices(low, at + static_cast<unsigned>(S::kPart));
#pragma unroll
        for (int n = 0; n < 2; ++n) mma_f16(x[j + n], q[0][c], high[2 * n], high[2 * n + 1]);
#pragma unroll
        for (int n = 0; n < 2; ++n) mma_f16(x[j + n], q[0][c], low[2 * n], low[2 * n + 1]);
#pragma unroll
        for (int n = 0; n < 2; ++n) mma_f16(x[j + n], q[1][c], high[2 * n], high[2 * n + 1]);
      }
  }
  // Scores become weights; what there is so far fades.
  CARAT_D void weigh(int32_t tile, float (&x)[8][4]) {
    const int32_t begin = tile * kKvTile;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float now = top[r];
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          x[j][e] = score_of(a, x[j][e]);
          if (begin + kKvTile - 1 > least && begin + 8 * j + 2 * t + e % 2 > last[r]) x[j][e] = -INFINITY;
          now = fmaxf(now, x[j][e]);
        }
      now = fmaxf(now, shuffle_xor(now, 1));
      now = fmaxf(now, shuffle_xor(now, 2));
      const float safe = now == -INFINITY ? 0 : now, fade = exp2f(top[r] - safe);
      top[r] = now, sum[r] *= fade;
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) x[j][e] = exp2f(x[j][e] - (safe - kLift)), sum[r] += x[j][e];
#pragma unroll
      for (int c = 0; c < PAD / 8; ++c) o[c][2 * r] *= fade, o[c][2 * r + 1] *= fade;
    }
  }
  CARAT_D void add_values(const float (&x)[8][4]) {
    const SharedAddress values =
        shared_address(memory) + static_cast<unsigned>(S::kValues + lane % 16 * S::kPitch + lane / 16 * 16);
#pragma unroll
    for (int k = 0; k < kKvTile / 16; ++k) {
      uint32_t w[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        split_halves(x[2 * k + i / 2][i % 2 * 2], x[2 * k + i / 2][i % 2 * 2 + 1], w[0][i], w[1][i]);
#pragma unroll
      for (int c = 0; c < PAD / 8; c += 2) {
        uint32_t high[4], low[4];
        const SharedAddress at = values + static_cast<unsigned>(16 * k * S::kPitch + 16 * c);
        load_turned(high, at);
        load_turned(low, at + static_cast<unsigned>(S::kPart));
#pragma unroll
        for (int n = 0; n < 2; ++n) mma_f16(o[c + n], w[0], high[2 * n], high[2 * n + 1]);
#pragma unroll
        for (int n = 0; n < 2; ++n) mma_f16(o[c + n], w[0], low[2 * n], low[2 * n + 1]);
#pragma unroll
        for (int n = 0; n < 2; ++n) mma_f16(o[c + n], w[1], high[2 * n], high[2 * n + 1]);
      }
    }
  }
  CARAT_D void leave() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += shuffle_xor(sum[r], 1);
      sum[r] += shuffle_xor(sum[r], 2);
      const int32_t i = row_of_pair(r);
      if (i >= group.n) continue;
      float* y = row_of<float>(a.y, group.m + i) + head * a.kv.dim + 2 * t;
#pragma unroll
      for (int c = 0; c < PAD / 8; ++c)
        if (8 * c < a.kv.dim) y[8 * c] = o[c][2 * r] / sum[r], y[8 * c + 1] = o[c][2 * r + 1] / sum[r];
    }
  }
  CARAT_D void run() {
    begin();
    const SeqView& seq = *seq_of(s, step_row(s, set, group.m));
    const int32_t tiles = most / kKvTile + 1;
    ask(seq, 0);
#pragma unroll 1
    for (int32_t tile = 0; tile < tiles; ++tile) {
      wait_copies<0>();
      sync_block();  // all threads have read the tile before
      split();
      if (tile + 1 < tiles) ask(seq, tile + 1);
      sync_block();
      float x[8][4] = {};
      scores(x);
      weigh(tile, x);
      add_values(x);
    }
    leave();
  }
};

template <int PAD>
__global__ void __launch_bounds__(kThreads, 1)
    whole_attention(const AttentionPart a, const DevStep* s, RowSet set) {
  begin_kernel();
  CARAT_SHARED(memory);
  const int32_t groups = group_count(a.runs, s, set, kRows), tasks = groups * a.heads;
#pragma unroll 1
  for (int32_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int32_t head = task / groups;
    WholeWalk<PAD>(a, s, set, memory, group_of(a.runs, s, set, kRows, task - head * groups), head).run();
  }
}

template <int PAD>
void start(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  const int32_t groups = (rows + kRows - 1) / kRows;
  launch(c.launcher, "attention", whole_attention<PAD>, dim3(static_cast<unsigned>(groups * a.heads)),
         kThreads, static_cast<size_t>(WholeShape<PAD>::kBytes), a, c.step, set);
}

}  // namespace

void attention_whole(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  a.kv.dim <= 64 ? start<64>(c, a, rows, set) : start<80>(c, a, rows, set);
}

}  // namespace carat::cuda
