// What the walk over segments (attention.inl) and the arithmetic under it (attention_vectors.inl or
// attention_tiles.inl) both know: which queries a task has, and their states.

// What a task's queries are: rows [m0, m1) of one sequence, heads [h * group, (h + 1) * group).
struct Queries {
  int32_t m0, m1, head, group, dim, d;
  const SeqView* seq;
  // Positions of the queries; the last that they see.
  int32_t first_pos = 0, last_query = 0, last_pos = 0, window = 0;
  int32_t shared_end = 0;  // positions before it stand in the slots of their number for all rows
  int32_t read_end = 0;    // of those, the ones that this task reads
  bool cold = true;        // the segment is the task's first: nothing of it was asked for ahead
  int32_t count() const { return (m1 - m0) * group; }
  int32_t row(int32_t i) const { return m0 + i / group; }
  int32_t low(int32_t pos) const { return window && pos >= window ? pos - window + 1 : 0; }
};
// Keys that an ordinary query of the task sees of [begin, end), counted from base.
struct Seen {
  int32_t from, to;
};
CARAT_SIMD Seen seen_by(const Step& step, const AttentionOp& op, const Queries& t, int32_t i, int32_t base,
                        int32_t begin, int32_t end) {
  const int32_t m = t.row(i), low = t.low(step.pos(op.rows, m)), last = step.last(op.rows, m, op.a);
  return {(low > begin ? low : begin) - base, (last < end ? last + 1 : end) - base};
}

// A task's query i as floats, by parts of `dim` and, over one copy of K = V, `key dim`.
struct QueryParts {
  const float *first, *second;
};
CARAT_SIMD QueryParts query_of(const AttentionOp& op, const Queries& t, int32_t i) {
  const KvSpec& spec = op.a.kv.spec;
  const int32_t m = t.row(i), head = t.head * t.group + i % t.group;
  if (!spec.pairs) return {op.a.q.row<float>(m) + head * t.dim, nullptr};
  const int32_t heads = op.a.q.cols / t.dim;
  const float* q = op.query + (int64_t{m} * heads + head) * (t.dim + spec.key_dim());
  return {q, q + t.dim};
}

// Which copy of a position is read: the second one before `sinks` and from `recent` on.
struct Edge {
  int32_t sinks, recent;
  bool covers(int32_t p) const { return p < sinks || p >= recent; }
};
// Where K and V of one position are.
struct StoredRow {
  DType k_type, v_type;
  const std::byte *k, *v;
};
CARAT_SIMD StoredRow stored_row(const KvView& kv, const Queries& t, int32_t slot, bool edge) {
  if (edge)
    return {DType::f16, DType::f16, kv.k_edge_row(*t.seq, slot, t.head), kv.v_edge_row(*t.seq, slot, t.head)};
  return {kv.spec.k, kv.spec.v, kv.k_row(*t.seq, slot, t.head), kv.v_row(*t.seq, slot, t.head)};
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
