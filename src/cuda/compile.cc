// From operations to launches: what is rounded once, where scratch lies, what this backend cannot do.
#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "core/kv_codec.h"
#include "core/operands.h"
#include "cuda/executable.h"
#include "cuda/packed.h"
#include "cuda/streamed.h"

namespace carat::cuda {
namespace {

bool rounds(const Tensor& w) { return info(w.type).family == Family::block; }
int64_t blocks_of(int64_t cols) { return (cols + 255) / 256; }
int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

constexpr int32_t kSplitRows = 32;  // up to so many rows attention is cut into segments for want of tasks

bool known_cache(DType t) {
  switch (t) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::q8_0:
    case DType::fp8:
    case DType::kv4:
    case DType::tq4:
    case DType::tq3:
    case DType::tq3_0:
    case DType::tbq4:
    case DType::tbq3: return true;
    default: return false;
  }
}

class Builder {
 public:
  Builder(const Streamed& streamed, const DeviceProps& device, HostPart& host, const Room& room)
      : streamed_(streamed),
        program_(streamed.program),
        device_(device),
        host_(host),
        room_(room),
        exe_(std::make_unique<CudaExecutable>()) {}

  std::unique_ptr<CudaExecutable> build() {
    for (const OpRecord& op : program_.ops()) {
      check_op(op);
      op_ = &op;
      if (!host_.computes(op)) {
        measure(op);
        continue;
      }
      if (!exe_->host) exe_->host = std::make_unique<HostOps>(host_);
      exe_->host->measure(op);
      room(result(op), op.rows);
    }
    if (exe_->host) exe_->host->allocate();
    exe_->scratch =
        room_(static_cast<size_t>(hidden_at() + aligned(hidden_) + aligned(inner_) + aligned(pairs_)));
    for (const OpRecord& op : program_.ops()) {
      if (&op - program_.ops().data() < done_) continue;
      index_ = static_cast<int32_t>(&op - program_.ops().data());
      alone_ = false;
      for (const Streamed::Weight& w : streamed_.weights)
        if (w.op == index_) bring(w);
      if (host_.computes(op)) {
        push([f = exe_->host->add(op)](const Context& c) { f(c.launcher.stream); });
        writes(result(op));
        continue;
      }
      switch (op.op) {
#define X(name) \
  case Op::name: add(op.as<name##Args>(), op.rows); break;
        CARAT_OPS(X)
#undef X
      }
    }
    return std::move(exe_);
  }

 private:
  void require(bool ok, const std::string& what) const {
    if (ok) return;
    throw Error(fmt::format("{}{} on a CUDA device: {}", kOpNames[static_cast<size_t>(op_->op)],
                            op_->layer >= 0 ? fmt::format(" (layer {})", op_->layer) : std::string(), what),
                "use --device cpu for this model or these settings");
  }
  static Tensor result(const OpRecord& op) {  // of one that the host may compute
    Tensor y;
    each_operand(op, [&](const char*, const Tensor& t) {
      if (!y.valid()) y = t;
    });
    return y;
  }
  void room(const Tensor& y, RowSet rows) {
    int32_t& most = rows == RowSet::all ? exe_->max_rows : exe_->max_out;
    most = most == 0 ? y.rows : std::min(most, y.rows);
  }
  void plain(const Tensor& w) const {
    require(w.packing == 0 || (w.packing == kPacked && packs(w.type)),
            "the weight has another device's layout");
  }
  static int64_t rounded_bytes(int64_t rows, int64_t cols) {
    const int64_t n = rows * blocks_of(cols);
    return aligned(n * 256) + aligned(n * 32) * (rows >= kHalfSumRows ? 2 : 1) + aligned(n * 4);
  }
  void need(int64_t& most, int64_t bytes) { most = std::max(most, bytes); }
  void cache(const KvView& kv) {
    require(kv.spec.dim % 8 == 0 && kv.spec.dim <= kMaxHead,
            fmt::format("heads of {}, expected a multiple of 8 up to {}", kv.spec.dim, kMaxHead));
    for (const DType t : {kv.spec.k, kv.spec.v})
      require(known_cache(t), fmt::format("caches in {}", info(t).name));
    if (kv.ring_tokens == 0)
      exe_->page_tokens = exe_->page_tokens ? std::min(exe_->page_tokens, kv.page_tokens) : kv.page_tokens;
  }

  // Sizes of what operations share, and rules of this backend.
  void measure(const OpRecord& op) {
    switch (op.op) {
      case Op::Embed: return room(op.as<EmbedArgs>().y, op.rows);
      case Op::Gather: return room(op.as<GatherArgs>().y, op.rows);
      case Op::RmsNorm: return room(op.as<RmsNormArgs>().y, op.rows);
      case Op::Route: {
        require(op.as<RouteArgs>().logits.cols <= 40 * 1024, "too many experts");
        return room(op.as<RouteArgs>().weights, op.rows);
      }
      case Op::Top: return room(op.as<TopArgs>().x, op.rows);
      case Op::Matmul: {
        const auto& a = op.as<MatmulArgs>();
        plain(a.w);
        if (rounds(a.w)) need(rounded_, rounded_bytes(a.x.rows, a.x.cols));
        return room(a.y, op.rows);
      }
      case Op::GateUp: {
        const auto& a = op.as<GateUpArgs>();
        plain(a.gate), plain(a.up);
        if (rounds(a.gate) || rounds(a.up)) need(rounded_, rounded_bytes(a.x.rows, a.x.cols));
        return room(a.y, op.rows);
      }
      case Op::Experts: {
        const auto& a = op.as<ExpertsArgs>();
        plain(a.gate), plain(a.up), plain(a.down);
        const int64_t pairs = int64_t{a.y.rows} * a.weights.cols;
        if (rounds(a.gate) || rounds(a.up)) {
          need(rounded_, rounded_bytes(a.x.rows, a.x.cols));
          need(second_, rounded_bytes(a.x.rows, a.x.cols));
        }
        need(hidden_, pairs * a.gate.rows * 4);
        if (rounds(a.down)) need(inner_, rounded_bytes(pairs, a.gate.rows));
        need(pairs_, pair_bytes(a));
        return room(a.y, op.rows);
      }
      case Op::SliceMatmul: {
        const auto& a = op.as<SliceMatmulArgs>();
        plain(a.w);
        if (rounds(a.w)) need(rounded_, rounded_bytes(a.x.rows, a.x.cols));
        return room(a.y, op.rows);
      }
      case Op::QkvPrep: {
        cache(op.as<QkvPrepArgs>().kv);
        return room(op.as<QkvPrepArgs>().q, op.rows);
      }
      case Op::Attention: {
        cache(op.as<AttentionArgs>().kv);
        return room(op.as<AttentionArgs>().y, op.rows);
      }
      case Op::Conv: return room(op.as<ConvArgs>().y, op.rows);
      case Op::DeltaNet: {
        const auto& a = op.as<DeltaNetArgs>();
        require(delta_net_shared(a.state.spec) <= device_.shared_per_block,
                fmt::format("keys of {}", a.state.spec.k_dim));
        return room(a.y, op.rows);
      }
    }
  }

  Rounded carve(int64_t offset, int64_t rows, int64_t cols) const {
    std::byte* p = exe_->scratch->data() + offset;
    const int64_t n = rows * blocks_of(cols);
    std::byte *sums = p + aligned(n * 256), *d = sums + aligned(n * 32), *half_sums = d + aligned(n * 4);
    return {reinterpret_cast<int8_t*>(p), reinterpret_cast<int16_t*>(sums), reinterpret_cast<float*>(d),
            static_cast<int32_t>(blocks_of(cols)),
            rows >= kHalfSumRows ? reinterpret_cast<uint16_t*>(half_sums) : nullptr};
  }
  // x rounded, once for consecutive operations that read it.
  Rounded round_once(const Tensor& x, RowSet rows) {
    for (const int32_t slot : {0, 1})
      if (cached_[slot].valid() && key_of(x, rows) == key_[slot])
        return carve(slot * aligned(rounded_), x.rows, x.cols);
    const Rounded r = carve(0, x.rows, x.cols);
    push([=](const Context& c) { round_rows(c, x, r, rows, 1); });
    holds(x, rows, 0);
    return r;
  }
  using Key = std::tuple<std::byte*, int32_t, int32_t, int64_t, RowSet>;
  static Key key_of(const Tensor& x, RowSet rows) { return {x.data, x.rows, x.cols, x.pitch, rows}; }
  void holds(const Tensor& x, RowSet rows, int32_t slot) { key_[slot] = key_of(x, rows), cached_[slot] = x; }
  bool has_room(int32_t slot, const Tensor& x) const {
    return slot < 2 && rounded_bytes(x.rows, x.cols) <= (slot == 0 ? rounded_ : second_);
  }
  // Behind what is rounded: what experts leave between their products.
  int64_t hidden_at() const { return aligned(rounded_) + aligned(second_); }
  // Whether one of the next operations reads y rounded.
  bool rounded_soon(const Tensor& y, RowSet rows) const {
    const auto reads = [&](const Tensor& x, const Tensor& w) {
      return rounds(w) && !host_.has(w) && key_of(x, rows) == key_of(y, rows);
    };
    const auto& ops = program_.ops();
    for (size_t i = static_cast<size_t>(index_) + 1; i < ops.size() && i <= static_cast<size_t>(index_) + 6;
         ++i) {
      const OpRecord& op = ops[i];
      if (op.rows != rows) return false;
      if (op.op == Op::Matmul && reads(op.as<MatmulArgs>().x, op.as<MatmulArgs>().w)) return true;
      if (op.op == Op::GateUp && reads(op.as<GateUpArgs>().x, op.as<GateUpArgs>().gate)) return true;
      if (op.op == Op::Experts && reads(op.as<ExpertsArgs>().x, op.as<ExpertsArgs>().gate)) return true;
    }
    return false;
  }
  // Whether experts were chosen before the operation before, whose kernels let the next one start when they
  // have waited for their inputs (packed products of one row, which fit).
  bool chosen_early() const {
    const OpRecord* const op = program_.ops().data() + index_ - 1;
    if (index_ == 0 || op->op != Op::Matmul || host_.computes(*op)) return false;
    const Tensor& w = op->as<MatmulArgs>().w;
    return w.packing == kPacked && w.cols <= 64 * 256;
  }
  static bool meet(const Tensor& x, const Tensor& y) {
    return x.data < y.data + y.rows * y.pitch && y.data < x.data + x.rows * x.pitch;
  }
  void writes(const Tensor& y) {
    for (Tensor& t : cached_)
      if (t.valid() && meet(t, y)) t = {};
  }
  template <class F>
  void push(F&& f) {
    if (alone_)
      exe_->launches.emplace_back([f](const Context& c) { f(alone(c)); });
    else
      exe_->launches.emplace_back(std::forward<F>(f));
    exe_->record.push_back(index_);
  }
  // Kernels ask for weights before their inputs are there: for those that come with the step, not before
  // they have come.
  static Context alone(Context c) {
    c.launcher.overlap = false;
    return c;
  }
  void bring(const Streamed::Weight& w) {
    alone_ = true;
    exe_->weights = streamed_.memory;
    push([streamed = streamed_.memory, w](const Context& c) { bring_weight(c.launcher, w, *streamed); });
  }

  void add(const EmbedArgs& a, RowSet rows) {
    push([=](const Context& c) { embed(c, a, rows); });
    writes(a.y);
  }
  void add(const GatherArgs& a, RowSet) {
    push([=](const Context& c) { gather(c, a); });
    writes(a.y);
  }
  void add(const RmsNormArgs& a, RowSet rows) {
    NormChain chain;
    if (!chain.add(a)) {
      push([=](const Context& c) { rms_norm(c, a, rows); });
      return writes(a.y);
    }
    const auto& ops = program_.ops();
    while (static_cast<size_t>(index_) + 1 < ops.size()) {
      const OpRecord& next = ops[static_cast<size_t>(index_) + 1];
      if (next.op != Op::RmsNorm || next.rows != rows || !chain.add(next.as<RmsNormArgs>())) break;
      done_ = ++index_ + 1;
    }
    for (int k = 0; k < chain.n; ++k) writes(chain.step[k].y);
    int32_t slot = 0;
    for (int k = 0; k < chain.n; ++k) {
      const Tensor& y = chain.step[k].y;
      const bool stays = std::none_of(chain.step + k + 1, chain.step + chain.n,
                                      [&](const RmsNormArgs& later) { return meet(later.y, y); });
      if (!stays || !chain.rounds(k) || !rounded_soon(y, rows) || !has_room(slot, y)) continue;
      chain.out[k] = carve(slot * aligned(rounded_), y.rows, y.cols);
      holds(y, rows, slot++);
    }
    push([=](const Context& c) { norms(c, chain, rows); });
  }
  void add(const RouteArgs& a, RowSet rows) {
    push([=](const Context& c) { route(c, a, rows); });
    writes(a.weights), writes(a.experts);
  }
  void add(const TopArgs& a, RowSet rows) {
    push([=](const Context& c) { top(c, a, rows); });
  }
  void add(const MatmulArgs& a, RowSet rows) {
    const Rounded x = rounds(a.w) ? round_once(a.x, rows) : Rounded{};
    std::vector<MatmulArgs> all = {a};
    const auto& ops = program_.ops();
    for (auto i = static_cast<size_t>(index_) + 1; i < ops.size() && all.size() < kMatmulsAtOnce; ++i) {
      if (ops[i].op != Op::Matmul || ops[i].rows != rows || host_.computes(ops[i])) break;
      const auto& b = ops[i].as<MatmulArgs>();
      if (key_of(b.x, rows) != key_of(a.x, rows) || !matmuls_at_once(a, b) || meet(a.x, b.y)) break;
      all.push_back(b);
      done_ = static_cast<std::ptrdiff_t>(i) + 1;
    }
    push([=](const Context& c) { matmuls(c, all, x, rows); });
    for (const MatmulArgs& m : all) writes(m.y);
  }
  void add(const GateUpArgs& a, RowSet rows) {
    const Rounded x = rounds(a.gate) || rounds(a.up) ? round_once(a.x, rows) : Rounded{};
    push([=](const Context& c) { gate_up(c, a, x, rows); });
    writes(a.y);
  }
  void add(const ExpertsArgs& a, RowSet rows) {
    const Rounded x = rounds(a.gate) || rounds(a.up) ? round_once(a.x, rows) : Rounded{};
    auto* hidden = reinterpret_cast<float*>(exe_->scratch->data() + hidden_at());
    const PairLists lists =
        pair_lists(a, exe_->scratch->data() + hidden_at() + aligned(hidden_) + aligned(inner_));
    if (lists.start) push([=](const Context& c) { list_pairs(c, a, lists, rows); });
    const bool chosen = a.y.rows == 1 && chosen_early();
    push([=](const Context& c) { experts_gate_up(c, a, x, hidden, lists, chosen, rows); });
    Rounded h;
    if (rounds(a.down)) {
      const int32_t pairs = a.y.rows * a.weights.cols;
      h = carve(hidden_at() + aligned(hidden_), pairs, a.gate.rows);
      const Tensor all = make_tensor(hidden, DType::f32, pairs, a.gate.rows);
      const int32_t used = a.weights.cols;
      push([=](const Context& c) { round_rows(c, all, h, rows, used); });
    }
    push([=](const Context& c) { experts_down(c, a, hidden, h, lists, rows); });
    writes(a.y);
  }
  void add(const SliceMatmulArgs& a, RowSet rows) {
    const Rounded x = rounds(a.w) ? round_once(a.x, rows) : Rounded{};
    push([=](const Context& c) { slice_matmul(c, a, x, rows); });
    writes(a.y);
  }
  void add(const QkvPrepArgs& a, RowSet rows) {
    push([=](const Context& c) { qkv_prep(c, a, rows); });
    writes(a.q);
  }
  void add(const AttentionArgs& a, RowSet rows) {
    const Span span{a.kv.spec.window, a.both_ways};
    std::vector<Span>& spans = exe_->spans;
    auto it = std::find(spans.begin(), spans.end(), span);
    if (it == spans.end()) it = spans.insert(spans.end(), span);
    const AttentionPlan plan{static_cast<int32_t>(it - spans.begin()), a.y.rows <= kSplitRows};
    op_ = nullptr;
    CARAT_CHECK(plan.span < kMaxSpans, "{} kinds of windows", plan.span + 1);
    if (plan.split) exe_->split.push_back(a), exe_->split_span.push_back(plan.span);
    if (a.y.rows == 1 && folds_window(span.window))
      need(exe_->left, partial_floats(a, 1, window_segments(span.window)));
    const bool round = attention_rounds(a, plan) && rounded_soon(a.y, rows) && has_room(0, a.y);
    const Rounded r = round ? carve(0, a.y.rows, a.y.cols) : Rounded{};
    push([=](const Context& c) { attention(c, a, plan, r, rows); });
    writes(a.y);
    if (round) holds(a.y, rows, 0);
  }
  void add(const ConvArgs& a, RowSet) {
    push([=](const Context& c) { conv(c, a); });
    writes(a.y);
  }
  void add(const DeltaNetArgs& a, RowSet) {
    push([=](const Context& c) { delta_net(c, a); });
    writes(a.y);
  }

  const Streamed& streamed_;
  const Program& program_;
  const DeviceProps& device_;
  HostPart& host_;
  const Room& room_;
  std::unique_ptr<CudaExecutable> exe_;
  const OpRecord* op_ = nullptr;
  int32_t index_ = 0;
  bool alone_ = false;       // kernels of this operation begin when those before have ended
  std::ptrdiff_t done_ = 0;  // operations that went with one before them
  int64_t rounded_ = 0, second_ = 0, hidden_ = 0, inner_ = 0, pairs_ = 0;
  Tensor cached_[2];  // what the first two parts of scratch hold, while it is true
  Key key_[2];
};

}  // namespace

std::unique_ptr<CudaExecutable> compile_program(const Program& program, const StepState* state,
                                                const DeviceProps& device, HostPart& host, const Room& room) {
  const Streamed streamed = stream_weights(program, host);
  auto exe = Builder(streamed, device, host, room).build();
  exe->state = state;
  exe->step = Memory(sizeof(DevStep));
  return exe;
}

namespace {

// Appends arrays; returns offsets, which point_into() turns into addresses.
class Packer {
 public:
  explicit Packer(std::vector<std::byte>& bytes) : bytes_(bytes) { bytes_.clear(); }
  template <class T>
  const T* add(const T* from, size_t n) {
    const size_t at = (bytes_.size() + 15) / 16 * 16;
    bytes_.resize(at + n * sizeof(T));
    if (n) std::memcpy(bytes_.data() + at, from, n * sizeof(T));
    return reinterpret_cast<const T*>(at + 1);  // never null: null stays null
  }

