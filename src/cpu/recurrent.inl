// Recurrent layers: the short convolution and the gated delta rule, base + log. Task: a sequence and some of
// its channels or columns, through all rows of the step; so a row's bytes depend on what it continues alone.

// The sequence that a task works on.
struct SeqRows {
  const SeqView* seq;
  int32_t first, count, settled;
  bool fresh;
};
static SeqRows seq_rows(const Step& step, int64_t i) {
  const SeqRun& r = step.runs[i];
  const SeqView& s = step.state.seqs[step.state.seq[r.first]];
  return {&s, r.first, r.count, s.settled < r.count ? s.settled : r.count,
          step.state.pos[r.first] == s.n_kept};
}

// ---- convolution: task = a sequence and kConvChannels channels

static void run_conv(const Step& step, const void* p, int64_t task, Worker& worker) {
  const ConvArgs& a = static_cast<const ConvOp*>(p)->a;
  const RecurrentSpec& s = a.state.spec;
  const int64_t blocks = conv_blocks(s.channels), c0 = task % blocks * kConvChannels;
  const int n = static_cast<int>(s.channels - c0 < kConvChannels ? s.channels - c0 : kConvChannels);
  const SeqRows r = seq_rows(step, task / blocks);
  const int past = s.taps - 1;
  const size_t bytes = static_cast<size_t>(n) * 4;
  float* base = a.state.base_of(*r.seq) + c0;
  // Inputs before the step, oldest first, padded so that whole vectors may be read.
  float* before = reinterpret_cast<float*>(worker.scratch);
  for (int t = 0; t < past; ++t) {
    const int kept = r.seq->n_kept - past + t;  // past bases and kept rows in a row: the last `past` of them
    float* to = before + t * kConvChannels;
    if (kept >= 0)
      __builtin_memcpy(to, a.state.entry(*r.seq, r.seq->kept[kept]) + c0, bytes);
    else if (r.fresh)
      __builtin_memset(to, 0, bytes);
    else
      __builtin_memcpy(to, base + int64_t{past + kept} * s.channels, bytes);
  }
  const auto input = [&](int32_t row, int back) -> const float* {  // `back` rows before `row` (-1: committed)
    for (; back > 0 && row >= 0; --back) row = continued_row(step.state, row);
    return row >= 0 ? a.x.row<float>(row) + c0 : before + (past - 1 - back) * kConvChannels;
  };
  for (int32_t m = r.first; m < r.first + r.count; ++m) {
    const float* x[kMaxTaps];
    for (int t = 0; t < s.taps; ++t) x[t] = input(m, past - t);
    float* y = a.y.row<float>(m) + c0;
    int c = 0;
    for (; c + W <= n; c += W) {
      VF sum = mulf(loadf(a.weight.row<float>(0) + c0 + c), loadf(x[0] + c));
      for (int t = 1; t < s.taps; ++t)
        sum = mad(loadf(a.weight.row<float>(t) + c0 + c), loadf(x[t] + c), sum);
      storef(y + c, activate_v(a.act, sum));
    }
    if (c < n) {
      float w[W] = {}, v[W] = {};
      VF sum = setf(0.0f);
      for (int t = 0; t < s.taps; ++t) {
        __builtin_memcpy(w, a.weight.row<float>(t) + c0 + c, static_cast<size_t>(n - c) * 4);
        __builtin_memcpy(v, x[t] + c, static_cast<size_t>(n - c) * 4);
        sum = t ? mad(loadf(w), loadf(v), sum) : mulf(loadf(w), loadf(v));
      }
      storef(w, activate_v(a.act, sum));
      __builtin_memcpy(y + c, w, static_cast<size_t>(n - c) * 4);
    }
    const int32_t i = m - r.first;
    if (i >= r.settled)
      __builtin_memcpy(a.state.entry(*r.seq, r.seq->log + i - r.settled) + c0, a.x.row<float>(m) + c0, bytes);
  }
  // `before` is a copy, so the base may be written while it is read.
  const int32_t last = r.settled ? r.first + r.settled - 1 : -1;
  for (int t = 0; t < past; ++t)
    __builtin_memcpy(base + int64_t{t} * s.channels, input(last, past - 1 - t), bytes);
}

// ---- delta rule: task = a sequence, a value head and kDeltaColumns of its columns

