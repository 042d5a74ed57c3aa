// Layers with a recurrent state: the short convolution and the gated delta rule, base and log
// (docs/design.md, "Recurrent state"; src/ref/ref_recurrent.cc). Threads own columns, rows are taken one
// after the other.
#include "cuda/device/activate.cuh"
#include "cuda/ops/ops.h"

namespace carat::cuda {
namespace {

struct Run {
  const DevStep* s;
  const SeqView* seq;
  int32_t first, count;

  CARAT_D bool fresh() const { return s->pos[first] == seq->n_kept; }  // its base holds nothing yet
  CARAT_D int32_t settled() const { return seq->settled < count ? seq->settled : count; }
  CARAT_D int32_t entry(int32_t i) const { return seq->log + i - settled(); }
  CARAT_D int32_t parent(int32_t i) const {
    const int32_t row = continued(s, first + i);
    return row < 0 ? -1 : row - first;
  }
};
CARAT_D Run run_of(const DevStep* s, int32_t i) {
  const SeqRun r = s->runs[i];
  return {s, &s->seqs[s->seq[r.first]], r.first, r.count};
}

CARAT_D float* entry_of(const RecurrentView& v, const SeqView& s, int32_t i) {
  return v.log + (int64_t{s.ring_slot} * v.entries + i) * v.entry_floats;
}

constexpr int kConvThreads = 128;

// A thread a channel.
__global__ void __launch_bounds__(kConvThreads) conv_kernel(const ConvArgs a, const DevStep* s) {
  begin_kernel();
  const RecurrentSpec& spec = a.state.spec;
  const int32_t c = blockIdx.x * kConvThreads + threadIdx.x, past = spec.taps - 1;
  if (static_cast<int32_t>(blockIdx.y) >= s->n_runs || c >= spec.channels) return;
  const Run r = run_of(s, blockIdx.y);
  float* base = a.state.base + r.seq->ring_slot * a.state.base_floats;
  float before[kMaxTaps], weight[kMaxTaps];
  const bool fresh = r.fresh();
#pragma unroll
  for (int t = 0; t < kMaxTaps; ++t) {
    if (t < spec.taps) weight[t] = row_of<const float>(a.weight, t)[c];
    if (t >= past) continue;
    const int32_t at = r.seq->n_kept + t;  // of the base's inputs and the kept ones behind them
    before[t] = at >= past ? entry_of(a.state, *r.seq, r.seq->kept[at - past])[c]
                : fresh    ? 0
                           : base[int64_t{at} * spec.channels + c];
  }
  // The input `back` rows before row i.
  const auto input = [&](int32_t i, int32_t back) {
    for (; back > 0 && i >= 0; --back) i = r.parent(i);
    if (i >= 0) return row_of<const float>(a.x, r.first + i)[c];
    float v = 0;
#pragma unroll
    for (int t = 0; t < kMaxTaps; ++t)
      if (t == past - 1 - back) v = before[t];
    return v;
  };
  const int32_t settled = r.settled();
  for (int32_t i = 0; i < r.count; ++i) {
    float sum = 0;
#pragma unroll
    for (int t = 0; t < kMaxTaps; ++t)
      if (t < spec.taps) sum = fmaf(weight[t], input(i, past - t), sum);
    row_of<float>(a.y, r.first + i)[c] = activate(a.act, sum);
    if (i >= settled) entry_of(a.state, *r.seq, r.entry(i))[c] = row_of<const float>(a.x, r.first + i)[c];
  }
  for (int32_t t = 0; t < past; ++t) base[int64_t{t} * spec.channels + c] = input(settled - 1, past - 1 - t);
}

constexpr int kColumns = 16, kDeltaThreads = 4 * kColumns;

CARAT_D float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

// A block has 16 columns of a head's matrix; thread 4 j + l has rows l, l + 4, ... of column j and shares
// them with nobody.
struct Head {
  const DeltaNetArgs& a;
  float* s;  // [k_dim][16]
  int32_t h, key, k_dim, column, lane;

