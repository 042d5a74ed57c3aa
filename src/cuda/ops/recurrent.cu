// Layers with a recurrent state: the short convolution and the gated delta rule, base and log
// (docs/design.md, "Recurrent state"; src/ref/ref_recurrent.cc). Threads own columns, rows are taken one
// after the other.
#include "cuda/device/activate.cuh"
#include "cuda/ops/norm_element.cuh"
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
constexpr int kMaxKey = 256, kFewConvRows = 32;

// Inputs that stand before a step's, oldest first: of the base, then the kept ones behind them.
CARAT_D float conv_before(const ConvArgs& a, const SeqView& seq, bool fresh, int32_t t, int32_t c) {
  const int32_t past = a.state.spec.taps - 1, at = seq.n_kept + t;
  if (at >= past) return entry_of(a.state, seq, seq.kept[at - past])[c];
  return fresh ? 0 : a.state.base[seq.slot * a.state.base_floats + int64_t{at} * a.state.spec.channels + c];
}

// A block's v, a column a thread, after the norm of its head. The sum is norm_groups's.
CARAT_D float head_normed(const HeadNorms& norms, int which, float v, float* row) {
  const int lane = threadIdx.x % 32;
  row[threadIdx.x] = v;
  sync_block();
  const float inv = group_inverse_rms(row, norms.width, norms.eps[which], lane);
  sync_block();  // all have read the row
  return v * inv * norms.scale[which];
}

// A thread a channel, a run's rows one after the other. ROWS: y is computed here, too, and the norms behind
// it, a block a head; without norms a block has kConvThreads channels.
template <bool ROWS>
__global__ void __launch_bounds__(kMaxKey)
    conv_kernel(const ConvArgs a, const HeadNorms norms, const DevStep* s) {
  CARAT_STATIC_SHARED float row[kMaxKey];
  const RecurrentSpec& spec = a.state.spec;
  const int32_t width = norms.width ? norms.width : kConvThreads, c = blockIdx.x * width + threadIdx.x,
                past = spec.taps - 1, head = norms.width ? static_cast<int32_t>(blockIdx.x) : 2 * norms.heads,
                which = head < norms.heads ? 0 : 1;
  const bool some = static_cast<int32_t>(threadIdx.x) < width && c < spec.channels;
  const bool runs = static_cast<int32_t>(blockIdx.y) < s->n_runs;
  const Run r = runs ? run_of(s, blockIdx.y) : Run{s, nullptr, 0, 0};
  float before[kMaxTaps], weight[kMaxTaps];
  // The state is on its way before the inputs are there: what wrote it has ended, since the delta rule's
  // kernel behind it lets the next one start only when it has waited.
  if (runs && some) {
    const bool fresh = r.fresh();
#pragma unroll
    for (int t = 0; t < kMaxTaps; ++t) {
      if (t < spec.taps) weight[t] = row_of<const float>(a.weight, t)[c];
      if (t < past) before[t] = conv_before(a, *r.seq, fresh, t, c);
    }
  }
  begin_kernel();
  if (!runs) return;
  float* base = a.state.base + r.seq->slot * a.state.base_floats;
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
      float v = 0;
#pragma unroll
      for (int t = 0; t < kMaxTaps; ++t)
        if (some && t < spec.taps) v = fmaf(weight[t], input(i, past - t), v);
      v = activate(a.act, v);
      if (head < 2 * norms.heads) v = head_normed(norms, which, v, row);
      if (some) row_of<float>(a.y, r.first + i)[c] = v;
    }
    if (some && i >= settled)
      entry_of(a.state, *r.seq, r.entry(i))[c] = row_of<const float>(a.x, r.first + i)[c];
  }
  if (!some) return;
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

