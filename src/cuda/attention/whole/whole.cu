// Attention of towers (Dao, "FlashAttention-2", arXiv 2307.08691): a block has 128 rows and a query head, and
// goes through the positions 64 at a time; no matrix of scores is in memory.
#include "cuda/attention/whole/whole.cuh"

namespace carat::cuda {
namespace {

constexpr int kThreads = 256, kAtRow = kThreads / kKvTile;  // threads that bring a position

// PAD: columns of a head, zeros behind the last.
template <int PAD>
struct WholeShape {
  static constexpr int kPitch = 2 * PAD + 16, kPart = kKvTile * kPitch;  // rows lie in different banks
  static constexpr int kKeys = 0, kValues = 2 * kPart, kRaw = 4 * kPart;
  static constexpr int kEights = (PAD / 8 + kAtRow - 1) / kAtRow;  // a thread, of keys and of values
  static constexpr int kBytes = kRaw + 4 * kEights * kThreads * 16;
};

template <int PAD>
struct WholeWalk : WholeRows<PAD, PAD> {
  using S = WholeShape<PAD>;
  using Base = WholeRows<PAD, PAD>;
  using Base::a;
  using Base::group;
  using Base::head;
  using Base::lane;
  using Base::o;
  using Base::q;
  using Base::reach;
  unsigned char* memory;
  const int row = threadIdx.x / kAtRow, first = threadIdx.x % kAtRow;  // of a tile; of its eights

  CARAT_D WholeWalk(const AttentionPart& args, const DevStep* step, RowSet rows, unsigned char* shared,
                    const RowGroup& of, int32_t of_head)
      : Base(args, step, rows, of, of_head), memory(shared) {}

  // This thread's part of a tile on its way: eights first, first + kAtRow, ... of a position.
  CARAT_D unsigned char* raw(bool values, int n, int half) const {
    return memory + S::kRaw + (((values ? S::kEights : 0) + n) * 2 + half) * (kThreads * 16) +
           16 * threadIdx.x;
  }
  CARAT_D void ask(const SeqView& seq, int32_t tile) const {
    const int32_t p = tile * kKvTile + row;
    const bool there = p <= reach.most;
    const int32_t slot = there ? p : reach.most;
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

  // to += (high + low) times what load(matrices of eights j and j + 1, j, part) brings: each of N eights
  // waits for its own sums alone.
  template <int N, class Load>
  CARAT_D static void multiply(float (&to)[N][4], const uint32_t (&high)[4], const uint32_t (&low)[4],
                               Load load) {
    uint32_t m[N / 2][4];
#pragma unroll
    for (int j = 0; j < N; j += 2) load(m[j / 2], j, 0);
#pragma unroll
    for (int j = 0; j < N; ++j) mma_f16(to[j], high, m[j / 2][j % 2 * 2], m[j / 2][j % 2 * 2 + 1]);
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      uint32_t lower[4];
      load(lower, j, 1);
#pragma unroll
      for (int n = 0; n < 2; ++n) mma_f16(to[j + n], high, lower[2 * n], lower[2 * n + 1]);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) mma_f16(to[j], low, m[j / 2][j % 2 * 2], m[j / 2][j % 2 * 2 + 1]);
  }

  CARAT_D void scores(float (&x)[8][4]) const {
    const SharedAddress keys =
        shared_address(memory) +
        static_cast<unsigned>(S::kKeys + (lane / 16 * 8 + lane % 8) * S::kPitch + lane / 8 % 2 * 16);
#pragma unroll
    for (int c = 0; c < PAD / 16; ++c) {
      const SharedAddress at = keys + static_cast<unsigned>(32 * c);
      multiply<8>(x, q[0][c], q[1][c], [&](uint32_t(&m)[4], int j, int part) {
        load_matrices(m, at + static_cast<unsigned>(8 * j * S::kPitch + part * S::kPart));
      });
    }
  }
  CARAT_D void add_values(const float (&x)[8][4]) {
    const SharedAddress values =
        shared_address(memory) + static_cast<unsigned>(S::kValues + lane % 16 * S::kPitch + lane / 16 * 16);
#pragma unroll
    for (int k = 0; k < kKvTile / 16; ++k) {
      uint32_t w[2][4];
      Base::split_weights(x, k, w);
      const SharedAddress at = values + static_cast<unsigned>(16 * k * S::kPitch);
      multiply<PAD / 8>(o, w[0], w[1], [&](uint32_t(&m)[4], int c, int part) {
        load_turned(m, at + static_cast<unsigned>(16 * c + part * S::kPart));
      });
    }
  }
  CARAT_D void run() {
    this->begin();
    const SeqView& seq = *seq_of(this->s, step_row(this->s, this->set, group.m));
    const int32_t tiles = reach.tiles();
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
      if ((tile + 1) * kKvTile - 1 > reach.least)
        this->template weigh<true, true>(tile, x);
      else
        this->template weigh<false, true>(tile, x);
      this->fade_values();
      add_values(x);
    }
    this->leave();
  }
};

template <int PAD>
__global__ void __launch_bounds__(kThreads, 1)
    whole_attention(const AttentionPart a, const DevStep* s, RowSet set) {
  begin_kernel();
  CARAT_SHARED(memory);
  each_whole_task(a, s, set, [&](const RowGroup& group, int32_t head) {
    WholeWalk<PAD>(a, s, set, memory, group, head).run();
  });
}

template <int PAD>
void start(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  const int32_t groups = (rows + kWholeRows - 1) / kWholeRows;
  launch(c.launcher, "attention", whole_attention<PAD>, dim3(static_cast<unsigned>(groups * a.heads)),
         kThreads, static_cast<size_t>(WholeShape<PAD>::kBytes), a, c.step, set);
}

}  // namespace

void attention_whole(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  if (attention_whole_wide(c, a, rows, set)) return;
  a.kv.dim <= 64 ? start<64>(c, a, rows, set) : start<80>(c, a, rows, set);
}

}  // namespace carat::cuda