  CARAT_D float& at(int32_t i) { return s[i * kColumns + column]; }
  CARAT_D float project(const float* x) {  // (lanes 0 + 2) + (1 + 3)
    float sum = 0;
    for (int32_t i = lane; i < k_dim; i += 4) sum = fmaf(x[i], at(i), sum);
    sum += shuffle_xor(sum, 2);
    return sum + shuffle_xor(sum, 1);
  }
  CARAT_D void fold(const float* k, float delta, float decay) {
    for (int32_t i = lane; i < k_dim; i += 4) at(i) = fmaf(k[i], delta, decay * at(i));
  }
  CARAT_D const float* key_of(int32_t row) const { return row_of<const float>(a.k, row) + key * k_dim; }
  CARAT_D float decay_of(int32_t row) const {
    return expf(row_of<const float>(a.rate, 0)[h] *
                softplus(row_of<const float>(a.a, row)[h] + row_of<const float>(a.bias, 0)[h]));
  }
  // The state behind `row` from that before it; returns delta.
  CARAT_D float step(int32_t row, int32_t v_at) {
    const float decay = decay_of(row);
    const float* k = key_of(row);
    const float seen = decay * project(k);
    const float delta =
        row_of<const float>(a.beta, row)[h] * (row_of<const float>(a.v, row)[v_at + column] - seen);
    fold(k, delta, decay);
    return delta;
  }
};

__global__ void __launch_bounds__(kDeltaThreads) delta_kernel(const DeltaNetArgs a, const DevStep* s) {
  begin_kernel();
  CARAT_SHARED(memory);
  const RecurrentSpec& spec = a.state.spec;
  if (static_cast<int32_t>(blockIdx.z) >= s->n_runs) return;
  const Run r = run_of(s, blockIdx.z);
  const int32_t h = blockIdx.y, first = blockIdx.x * kColumns, v_at = h * spec.v_dim + first;
  auto* state = reinterpret_cast<float*>(memory);
  float* committed = state + spec.k_dim * kColumns;
  Head m{a,
         state,
         h,
         h % spec.k_heads,
         spec.k_dim,
         static_cast<int32_t>(threadIdx.x / 4),
         static_cast<int32_t>(threadIdx.x % 4)};
  float* base =
      a.state.base + r.seq->ring_slot * a.state.base_floats + int64_t{h} * spec.k_dim * spec.v_dim + first;
  const bool fresh = r.fresh();
  for (int32_t i = m.lane; i < spec.k_dim; i += 4)
    m.at(i) = fresh ? 0 : base[int64_t{i} * spec.v_dim + m.column];
  const int64_t delta_at = int64_t{spec.k_heads} * spec.k_dim + v_at;
  const int64_t decay_at = int64_t{spec.k_heads} * spec.k_dim + int64_t{spec.v_heads} * spec.v_dim + h;
  for (int32_t i = 0; i < r.seq->n_kept; ++i) {
    const float* e = entry_of(a.state, *r.seq, r.seq->kept[i]);
    m.fold(e + m.key * spec.k_dim, e[delta_at + m.column], e[decay_at]);
  }
  for (int32_t i = m.lane; i < spec.k_dim; i += 4) committed[i * kColumns + m.column] = m.at(i);
  const auto store = [&] {
    for (int32_t i = m.lane; i < spec.k_dim; i += 4) base[int64_t{i} * spec.v_dim + m.column] = m.at(i);
  };
  const int32_t settled = r.settled();
  if (settled == 0) store();
  for (int32_t i = 0; i < r.count; ++i) {
    const int32_t row = r.first + i, up = r.parent(i);
    if (up != i - 1) {  // a branch: its path again, from what is committed
      for (int32_t k = m.lane; k < spec.k_dim; k += 4) m.at(k) = committed[k * kColumns + m.column];
      int32_t depth = 0;
      for (int32_t p = up; p >= 0; p = r.parent(p)) ++depth;
      for (; depth > 0; --depth) {
        int32_t p = up;
        for (int32_t d = 1; d < depth; ++d) p = r.parent(p);
        m.step(r.first + p, v_at);
      }
    }
    const float delta = m.step(row, v_at);
    const float y = m.project(row_of<const float>(a.q, row) + m.key * spec.k_dim);
    if (m.lane == 0) row_of<float>(a.y, row)[v_at + m.column] = y;
    if (i + 1 == settled) store();
    if (i < settled) continue;
    float* e = entry_of(a.state, *r.seq, r.entry(i));
    if (m.lane == 0) e[delta_at + m.column] = delta;
    if (blockIdx.x != 0) continue;
    if (threadIdx.x == 0) e[decay_at] = m.decay_of(row);
    if (h < spec.k_heads)
      for (int32_t k = threadIdx.x; k < spec.k_dim; k += kDeltaThreads)
        e[h * spec.k_dim + k] = m.key_of(row)[k];
  }
}

}  // namespace

void conv(const Context& c, const ConvArgs& a) {
  launch(c.launcher, "conv", conv_kernel,
         dim3(static_cast<unsigned>((a.state.spec.channels + kConvThreads - 1) / kConvThreads),
              static_cast<unsigned>(a.y.rows < 256 ? a.y.rows : 256)),
         kConvThreads, 0, a, c.step);
}

int64_t delta_net_shared(const RecurrentSpec& s) { return int64_t{2} * s.k_dim * kColumns * 4; }
void delta_net(const Context& c, const DeltaNetArgs& a) {
  const RecurrentSpec& s = a.state.spec;
  launch(c.launcher, "delta net", delta_kernel,
         dim3(static_cast<unsigned>(s.v_dim / kColumns), static_cast<unsigned>(s.v_heads),
              static_cast<unsigned>(a.y.rows < 256 ? a.y.rows : 256)),
         kDeltaThreads, static_cast<size_t>(delta_net_shared(s)), a, c.step);
}

}  // namespace carat::cuda
