// Attention of towers on warpgroups (sm_90a), heads of 64 and 72: the bits of whole/whole.cu. A
// block has 128 rows and a query head. Of its warpgroups two multiply 64 rows each; one brings the keys of 64
// positions at a time to shared memory, one the values, positions side by side, all as two halves each.
#include "cuda/attention/whole/products.cuh"
#include "cuda/attention/whole/whole.cuh"
#include "cuda/device/arrivals.cuh"

namespace carat::cuda {

template <int DIM>
struct WideShape {
  static constexpr int kGroup = 128, kConsumers = 2 * kGroup, kThreads = 4 * kGroup;
  static constexpr int kConsumerRegs = 168, kLoaderRegs = 88;  // of 128 a thread
  static constexpr int kKeyColumns = (DIM + 15) / 16 * 16, kStages = 4;
  static constexpr int kKeyPart = kKvTile * kKeyColumns * 2, kValuePart = kKvTile * DIM * 2;
  static constexpr int kKeys = 0, kValues = kStages * 2 * kKeyPart,
                       kGates = kValues + kStages * 2 * kValuePart, kBytes = kGates + 4 * kStages * 8;
};

namespace {

// Stages of keys or of values in turn.
template <int DIM, bool VALUES>
struct WideRing {
  using S = WideShape<DIM>;
  static constexpr int kPart = VALUES ? S::kValuePart : S::kKeyPart;
  SharedAddress base;  // of shared memory
  int slot = 0, parity = 0;

  CARAT_D SharedAddress full() const { return base + S::kGates + 8 * ((VALUES ? S::kStages : 0) + slot); }
  CARAT_D SharedAddress empty() const { return full() + 16 * S::kStages; }
  CARAT_D int offset() const { return (VALUES ? S::kValues : S::kKeys) + slot * 2 * kPart; }
  CARAT_D void next() {
    if (++slot == S::kStages) slot = 0, parity ^= 1;
  }
  CARAT_D SharedAddress take() const {
    gate_wait(full(), parity);
    return base + offset();
  }
  CARAT_D void give_back() {
    arrive_as_warp(empty());
    next();
  }
};

// A warpgroup that brings keys or values. Of eight rows of eights a pair of eight threads has one: of keys,
// of a position, eights of columns; of values, of eight positions, columns.
template <int DIM, bool VALUES>
struct WideLoader {
  static constexpr int kEights = DIM / 8, kEach = (kEights + 1) / 2;
  const AttentionPart& a;
  const DevStep* s;
  RowSet set;
  unsigned char* memory;
  WideRing<DIM, VALUES> ring{shared_address(memory)};
  const int eighth = threadIdx.x % 128 / 16, odd = threadIdx.x / 8 % 2, nth = threadIdx.x % 8;

