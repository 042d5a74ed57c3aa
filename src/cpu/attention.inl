// Attention over stored K and V. A task's queries (some rows of one sequence, all heads of one KV head) read
// each K and V row once. Positions go in segments of 256 at absolute multiples, and within them in blocks of
// kKeys; a segment starts from an empty state and segments fold in ascending order, so a query's bits depend
// on its position alone. The arithmetic of a block is attention_vectors.inl's or attention_tiles.inl's.

// Positions and slots of rows [m0, m1): a chain's are shared to the end, a tree's up to its first row.
CARAT_SIMD void find_range(const Step& step, RowSet rows, const AttentionArgs& a, Queries& t) {
  t.first_pos = t.last_query = step.pos(rows, t.m0);
  t.last_pos = step.last(rows, t.m1 - 1, a);
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
  Edge edge{protect.sinks, first_recent(protect, t.first_pos)};
  load_keys(step, op, t, base, begin, shared, -1, edge, z);
  const bool alike = edge.recent >= shared || first_recent(protect, t.last_query) <= begin;
  if (shared == end && alike) return attend_keys(step, op, t, base, begin, end, 0, t.count(), z);
  for (int32_t m = t.m0; m < t.m1; ++m) {
    const int32_t row = step.step_row(op.rows, m), pos = step.state.pos[row], low = t.low(pos),
                  seen = step.last(op.rows, m, op.a);
    const int32_t from = low > begin ? low : begin, to = seen < end ? seen + 1 : end;
    if (from >= to) continue;
    // Those that this row reads of the other copy than the one before.
    const int32_t other = first_recent(protect, pos), first_other = other < edge.recent ? other : edge.recent,
                  last_other = other < edge.recent ? edge.recent : other;
    edge.recent = other;
    load_keys(step, op, t, base, first_other > begin ? first_other : begin,
              last_other < shared ? last_other : shared, -1, edge, z);
    load_keys(step, op, t, base, from > shared ? from : shared, to, row, edge, z);
    const int first = (m - t.m0) * t.group;
    attend_keys(step, op, t, base, from, to, first, first + t.group, z);
  }
}

// Segment `seg` into z.part, from empty states.
static void attend_segment(const Step& step, const AttentionOp& op, const Queries& t, int32_t seg,
                           const AttentionScratch& z) {
  begin_segment(t, z);
  const int32_t low = t.low(t.first_pos);
  for (int32_t b = seg * kSegment; b < (seg + 1) * kSegment && b <= t.last_pos; b += kKeys) {
    const int32_t begin = b > low ? b : low, end = b + kKeys < t.last_pos + 1 ? b + kKeys : t.last_pos + 1;
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

// The states of segment `seg` to where run_merge looks for them. A row keeps its own count of segments: those
// below its window are empty and must not be written over others.
static void keep_segment(const Step& step, const AttentionOp& op, const Queries& t, int32_t seg,
                         const AttentionScratch& z) {
  const int32_t heads = op.a.q.cols / t.dim, s = t.d + 16;
  for (int i = 0; i < t.count(); ++i) {
    const int32_t m = t.row(i), at = seg - t.low(step.pos(op.rows, m)) / kSegment;
    if (at < 0 || at >= op.splits) continue;
    const int64_t query = int64_t{m} * heads + t.head * t.group + i % t.group;
    __builtin_memcpy(op.partial + (query * op.splits + at) * s, z.part + i * s, static_cast<size_t>(s) * 4);
  }
}
// Segments [begin, end), those that the task has: each kept, or all folded and written.
static void walk_segments(const Step& step, const AttentionOp& op, Queries& t, int32_t begin, int32_t end,
                          const AttentionScratch& z) {
  const int32_t s = t.d + 16;
  t.read_end = end * kSegment < t.shared_end ? end * kSegment : t.shared_end;
  for (int i = 0; i < t.count() && !op.splits; ++i) clear_state(z.whole + i * s, t.d);
  for (int32_t seg = begin; seg < end; ++seg) {
    t.cold = seg == begin;
    attend_segment(step, op, t, seg, z);
    if (op.splits) {
      keep_segment(step, op, t, seg, z);
      continue;
    }
    for (int i = 0; i < t.count(); ++i) fold_state(z.whole + i * s, z.part + i * s, t.d);
  }
  for (int i = 0; i < t.count() && !op.splits; ++i)
    write_head(op.a, t.row(i), t.head * t.group + i % t.group, z.whole + i * s, t.dim);
}

// Task: rows that share K and V (slow), KV head, and when split, run of segments.
static void run_attention(const Step& step, const void* p, int64_t task, Worker& worker) {
  const AttentionOp& op = *static_cast<const AttentionOp*>(p);
  const KvSpec& spec = op.a.kv.spec;
  const int32_t dim = spec.dim, group = op.a.q.cols / dim / spec.heads;
  const AttentionScratch z = attention_views(worker.scratch, op.task_rows * group, spec);
  const int32_t run = static_cast<int32_t>(task % op.runs());
  task /= op.runs();
  const int32_t count = step.count(op.rows), head = static_cast<int32_t>(task % spec.heads);
  const int32_t begin = static_cast<int32_t>(task / spec.heads) * op.task_rows,
                end = begin + op.task_rows < count ? begin + op.task_rows : count;
  for (int32_t m0 = begin, m1; m0 < end; m0 = m1) {
    const int32_t seq = step.seq(op.rows, m0);
    for (m1 = m0 + 1; m1 < end && step.seq(op.rows, m1) == seq;) ++m1;
    Queries t{
        m0, m1, head, group, dim, static_cast<int32_t>(round_up(dim, kHeadAlign)), step.state.seqs + seq};
    t.window = spec.window;
    find_range(step, op.rows, op.a, t);
    const int32_t first = t.low(t.first_pos) / kSegment + run * op.run, after = t.last_pos / kSegment + 1,
                  last = op.splits && first + op.run < after ? first + op.run : after;
    if (first >= last) continue;
    load_queries(op, t, z);
    walk_segments(step, op, t, first, last, z);
  }
}

// Task: a row and a query head, after the segments of a split run.
static void run_merge(const Step& step, const void* p, int64_t task, Worker& worker) {
  const AttentionOp& op = *static_cast<const AttentionOp*>(p);
  const KvSpec& spec = op.a.kv.spec;
  const int32_t dim = spec.dim, heads = op.a.q.cols / dim, splits = op.splits;
  const int32_t m = static_cast<int32_t>(task / heads), head = static_cast<int32_t>(task % heads);
  const int32_t d = static_cast<int32_t>(round_up(dim, kHeadAlign)), pos = step.pos(op.rows, m);
  float* whole = reinterpret_cast<float*>(worker.scratch);
  const int32_t low = spec.window && pos >= spec.window ? pos - spec.window + 1 : 0;
  clear_state(whole, d);
  const int32_t last = step.last(op.rows, m, op.a);
  for (int32_t i = 0; i <= last / kSegment - low / kSegment; ++i)
    fold_state(whole, op.partial + ((int64_t{m} * heads + head) * splits + i) * (d + 16), d);
  write_head(op.a, m, head, whole, dim);
}

static AttentionKernels attention_kernels(const KvSpec&) {
  return {run_attention, run_merge, kQueries, attention_scratch};
}