// S = decay * S + k delta^T, S: [k_dim][N vectors].
template <int N>
static void fold_delta(float* s, int32_t k_dim, const float* k, const float* delta, float decay) {
  const VF g = setf(decay);
  VF d[N];
  for (int c = 0; c < N; ++c) d[c] = loadf(delta + c * W);
  for (int32_t i = 0; i < k_dim; ++i, s += N * W) {
    const VF ki = setf(k[i]);
    for (int c = 0; c < N; ++c) storef(s + c * W, mad(ki, d[c], mulf(g, loadf(s + c * W))));
  }
}

// Sums over i in the order of four lanes: lane l takes i = l, l + 4, ...; then (0 + 2) + (1 + 3).
template <int N>
static void project_delta(const float* s, int32_t k_dim, const float* x, VF (&y)[N]) {
  VF sum[4][N];
  for (int l = 0; l < 4; ++l)
    for (int c = 0; c < N; ++c) sum[l][c] = setf(0.0f);
  int32_t i = 0;
  for (; i + 4 <= k_dim; i += 4)
    for (int l = 0; l < 4; ++l) {
      const VF xi = setf(x[i + l]);
      for (int c = 0; c < N; ++c) sum[l][c] = mad(xi, loadf(s + (i + l) * N * W + c * W), sum[l][c]);
    }
  for (; i < k_dim; ++i)
    for (int c = 0; c < N; ++c) sum[i % 4][c] = mad(setf(x[i]), loadf(s + i * N * W + c * W), sum[i % 4][c]);
  for (int c = 0; c < N; ++c) y[c] = addf(addf(sum[0][c], sum[2][c]), addf(sum[1][c], sum[3][c]));
}

// As fold_delta, and y = S^T q of the new S, in one pass.
template <int N>
static void step_delta(float* s, int32_t k_dim, const float* k, const float* q, const float* delta,
                       float decay, float* y) {
  const VF g = setf(decay);
  VF d[N], sum[4][N];
  for (int c = 0; c < N; ++c) d[c] = loadf(delta + c * W);
  for (int l = 0; l < 4; ++l)
    for (int c = 0; c < N; ++c) sum[l][c] = setf(0.0f);
  int32_t i = 0;
  for (; i + 4 <= k_dim; i += 4)
    for (int l = 0; l < 4; ++l, s += N * W) {
      const VF ki = setf(k[i + l]), qi = setf(q[i + l]);
      for (int c = 0; c < N; ++c) {
        const VF v = mad(ki, d[c], mulf(g, loadf(s + c * W)));
        storef(s + c * W, v);
        sum[l][c] = mad(qi, v, sum[l][c]);
      }
    }
  for (; i < k_dim; ++i, s += N * W)
    for (int c = 0; c < N; ++c) {
      const VF v = mad(setf(k[i]), d[c], mulf(g, loadf(s + c * W)));
      storef(s + c * W, v);
      sum[i % 4][c] = mad(setf(q[i]), v, sum[i % 4][c]);
    }
  for (int c = 0; c < N; ++c) storef(y + c * W, addf(addf(sum[0][c], sum[2][c]), addf(sum[1][c], sum[3][c])));
}

static float softplus(float x) { return x > 20 ? x : static_cast<float>(std::log1p(std::exp(double{x}))); }

// A head's columns [c0, c0 + N * W) of one sequence.
template <int N>
class DeltaTask {
 public:
  DeltaTask(const Step& step, const DeltaNetArgs& a, const SeqRows& r, int32_t head, int32_t c0,
            float* scratch)
      : step_(step), a_(a), spec_(a.state.spec), r_(r), head_(head), c0_(c0), s_(scratch) {
    k_at_ = int64_t{head % spec_.k_heads} * spec_.k_dim;
    v_at_ = int64_t{head} * spec_.v_dim + c0;
    base_ = a.state.base_of(*r.seq) + int64_t{head} * spec_.k_dim * spec_.v_dim + c0;
  }

