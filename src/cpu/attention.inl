// Attention over stored K and V. A task's queries (some rows of one sequence, all heads of one KV head) read
// each K and V row once. Positions go in blocks of 64 and segments of 256 at absolute multiples; a segment
// starts from an empty state and segments fold in ascending order, so a query's bits depend on its position
// alone.
//
// One copy of K = V (KvSpec::pairs): a value serves as the key's unrotated part, so that a query is dim + key
// dim wide, the part that meets values first.

struct AttentionScratch {  // views of a worker's scratch, by padded dim
  float *q, *k, *v;        // [queries][query width], [64][key dim], [64][dim]
  float* score;            // [queries][64]
  float *part, *whole;  // [queries][2 + dim]: maximum, sum, weighted values; of this segment, of all so far
  float* raw;           // a decoded row
};

CARAT_SIMD int32_t padded_key(const KvSpec& s) { return static_cast<int32_t>(round_up(s.key_dim(), 16)); }
CARAT_SIMD AttentionScratch attention_views(std::byte* p, int32_t group, const KvSpec& spec) {
  const int64_t n = group > kAttentionQueries ? group : kAttentionQueries, d = round_up(spec.dim, 16),
                s = d + 16, kd = padded_key(spec);
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
// A state: [0] maximum, [1] sum, [16 ..) values.
CARAT_SIMD void clear_state(float* s, int32_t d) {
  for (int32_t i = 0; i < d + 16; ++i) s[i] = 0;
  s[0] = -__builtin_inff();
}
CARAT_SIMD float exp_one(float x) {
  alignas(64) float t[W];
  storef(t, exp_v(setf(x)));
  return t[0];
}
// whole = whole followed by part.
static void fold_state(float* whole, const float* part, int32_t d) {
  if (part[1] == 0) return;
  const float top = whole[0] > part[0] ? whole[0] : part[0];
  const float a = whole[1] == 0 ? 0.0f : exp_one(whole[0] - top), b = exp_one(part[0] - top);
  whole[0] = top;
  whole[1] = whole[1] * a + part[1] * b;
  for (int32_t i = 0; i < d; i += W)
    storef(whole + 16 + i, mad(loadf(part + 16 + i), setf(b), mulf(loadf(whole + 16 + i), setf(a))));
}

template <int Q, int N>
CARAT_SIMD void add_products(const float* q, int32_t width, const float* k, int32_t d, F16 (&a)[Q][N]) {
  for (int32_t c = 0; c < d; c += 16) {
    F16 qv[Q];
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i) qv[i] = load16(q + i * width + c);
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      const F16 kv = load16(k + j * d + c);
#pragma GCC unroll 4
      for (int i = 0; i < Q; ++i) a[i][j] = mad16(qv[i], kv, a[i][j]);
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
    for (int k = 0; k < C; ++k) x[k] = load16(v + j * d + c + 16 * k);
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
  constexpr int C = W == 16 ? 4 : 1;  // sums enough to hide what a multiply-add takes
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

// What a task's queries are: rows [m0, m1) of one sequence, heads [h * group, (h + 1) * group).
struct Queries {
  int32_t m0, m1, head, group, dim, d;
  const SeqView* seq;
  int32_t first_pos, last_query, last_pos, window;  // positions of the queries; the last that they see
  int32_t shared_end;  // positions before it stand in the slots of their number for all rows
  int32_t low(int32_t pos) const { return window && pos >= window ? pos - window + 1 : 0; }
};
// Positions and slots of rows [m0, m1): a chain's are shared to the end, a tree's up to its first row.
CARAT_SIMD void find_range(const Step& step, RowSet rows, bool both_ways, Queries& t) {
  t.first_pos = t.last_query = step.pos(rows, t.m0);
  t.last_pos = step.last(rows, t.m1 - 1, both_ways);
  bool chain = true;
  for (int32_t m = t.m0; m < t.m1; ++m) {
    const int32_t pos = step.pos(rows, m);
    t.first_pos = pos < t.first_pos ? pos : t.first_pos;
    t.last_query = pos > t.last_query ? pos : t.last_query;
    t.last_pos = pos > t.last_pos ? pos : t.last_pos;
    chain = chain && step.state.on_chain(step.step_row(rows, m));
  }
  t.shared_end = t.last_pos + 1;
  if (chain) return;
  int32_t root = step.step_row(rows, t.m0);
  while (step.state.parent[root] >= 0) root = step.state.parent[root];
  t.shared_end = step.state.pos[root];
}

// K and V of one slot as key j of the scratch; edge: of the second copy.
static void load_key(const KvView& kv, const Queries& t, int32_t slot, int j, bool edge,
                     const AttentionScratch& z) {
  const int32_t kd = padded_key(kv.spec);
  if (edge) {
    load_kv(DType::f16, kv.k_edge_row(*t.seq, slot, t.head), kv.spec.key_dim(), kd, z.k + j * kd, z.raw);
    load_kv(DType::f16, kv.v_edge_row(*t.seq, slot, t.head), t.dim, t.d, z.v + j * t.d, z.raw);
    return;
  }
  load_kv(kv.spec.k, kv.k_row(*t.seq, slot, t.head), kv.spec.key_dim(), kd, z.k + j * kd, z.raw);
  load_kv(kv.spec.v, kv.v_row(*t.seq, slot, t.head), t.dim, t.d, z.v + j * t.d, z.raw);
}

// Queries [first, last) over the loaded keys [begin, end) of the block at `base`, into z.part. Key j of the
// scratch is position base + j whoever asks, so that lanes do not move with the neighbours.
static void attend_keys(const Step& step, const AttentionOp& op, const Queries& t, int32_t base,
                        int32_t begin, int32_t end, int first, int last, const AttentionScratch& z) {
  const int j0 = begin - base, j1 = end - base, queries = last;
  const Keys keys =
      op.a.kv.spec.pairs ? Keys{z.v, t.d, z.k, padded_key(op.a.kv.spec)} : Keys{z.k, t.d, nullptr, 0};
  const int32_t width = keys.d + keys.d2;
  constexpr int kKeys = 16;  // at a time, so that all queries meet them in the first cache
  for (int j = j0; j < j1; j += kKeys) {
    const int to = j + kKeys < j1 ? j + kKeys : j1;
    int i = first;
    for (; i + kFloatRows <= queries; i += kFloatRows)
      score_keys<kFloatRows>(z.q + i * width, keys, j, to, z.score + i * kKvBlock);
    for (; i < queries; ++i) score_keys<1>(z.q + i * width, keys, j, to, z.score + i * kKvBlock);
  }
  for (int i = first; i < queries; ++i) {
    const int32_t m = t.m0 + i / t.group, low = t.low(step.pos(op.rows, m)),
                  seen = step.last(op.rows, m, op.a.both_ways);
    const int lo = low > begin ? low - base : j0, hi = seen < end ? seen + 1 - base : j1;
    soften(op.a, z.score + i * kKvBlock, lo, hi, z.part + i * (t.d + 16), t.d);
  }
  add_values(z.score, z.v, t.d, j0, j1, z.part, first, queries);
}

// The first position behind the sinks that a row at `pos` reads of the second copy.
CARAT_SIMD int32_t first_recent(const KvProtect& p, int32_t pos) {
  if (p.recent == 0) return INT32_MAX;
  return pos - p.recent + 1 > p.sinks ? pos - p.recent + 1 : p.sinks;
}

// Positions [begin, end) of the block at `base` into z.part. Behind t.shared_end every row of a tree has keys
// of its own: those of its ancestors. Where protection ends at another position for every row, they change
// from row to row.
static void attend_block(const Step& step, const AttentionOp& op, const Queries& t, int32_t base,
                         int32_t begin, int32_t end, const AttentionScratch& z) {
  const KvProtect& protect = op.a.kv.spec.protect;
  const int32_t shared = end < t.shared_end ? end : t.shared_end > begin ? t.shared_end : begin;
  int32_t edge = first_recent(protect, t.first_pos);
  for (int32_t p = begin; p < shared; ++p)
    load_key(op.a.kv, t, p, p - base, p < protect.sinks || p >= edge, z);
  const bool alike = edge >= shared || first_recent(protect, t.last_query) <= begin;
  if (shared == end && alike)
    return attend_keys(step, op, t, base, begin, end, 0, (t.m1 - t.m0) * t.group, z);
  for (int32_t m = t.m0; m < t.m1; ++m) {
    const int32_t row = step.step_row(op.rows, m), pos = step.state.pos[row], low = t.low(pos),
                  seen = step.last(op.rows, m, op.a.both_ways);
    const int32_t from = low > begin ? low : begin, to = seen < end ? seen + 1 : end;
    if (from >= to) continue;
    // Those that this row reads of the other copy than the one before.
    const int32_t other = first_recent(protect, pos), low_edge = other < edge ? other : edge,
                  high_edge = other < edge ? edge : other;
    for (int32_t p = low_edge > begin ? low_edge : begin; p < high_edge && p < shared; ++p)
      load_key(op.a.kv, t, p, p - base, p >= other, z);
    edge = other;
    for (int32_t p = from > shared ? from : shared; p < to; ++p)
      load_key(op.a.kv, t, step.state.slot_seen(row, p), p - base, protect.covers(pos, p), z);
    const int first = (m - t.m0) * t.group;
    attend_keys(step, op, t, base, from, to, first, first + t.group, z);
  }
}

// Segment `seg` into z.part, from empty states.
static void attend_segment(const Step& step, const AttentionOp& op, const Queries& t, int32_t seg,
                           const AttentionScratch& z) {
  for (int i = 0; i < (t.m1 - t.m0) * t.group; ++i) clear_state(z.part + i * (t.d + 16), t.d);
  const int32_t low = t.low(t.first_pos);
  for (int32_t b = seg * kSegment; b < (seg + 1) * kSegment && b <= t.last_pos; b += kKvBlock) {
    const int32_t begin = b > low ? b : low,
                  end = b + kKvBlock < t.last_pos + 1 ? b + kKvBlock : t.last_pos + 1;
    if (begin < end) attend_block(step, op, t, b, begin, end, z);
  }
}

CARAT_SIMD void write_head(const AttentionArgs& a, int32_t m, int32_t head, const float* state, int32_t dim) {
  float* y = a.y.row<float>(m) + head * dim;
  for (int32_t i = 0; i < dim; ++i) y[i] = state[16 + i] / state[1];
  rotate_back(rotation_of(a.kv.spec.v), y, dim);
}

// Task: a row and a query head, before attention over one copy of K = V.
static void run_split(const Step&, const void* p, int64_t task, Worker&) {
  const AttentionOp& op = *static_cast<const AttentionOp*>(p);
  const KvSpec& spec = op.a.kv.spec;
  const int64_t heads = op.a.q.cols / spec.dim;
  float* y = op.query + task * (spec.dim + spec.key_dim());
  split_query(spec.k, spec.v, op.a.kv.gain, op.a.q.row<float>(task / heads) + task % heads * spec.dim,
              spec.dim, spec.pairs, y, y + spec.dim);
}

// The task's queries, padded with zeros.
static void load_queries(const AttentionOp& op, const Queries& t, float* to) {
  const KvSpec& spec = op.a.kv.spec;
  const int32_t heads = op.a.q.cols / t.dim;
  const auto put = [&](const float* x, int32_t n, int32_t padded) {
    for (int32_t c = 0; c < padded; ++c) *to++ = c < n ? x[c] : 0.0f;
  };
  for (int i = 0; i < (t.m1 - t.m0) * t.group; ++i) {
    const int32_t m = t.m0 + i / t.group, head = t.head * t.group + i % t.group;
    if (spec.pairs) {
      const float* q = op.query + (int64_t{m} * heads + head) * (t.dim + spec.key_dim());
      put(q, t.dim, t.d);
      put(q + t.dim, spec.key_dim(), padded_key(spec));
    } else {
      put(op.a.q.row<float>(m) + head * t.dim, t.dim, t.d);
    }
  }
}

// Task: rows that share K and V (slow), KV head, and when split, segment.
static void run_attention(const Step& step, const void* p, int64_t task, Worker& worker) {
  const AttentionOp& op = *static_cast<const AttentionOp*>(p);
  const KvSpec& spec = op.a.kv.spec;
  const int32_t dim = spec.dim, heads = op.a.q.cols / dim, group = heads / spec.heads, splits = op.splits;
  const AttentionScratch z = attention_views(worker.scratch, group, spec);
  const int32_t seg_index = splits ? static_cast<int32_t>(task % splits) : 0;
  if (splits) task /= splits;
  const int32_t per = rows_a_group(group), count = step.count(op.rows),
                head = static_cast<int32_t>(task % spec.heads);
  const int32_t begin = static_cast<int32_t>(task / spec.heads) * per,
                end = begin + per < count ? begin + per : count;
  for (int32_t m0 = begin, m1; m0 < end; m0 = m1) {
    const int32_t seq = step.seq(op.rows, m0);
    for (m1 = m0 + 1; m1 < end && step.seq(op.rows, m1) == seq;) ++m1;
    Queries t{m0, m1, head, group,       dim, static_cast<int32_t>(round_up(dim, 16)), step.state.seqs + seq,
              0,  0,  0,    spec.window, 0};
    find_range(step, op.rows, op.a.both_ways, t);
    const int queries = (m1 - m0) * group, s = t.d + 16;
    load_queries(op, t, z.q);
    const int32_t seg0 = t.low(t.first_pos) / kSegment, seg1 = t.last_pos / kSegment;
    if (splits) {
      if (seg0 + seg_index > seg1) continue;
      attend_segment(step, op, t, seg0 + seg_index, z);
      for (int i = 0; i < queries; ++i) {
        // A row keeps its own count of segments: those below its window are empty and must not be written
        // over others.
        const int32_t m = m0 + i / group, own = t.low(step.pos(op.rows, m)) / kSegment,
                      at = seg0 + seg_index - own;
        if (at < 0 || at >= splits) continue;
        float* out = op.partial + ((int64_t{m} * heads + head * group + i % group) * splits + at) * s;
        __builtin_memcpy(out, z.part + i * s, static_cast<size_t>(s) * 4);
      }
      continue;
    }
    for (int i = 0; i < queries; ++i) clear_state(z.whole + i * s, t.d);
    for (int32_t seg = seg0; seg <= seg1; ++seg) {
      attend_segment(step, op, t, seg, z);
      for (int i = 0; i < queries; ++i) fold_state(z.whole + i * s, z.part + i * s, t.d);
    }
    for (int i = 0; i < queries; ++i)
      write_head(op.a, m0 + i / group, head * group + i % group, z.whole + i * s, dim);
  }
}

// Task: a row and a query head, after the segments of a split run.
static void run_merge(const Step& step, const void* p, int64_t task, Worker& worker) {
  const AttentionOp& op = *static_cast<const AttentionOp*>(p);
  const KvSpec& spec = op.a.kv.spec;
  const int32_t dim = spec.dim, heads = op.a.q.cols / dim, splits = op.splits;
  const int32_t m = static_cast<int32_t>(task / heads), head = static_cast<int32_t>(task % heads);
  const int32_t d = static_cast<int32_t>(round_up(dim, 16)), pos = step.pos(op.rows, m);
  const AttentionScratch z = attention_views(worker.scratch, heads / spec.heads, spec);
  const int32_t low = spec.window && pos >= spec.window ? pos - spec.window + 1 : 0;
  clear_state(z.whole, d);
  const int32_t last = step.last(op.rows, m, op.a.both_ways);
  for (int32_t i = 0; i <= last / kSegment - low / kSegment; ++i)
    fold_state(z.whole, op.partial + ((int64_t{m} * heads + head) * splits + i) * (d + 16), d);
  write_head(op.a, m, head, z.whole, dim);
}
