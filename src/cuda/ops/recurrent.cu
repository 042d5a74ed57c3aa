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
  return v.log + (int64_t{s.slot} * v.entries + i) * v.entry_floats;
}

constexpr int kConvThreads = 128, kConvRows = 16;  // rows: of a prompt, a thread

// Inputs that stand before a step's, oldest first: of the base, then the kept ones behind them.
CARAT_D float conv_before(const ConvArgs& a, const SeqView& seq, bool fresh, int32_t t, int32_t c) {
  const int32_t past = a.state.spec.taps - 1, at = seq.n_kept + t;
  if (at >= past) return entry_of(a.state, seq, seq.kept[at - past])[c];
  return fresh ? 0 : a.state.base[seq.slot * a.state.base_floats + int64_t{at} * a.state.spec.channels + c];
}

// A thread a channel, a run's rows one after the other. ROWS: y is computed here, too.
template <bool ROWS>
__global__ void __launch_bounds__(kConvThreads) conv_kernel(const ConvArgs a, const DevStep* s) {
  begin_kernel();
  const RecurrentSpec& spec = a.state.spec;
  const int32_t c = blockIdx.x * kConvThreads + threadIdx.x, past = spec.taps - 1;
  if (static_cast<int32_t>(blockIdx.y) >= s->n_runs || c >= spec.channels) return;
  const Run r = run_of(s, blockIdx.y);
  float* base = a.state.base + r.seq->slot * a.state.base_floats;
  float before[kMaxTaps], weight[kMaxTaps];
  const bool fresh = r.fresh();
#pragma unroll
  for (int t = 0; t < kMaxTaps; ++t) {
    if (t < spec.taps) weight[t] = row_of<const float>(a.weight, t)[c];
    if (t < past) before[t] = conv_before(a, *r.seq, fresh, t, c);
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
  for (int32_t i = ROWS ? 0 : settled; i < r.count; ++i) {
    if constexpr (ROWS) {
      float sum = 0;
#pragma unroll
      for (int t = 0; t < kMaxTaps; ++t)
        if (t < spec.taps) sum = fmaf(weight[t], input(i, past - t), sum);
      row_of<float>(a.y, r.first + i)[c] = activate(a.act, sum);
    }
    if (i >= settled) entry_of(a.state, *r.seq, r.entry(i))[c] = row_of<const float>(a.x, r.first + i)[c];
  }
  for (int32_t t = 0; t < past; ++t) base[int64_t{t} * spec.channels + c] = input(settled - 1, past - 1 - t);
}

// y alone, of a prompt's rows: some at a time, all at once. The state is conv_kernel<false>'s, behind this.
__global__ void __launch_bounds__(kConvThreads) conv_rows_kernel(const ConvArgs a, const DevStep* s) {
  begin_kernel();
  const RecurrentSpec& spec = a.state.spec;
  const int32_t c = blockIdx.x * kConvThreads + threadIdx.x, past = spec.taps - 1;
  if (c >= spec.channels) return;
  float weight[kMaxTaps], in[kMaxTaps];  // of the newest input first, then of those before it
#pragma unroll
  for (int b = 0; b < kMaxTaps; ++b)
    if (b <= past) weight[b] = row_of<const float>(a.weight, past - b)[c];
  const auto input = [&](int32_t row, int32_t back) {
    const int32_t of = row;
    int32_t root = row;
    for (; back > 0 && row >= 0; --back) root = row, row = continued(s, row);
    if (row >= 0) return row_of<const float>(a.x, row)[c];
    const SeqView& seq = s->seqs[s->seq[of]];
    return conv_before(a, seq, s->pos[root] == seq.n_kept, past - 1 - back, c);
  };
  const int32_t first = blockIdx.y * kConvRows, rest = s->n_rows - first;
  for (int32_t m = first; m < first + (rest < kConvRows ? rest : kConvRows); ++m) {
    const bool goes_on = m > first && continued(s, m) == m - 1;
#pragma unroll
    for (int b = kMaxTaps - 1; b >= 0; --b)
      if (b <= past) in[b] = goes_on && b > 0 ? in[b > 0 ? b - 1 : 0] : input(m, b);
    float sum = 0;
#pragma unroll
    for (int b = kMaxTaps - 1; b >= 0; --b)
      if (b <= past) sum = fmaf(weight[b], in[b], sum);
    row_of<float>(a.y, m)[c] = activate(a.act, sum);
  }
}

constexpr int kColumns = 16, kDeltaThreads = 4 * kColumns, kDeltaRows = 4, kMaxKey = 256;

CARAT_D float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

// A block has 16 columns of a head's matrix; thread 4 j + l has rows l, l + 4, ... of column j, in registers,
// at most EACH. WHOLE: exactly.
template <int EACH, bool WHOLE>
struct Head {
  const DeltaNetArgs& a;
  const int32_t h, key, k_dim, lane;
  float s[EACH];

  CARAT_D bool has(int n) const { return WHOLE || lane + 4 * n < k_dim; }
  // f(n) for the rows that are there.
  template <class F>
  CARAT_D void each(F f) {
#pragma unroll
    for (int n = 0; n < EACH; ++n)
      if (has(n)) f(n);
  }
  CARAT_D static float over_lanes(float sum) {  // (lanes 0 + 2) + (1 + 3)
    sum += shuffle_xor(sum, 2);
    return sum + shuffle_xor(sum, 1);
  }
  // x(n): element lane + 4 n of a key or a query.
  template <class X>
  CARAT_D float project(X x) {
    float sum = 0;
    each([&](int n) { sum = fmaf(x(n), s[n], sum); });
    return over_lanes(sum);
  }
  template <class X>
  CARAT_D void fold(X k, float delta, float decay) {
    each([&](int n) { s[n] = fmaf(k(n), delta, decay * s[n]); });
  }
  CARAT_D float decay(float x) const {
    return expf(row_of<const float>(a.rate, 0)[h] * softplus(x + row_of<const float>(a.bias, 0)[h]));
  }
  CARAT_D float decay_of(int32_t row) const { return decay(row_of<const float>(a.a, row)[h]); }
  CARAT_D const float* key_of(int32_t row) const { return row_of<const float>(a.k, row) + key * k_dim; }
  // The state behind `row` from that before it; v: its value. Returns delta.
  CARAT_D float step(int32_t row, float v) {
    const float* k = key_of(row) + lane;
    const auto x = [&](int n) { return k[4 * n]; };
    const float decay = decay_of(row), seen = decay * project(x),
                delta = row_of<const float>(a.beta, row)[h] * (v - seen);
    fold(x, delta, decay);
    return delta;
  }
};

// Rows of keys and queries in shared memory, as lanes read them: lane l has elements l, l + 4, ... in a row.
template <int EACH>
struct alignas(16) DeltaStage {
  static constexpr int kLane = EACH + 4;  // lanes' vectors of four lie in different banks
  float x[kDeltaRows][2][4 * kLane], v[kDeltaRows][kColumns], decay[kDeltaRows], beta[kDeltaRows];
};

template <int EACH, bool WHOLE>
struct DeltaWalk {
  using Stage = DeltaStage<EACH>;
  static constexpr int kFetch = kDeltaRows * 2 * 4 * EACH / kDeltaThreads;
  const DeltaNetArgs& a;
  const Run& r;
  Head<EACH, WHOLE>& m;
  Stage& stage;
  const int32_t column, v_first;  // of the block; its first one of a row of v and y
  static constexpr int kValues = kDeltaRows * kColumns / kDeltaThreads;
  float fetched[kFetch] = {}, values[kValues] = {}, rate = 0, beta = 0;

  // Rows i .. of the run on their way to registers.
  CARAT_D void fetch(int32_t i) {
    const int32_t most = r.count - i < kDeltaRows ? r.count - i : kDeltaRows;
#pragma unroll
    for (int f = 0; f < kFetch; ++f) {
      const int at = f * kDeltaThreads + threadIdx.x, row = at / (8 * EACH), query = at / (4 * EACH) % 2,
                k = at % (4 * EACH);
      fetched[f] = row < most && (WHOLE || k < m.k_dim)
                       ? (row_of<const float>(query ? a.q : a.k, r.first + i + row) + m.key * m.k_dim)[k]
                       : 0;
    }
#pragma unroll
    for (int f = 0; f < kValues; ++f) {
      const int at = f * kDeltaThreads + threadIdx.x, row = at / kColumns;
      values[f] = row < most ? row_of<const float>(a.v, r.first + i + row)[v_first + at % kColumns] : 0;
    }
    if (static_cast<int32_t>(threadIdx.x) < most) {
      rate = row_of<const float>(a.a, r.first + i + threadIdx.x)[m.h];
      beta = row_of<const float>(a.beta, r.first + i + threadIdx.x)[m.h];
    }
  }
  CARAT_D void put() {
#pragma unroll
    for (int f = 0; f < kFetch; ++f) {
      const int at = f * kDeltaThreads + threadIdx.x, k = at % (4 * EACH);
      stage.x[at / (8 * EACH)][at / (4 * EACH) % 2][k % 4 * Stage::kLane + k / 4] = fetched[f];
    }
#pragma unroll
    for (int f = 0; f < kValues; ++f) {
      const int at = f * kDeltaThreads + threadIdx.x;
      stage.v[at / kColumns][at % kColumns] = values[f];
    }
    if (threadIdx.x < kDeltaRows) stage.decay[threadIdx.x] = m.decay(rate), stage.beta[threadIdx.x] = beta;
  }
  // What this lane has of a row's key (0) or query (1).
  CARAT_D void take(int row, int which, float (&x)[EACH]) const {
    const auto* from = reinterpret_cast<const float4*>(stage.x[row][which] + m.lane * Stage::kLane);
#pragma unroll
    for (int n = 0; n < EACH; n += 4) {
      const float4 v = from[n / 4];
      x[n] = v.x, x[n + 1] = v.y, x[n + 2] = v.z, x[n + 3] = v.w;
    }
  }

  // leave(i, delta, decay): what row i leaves behind, of the rows from `from` on.
  template <class Leave>
  CARAT_D void run(int32_t from, Leave leave) {
    fetch(0);
#pragma unroll 1
    for (int32_t i = 0; i < r.count; i += kDeltaRows) {
      const int32_t most = r.count - i < kDeltaRows ? r.count - i : kDeltaRows;
      sync_block();
      put();
      sync_block();
      if (i + kDeltaRows < r.count) fetch(i + kDeltaRows);
      float even[EACH], odd[EACH];
      take(0, 0, even);
      float seen = m.project([&](int n) { return even[n]; });
      const auto step = [&](int32_t row, const float(&k)[EACH], float(&k_next)[EACH]) {
        float q[EACH];
        take(row, 1, q), take(row + 1 < kDeltaRows ? row + 1 : row, 0, k_next);
        const float g = stage.decay[row], delta = stage.beta[row] * (stage.v[row][column] - g * seen);
        m.fold([&](int n) { return k[n]; }, delta, g);
        // The next row's product with the state beside this one's: neither waits for the other.
        float y = 0, next = 0;
        m.each([&](int n) { y = fmaf(q[n], m.s[n], y), next = fmaf(k_next[n], m.s[n], next); });
        y = m.over_lanes(y), seen = m.over_lanes(next);
        if (m.lane == 0) row_of<float>(a.y, r.first + i + row)[v_first + column] = y;
        if (i + row >= from) leave(i + row, delta, g);
      };
#pragma unroll 1
      for (int32_t row = 0; row < most; row += 2) {
        step(row, even, odd);
        if (row + 1 < most) step(row + 1, odd, even);
      }
    }
  }
};

template <int EACH, bool WHOLE>
__global__ void __launch_bounds__(kDeltaThreads) delta_kernel(const DeltaNetArgs a, const DevStep* s) {
  begin_kernel();
  CARAT_SHARED(memory);
  auto& stage = *reinterpret_cast<DeltaStage<EACH>*>(memory);
  const RecurrentSpec& spec = a.state.spec;
  const int32_t h = blockIdx.y, column = threadIdx.x / 4, first = blockIdx.x * kColumns,
                v_at = h * spec.v_dim + first + column;
  const int64_t delta_at = int64_t{spec.k_heads} * spec.k_dim + v_at;
  const int64_t decay_at = int64_t{spec.k_heads} * spec.k_dim + int64_t{spec.v_heads} * spec.v_dim + h;
#pragma unroll 1
  for (int32_t which = blockIdx.z; which < s->n_runs; which += gridDim.z) {
    const Run r = run_of(s, which);
    Head<EACH, WHOLE> m{a, h, h % spec.k_heads, spec.k_dim, static_cast<int32_t>(threadIdx.x % 4), {}};
    float* base = a.state.base + r.seq->slot * a.state.base_floats +
                  (int64_t{h} * spec.k_dim + m.lane) * spec.v_dim + first + column;
    const bool fresh = r.fresh();
    m.each([&](int n) { m.s[n] = fresh ? 0 : base[int64_t{4} * n * spec.v_dim]; });
    for (int32_t i = 0; i < r.seq->n_kept; ++i) {
      const float* e = entry_of(a.state, *r.seq, r.seq->kept[i]);
      const float* k = e + m.key * spec.k_dim + m.lane;
      m.fold([&](int n) { return k[4 * n]; }, e[delta_at], e[decay_at]);
    }
    const auto store = [&] { m.each([&](int n) { base[int64_t{4} * n * spec.v_dim] = m.s[n]; }); };
    const int32_t settled = r.settled();
    if (settled == 0) store();
    const auto leave = [&](int32_t i, float delta, float decay) {
      if (i + 1 == settled) store();
      if (i < settled) return;
      float* e = entry_of(a.state, *r.seq, r.entry(i));
      if (m.lane == 0) e[delta_at] = delta;
      if (blockIdx.x != 0) return;
      if (threadIdx.x == 0) e[decay_at] = decay;
      if (h < spec.k_heads)
        for (int32_t k = threadIdx.x; k < spec.k_dim; k += kDeltaThreads)
          e[h * spec.k_dim + k] = m.key_of(r.first + i)[k];
    };
    if (!s->parent) {
      DeltaWalk<EACH, WHOLE>{a, r, m, stage, column, h * spec.v_dim + first}.run(settled - 1, leave);
      continue;
    }
    // Rows of a tree: a branch goes its path again, from what is committed.
    float committed[EACH];
#pragma unroll
    for (int n = 0; n < EACH; ++n) committed[n] = m.s[n];
    for (int32_t i = 0; i < r.count; ++i) {
      const int32_t row = r.first + i, up = r.parent(i);
      if (up != i - 1) {
#pragma unroll
        for (int n = 0; n < EACH; ++n) m.s[n] = committed[n];
        int32_t depth = 0;
        for (int32_t p = up; p >= 0; p = r.parent(p)) ++depth;
        for (; depth > 0; --depth) {
          int32_t p = up;
          for (int32_t d = 1; d < depth; ++d) p = r.parent(p);
          m.step(r.first + p, row_of<const float>(a.v, r.first + p)[v_at]);
        }
      }
      const float delta = m.step(row, row_of<const float>(a.v, row)[v_at]);
      const float* q = row_of<const float>(a.q, row) + m.key * spec.k_dim + m.lane;
      const float y = m.project([&](int n) { return q[4 * n]; });
      if (m.lane == 0) row_of<float>(a.y, row)[v_at] = y;
      leave(i, delta, m.decay_of(row));
    }
  }
}

template <int EACH, bool WHOLE>
void launch_delta(const Context& c, const DeltaNetArgs& a) {
  const RecurrentSpec& s = a.state.spec;
  launch(c.launcher, "delta net", delta_kernel<EACH, WHOLE>,
         dim3(static_cast<unsigned>(s.v_dim / kColumns), static_cast<unsigned>(s.v_heads),
              static_cast<unsigned>(a.y.rows < 64 ? a.y.rows : 64)),
         kDeltaThreads, sizeof(DeltaStage<EACH>), a, c.step);
}

}  // namespace

