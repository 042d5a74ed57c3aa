#include "cpu/compile.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "core/exchange.h"
#include "core/kv_codec.h"
#include "core/operands.h"
#include "cpu/pack.h"

namespace carat::cpu {
namespace {

bool rounds(const Tensor& w) { return info(w.type).family == Family::block; }
int64_t blocks_of(int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows; }
int64_t runs_of(int64_t outputs, int threads) {
  const int64_t per = strips_a_task(outputs, threads);
  return (strips(outputs) + per - 1) / per;
}

// ---- how many tasks a phase has; the other half of each agreement is in the .inl files
// ----------------------------------

template <class T>
const T& as(const void* op) {
  return *static_cast<const T*>(op);
}
template <class T>
int64_t count_rows(const Step& s, const void* op) {
  return s.count(as<T>(op).rows);
}
int64_t count_fold(const Step& s, const void* op) {
  const FoldOp& f = *static_cast<const FoldOp*>(op);
  return s.count(f.rows) * ((f.a.y.cols + kFoldColumns - 1) / kFoldColumns);
}
int64_t count_quantize(const Step& s, const void* op) {
  const QuantOp& q = as<QuantOp>(op);
  const int64_t tiles = q.slots ? int64_t{q.slots->n_items} * (kBlockRows / kTileRows)
                                : (s.count(q.rows) + kTileRows - 1) / kTileRows;
  return tiles * ((q.x.cols + 1023) / 1024);
}
int64_t count_dense(const Step& s, const void* op) {
  return blocks_of(s.count(as<DenseOp>(op).rows)) * runs_of(as<DenseOp>(op).a.w.rows, s.threads);
}
int64_t count_conv(const Step& s, const void* op) { return s.n_runs * conv_blocks(as<ConvOp>(op).a.y.cols); }
int64_t count_delta(const Step& s, const void* op) {
  const RecurrentSpec& spec = as<DeltaOp>(op).a.state.spec;
  return int64_t{s.n_runs} * spec.v_heads * (spec.v_dim / delta_columns(spec.v_dim));
}
int64_t count_one(const Step&, const void*) { return 1; }
// The other workers wait, as in every phase. A failure is told by the part that failed.
void run_share(const Step& s, const void* op, int64_t, Worker&) {
  const auto& share = as<ShareOp>(op);
  share.a.exchange->share(share.a, s.count(share.rows));
}
void run_round_to_e4m3(const Step&, const void* p, int64_t m, Worker&) {
  const auto& op = as<E4m3Op>(p);
  for (int64_t r = m * op.used; r < (m + 1) * op.used; ++r)
    round_to_e4m3(op.weights, op.x.row<float>(r), op.y.row<float>(r), op.x.cols);
}
int64_t count_gate_up(const Step& s, const void* op) {
  return as<ExpertsOp>(op).slots->n_items * runs_of(as<ExpertsOp>(op).a.gate.rows, s.threads);
}
int64_t count_down(const Step& s, const void* op) {
  return as<ExpertsOp>(op).slots->n_items * runs_of(as<ExpertsOp>(op).a.down.rows, s.threads);
}
int64_t count_slices(const Step&, const void* op) { return as<SliceOp>(op).slots->n_items; }
int64_t count_prep(const Step& s, const void* op) {
  const QkvPrepArgs& a = as<PrepOp>(op).a;
  return int64_t{s.count(as<PrepOp>(op).rows)} *
         (a.q.cols / a.kv.spec.dim + (a.k.valid() ? a.kv.spec.heads : 0));
}
int64_t count_split(const Step& s, const void* p) {
  const AttentionOp& op = as<AttentionOp>(p);
  return int64_t{s.count(op.rows)} * (op.a.q.cols / op.a.kv.spec.dim);
}
int32_t group_of(const AttentionArgs& a) { return a.q.cols / a.kv.spec.dim / a.kv.spec.heads; }
int64_t groups_of(const Step& s, const AttentionOp& op) {
  return (s.count(op.rows) + op.task_rows - 1) / op.task_rows;
}
int64_t count_attention(const Step& s, const void* p) {
  const AttentionOp& op = as<AttentionOp>(p);
  return groups_of(s, op) * op.a.kv.spec.heads * op.runs();
}
int64_t count_merge(const Step& s, const void* p) {
  const AttentionOp& op = as<AttentionOp>(p);
  return op.splits ? int64_t{s.count(op.rows)} * (op.a.q.cols / op.a.kv.spec.dim) : 0;
}

// ---- the builder
// ---------------------------------------------------------------------------------------------------------

class Builder {
 public:
  Builder(const Program& program, const Kernels& k, int threads, Alloc alloc)
      : program_(program), k_(k), threads_(threads), alloc_(alloc), exe_(std::make_unique<CpuExecutable>()) {}