  CARAT_D void run() {
    if constexpr (!VALUES && WideShape<DIM>::kKeyColumns > DIM) clear_last_columns();
    each_whole_task(a, s, set, [&](const RowGroup& group, int32_t head) {
      const WholeReach reach(a, s, set, group);
      const SeqView& seq = *seq_of(s, step_row(s, set, group.m));
      const int32_t tiles = reach.tiles();
#pragma unroll 1
      for (int32_t tile = 0; tile < tiles; ++tile) {
        float x[kEach][8];
        if constexpr (VALUES)
          load_values(seq, head / a.group, tile * kKvTile + 8 * eighth, reach.most, x);
        else
          load_keys(seq, head / a.group, tile * kKvTile + 8 * eighth + nth, reach.most, x);
        gate_wait(ring.empty(), ring.parity ^ 1);
        store(x);
        show_to_products();
        arrive_as_warp(ring.full());
        ring.next();
      }
    });
  }
  // What keys have behind DIM, in all stages: the odd eight after the last.
  CARAT_D void clear_last_columns() const {
    using S = WideShape<DIM>;
    static_assert(kEights % 2 == 1);
    for (int i = threadIdx.x % S::kGroup; i < 2 * S::kStages * kKvTile; i += S::kGroup)
      *reinterpret_cast<uint4*>(memory + S::kKeys + i / kKvTile * S::kKeyPart + kEights / 2 * (kKvTile * 32) +
                                i % kKvTile / 8 * 256 + 128 + i % 8 * 16) = uint4{0, 0, 0, 0};
  }
  CARAT_D bool has(int i) const { return 2 * i + odd < kEights; }
  CARAT_D void load_keys(const SeqView& seq, int32_t head, int32_t p, int32_t most,
                         float (&x)[kEach][8]) const {
    const auto* from = reinterpret_cast<const float4*>(k_row(a.kv, seq, p < most ? p : most, head)) + 2 * odd;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      float4 lower{0, 0, 0, 0}, upper{0, 0, 0, 0};
      if (has(i) && p <= most) lower = from[4 * i], upper = from[4 * i + 1];
      x[i][0] = lower.x, x[i][1] = lower.y, x[i][2] = lower.z, x[i][3] = lower.w;
      x[i][4] = upper.x, x[i][5] = upper.y, x[i][6] = upper.z, x[i][7] = upper.w;
    }
  }
  CARAT_D void load_values(const SeqView& seq, int32_t head, int32_t p, int32_t most,
                           float (&x)[kEach][8]) const {
    const auto row = [&](int32_t at) {
      return reinterpret_cast<const float*>(v_row(a.kv, seq, at < most ? at : most, head)) + 8 * odd + nth;
    };
    const auto load = [&](const float* from, int k, bool there) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) x[i][k] = there && has(i) ? from[16 * i] : 0;
    };
    const float* from = row(p);
    if (p + 7 <= most && a.kv.in_page(p) + 8 <= a.kv.page_tokens) {
#pragma unroll
      for (int k = 0; k < 8; ++k) load(from + k * DIM, k, true);
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) load(row(p + k), k, p + k <= most);
    }
  }
  // Where halves_operand() has columns 8 (2 i + odd) .. of a position; eight positions of such a column.
  CARAT_D void store(const float (&x)[kEach][8]) const {
    unsigned char* to = memory + ring.offset() + 16 * nth;
    to += VALUES ? eighth / 2 * (DIM * 32) + odd * 256 + eighth % 2 * 128 : eighth * 256 + odd * 128;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (!has(i)) continue;
      uint4 high, low;
      split_halves(x[i][0], x[i][1], high.x, low.x), split_halves(x[i][2], x[i][3], high.y, low.y);
      split_halves(x[i][4], x[i][5], high.z, low.z), split_halves(x[i][6], x[i][7], high.w, low.w);
      unsigned char* at = to + i * (VALUES ? 512 : kKvTile * 32);
      *reinterpret_cast<uint4*>(at) = high;
      *reinterpret_cast<uint4*>(at + WideRing<DIM, VALUES>::kPart) = low;
    }
  }
};

template <int DIM>
struct WideWalk : WholeRows<WideShape<DIM>::kKeyColumns, DIM> {
  using S = WideShape<DIM>;
  using Base = WholeRows<S::kKeyColumns, DIM>;
  using Base::o;
  using Base::q;
  WideRing<DIM, false>& keys;
  WideRing<DIM, true>& values;
  uint32_t w[4][2][4];

  CARAT_D WideWalk(const AttentionPart& args, const DevStep* step, RowSet rows, const RowGroup& of,
                   int32_t of_head, WideRing<DIM, false>& all_keys, WideRing<DIM, true>& all_values)
      : Base(args, step, rows, of, of_head), keys(all_keys), values(all_values) {}

