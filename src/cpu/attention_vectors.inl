// Attention in f32 vectors, 64 positions at a time: K and V become floats in the worker's scratch, and all of
// a task's queries meet them there.
//
// One copy of K = V (KvSpec::pairs): a value serves as the key's unrotated part, so that a query is dim + key
// dim wide, the part that meets values first.

constexpr int32_t kHeadAlign = 16;  // columns of a state are padded to a multiple
constexpr int32_t kKeys = kKvBlock, kQueries = kAttentionQueries;

struct AttentionScratch {  // views of a worker's scratch, by padded dim
  float *q, *k, *v;        // [queries][query width], [64][key dim], [64][dim]
  float* score;            // [queries][64]
  float *part, *whole;  // [queries][2 + dim]: maximum, sum, weighted values; of this segment, of all so far
  float* raw;           // a decoded row
};

CARAT_SIMD int32_t padded_key(const KvSpec& s) { return static_cast<int32_t>(round_up(s.key_dim(), 16)); }
static int64_t attention_scratch(int32_t queries, const KvSpec& spec) {
  const int64_t n = queries, d = round_up(spec.dim, 16), kd = padded_key(spec), dq = spec.pairs ? d + kd : d;
  return 4 * (n * dq + kKvBlock * (kd + d) + n * kKvBlock + 2 * n * (d + 16) + d + 64);
}
CARAT_SIMD AttentionScratch attention_views(std::byte* p, int64_t n, const KvSpec& spec) {
  const int64_t d = round_up(spec.dim, 16), s = d + 16, kd = padded_key(spec);
  AttentionScratch z;
  float* f = reinterpret_cast<float*>(p);
  z.q = f, f += n * (spec.pairs ? d + kd : d);
  z.k = f, f += kKvBlock * kd;
  z.v = f, f += kKvBlock * d;
  z.score = f, f += n * kKvBlock;
  z.part = f, f += n * s;
  z.whole = f, f += n * s;
  z.raw = f;
  return z;
}
template <int Q, int N>
CARAT_SIMD void add_products(const float* q, int32_t width, const float* k, int32_t d, F16 (&a)[Q][N]) {
  for (int32_t c = 0; c < d; c += 16)
#pragma GCC unroll 4
    for (int l = 0; l < 16 / W; ++l) {
      VF qv[Q];
#pragma GCC unroll 4
      for (int i = 0; i < Q; ++i) qv[i] = loadf(q + i * width + c + l * W);
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) {
        VF kv = loadf(k + j * d + c + l * W);
        CARAT_NOW(kv);
#pragma GCC unroll 4
        for (int i = 0; i < Q; ++i) a[i][j].v[l] = mad(qv[i], kv, a[i][j].v[l]);
      }
    }
}
// What queries meet: rows of d, and behind them, of other rows, rows of d2 (0: none).
struct Keys {
  const float* k;
  int32_t d;
  const float* k2;
  int32_t d2;
};
template <int Q, int N>
CARAT_SIMD void score_pass(const float* q, const Keys& k, int j, float* score) {
  const int32_t width = k.d + k.d2;
  F16 a[Q][N];
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) a[i][n] = zero16();
  add_products<Q, N>(q, width, k.k + j * k.d, k.d, a);
  if (k.d2) add_products<Q, N>(q + k.d, width, k.k2 + j * k.d2, k.d2, a);
  if constexpr (W == 16 && Q == 4 && N == 4) {
    sums16(a, score + j, kKvBlock);
  } else {
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i)
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) score[i * kKvBlock + j + n] = sum16(a[i][n]);
  }
}
template <int Q>
static void score_keys(const float* q, const Keys& k, int j, int n, float* score) {
  for (; j + kFloatOutputs <= n; j += kFloatOutputs) score_pass<Q, kFloatOutputs>(q, k, j, score);
  for (; j < n; ++j) score_pass<Q, 1>(q, k, j, score);
}

