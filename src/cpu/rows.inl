// What works on rows alone: embedding, gather, norm, routing, and the preparation of q, k and v. Task: a row.

// sum x^2 in the canonical order of products.
static float sum_squares(const float* x, int64_t n) {
  F16 a = zero16();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const F16 v = load16(x + i);
    a = mad16(v, v, a);
  }
  if (i < n) {
    const F16 v = load16_part(x + i, n - i);
    a = mad16(v, v, a);
  }
  return sum16(a);
}
static float inverse_rms(const float* x, int64_t n, float eps) {
  return 1.0f / __builtin_sqrtf(sum_squares(x, n) / static_cast<float>(n) + eps);
}

static void run_embed(const Step& step, const void* p, int64_t m, Worker&) {
  const auto& op = *static_cast<const ByRow<EmbedArgs>*>(p);
  const int32_t row = step.step_row(op.rows, static_cast<int32_t>(m));
  if (const float* soft = op.a.soft && step.state.soft ? step.state.soft[row] : nullptr) {
    __builtin_memcpy(op.a.y.row<float>(m), soft, static_cast<size_t>(op.a.y.cols) * 4);
    return;
  }
  const int32_t token = step.state.token[row];
  CARAT_CHECK(token >= 0 && token < op.a.table.rows, "token {} of {}", token, op.a.table.rows);
  float* y = op.a.y.row<float>(m);
  decode_row(op.a.table.type, op.a.table.row<std::byte>(token), y, op.a.y.cols);
  for (int32_t i = 0; i < op.a.y.cols; ++i) y[i] *= op.a.scale;
}

static void run_gather(const Step& step, const void* p, int64_t m, Worker&) {
  const auto& op = *static_cast<const ByRow<GatherArgs>*>(p);
  const int32_t row = step.step_row(op.rows, static_cast<int32_t>(m));
  __builtin_memcpy(op.a.y.row<float>(m), op.a.x.row<float>(row), static_cast<size_t>(op.a.x.cols) * 4);
}

// W elements of a row: y = ((x * inv * weight) + residual) * scale * gain * act(mul), rounded at every step.
struct NormRow {
  const float *x, *weight, *residual, *gain, *mul;  // gain: one, or one an element
  float* y;
  float inv, scale;
  bool one_gain;
  Act act;

  inline __attribute__((always_inline)) void put(int64_t i) const {
    VF v = mulf(loadf(x + i), setf(inv));
    if (weight) v = mulf(v, loadf(weight + i));
    if (residual) v = addf(v, loadf(residual + i));
    v = mulf(v, setf(scale));
    if (gain) v = mulf(v, one_gain ? setf(gain[0]) : loadf(gain + i));
    if (mul) v = mulf(v, activate_v(act, loadf(mul + i)));
    storef(y + i, v);
  }
  void put_rest(int64_t i, int64_t n) const {
    float t[6][W] = {};
    NormRow rest = *this;
    const auto part = [&](const float*& from, float* to) {
      if (!from) return;
      for (int64_t j = i; j < n; ++j) to[j - i] = from[j];
      from = to;
    };
    part(rest.x, t[0]), part(rest.weight, t[1]), part(rest.residual, t[2]), part(rest.mul, t[3]);
    if (!one_gain) part(rest.gain, t[4]);
    rest.y = t[5];
    rest.put(0);
    for (int64_t j = i; j < n; ++j) y[j] = t[5][j - i];
  }
};
static void run_norm(const Step&, const void* p, int64_t m, Worker&) {
  const RmsNormArgs& a = static_cast<const ByRow<RmsNormArgs>*>(p)->a;
  const int64_t width = a.width ? a.width : a.y.cols;
  const bool one = a.gain.valid() && a.gain.cols == 1;
  for (int64_t first = 0; first < a.y.cols; first += width) {
    const float* x = a.x.row<float>(m) + first;
    const NormRow row{x,
                      a.weight.valid() ? a.weight.row<float>(0) : nullptr,
                      a.residual.valid() ? a.residual.row<float>(m) + first : nullptr,
                      a.gain.valid() ? a.gain.row<float>(0) + (one ? 0 : first) : nullptr,
                      a.mul.valid() ? a.mul.row<float>(m) + first : nullptr,
                      a.y.row<float>(m) + first,
                      inverse_rms(x, width, a.eps),
                      a.scale,
                      one,
                      a.act};
    int64_t i = 0;
    for (; i + W <= width; i += W) row.put(i);
    if (i < width) row.put_rest(i, width);
  }
}