  CARAT_D void scores(float (&x)[8][4]) {
    const uint64_t high = halves_operand(keys.take()), low = behind(high, S::kKeyPart);
    wide_fence();
#pragma unroll
    for (int c = 0; c < S::kKeyColumns / 16; ++c) {
      const int at = c * kKvTile * 32;
      wide_add(x, q[0][c], behind(high, at), c == 0);
      wide_add(x, q[0][c], behind(low, at), false);
      wide_add(x, q[1][c], behind(high, at), false);
    }
    wide_commit();
  }
  CARAT_D void add_values() {
    const uint64_t high = halves_operand(values.take()), low = behind(high, S::kValuePart);
    wide_fence();
#pragma unroll
    for (int k = 0; k < kKvTile / 16; ++k) {
      const int at = k * DIM * 32;
      wide_add(o, w[k][0], behind(high, at), false);
      wide_add(o, w[k][0], behind(low, at), false);
      wide_add(o, w[k][1], behind(high, at), false);
    }
    wide_commit();
  }
  CARAT_D void split_weights(const float (&x)[8][4]) {
#pragma unroll
    for (int k = 0; k < kKvTile / 16; ++k) Base::split_weights(x, k, w[k]);
  }
  // The next tile's scores and this one's values at once; weights are made beside the latter.
  template <bool MASKS>
  CARAT_D void go_on(int32_t next, float (&x)[8][4]) {
    scores(x);
    add_values();
    wide_wait<1>();
    hold(x);
    keys.give_back();
    this->template weigh<MASKS, false>(next, x);
    wide_wait<0>();
    hold(o);
    values.give_back();
    this->fade_values();
    split_weights(x);
  }
  CARAT_D void run() {
    this->begin();
    const int32_t tiles = this->reach.tiles(), whole = (this->reach.least + 1) / kKvTile;  // seen by all
    float x[8][4];
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) x[j][e] = 0;
    scores(x);
    wide_wait<0>();
    hold(x);
    keys.give_back();
    this->template weigh<true, false>(0, x);
    split_weights(x);
    int32_t next = 1;
#pragma unroll 1
    for (; next < whole; ++next) go_on<false>(next, x);
#pragma unroll 1
    for (; next < tiles; ++next) go_on<true>(next, x);
    add_values();
    wide_wait<0>();
    hold(o);
    values.give_back();
    this->leave();
  }
};

template <int DIM>
__global__ void __launch_bounds__(WideShape<DIM>::kThreads, 1)
    wide_attention(const AttentionPart a, const DevStep* s, RowSet set) {
#if defined(CARAT_WIDE) || defined(CARAT_CUDA_EMULATE)
  using S = WideShape<DIM>;
  CARAT_SHARED(memory);
  const SharedAddress base = shared_address(memory);
  if (threadIdx.x < 4 * S::kStages)
    gate_init(base + S::kGates + 8 * threadIdx.x, arrivals(threadIdx.x < 2 * S::kStages ? 4 : 8));
  sync_block();
  begin_kernel();
  if (threadIdx.x < S::kConsumers) {
    more_registers<S::kConsumerRegs>();
    WideRing<DIM, false> keys{base};
    WideRing<DIM, true> values{base};
    each_whole_task(a, s, set, [&](const RowGroup& group, int32_t head) {
      WideWalk<DIM>(a, s, set, group, head, keys, values).run();
    });
  } else {
    fewer_registers<S::kLoaderRegs>();
    if (threadIdx.x < S::kConsumers + S::kGroup)
      WideLoader<DIM, false>{a, s, set, memory}.run();
    else
      WideLoader<DIM, true>{a, s, set, memory}.run();
  }
#endif
}

template <int DIM>
bool start(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  using S = WideShape<DIM>;
  if (compiled_for(wide_attention<DIM>) != 90 || S::kBytes > c.launcher.shared) return false;
  const int32_t tasks = (rows + kWholeRows - 1) / kWholeRows * a.heads;
  launch(c.launcher, "attention", wide_attention<DIM>,
         dim3(static_cast<unsigned>(tasks < c.launcher.sms ? tasks : c.launcher.sms)), S::kThreads,
         static_cast<size_t>(S::kBytes), a, c.step, set);
  return true;
}

}  // namespace

bool attention_whole_wide(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  if (c.launcher.major != 9 || a.softcap > 0) return false;
  return a.kv.dim == 64 ? start<64>(c, a, rows, set) : a.kv.dim == 72 && start<72>(c, a, rows, set);
}

}  // namespace carat::cuda