 private:
  std::vector<std::byte>& bytes_;
};

template <class T>
void move(const T*& p, const std::byte* device) {
  if (p) p = reinterpret_cast<const T*>(device + (reinterpret_cast<uintptr_t>(p) - 1));
}

int32_t segments_of(const Span& span, int32_t pos, int32_t last) {
  const int32_t length = segment_of(span.window, pos);
  const int32_t first = span.window && pos - span.window + 1 > 0 ? pos - span.window + 1 : 0;
  return (span.both_ways ? last : pos) / length - first / length + 1;
}

template <class F>
std::vector<SeqRun> runs_of(int32_t n, F seq) {
  std::vector<SeqRun> runs;
  for (int32_t m = 0; m < n; ++m) {
    if (m == 0 || seq(m) != seq(m - 1)) runs.push_back({m, 0});
    ++runs.back().count;
  }
  return runs;
}

}  // namespace

void make_image(const CudaExecutable& exe, StepImage& image) {
  const StepState& s = *exe.state;
  CARAT_CHECK(exe.max_rows == 0 || s.n_rows <= exe.max_rows, "{} rows in a bucket of {}", s.n_rows,
              exe.max_rows);
  CARAT_CHECK(exe.max_out == 0 || s.n_out <= exe.max_out, "{} rows out in a bucket of {}", s.n_out,
              exe.max_out);
  const auto rows = static_cast<size_t>(s.n_rows);
  const std::vector<SeqRun> runs = runs_of(s.seq ? s.n_rows : 0, [&](int32_t m) { return s.seq[m]; });
  const std::vector<SeqRun> out_runs =
      runs_of(s.seq && s.out_row ? s.n_out : 0, [&](int32_t i) { return s.seq[s.out_row[i]]; });
  std::vector<int32_t> last(rows, 0);
  std::vector<SeqView> views;
  if (s.seq && s.seqs) {
    views.resize(rows ? static_cast<size_t>(*std::max_element(s.seq, s.seq + rows)) + 1 : 0);
    std::copy(s.seqs, s.seqs + views.size(), views.begin());
  }
  Packer p(image.bytes);
  DevStep& d = image.step;
  d = {};
  d.n_rows = s.n_rows, d.n_out = s.n_out, d.n_runs = static_cast<int32_t>(runs.size());
  d.n_out_runs = static_cast<int32_t>(out_runs.size());
  const auto rows_of = [&](const int32_t* from) { return from ? p.add(from, rows) : nullptr; };
  d.token = rows_of(s.token), d.pos = rows_of(s.pos), d.seq = rows_of(s.seq);
  d.slot = rows_of(s.slot), d.parent = rows_of(s.parent);
  if (s.out_row) d.out_row = p.add(s.out_row, static_cast<size_t>(s.n_out));
  for (const SeqRun& r : runs) {
    const int32_t end = r.first + r.count;
    int32_t top = 0;
    for (int32_t m = r.first; s.pos && m < end; ++m) {
      top = std::max({top, s.pos[m], s.slot_of(m)});
      last[static_cast<size_t>(m)] = s.pos[end - 1];
    }
    SeqView& v = views.at(static_cast<size_t>(s.seq[r.first]));
    if (v.pages && exe.page_tokens)
      v.pages = p.add(v.pages, static_cast<size_t>(top / exe.page_tokens) + 1);
    else
      v.pages = nullptr;
    v.kept = v.kept && v.n_kept ? p.add(v.kept, static_cast<size_t>(v.n_kept)) : nullptr;
  }
  d.last_pos = p.add(last.data(), rows);
  d.runs = p.add(runs.data(), runs.size());
  d.out_runs = p.add(out_runs.data(), out_runs.size());
  if (rows == 1 && !views.empty() && s.pos)
    d.one_seq = views[static_cast<size_t>(s.seq[0])], d.one_pos = s.pos[0];
  d.seqs = p.add(views.data(), views.size());
  for (size_t i = 0; s.pos && i < exe.spans.size(); ++i)
    for (size_t m = 0; m < rows; ++m)
      d.segments[i] = std::max(d.segments[i], segments_of(exe.spans[i], s.pos[m], last[m]));
  image.partial = 0;
  for (size_t i = 0; i < exe.split.size(); ++i)
    image.partial = std::max(
        image.partial, partial_floats(exe.split[i], exe.split[i].y.rows, d.segments[exe.split_span[i]]));
}

void point_into(StepImage& image, std::byte* device) {
  DevStep& d = image.step;
  const std::byte* at = d.seqs ? image.bytes.data() + (reinterpret_cast<uintptr_t>(d.seqs) - 1) : nullptr;
  const size_t n =
      at ? static_cast<size_t>(image.bytes.data() + image.bytes.size() - at) / sizeof(SeqView) : 0;
  for (size_t i = 0; i < n; ++i) {  // the last array
    SeqView v;
    std::memcpy(&v, at + i * sizeof v, sizeof v);
    move(v.pages, device), move(v.kept, device);
    std::memcpy(image.bytes.data() + (at - image.bytes.data()) + i * sizeof v, &v, sizeof v);
  }
  move(d.one_seq.pages, device), move(d.one_seq.kept, device);
  move(d.token, device), move(d.pos, device), move(d.seq, device), move(d.out_row, device);
  move(d.slot, device), move(d.parent, device), move(d.last_pos, device);
  move(d.runs, device), move(d.out_runs, device), move(d.seqs, device);
}

}  // namespace carat::cuda