// Vectors of y = act(clamp(x + add)) * mul.
struct PointRow {
  const float *x, *add, *mul;  // the last two: null for none
  float* y;
  float low, high;
  Act act;

  inline __attribute__((always_inline)) VF of(const float* from, const float* plus,
                                              const float* times) const {
    VF v = loadf(from);
    if (plus) v = addf(v, loadf(plus));
    v = activate_v(act, minf(setf(high), maxf(setf(low), v)));  // in this order a NaN stays one
    return times ? mulf(v, loadf(times)) : v;
  }
  inline __attribute__((always_inline)) void put(int64_t i) const {
    storef(y + i, of(x + i, add ? add + i : nullptr, mul ? mul + i : nullptr));
  }
  void put_rest(int64_t i, int64_t n) const {
    float t[3][W] = {}, out[W];
    for (int64_t j = i; j < n; ++j)
      t[0][j - i] = x[j], t[1][j - i] = add ? add[j] : 0, t[2][j - i] = mul ? mul[j] : 0;
    storef(out, of(t[0], add ? t[1] : nullptr, mul ? t[2] : nullptr));
    for (int64_t j = i; j < n; ++j) y[j] = out[j - i];
  }
};
static void run_pointwise(const Step&, const void* p, int64_t m, Worker&) {
  const PointwiseArgs& a = static_cast<const ByRow<PointwiseArgs>*>(p)->a;
  const auto at = [&](const Tensor& t) -> const float* {
    return t.valid() ? t.row<float>(t.rows == 1 ? 0 : m) : nullptr;
  };
  const PointRow row{a.x.row<float>(m), at(a.add), at(a.mul), a.y.row<float>(m), a.low, a.high, a.act};
  int64_t i = 0;
  for (; i + W <= a.y.cols; i += W) row.put(i);
  if (i < a.y.cols) row.put_rest(i, a.y.cols);
}

static void run_layer_norm(const Step&, const void* p, int64_t m, Worker&) {
  const LayerNormArgs& a = static_cast<const ByRow<LayerNormArgs>*>(p)->a;
  const float* x = a.x.row<float>(m);
  const int64_t n = a.y.cols;
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  const double mean = sum / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const auto inv = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(n) + a.eps));
  const auto middle = static_cast<float>(mean);
  const float *w = a.weight.valid() ? a.weight.row<float>(0) : nullptr,
              *b = a.bias.valid() ? a.bias.row<float>(0) : nullptr;
  float* y = a.y.row<float>(m);
  for (int64_t i = 0; i < n; ++i) {
    float v = (x[i] - middle) * inv;
    if (w) v *= w[i];
    y[i] = b ? v + b[i] : v;
  }
}

// The best of l[0 .. n) that is not among the k used ones, whatever the values are.
static int32_t best_unused(const float* l, int32_t n, const int32_t* experts, int32_t k) {
  int32_t best = -1;
  for (int32_t e = 0; e < n; ++e) {
    bool used = false;
    for (int32_t j = 0; j < k; ++j) used |= experts[j] == e;
    if (!used && (best < 0 || l[e] > l[best])) best = e;
  }
  return best;
}

// The best of l[0 .. n) behind (value, at) in the order of choice: larger first, ties by index. -1: none
// (NaN).
static int32_t next_best(const float* l, int32_t n, float value, int32_t at) {
  int32_t best = -1;
  for (int32_t e = 0; e < n; ++e)
    if ((l[e] < value || (l[e] == value && e > at)) && (best < 0 || l[e] > l[best])) best = e;
  return best;
}