void conv(const Context& c, const ConvArgs& a) {
  const auto channels = static_cast<unsigned>((a.state.spec.channels + kConvThreads - 1) / kConvThreads),
             runs = static_cast<unsigned>(a.y.rows < 256 ? a.y.rows : 256);
  if (a.y.rows <= 32)
    return launch(c.launcher, "conv", conv_kernel<true>, dim3(channels, runs), kConvThreads, size_t{0}, a,
                  c.step);
  launch(c.launcher, "conv", conv_rows_kernel,
         dim3(channels, static_cast<unsigned>((a.y.rows + kConvRows - 1) / kConvRows)), kConvThreads,
         size_t{0}, a, c.step);
  launch(c.launcher, "conv, state", conv_kernel<false>, dim3(channels, runs), kConvThreads, size_t{0}, a,
         c.step);
}

bool delta_net_fits(const RecurrentSpec& s) { return s.k_dim <= kMaxKey; }
void delta_net(const Context& c, const DeltaNetArgs& a) {
  if (a.state.spec.k_dim == 128)
    launch_delta<32, true>(c, a);
  else if (a.state.spec.k_dim < 128)
    launch_delta<32, false>(c, a);
  else
    launch_delta<kMaxKey / 4, false>(c, a);
}

}  // namespace carat::cuda