// Adds p[i][j] v[j], first <= j < n, to the values of Q states, positions ascending; columns [c, c + 16 C).
template <int Q, int C>
CARAT_SIMD void add_columns(const float* p, const float* v, int32_t d, int32_t c, int first, int n,
                            float* const* state) {
  F16 a[Q][C];
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i)
#pragma GCC unroll 4
    for (int k = 0; k < C; ++k) a[i][k] = load16(state[i] + 16 + c + 16 * k);
  for (int j = first; j < n; ++j) {
    F16 x[C];
#pragma GCC unroll 4
    for (int k = 0; k < C; ++k) {
      x[k] = load16(v + j * d + c + 16 * k);
      for (VF& lane : x[k].v) CARAT_NOW(lane);
    }
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i) {
      const VF w = setf(p[i * kKvBlock + j]);
#pragma GCC unroll 4
      for (int k = 0; k < C; ++k)
        for (int l = 0; l < 16 / W; ++l) a[i][k].v[l] = mad(w, x[k].v[l], a[i][k].v[l]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i)
#pragma GCC unroll 4
    for (int k = 0; k < C; ++k) store16(state[i] + 16 + c + 16 * k, a[i][k]);
}
template <int C>
CARAT_SIMD void add_columns_of_all(const float* p, const float* v, int32_t d, int32_t c, int first, int n,
                                   float* part, int from, int queries) {
  const int32_t s = d + 16;
  int i = from;
  for (; i + kFloatRows <= queries; i += kFloatRows) {
    float* state[kFloatRows];
    for (int k = 0; k < kFloatRows; ++k) state[k] = part + (i + k) * s;
    add_columns<kFloatRows, C>(p + i * kKvBlock, v, d, c, first, n, state);
  }
  for (; i < queries; ++i) {
    float* state[1] = {part + i * s};
    add_columns<1, C>(p + i * kKvBlock, v, d, c, first, n, state);
  }
}
// Columns are taken some at a time, so that all queries meet them in the first cache.
static void add_values(const float* p, const float* v, int32_t d, int first, int n, float* part, int from,
                       int queries) {
  constexpr int C = W == 16 ? 4 : W == 8 ? 2 : 1;  // sums enough to hide what a multiply-add takes
  int32_t c = 0;
  for (; c + 16 * C <= d; c += 16 * C) add_columns_of_all<C>(p, v, d, c, first, n, part, from, queries);
  for (; c < d; c += 16) add_columns_of_all<1>(p, v, d, c, first, n, part, from, queries);
}

struct Places {  // 0, 1, 2 ...
  alignas(64) float v[kKvBlock];
  constexpr Places() : v() {
    for (int i = 0; i < kKvBlock; ++i) v[i] = static_cast<float>(i);
  }
};
constexpr Places kPlaces;
// Raw scores of a block to probabilities against the state's new maximum; [lo, hi) are the keys this query
// sees. What stands beside them may be anything.
static void soften(const AttentionArgs& a, float* score, int lo, int hi, float* state, int32_t d) {
  if (lo >= hi) {
    for (int j = 0; j < kKvBlock; ++j) score[j] = 0;
    return;
  }
  const VF none = setf(-__builtin_inff()), from = setf(static_cast<float>(lo)),
           to = setf(static_cast<float>(hi));
  VF most = none;
  for (int j = 0; j < kKvBlock; j += W) {
    VF s = mulf(loadf(score + j), setf(a.scale));
    if (a.softcap > 0) s = mulf(setf(a.softcap), tanh_v(divf(s, setf(a.softcap))));
    const VF place = loadf(kPlaces.v + j);
    s = select_lt(place, from, none, select_lt(place, to, s, none));
    most = maxf(s, most);  // in this order a NaN is passed over
    storef(score + j, s);
  }
  alignas(64) float lanes[W];
  storef(lanes, most);
  float top = state[0];
  for (const float v : lanes) top = v > top ? v : top;
  const float keep = state[1] == 0 ? 0.0f : exp_one(state[0] - top);
  F16 sum = zero16();
  for (int j = 0; j < kKvBlock; j += 16)
    for (int i = 0; i < 16 / W; ++i) {
      const VF e = exp_v(subf(loadf(score + j + i * W), setf(top)));
      storef(score + j + i * W, e);
      sum.v[i] = addf(sum.v[i], e);
    }
  state[0] = top;
  state[1] = state[1] * keep + sum16(sum);
  for (int32_t i = 0; i < d; i += W) storef(state + 16 + i, mulf(loadf(state + 16 + i), setf(keep)));
}