static void run_route(const Step&, const void* p, int64_t m, Worker&) {
  const RouteArgs& a = static_cast<const ByRow<RouteArgs>*>(p)->a;
  const float* l = a.logits.row<float>(m);
  int32_t* experts = a.experts.row<int32_t>(m);
  float* weights = a.weights.row<float>(m);
  for (int32_t k = 0; k < a.top_k; ++k) {
    const int32_t best = k ? next_best(l, a.logits.cols, l[experts[k - 1]], experts[k - 1]) : -1;
    experts[k] = best < 0 ? best_unused(l, a.logits.cols, experts, k) : best;
  }
  float sum = 0;  // softmax over all, renormalized over the chosen = softmax over the chosen
  for (int32_t k = 0; k < a.top_k; ++k) sum += weights[k] = exp_of(l[experts[k]] - l[experts[0]]);
  for (int32_t k = 0; k < a.top_k; ++k)
    weights[k] =
        weights[k] / sum * (a.expert_scale.valid() ? a.expert_scale.row<float>(0)[experts[k]] : 1.0f);
}

// W numbers of x[i ..]; behind n: -inf.
static VF load_until(const float* x, int64_t i, int64_t n) {
  if (i + W <= n) return loadf(x + i);
  float t[W];
  for (int64_t j = 0; j < W; ++j) t[j] = i + j < n ? x[i + j] : -INFINITY;
  return loadf(t);
}

// Where x is largest, -1 as in TopArgs.
static int64_t best_column(const float* x, int64_t n) {
  constexpr int64_t kBlock = 1024;  // searched once more if it holds the largest
  const VF most = setf(INFINITY);
  VF odd = setf(0.0f);  // not 0: a NaN or +inf was met
  float top = -INFINITY, lanes[W];
  int64_t where = -1;
  for (int64_t first = 0; first < n; first += kBlock) {
    VF best = setf(-INFINITY);
    for (int64_t i = first; i < n && i < first + kBlock; i += W) {
      const VF v = load_until(x, i, n);
      best = maxf(best, v), odd = select_lt(v, most, odd, most);
    }
    storef(lanes, best);
    for (const float v : lanes)
      if (v > top) top = v, where = first;
  }
  storef(lanes, odd);
  for (const float v : lanes)
    if (v != 0) return -1;
  while (where >= 0 && x[where] != top) ++where;
  return where;
}

// The best `most` columns in order; returns how many there are.
static int32_t best_columns(const float* x, int32_t n, int32_t most, int32_t* column) {
  int32_t count = 0;
  for (int32_t i = 0; i < n; ++i) {
    if (!(x[i] > -INFINITY) || (count == most && !(x[i] > x[column[count - 1]]))) continue;
    int32_t at = count < most ? count++ : count - 1;
    for (; at > 0 && x[column[at - 1]] < x[i]; --at) column[at] = column[at - 1];
    column[at] = i;
  }
  return count;
}

static void run_top(const Step&, const void* p, int64_t m, Worker&) {
  const TopArgs& a = static_cast<const ByRow<TopArgs>*>(p)->a;
  const float* x = a.x.row<float>(m);
  const int64_t n = a.x.cols, best = best_column(x, n);
  int32_t* column = a.column.row<int32_t>(m);
  int32_t count = best < 0 ? 0 : 1;
  if (count) *column = static_cast<int32_t>(best);
  if (count && a.column.cols > 1) count = best_columns(x, a.x.cols, a.column.cols, column);
  for (int32_t k = count; k < a.column.cols; ++k) column[k] = -1;
  if (a.value.valid())
    for (int32_t k = 0; k < a.column.cols; ++k) a.value.row<float>(m)[k] = k < count ? x[column[k]] : 0;
  if (!a.share.valid()) return;
  VF sum = setf(0.0f);
  for (int64_t i = 0; i < n && count; i += W)
    sum = addf(sum, exp_v(subf(load_until(x, i, n), setf(x[best]))));
  float lanes[W], all = 0;
  storef(lanes, sum);
  for (const float v : lanes) all += v;
  *a.share.row<float>(m) = count ? 1 / all : 0;
}