  void run() {
    load(r_.fresh);
    for (int32_t i = 0; i < r_.seq->n_kept; ++i) {
      const float* e = a_.state.entry(*r_.seq, r_.seq->kept[i]);
      fold_delta<N>(s_, spec_.k_dim, e + k_at_, e + delta_at(), e[decay_at()]);
    }
    for (int32_t i = 0; i < r_.settled; ++i) row(i, delta_);
    if (r_.fresh || r_.seq->n_kept || r_.settled) store();
    int32_t behind = r_.settled ? r_.first + r_.settled - 1 : -1;  // s_ is the state behind this row
    for (int32_t i = r_.settled; i < r_.count; ++i) {
      const int32_t m = r_.first + i, up = continued_row(step_.state, m);
      if (up != behind) replay(up);
      behind = m;
      float* e = entry(i);
      const float decay = row(i, e + delta_at());
      if (c0_ != 0) continue;  // what the columns share is logged once
      if (head_ < spec_.k_heads)
        __builtin_memcpy(e + k_at_, a_.k.template row<float>(m) + k_at_,
                         static_cast<size_t>(spec_.k_dim) * 4);
      e[decay_at()] = decay;
    }
  }

 private:
  int64_t delta_at() const { return int64_t{spec_.k_heads} * spec_.k_dim + v_at_; }
  int64_t decay_at() const { return spec_.matrix_entry() - spec_.v_heads + head_; }
  float* entry(int32_t i) const { return a_.state.entry(*r_.seq, r_.seq->log + i - r_.settled); }

  void load(bool zero) {
    for (int32_t i = 0; i < spec_.k_dim; ++i)
      for (int c = 0; c < N; ++c)
        storef(s_ + (i * N + c) * W, zero ? setf(0.0f) : loadf(base_ + int64_t{i} * spec_.v_dim + c * W));
  }
  void store() const {
    for (int32_t i = 0; i < spec_.k_dim; ++i)
      for (int c = 0; c < N; ++c)
        storef(base_ + int64_t{i} * spec_.v_dim + c * W, loadf(s_ + (i * N + c) * W));
  }
  float decay_of(int32_t m) const {
    const float x = a_.a.template row<float>(m)[head_] + a_.bias.template row<float>(0)[head_];
    return exp_of(a_.rate.template row<float>(0)[head_] * softplus(x));
  }

  // Row i on top of s_; delta: [N * W] is written.
  float row(int32_t i, float* delta) {
    const int32_t m = r_.first + i;
    const float decay = decay_of(m), *k = a_.k.template row<float>(m) + k_at_;
    const float* v = a_.v.template row<float>(m) + v_at_;
    const VF g = setf(decay), beta = setf(a_.beta.template row<float>(m)[head_]);
    VF seen[N];
    project_delta<N>(s_, spec_.k_dim, k, seen);
    for (int c = 0; c < N; ++c) storef(delta + c * W, mulf(beta, subf(loadf(v + c * W), mulf(g, seen[c]))));
    step_delta<N>(s_, spec_.k_dim, k, a_.q.template row<float>(m) + k_at_, delta, decay,
                  a_.y.template row<float>(m) + v_at_);
    return decay;
  }

  // The state behind row m of this step from the base and the log: a tree's next branch.
  void replay(int32_t m) {
    load(false);
    fold_path(m);
  }
  void fold_path(int32_t m) {
    if (m < r_.first + r_.settled) return;
    fold_path(continued_row(step_.state, m));
    fold_delta<N>(s_, spec_.k_dim, a_.k.template row<float>(m) + k_at_, entry(m - r_.first) + delta_at(),
                  decay_of(m));
  }

  const Step& step_;
  const DeltaNetArgs& a_;
  const RecurrentSpec& spec_;
  const SeqRows& r_;
  int32_t head_, c0_;
  float *s_, *base_;
  int64_t k_at_, v_at_;
  float delta_[N * W];
};

static void run_delta(const Step& step, const void* p, int64_t task, Worker& worker) {
  const DeltaNetArgs& a = static_cast<const DeltaOp*>(p)->a;
  const RecurrentSpec& s = a.state.spec;
  const int64_t columns = delta_columns(s.v_dim), blocks = s.v_dim / columns, per_seq = s.v_heads * blocks;
  const SeqRows r = seq_rows(step, task / per_seq);
  const auto head = static_cast<int32_t>(task % per_seq / blocks);
  const auto c0 = static_cast<int32_t>(task % blocks * columns);
  float* scratch = reinterpret_cast<float*>(worker.scratch);
  if (columns == 32)
    DeltaTask<32 / W>(step, a, r, head, c0, scratch).run();
  else
    DeltaTask<16 / W>(step, a, r, head, c0, scratch).run();
}