constexpr int kColumns = 16, kDeltaThreads = 4 * kColumns, kDeltaRows = 4;

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
  // The state before a run's rows. base: of this lane's first row and the column.
  CARAT_D void take(const Run& r, const float* base, int64_t delta_at, int64_t decay_at) {
    const RecurrentSpec& spec = a.state.spec;
    const bool fresh = r.fresh();
    each([&](int n) { s[n] = fresh ? 0 : base[int64_t{4} * n * spec.v_dim]; });
    for (int32_t i = 0; i < r.seq->n_kept; ++i) {
      const float* e = entry_of(a.state, *r.seq, r.seq->kept[i]);
      const float* k = e + key * k_dim + lane;
      fold([&](int n) { return k[4 * n]; }, e[delta_at], e[decay_at]);
    }
  }
  CARAT_D void store(float* base) {
    each([&](int n) { base[int64_t{4} * n * a.state.spec.v_dim] = s[n]; });
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

// What a lane has of a row of a stage.
template <int EACH>
CARAT_D void lane_values(const float* row, int lane, float (&x)[EACH]) {
  const auto* from = reinterpret_cast<const float4*>(row + lane * DeltaStage<EACH>::kLane);
#pragma unroll
  for (int n = 0; n < EACH; n += 4) {
    const float4 v = from[n / 4];
    x[n] = v.x, x[n + 1] = v.y, x[n + 2] = v.z, x[n + 3] = v.w;
  }
}

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
    lane_values(stage.x[row][which], m.lane, x);
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
    m.take(r, base, delta_at, decay_at);
    const int32_t settled = r.settled();
    if (settled == 0) m.store(base);
    const auto leave = [&](int32_t i, float delta, float decay) {
      if (i + 1 == settled) m.store(base);
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

// A single row, and the gated norm behind it: a block a head, whose matrix comes to registers before the
// row's inputs are there (its last writer has ended: the convolution's kernel between has waited for it).
// Threads, sums and bits are delta_kernel's.
constexpr int kMostValues = 128;
template <int EACH, bool WHOLE>
__global__ void __launch_bounds__(4 * kMostValues)
    delta_row_kernel(const DeltaNetArgs a, const RmsNormArgs norm, const DevStep* s) {
  constexpr int kLane = DeltaStage<EACH>::kLane;
  CARAT_STATIC_SHARED float4 staged[2 * kLane];  // key and query, as DeltaStage has them
  CARAT_STATIC_SHARED float values[kMostValues];
  const RecurrentSpec& spec = a.state.spec;
  const int32_t h = blockIdx.x, lane = threadIdx.x % 4, column = threadIdx.x / 4,
                v_at = h * spec.v_dim + column;
  const int64_t keys = int64_t{spec.k_heads} * spec.k_dim, delta_at = keys + v_at,
                decay_at = keys + int64_t{spec.v_heads} * spec.v_dim + h;
  Head<EACH, WHOLE> m{a, h, h % spec.k_heads, spec.k_dim, lane, {}};
  const bool some = s->n_runs > 0;
  const Run r = some ? run_of(s, 0) : Run{s, nullptr, 0, 0};
  float* base = nullptr;
  if (some) {
    base = a.state.base + r.seq->slot * a.state.base_floats + (int64_t{h} * spec.k_dim + lane) * spec.v_dim +
           column;
    m.take(r, base, delta_at, decay_at);
  }
  begin_kernel();
  if (!some) return;
  auto* x = reinterpret_cast<float*>(staged);
  for (int i = threadIdx.x; i < 8 * EACH; i += blockDim.x) {
    const int which = i / (4 * EACH), k = i % (4 * EACH);
    const bool there = WHOLE || k < spec.k_dim;
    x[which * 4 * kLane + k % 4 * kLane + k / 4] =
        there ? (row_of<const float>(which ? a.q : a.k, 0) + m.key * spec.k_dim)[k] : 0;
  }
  const float decay = m.decay_of(0), beta = row_of<const float>(a.beta, 0)[h],
              v = row_of<const float>(a.v, 0)[v_at];
  const bool settled = r.settled() > 0;
  if (!settled) m.store(base);
  sync_block();
  float key[EACH], query[EACH];
  lane_values(x, lane, key), lane_values(x + 4 * kLane, lane, query);
  const float seen = m.project([&](int n) { return key[n]; }), delta = beta * (v - decay * seen);
  m.fold([&](int n) { return key[n]; }, delta, decay);
  const float y = m.project([&](int n) { return query[n]; });
  if (lane == 0) values[column] = row_of<float>(a.y, 0)[v_at] = y;
  if (settled) {
    m.store(base);
  } else {
    float* e = entry_of(a.state, *r.seq, r.entry(0));
    if (lane == 0) e[delta_at] = delta;
    if (threadIdx.x == 0) e[decay_at] = decay;
    if (h < spec.k_heads)
      for (int32_t k = threadIdx.x; k < spec.k_dim; k += blockDim.x) e[h * spec.k_dim + k] = m.key_of(0)[k];
  }
  sync_block();
  const float inv = group_inverse_rms(values, spec.v_dim, norm.eps, threadIdx.x % 32);
  for (int32_t i = threadIdx.x; i < spec.v_dim; i += blockDim.x)
    norm_element(norm, 0, h * spec.v_dim, i, values[i] * inv);
}

template <int EACH, bool WHOLE>
void launch_delta(const Context& c, const DeltaNetArgs& a) {
  const RecurrentSpec& s = a.state.spec;
  launch(c.launcher, "delta net", delta_kernel<EACH, WHOLE>,
         dim3(static_cast<unsigned>(s.v_dim / kColumns), static_cast<unsigned>(s.v_heads),
              static_cast<unsigned>(a.y.rows < 64 ? a.y.rows : 64)),
         kDeltaThreads, sizeof(DeltaStage<EACH>), a, c.step);
}

bool plain(const RmsNormArgs& a) { return !a.weight.data && !a.residual.data && !a.gain.data && !a.mul.data; }
bool same(const Tensor& a, const Tensor& b) {
  return a.data == b.data && a.rows == b.rows && a.cols == b.cols && a.pitch == b.pitch;
}

}  // namespace

HeadNorms head_norms(const ConvArgs& a, const RmsNormArgs& q, const RmsNormArgs& k) {
  const int32_t width = q.width, cols = q.y.cols;
  if (a.y.rows > kFewConvRows || width <= 0 || width > kMaxKey || cols % width || k.width != width) return {};
  if (2 * cols > a.y.cols || !plain(q) || !plain(k)) return {};
  for (const auto& [norm, first] : {std::pair(&q, 0), std::pair(&k, cols)})
    if (const Tensor t = a.y.columns(first, cols); !same(norm->x, t) || !same(norm->y, t)) return {};
  return {width, cols / width, {q.eps, k.eps}, {q.scale, k.scale}};
}
void conv(const Context& c, const ConvArgs& a, const HeadNorms& norms) {
  const auto blocks = [](int32_t n, int32_t per) { return static_cast<unsigned>((n + per - 1) / per); };
  const int32_t channels = a.state.spec.channels, width = norms.width ? norms.width : kConvThreads;
  const auto runs = static_cast<unsigned>(a.y.rows < 256 ? a.y.rows : 256);
  const dim3 grid(blocks(channels, width), runs);
  const auto threads = static_cast<int>(32 * blocks(width, 32));
  if (a.y.rows <= kFewConvRows)
    return launch(c.launcher, "conv", conv_kernel<true>, grid, threads, size_t{0}, a, norms, c.step);
  launch(c.launcher, "conv", conv_rows_kernel,
         dim3(blocks(channels, kConvThreads), blocks(a.y.rows, kConvRows)), kConvThreads, size_t{0}, a,
         c.step);
  launch(c.launcher, "conv, state", conv_kernel<false>, grid, threads, size_t{0}, a, norms, c.step);
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
bool delta_row_fits(const DeltaNetArgs& a, const RmsNormArgs& norm) {
  const RecurrentSpec& s = a.state.spec;
  return a.y.rows == 1 && s.k_dim <= 128 && s.v_dim % 8 == 0 && s.v_dim <= kMostValues && same(norm.x, a.y) &&
         norm.width == s.v_dim;
}
void delta_row(const Context& c, const DeltaNetArgs& a, const RmsNormArgs& norm) {
  const RecurrentSpec& s = a.state.spec;
  launch(c.launcher, "delta net", s.k_dim == 128 ? delta_row_kernel<32, true> : delta_row_kernel<32, false>,
         dim3(static_cast<unsigned>(s.v_heads)), 4 * s.v_dim, size_t{0}, a, norm, c.step);
}

}  // namespace carat::cuda