static void run_rope(const Step& step, const void* p, int64_t m, Worker&) {
  const RopeOp& op = *static_cast<const RopeOp*>(p);
  const int32_t row = step.step_row(op.rows, static_cast<int32_t>(m));
  const int32_t* place = op.rope.axis && step.state.place ? step.state.place + 3 * int64_t{row} : nullptr;
  float* c = op.table + m * 2 * op.rope.pairs;
  for (int32_t i = 0; i < op.rope.pairs; ++i) {
    const int32_t at = place ? place[op.rope.axis[i]] : step.state.pos[row];
    const float angle = static_cast<float>(at + op.rope.ahead) * op.rope.freq[i];
    c[i] = static_cast<float>(std::cos(double{angle}));
    c[op.rope.pairs + i] = static_cast<float>(std::sin(double{angle}));
  }
}

// y = rope(rms(x) * norm); y may be x.
static void prepare_head(const PrepOp& op, const Tensor& norm, int64_t m, const float* x, float* y) {
  const int32_t dim = op.a.kv.spec.dim, pairs = op.a.rope.pairs, offset = op.a.rope.offset;
  if (norm.valid()) {
    const float inv = inverse_rms(x, dim, op.a.eps);
    const float* w = norm.row<float>(0);
    for (int32_t i = 0; i < dim; ++i) y[i] = x[i] * inv * w[i];
  } else if (x != y) {
    __builtin_memcpy(y, x, static_cast<size_t>(dim) * 4);
  }
  const float *c = op.table + m * 2 * pairs, *s = c + pairs;
  for (int32_t i = 0; i < pairs; ++i) {
    const float a = y[i], b = y[i + offset];
    y[i] = a * c[i] - b * s[i];
    y[i + offset] = b * c[i] + a * s[i];
  }
}

// Task: a row and a head; query heads first, then KV heads.
static void run_prep(const Step& step, const void* p, int64_t task, Worker& worker) {
  const PrepOp& op = *static_cast<const PrepOp*>(p);
  const KvView& kv = op.a.kv;
  const int32_t dim = kv.spec.dim, heads = op.a.q.cols / dim,
                all = heads + (op.a.k.valid() ? kv.spec.heads : 0);
  const int32_t m = static_cast<int32_t>(task / all), h = static_cast<int32_t>(task % all);
  if (h < heads) {
    float* q = op.a.q.row<float>(m) + h * dim;
    prepare_head(op, op.a.q_norm, m, q, q);
    if (!kv.spec.pairs) rotate(rotation_of(kv.spec.k), q, dim);
    return;
  }
  const int32_t head = h - heads, slot = step.state.slot_of(step.step_row(op.rows, m));
  const SeqView& seq = step.state.seqs[step.seq(op.rows, m)];
  float* y = reinterpret_cast<float*>(worker.scratch);
  prepare_head(op, op.a.k_norm, m, op.a.k.row<float>(m) + head * dim, y);
  float* key = y;
  if (kv.spec.pairs) rotary_part(y, dim, kv.spec.pairs, key = y + dim);
  rotate(rotation_of(kv.spec.k), key, kv.spec.key_dim());
  encode_row(kv.spec.k, key, kv.k_row(seq, slot, head), kv.spec.key_dim());
  const bool edge = kv.spec.protect.any();
  if (edge) encode_row(DType::f16, key, kv.k_edge_row(seq, slot, head), kv.spec.key_dim());
  const float* v = op.a.v.row<float>(m) + head * dim;
  if (op.a.v_norm) {
    const float inv = inverse_rms(v, dim, op.a.eps);
    for (int32_t i = 0; i < dim; ++i) y[i] = v[i] * inv;
  } else {
    __builtin_memcpy(y, v, static_cast<size_t>(dim) * 4);
  }
  rotate(rotation_of(kv.spec.v), y, dim);
  encode_row(kv.spec.v, y, kv.v_row(seq, slot, head), dim);
  if (edge) encode_row(DType::f16, y, kv.v_edge_row(seq, slot, head), dim);
}