// K and V of positions [from, to), as a row of a tree sees them (row < 0: all alike), into keys p - base.
static void load_keys(const Step& step, const AttentionOp& op, const Queries& t, int32_t base, int32_t from,
                      int32_t to, int32_t row, Edge edge, const AttentionScratch& z) {
  const int32_t kd = padded_key(op.a.kv.spec);
  for (int32_t p = from; p < to; ++p) {
    const StoredRow r = stored_row(op.a.kv, t, row < 0 ? p : step.state.slot_seen(row, p), edge.covers(p));
    load_kv(r.k_type, r.k, op.a.kv.spec.key_dim(), kd, z.k + (p - base) * kd, z.raw);
    load_kv(r.v_type, r.v, t.dim, t.d, z.v + (p - base) * t.d, z.raw);
  }
}
// Before a segment's blocks.
CARAT_SIMD void begin_segment(const Queries& t, const AttentionScratch& z) {
  for (int i = 0; i < t.count(); ++i) clear_state(z.part + i * (t.d + 16), t.d);
}

// Queries [first, last) over the loaded keys [begin, end) of the block at `base`, into z.part. Key j of the
// scratch is position base + j whoever asks, so that lanes do not move with the neighbours.
static void attend_keys(const Step& step, const AttentionOp& op, const Queries& t, int32_t base,
                        int32_t begin, int32_t end, int first, int last, const AttentionScratch& z) {
  const int j0 = begin - base, j1 = end - base, queries = last;
  const Keys keys =
      op.a.kv.spec.pairs ? Keys{z.v, t.d, z.k, padded_key(op.a.kv.spec)} : Keys{z.k, t.d, nullptr, 0};
  const int32_t width = keys.d + keys.d2;
  constexpr int kNear = 16;  // at a time, so that all queries meet them in the first cache
  for (int j = j0; j < j1; j += kNear) {
    const int to = j + kNear < j1 ? j + kNear : j1;
    int i = first;
    for (; i + kFloatRows <= queries; i += kFloatRows)
      score_keys<kFloatRows>(z.q + i * width, keys, j, to, z.score + i * kKvBlock);
    for (; i < queries; ++i) score_keys<1>(z.q + i * width, keys, j, to, z.score + i * kKvBlock);
  }
  for (int i = first; i < queries; ++i) {
    const Seen seen = seen_by(step, op, t, i, base, begin, end);
    soften(op.a, z.score + i * kKvBlock, seen.from, seen.to, z.part + i * (t.d + 16), t.d);
  }
  add_values(z.score, z.v, t.d, j0, j1, z.part, first, queries);
}

// The task's queries, padded with zeros.
static void load_queries(const AttentionOp& op, const Queries& t, const AttentionScratch& z) {
  const KvSpec& spec = op.a.kv.spec;
  float* to = z.q;
  const auto put = [&](const float* x, int32_t n, int32_t padded) {
    for (int32_t c = 0; c < padded; ++c) *to++ = c < n ? x[c] : 0.0f;
  };
  for (int i = 0; i < t.count(); ++i) {
    const QueryParts q = query_of(op, t, i);
    put(q.first, t.dim, t.d);
    if (q.second) put(q.second, spec.key_dim(), padded_key(spec));
  }
}