  std::unique_ptr<CpuExecutable> build() {
    for (const OpRecord& op : program_.ops()) {
      check_op(op);
      measure(op);
    }
    shared_ = rounded(shared_rows_, shared_cols_);
    if (e4m3_size_) e4m3_ = bytes<float>(e4m3_size_);
    for (index_ = 0; index_ < static_cast<int32_t>(program_.ops().size()); ++index_) {
      const OpRecord& op = program_.ops()[index_];
      switch (op.op) {
#define X(name) \
  case Op::name: add(op.as<name##Args>(), op.rows); break;
        CARAT_OPS(X)
#undef X
      }
    }
    CARAT_CHECK(exe_->phases.size() < kMaxPhases, "{} phases", exe_->phases.size());
    exe_->done = std::make_unique<CpuExecutable::Done[]>(exe_->phases.size());
    link_dense();
    for (int i = 0; i < threads_; ++i) exe_->workers.push_back({bytes<std::byte>(scratch_)});
    return std::move(exe_);
  }

 private:
  template <class T>
  T* bytes(int64_t n) {
    exe_->memory.push_back(alloc_(static_cast<size_t>(n) * sizeof(T)));
    return reinterpret_cast<T*>(exe_->memory.back().data());
  }
  Rounded rounded(int64_t rows, int64_t cols) {
    if (rows == 0) return {};
    const int64_t b = (cols + 255) / 256, n = rows * b;
    return {bytes<int8_t>(n * 256), bytes<float>(n),        bytes<int32_t>(n * 8),   bytes<int32_t>(n * 16),
            bytes<uint32_t>(n * 4), bytes<uint32_t>(n * 8), bytes<uint32_t>(n * 16), static_cast<int32_t>(b)};
  }
  void phase(TaskCount count, TaskRun run, const void* op) {
    exe_->phases.push_back({count, run, op, index_, 0});
  }

  // Tells every phase which product with dense weights is next, if no other weights are read before.
  void link_dense() {
    size_t next = 0;
    for (size_t i = exe_->phases.size(); i-- > 0;) {
      Phase& p = exe_->phases[i];
      p.next_dense = next;
      if (p.run == k_.gate_up || p.run == k_.down || p.run == k_.slices) next = 0;
      if (p.run == k_.dense) next = static_cast<const DenseOp*>(p.op)->a.w.packing ? i : 0;
    }
  }

  void room(const Tensor& y, RowSet rows) {
    int32_t& max = rows == RowSet::all ? exe_->max_rows : exe_->max_out;
    const int32_t here = y.rows / rows_in(rows, 1, 1);
    max = max == 0 ? here : std::min(max, here);
  }
  void need(const Tensor& x) {
    shared_rows_ = std::max<int64_t>(shared_rows_, x.rows);
    shared_cols_ = std::max<int64_t>(shared_cols_, x.cols);
  }
  void need_e4m3(const Tensor& x, const Tensor& w) {
    if (rounds_to_e4m3(w.type)) e4m3_size_ = std::max(e4m3_size_, int64_t{x.rows} * x.cols);
  }
  void scratch(int64_t n) { scratch_ = std::max(scratch_, n); }

  void packing(const char* name, const Tensor& w) {
    if (w.packing != 0 && (w.packing != kPackedStrips || !pack_shape(w.type).lines))
      throw Error(fmt::format("{} has the private layout {} of another device", name, w.packing),
                  "place weights with the backend that runs them");
  }

  // Sizes of what operations share.
  void measure(const OpRecord& op) {
    switch (op.op) {
      case Op::Refine: return room(op.as<RefineArgs>().x, op.rows);
      case Op::Matmul: {
        const auto& a = op.as<MatmulArgs>();
        packing("w", a.w);
        if (rounds(a.w)) need(a.x);
        need_e4m3(a.x, a.w);
        scratch(kDenseScratch);
        return room(a.y, op.rows);
      }
      case Op::GateUp: {
        const auto& a = op.as<GateUpArgs>();
        packing("gate", a.gate), packing("up", a.up);
        if (rounds(a.gate) || rounds(a.up)) need(a.x);
        need_e4m3(a.x, a.gate);
        scratch(kDenseScratch);
        return room(a.y, op.rows);
      }
      case Op::Experts: {
        const auto& a = op.as<ExpertsArgs>();
        packing("gate", a.gate), packing("up", a.up), packing("down", a.down);
        need_e4m3(a.x, a.gate);
        scratch(kDenseScratch);
        return room(a.y, op.rows);
      }
      case Op::SliceMatmul: {
        const auto& a = op.as<SliceMatmulArgs>();
        packing("w", a.w);
        need_e4m3(a.x, a.w);
        scratch(kDenseScratch);
        return room(a.y, op.rows);
      }
      case Op::QkvPrep: {
        const auto& a = op.as<QkvPrepArgs>();
        scratch(round_up(2 * a.kv.spec.dim, 16) * 4);
        return room(a.q, op.rows);
      }
      case Op::Conv: {
        const auto& a = op.as<ConvArgs>();
        scratch((a.state.spec.taps - 1) * kConvChannels * 4);
        return room(a.y, op.rows);
      }
      case Op::DeltaNet: {
        const auto& a = op.as<DeltaNetArgs>();
        scratch(a.state.spec.k_dim * delta_columns(a.state.spec.v_dim) * 4);
        return room(a.y, op.rows);
      }
      case Op::Attention: {
        const auto& a = op.as<AttentionArgs>();
        const AttentionKernels k = k_.attention(a.kv.spec);
        scratch(k.scratch(std::max(k.queries, group_of(a)), a.kv.spec));
        return room(a.y, op.rows);
      }
      default: return room(first_operand(op), op.rows);
    }
  }

  // x rounded, once for consecutive operations that read it.
  Rounded round_once(const Tensor& x, RowSet rows) {
    Rounded r = shared_;
    r.blocks = static_cast<int32_t>((x.cols + 255) / 256);
    const auto key = std::tuple(x.data, x.cols, x.pitch, rows);
    if (cached_.valid() && key == key_) return r;
    phase(count_quantize, k_.quantize, exe_->keep(QuantOp{x, rows, nullptr, false, r}));
    key_ = key, cached_ = x;
    return r;
  }
  static bool rounds_alike(const Tensor& a, const Tensor& b) {
    return a.type == b.type || (!rounds_to_e4m3(a.type) && !rounds_to_e4m3(b.type));
  }
  // x as weights that round it to e4m3 want it, likewise.
  Tensor e4m3_once(const Tensor& x, const Tensor& w, RowSet rows) {
    if (!rounds_to_e4m3(w.type)) return x;
    const Tensor y = make_tensor(e4m3_, DType::f32, x.rows, x.cols);
    const auto key = std::tuple(x.data, x.cols, x.pitch, rows, w.type == DType::fp8_a8);
    if (e4m3_of_.valid() && key == e4m3_key_) return y;
    phase(count_rows<E4m3Op>, run_round_to_e4m3, exe_->keep(E4m3Op{x, y, rows, w.type}));
    e4m3_key_ = key, e4m3_of_ = x;
    return y;
  }
  // y is about to be written.
  void writes(const Tensor& y) {
    for (Tensor* t : {&cached_, &e4m3_of_})
      if (t->valid() && y.data < t->data + t->rows * t->pitch && t->data < y.data + y.rows * y.pitch) *t = {};
  }

  template <class Args>
  void by_rows(const Args& a, RowSet rows) {
    const TaskRun run = k_.by_row[static_cast<size_t>(OpOf<Args>::value)];
    CARAT_CHECK(run, "{} has no task", kOpNames[static_cast<size_t>(OpOf<Args>::value)]);
    phase(count_rows<ByRow<Args>>, run, exe_->keep(ByRow<Args>{a, rows}));
  }
  // Operations of which a task is a row, and that need nothing else.
  template <class Args>
  void add(const Args& a, RowSet rows) {
    by_rows(a, rows);
    writes(a.y);
  }
  void add(const BandAttentionArgs& a, RowSet rows) {
    CARAT_CHECK(rows == RowSet::all, "rows of a band read those beside them");
    by_rows(a, rows);
    writes(a.y);
  }
  void add(const RouteArgs& a, RowSet rows) {
    by_rows(a, rows);
    writes(a.weights), writes(a.experts);
  }
  void add(const TopArgs& a, RowSet rows) { by_rows(a, rows); }
  void add(const ShareArgs& a, RowSet rows) {
    if (a.parts == 1) return;
    phase(count_one, run_share, exe_->keep(ShareOp{a, rows}));
    writes(a.y);
  }
  void add(const FoldArgs& a, RowSet rows) {
    phase(count_fold, k_.fold, exe_->keep(FoldOp{a, rows}));
    writes(a.y);
  }
  void add(MatmulArgs a, RowSet rows) {
    a.x = e4m3_once(a.x, a.w, rows);
    const Rounded x = rounds(a.w) ? round_once(a.x, rows) : Rounded{};
    phase(count_dense, k_.dense, exe_->keep(DenseOp{a, {}, 1, rows, x}));
    writes(a.y);
  }
  void add(const GateUpArgs& a, RowSet rows) {
    CARAT_CHECK(rounds_alike(a.gate, a.up), "gate and up differ");
    MatmulArgs m{a.y, e4m3_once(a.x, a.gate, rows), a.gate, {}, {}, a.gate_scale, 0, a.act};
    const bool quantized = rounds(a.gate) || rounds(a.up);
    const Rounded x = quantized ? round_once(a.x, rows) : Rounded{};
    phase(count_dense, k_.dense, exe_->keep(DenseOp{m, a.up, a.up_scale, rows, x}));
    writes(a.y);
  }
  void add(ExpertsArgs a, RowSet rows) {
    CARAT_CHECK(rounds_alike(a.gate, a.up), "gate and up differ");
    a.x = e4m3_once(a.x, a.gate, rows);
    const int64_t n = int64_t{a.y.rows} * a.weights.cols;
    exe_->slots.push_back({0, bytes<int32_t>(n), bytes<int32_t>(n),
                           bytes<Slots::Item>(n / kBlockRows + std::min<int64_t>(n, a.gate.slices) + 1),
                           bytes<int32_t>(a.gate.slices + 1)});
    Slots* slots = &exe_->slots.back();
    ExpertsOp op{a, rows, slots, {}, {}, bytes<float>(n * a.gate.rows), bytes<float>(n * a.y.cols)};
    if (rounds(a.gate) || rounds(a.up)) op.x = rounded(n, a.x.cols);
    if (rounds(a.down)) op.h = rounded(n, a.down.cols);
    const ExpertsOp* e = exe_->keep(op);
    phase(count_one, k_.plan, e);
    if (op.x.q) {
      phase(count_quantize, k_.quantize, exe_->keep(QuantOp{a.x, rows, slots, false, op.x}));
    }
    phase(count_gate_up, k_.gate_up, e);
    if (rounds_to_e4m3(a.down.type)) {
      const Tensor h = make_tensor(op.hidden, DType::f32, static_cast<int32_t>(n), a.gate.rows);
      phase(count_rows<E4m3Op>, run_round_to_e4m3,
            exe_->keep(E4m3Op{h, h, rows, a.down.type, a.weights.cols}));
    }
    if (op.h.q) {
      const Tensor h = make_tensor(op.hidden, DType::f32, static_cast<int32_t>(n), a.gate.rows);
      phase(count_quantize, k_.quantize, exe_->keep(QuantOp{h, rows, slots, true, op.h}));
    }
    phase(count_down, k_.down, e);
    phase(count_rows<ExpertsOp>, k_.reduce, e);
    writes(a.y);
  }
  // Planned like experts: rows that chose the same slice read it together.
  void add(SliceMatmulArgs a, RowSet rows) {
    a.x = e4m3_once(a.x, a.w, rows);
    const int64_t n = int64_t{a.y.rows} * a.chosen.cols;
    exe_->slots.push_back({0, bytes<int32_t>(n), bytes<int32_t>(n),
                           bytes<Slots::Item>(n / kBlockRows + std::min<int64_t>(n, a.w.slices) + 1),
                           bytes<int32_t>(a.w.slices + 1)});
    Slots* slots = &exe_->slots.back();
    ExpertsOp plan{{}, rows, slots, {}, {}};
    plan.a.gate = a.w;
    plan.a.weights = plan.a.experts = a.chosen;
    phase(count_one, k_.plan, exe_->keep(plan));
    SliceOp op{a, slots, {}};
    if (rounds(a.w)) {
      op.x = rounded(n, a.x.cols);
      phase(count_quantize, k_.quantize, exe_->keep(QuantOp{a.x, rows, slots, false, op.x}));
    }
    phase(count_slices, k_.slices, exe_->keep(op));
    writes(a.y);
  }
  void add(const QkvPrepArgs& a, RowSet rows) {
    float*& table = ropes_[{a.rope.freq, a.rope.axis, a.rope.pairs, a.rope.ahead, rows}];
    if (!table && a.rope.pairs > 0) {
      table = bytes<float>(int64_t{a.q.rows} * 2 * a.rope.pairs);
      phase(count_rows<RopeOp>, k_.rope, exe_->keep(RopeOp{a.rope, rows, table}));
    }
    phase(count_prep, k_.prep, exe_->keep(PrepOp{a, rows, table}));
    writes(a.q);
  }
  void add(const ConvArgs& a, RowSet) {
    exe_->recurrent = true;
    phase(count_conv, k_.conv, exe_->keep(ConvOp{a}));
    writes(a.y);
  }
  void add(const DeltaNetArgs& a, RowSet) {
    exe_->recurrent = true;
    phase(count_delta, k_.delta, exe_->keep(DeltaOp{a}));
    writes(a.y);
  }
  void add(const AttentionArgs& a, RowSet rows) {
    const KvSpec& spec = a.kv.spec;
    const AttentionKernels k = k_.attention(spec);
    exe_->attentions.push_back({a, rows, k.queries});
    if (spec.pairs) {
      exe_->attentions.back().query =
          bytes<float>(int64_t{a.q.rows} * (a.q.cols / spec.dim) * (spec.dim + spec.key_dim()));
      phase(count_split, k_.split, &exe_->attentions.back());
    }
    phase(count_attention, k.run, &exe_->attentions.back());
    phase(count_merge, k.merge, &exe_->attentions.back());
    writes(a.y);
  }

  const Program& program_;
  const Kernels& k_;
  int threads_;
  Alloc alloc_;
  std::unique_ptr<CpuExecutable> exe_;
  int32_t index_ = 0;
  int64_t shared_rows_ = 0, shared_cols_ = 0, scratch_ = 64;
  Rounded shared_;
  int64_t e4m3_size_ = 0;
  float* e4m3_ = nullptr;
  Tensor e4m3_of_;  // what e4m3_ holds, while it is true
  std::tuple<std::byte*, int32_t, int64_t, RowSet, bool> e4m3_key_;
  Tensor cached_;  // what shared_ holds, while it is true
  std::tuple<std::byte*, int32_t, int64_t, RowSet> key_;
  std::map<std::tuple<const float*, const int32_t*, int32_t, int32_t, RowSet>, float*> ropes_;
};

// Segments that the rows of one task see, at most.
int32_t most_segments(const Step& step, const AttentionOp& op) {
  const KvSpec& spec = op.a.kv.spec;
  const int32_t per = op.task_rows, rows = step.count(op.rows);
  int32_t most = 0;
  const auto low = [&](int32_t pos) { return spec.window && pos >= spec.window ? pos - spec.window + 1 : 0; };
  for (int32_t m = 0; m < rows; m += per)
    for (int32_t i = m, first = INT32_MAX, last = 0; i < std::min(rows, m + per); ++i) {
      if (i > m && step.seq(op.rows, i) != step.seq(op.rows, i - 1)) first = INT32_MAX, last = 0;
      first = std::min(first, step.pos(op.rows, i));
      last = std::max(last, step.last(op.rows, i, op.a));
      most = std::max(most, last / kSegment - low(first) / kSegment + 1);
    }
  return most;
}

// Rows of a task, and whether segments are tasks of their own. Queries of one task share what is made of K
// and V; where that leaves workers idle, tasks become smaller, and if those are still too few, segments
// split.
int64_t plan_attention(const Step& step, AttentionOp& op) {
  const int32_t group = group_of(op.a), heads = op.a.kv.spec.heads, enough = 2 * step.threads;
  const int32_t most = std::max(1, op.most_queries / group), least = std::max(1, kAttentionQueries / group);
  op.splits = 0;
  op.task_rows = most;
  const auto too_few = [&] { return step.threads > 1 && groups_of(step, op) * heads < enough; };
  while (op.task_rows > least && too_few()) op.task_rows = std::max(least, op.task_rows / 2);
  if (!too_few()) return 0;
  const int32_t fine = op.task_rows;
  op.task_rows = most;
  if (const int32_t segments = most_segments(step, op); segments > 1) {
    op.splits = segments;
    // Segments that follow each other are read ahead; eight tasks a worker still end together.
    op.run = static_cast<int32_t>(
        std::max<int64_t>(1, groups_of(step, op) * heads * segments / (8 * step.threads)));
    return int64_t{step.count(op.rows)} * group * heads * segments * (16 + round_up(op.a.kv.spec.dim, 64)) *
           4;
  }
  op.task_rows = fine;
  return 0;
}

}  // namespace

std::unique_ptr<CpuExecutable> compile_program(const Program& program, const StepState* state,
                                               const Kernels& kernels, int threads, Alloc alloc) {
  auto exe = Builder(program, kernels, threads, alloc).build();
  exe->state = state;
  return exe;
}

void prepare_step(CpuExecutable& exe, const Lanes& lanes, Alloc alloc) {
  exe.step = {*exe.state, lanes.workers()};
  exe.lanes = lanes;
  const StepState& s = exe.step.state;
  CARAT_CHECK(exe.max_rows == 0 || s.n_rows <= exe.max_rows, "{} rows in a bucket of {}", s.n_rows,
              exe.max_rows);
  CARAT_CHECK(exe.max_out == 0 || s.n_out <= exe.max_out, "{} rows out in a bucket of {}", s.n_out,
              exe.max_out);
  exe.runs.clear();
  for (int32_t m = 0; exe.recurrent && m < s.n_rows; ++m) {
    if (m == 0 || s.seq[m] != s.seq[m - 1]) exe.runs.push_back({m, 0});
    ++exe.runs.back().count;
  }
  exe.step.runs = exe.runs.data();
  exe.step.n_runs = static_cast<int32_t>(exe.runs.size());
  int64_t partial = 0;
  for (AttentionOp& op : exe.attentions) partial = std::max(partial, plan_attention(exe.step, op));
  if (partial > static_cast<int64_t>(exe.partial.size()))
    exe.partial = alloc(static_cast<size_t>(partial + partial / 2));
  for (AttentionOp& op : exe.attentions) op.partial = reinterpret_cast<float*>(exe.partial.data());
  for (size_t i = 0; i < exe.phases.size(); ++i) exe.done[i].tasks.store(0, std::memory_order_relaxed);
  for (CpuExecutable::Left& lane : exe.left) lane.tasks.store(0, std::memory_order_relaxed);
}

}  // namespace carat::cpu
