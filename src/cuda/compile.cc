// From operations to launches: what is rounded once, where scratch lies, what this backend cannot do.
#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "core/kv_codec.h"
#include "core/operands.h"
#include "cuda/executable.h"
#include "cuda/links.h"
#include "cuda/matmul/table.h"
#include "cuda/quant/packed.h"
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
    int64_t unpacked = 0;
    for (const AttentionArgs& a : unpacked_)
      need(unpacked, unpacked_bytes(a, unpacked_tiles(a.kv.spec.window, exe_->max_rows)));
    exe_->scratch = room_(static_cast<size_t>(unpacked_offset() + aligned(unpacked)));
    for (size_t i = 0; i < program_.ops().size(); ++i) {
      if (static_cast<std::ptrdiff_t>(i) < done_) continue;
      if (mixes(i))
        mix(i);
      else if (branches(i))
        branch(i);
      else
        add(i);
    }
    return std::move(exe_);
  }

 private:
  void add(size_t i) {
    const OpRecord& op = program_.ops()[i];
    index_ = static_cast<int32_t>(i);
    alone_ = false;
    for (const Streamed::Weight& w : streamed_.weights)
      if (w.op == index_) bring(w);
    if (host_.computes(op)) {
      push([f = exe_->host->add(op)](const Context& c) { f(c.launcher.stream); });
      return writes(result(op));
    }
    switch (op.op) {
#define X(name) \
  case Op::name: return add(op.as<name##Args>(), op.rows);
      CARAT_OPS(X)
#undef X
    }
  }

  // Choice, dense branch and experts of few rows as two kernels, with the sum of both behind them.
  bool mixes(size_t i) const {
    const auto& ops = program_.ops();
    if (!follow({Op::Route, Op::GateUp, Op::Matmul, Op::Experts}, i)) return false;
    const Mixture m = mixture_at(i);
    return apart(m.gate_up, m.down, m.experts, ops[i].rows) && mixture_fits(m, device_);
  }
  // Whether operation i adds a mixture's dense branch to its experts, and does nothing else.
  bool adds_branch(size_t i, const Mixture& m, RowSet rows) const {
    if (!follow({Op::Pointwise}, i) || program_.ops()[i].rows != rows) return false;
    const auto& sum = program_.ops()[i].as<PointwiseArgs>();
    const auto same = [](const Tensor& t, const Tensor& u) { return t.data == u.data && t.cols == u.cols; };
    return same(sum.y, m.experts.y) && same(sum.x, m.experts.y) && same(sum.add, m.down.y) &&
           !sum.mul.valid() && sum.act == Act::none && std::isinf(sum.low) && std::isinf(sum.high);
  }
  // Whether inputs of a dense branch and of experts are there, rounded, and neither writes what the other
  // reads or writes: their order is free.
  bool apart(const GateUpArgs& gate, const MatmulArgs& down, const ExpertsArgs& experts, RowSet rows) const {
    if (slot_of(gate.x, rows) < 0 || slot_of(experts.x, rows) < 0) return false;
    for (const Tensor& y : {gate.y, down.y})
      for (const Tensor& t : {experts.x, experts.y, experts.residual})
        if (meet(t, y)) return false;
    return !meet(gate.x, experts.y) && !meet(down.mul, experts.y) && !meet(down.residual, experts.y);
  }
  Mixture mixture_at(size_t i) const {
    const auto& ops = program_.ops();
    Mixture m{ops[i].as<RouteArgs>(), ops[i + 1].as<GateUpArgs>(), ops[i + 2].as<MatmulArgs>(),
              ops[i + 3].as<ExpertsArgs>()};
    m.adds = adds_branch(i + 4, m, ops[i].rows);
    return m;
  }
  void mix(size_t i) {
    Mixture m = mixture_at(i);
    m.number = exe_->mixtures++;
    const RowSet rows = program_.ops()[i].rows;
    const auto of = [&](const Tensor& x) { return carve(slot_of(x, rows) * aligned(rounded_), 1, x.cols); };
    const Rounded dense = of(m.gate_up.x), chosen = of(m.experts.x);
    auto* hidden = reinterpret_cast<float*>(exe_->scratch->data() + hidden_at());
    index_ = static_cast<int32_t>(i) + 1;
    push([=](const Context& c) { mixture_up(c, m, dense, chosen, hidden, rows); });
    index_ = static_cast<int32_t>(i) + 3;
    push([=](const Context& c) { mixture_down(c, m, hidden, rows); });
    for (const Tensor& y : {m.route.weights, m.route.experts, m.gate_up.y, m.down.y, m.experts.y}) writes(y);
    done_ = static_cast<std::ptrdiff_t>(i) + (m.adds ? 5 : 4);
  }

  // Router, choice, dense branch, experts of a few rows: the branch runs beside the others, which leave most
  // of the device idle. What it writes, rounded inputs included, is none of theirs. (Of fewer rows see
  // mixes(), or experts ask for weights early.)
  bool branches(size_t i) const {
    const auto& ops = program_.ops();
    if (!follow({Op::Matmul, Op::Route, Op::GateUp, Op::Matmul, Op::Experts}, i) || mixes(i + 1))
      return false;
    const auto& router = ops[i].as<MatmulArgs>();
    const auto& gate = ops[i + 2].as<GateUpArgs>();
    const auto& down = ops[i + 3].as<MatmulArgs>();
    const auto& experts = ops[i + 4].as<ExpertsArgs>();
    if (gate.x.rows < 2 || gate.x.rows > kSplitRows || rounds(router.w)) return false;
    for (const Tensor& y : {gate.y, down.y})
      if (meet(router.x, y) || meet(router.y, y)) return false;
    return apart(gate, down, experts, ops[i].rows);
  }
  void branch(size_t i) {
    const auto turn = [](const Launcher& l, Stream later, Stream earlier) {
      if (!l.beside) return;
      record_event(l.turn, earlier);
      wait_event(later, l.turn);
    };
    push([=](const Context& c) { turn(c.launcher, c.launcher.beside, c.launcher.stream); });
    beside_ = true;
    add(i + 2), add(i + 3);
    beside_ = false;
    add(i), add(i + 1), add(i + 4);
    push([=](const Context& c) { turn(c.launcher, c.launcher.stream, c.launcher.beside); });
    done_ = static_cast<std::ptrdiff_t>(i) + 5;
  }
  // Whether operations of these kinds begin at i, for the same rows, and all the device's own.
  bool follow(std::initializer_list<Op> kinds, size_t i) const {
    const auto& ops = program_.ops();
    if (i + kinds.size() > ops.size()) return false;
    for (size_t k = 0; k < kinds.size(); ++k)
      if (ops[i + k].op != kinds.begin()[k] || ops[i + k].rows != ops[i].rows || host_.computes(ops[i + k]))
        return false;
    return !weights_come(i, kinds.size());
  }
  // Whether weights of operations [i, i + n) come from the host, one operation's at a time.
  bool weights_come(size_t i, size_t n = 1) const {
    return std::any_of(streamed_.weights.begin(), streamed_.weights.end(), [&](const Streamed::Weight& w) {
      return static_cast<size_t>(w.op) >= i && static_cast<size_t>(w.op) < i + n;
    });
  }

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
  bool used_before(const OpRecord& op, const Tensor& y) const {
    bool used = false;
    for (const OpRecord* before = program_.ops().data(); before != &op; ++before)
      each_operand(*before, [&](const char*, const Tensor& t) { used = used || (t.valid() && meet(t, y)); });
    return used;
  }
  void room(const Tensor& y, RowSet rows) {
    int32_t& most = rows == RowSet::all ? exe_->max_rows : exe_->max_out;
    most = most == 0 ? y.rows : std::min(most, y.rows);
  }
  void plain(const Tensor& w) const {
    require(w.packing == 0 || (w.packing == kPacked && packs(w.type)) ||
                (w.packing == kBf16AsF16 && w.type == DType::f16),
            "the weight has another device's layout");
  }
  // Weights whose products round activations to e4m3, on a device that has no kernel for that: rows are
  // rounded before, and multiplied in f32; of fp8_a8 as by fp8. True: x must be rounded.
  template <class... Weights>
  bool rounds_before(Parts parts, const Tensor& x, Weights&... w) {
    const DType type = std::get<0>(std::tie(w...)).type;
    const bool same = ((w.type == type) && ...), some = (rounds_to_e4m3(w.type) || ...);
    require(same || !some, "weights of several types of which some round activations to FP8");
    if (!some || parts != Parts::none) return false;
    if (type == DType::fp8_a8) ((w.type = DType::fp8), ...);
    need(e4m3_, int64_t{x.rows} * x.cols * 4);
    return true;
  }
  bool rounds_before(MatmulArgs& a) { return rounds_before(parts_of(device_, a.w, a.y.rows), a.x, a.w); }
  bool rounds_before(GateUpArgs& a) { return rounds_before(parts_of(device_, a), a.x, a.gate, a.up); }
  bool rounds_before(ExpertsArgs& a) {
    return rounds_before(parts_of(device_, a), a.x, a.gate, a.up, a.down);
  }
  bool rounds_before(SliceMatmulArgs& a) { return rounds_before(Parts::none, a.x, a.w); }
  static int64_t rounded_bytes(int64_t rows, int64_t cols) {
    const int64_t n = rows * blocks_of(cols);
    return aligned(n * 256) + aligned(n * 32) * (rows >= least_wide_rows(forced()) ? 2 : 1) + aligned(n * 4);
  }
  void need(int64_t& most, int64_t bytes) { most = std::max(most, bytes); }
  void cache(const KvView& kv) {
    require(kv.spec.dim % 8 == 0 && kv.spec.dim <= kMaxHead,
            fmt::format("heads of {}, expected a multiple of 8 up to {}", kv.spec.dim, kMaxHead));
    for (const DType t : {kv.spec.k, kv.spec.v})
      require(known_cache(t), fmt::format("caches in {}", info(t).name));
    exe_->page_tokens = exe_->page_tokens ? std::min(exe_->page_tokens, kv.page_tokens) : kv.page_tokens;
    exe_->ring_pages = std::max(exe_->ring_pages, kv.ring_tokens / kv.page_tokens);
  }

  // Sizes of what operations share, and rules of this backend.
  void measure(const OpRecord& op) {
    switch (op.op) {
      case Op::Embed: {
        const auto& a = op.as<EmbedArgs>();
        require(!a.soft || !used_before(op, a.y), "soft rows in memory that is used before");
        return room(a.y, op.rows);
      }
      case Op::Gather: return room(op.as<GatherArgs>().y, op.rows);
      case Op::RmsNorm: return room(op.as<RmsNormArgs>().y, op.rows);
      case Op::Pointwise: return room(op.as<PointwiseArgs>().y, op.rows);
      case Op::LayerNorm: return room(op.as<LayerNormArgs>().y, op.rows);
      case Op::BandAttention: return room(op.as<BandAttentionArgs>().y, op.rows);
      case Op::Route: {
        require(op.as<RouteArgs>().logits.cols <= 40 * 1024, "too many experts");
        return room(op.as<RouteArgs>().weights, op.rows);
      }
      case Op::Top: return room(op.as<TopArgs>().x, op.rows);
      case Op::Share: return room(op.as<ShareArgs>().y, op.rows);
      case Op::Matmul: {
        auto a = op.as<MatmulArgs>();
        plain(a.w);
        rounds_before(a);
        require(!by_erf(a) || (a.softcap == 0 && !a.residual.valid()), "gelu by erf and more behind it");
        if (rounds(a.w)) need(rounded_, rounded_bytes(a.x.rows, a.x.cols));
        if (parts_of(device_, a.w, a.y.rows) != Parts::none) need(parts_, parts_bytes(a.x.rows, a.x.cols));
        return room(a.y, op.rows);
      }
      case Op::GateUp: {
        auto a = op.as<GateUpArgs>();
        plain(a.gate), plain(a.up);
        rounds_before(a);
        if (rounds(a.gate) || rounds(a.up)) need(rounded_, rounded_bytes(a.x.rows, a.x.cols));
        if (parts_of(device_, a) != Parts::none) need(parts_, parts_bytes(a.x.rows, a.x.cols));
        return room(a.y, op.rows);
      }
      case Op::Experts: {
        auto a = op.as<ExpertsArgs>();
        plain(a.gate), plain(a.up), plain(a.down);
        rounds_before(a);
        const int64_t pairs = int64_t{a.y.rows} * a.weights.cols;
        if (rounds(a.gate) || rounds(a.up)) {
          need(rounded_, rounded_bytes(a.x.rows, a.x.cols));
          need(second_, rounded_bytes(a.x.rows, a.x.cols));
        }
        need(hidden_, pairs * a.gate.rows * 4);
        if (rounds(a.down)) need(inner_, rounded_bytes(pairs, a.gate.rows));
        if (parts_of(device_, a) != Parts::none)
          need(parts_, parts_bytes(a.x.rows, a.x.cols)), need(inner_, parts_bytes(pairs, a.gate.rows));
        need(pairs_, pair_bytes(device_, a));
        return room(a.y, op.rows);
      }
      case Op::SliceMatmul: {
        auto a = op.as<SliceMatmulArgs>();
        plain(a.w);
        rounds_before(a);
        if (rounds(a.w)) need(rounded_, rounded_bytes(a.x.rows, a.x.cols));
        return room(a.y, op.rows);
      }
      case Op::QkvPrep: {
        cache(op.as<QkvPrepArgs>().kv);
        return room(op.as<QkvPrepArgs>().q, op.rows);
      }
      case Op::Attention: {
        const auto& a = op.as<AttentionArgs>();
        cache(a.kv);
        exe_->chains = exe_->chains || attends_whole(a);
        exe_->blocks = exe_->blocks || a.blocks, both_ways_ = both_ways_ || a.both_ways;
        require(!exe_->blocks || !both_ways_, "rows that see later ones by two rules");
        if (unpacks(a)) unpacked_.push_back(a);
        return room(a.y, op.rows);
      }
      case Op::Conv: return room(op.as<ConvArgs>().y, op.rows);
      case Op::DeltaNet: {
        const auto& a = op.as<DeltaNetArgs>();
        require(delta_net_fits(a.state.spec),
                fmt::format("keys of {}, expected up to 256", a.state.spec.k_dim));
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
            rows >= least_wide_rows(forced()) ? reinterpret_cast<uint16_t*>(half_sums) : nullptr};
  }
  static int64_t parts_bytes(int64_t rows, int64_t cols) {
    rows = (rows + 7) / 8 * 8;
    return aligned(rows * blocks_of(cols) * 1024) + aligned(rows * blocks_of(cols) * 4);
  }
  Rounded carve_parts(int64_t offset, int64_t rows, int64_t cols) const {
    std::byte* p = exe_->scratch->data() + offset;
    rows = (rows + 7) / 8 * 8;
    Rounded r;
    r.parts = reinterpret_cast<uint32_t*>(p), r.blocks = static_cast<int32_t>(blocks_of(cols));
    r.d = reinterpret_cast<float*>(p + aligned(rows * blocks_of(cols) * 1024));
    return r;
  }
  // x in parts for weights such as w, likewise.
  Rounded split_once(const Tensor& x, const Tensor& w, Parts parts, RowSet rows) {
    if (parts == Parts::none) return {};
    const int64_t at = hidden_at() + aligned(hidden_) + aligned(inner_) + aligned(pairs_);
    Rounded r = carve_parts(at, x.rows, x.cols);
    r.chunks = parts == Parts::chunks;
    exe_->begun = exe_->begun || r.chunks;
    const std::tuple kind{w.type, parts, w.packing};
    if (cached_[2].valid() && key_of(x, rows) == key_[2] && kind == parts_kind_) return r;
    push([=](const Context& c) { split_rows(c, w, x, r, rows, 1); });
    holds(x, rows, 2);
    parts_kind_ = kind;
    return r;
  }
  // x rounded to e4m3 as such weights see it, once for consecutive operations that read it.
  Tensor e4m3_once(DType w, const Tensor& x, RowSet rows) {
    const Tensor y = make_tensor(exe_->scratch->data() + e4m3_offset(), DType::f32, x.rows, x.cols);
    if (held(x, rows, 3) && e4m3_kind_ == w) return y;
    push([=](const Context& c) { round_to_e4m3(c, w, x, y, rows, 1); });
    e4m3_kind_ = w;
    writes(y);
    holds(x, rows, 3);
    return y;
  }
  // x rounded, once for consecutive operations that read it.
  Rounded round_once(const Tensor& x, RowSet rows) {
    if (x.rows >= least_wide_rows(forced()) && device_.major == 9) exe_->begun = true;
    if (const int32_t slot = slot_of(x, rows); slot >= 0)
      return carve(slot * aligned(rounded_), x.rows, x.cols);
    const Rounded r = carve(0, x.rows, x.cols);
    push([=](const Context& c) { round_rows(c, x, r, rows, 1); });
    holds(x, rows, 0);
    return r;
  }
  using Key = std::tuple<std::byte*, int32_t, int32_t, int64_t, RowSet>;
  static Key key_of(const Tensor& x, RowSet rows) { return {x.data, x.rows, x.cols, x.pitch, rows}; }
  void holds(const Tensor& x, RowSet rows, int32_t slot) { key_[slot] = key_of(x, rows), cached_[slot] = x; }
  bool held(const Tensor& x, RowSet rows, int32_t slot) const {
    return cached_[slot].valid() && key_of(x, rows) == key_[slot];
  }
  // Where x lies rounded; -1: nowhere.
  int32_t slot_of(const Tensor& x, RowSet rows) const {
    return held(x, rows, 0) ? 0 : held(x, rows, 1) ? 1 : -1;
  }
  bool has_room(int32_t slot, const Tensor& x) const {
    return slot < 2 && rounded_bytes(x.rows, x.cols) <= (slot == 0 ? rounded_ : second_);
  }
  int64_t e4m3_offset() const {
    return hidden_at() + aligned(hidden_) + aligned(inner_) + aligned(pairs_) + aligned(parts_);
  }
  int64_t unpacked_offset() const { return e4m3_offset() + aligned(e4m3_); }
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
    if (beside_)
      exe_->launches.emplace_back([f](const Context& c) { f(beside(c)); });
    else if (alone_)
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
  static Context beside(Context c) {
    if (c.launcher.beside) c.launcher.stream = c.launcher.beside;
    return c;
  }
  void bring(const Streamed::Weight& w) {
    alone_ = true;
    exe_->weights = streamed_.memory;
    push([streamed = streamed_.memory, w](const Context& c) { bring_weight(c.launcher, w, *streamed); });
  }

  void add(const EmbedArgs& a, RowSet rows) {
    if (a.soft) exe_->embedded.push_back({a.y, rows});
    push([=](const Context& c) { embed(c, a, rows); });
    writes(a.y);
  }
  void add(const GatherArgs& a, RowSet) {
    push([=](const Context& c) { gather(c, a); });
    writes(a.y);
  }
  void add(const RmsNormArgs& a, RowSet rows) {
    NormChain chain;
    const auto& ops = program_.ops();
    if (!chain.add(a)) {
      std::optional<RmsNormArgs> second;
      if (const auto i = static_cast<size_t>(index_); follow({Op::RmsNorm, Op::RmsNorm}, i)) {
        const auto& b = ops[i + 1].as<RmsNormArgs>();
        if (one_kernel(a, b) && !NormChain().add(b)) second = b, done_ = static_cast<std::ptrdiff_t>(i) + 2;
      }
      push([=](const Context& c) { rms_norm(c, a, second ? &*second : nullptr, rows); });
      if (second) writes(second->y);
      return writes(a.y);
    }
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
    if (const RowNorms ahead = row_norms(chain); goes_ahead(ahead, rows))
      ahead_ = ahead;
    else
      push([=](const Context& c) { norms(c, chain, rows); });
  }
  // Whether one kernel can compute both: as many rows and groups, and neither reads or writes what the other
  // writes.
  static bool one_kernel(const RmsNormArgs& a, const RmsNormArgs& b) {
    if (a.y.rows != b.y.rows || a.y.cols != b.y.cols || a.width != b.width) return false;
    const auto read = [](const RmsNormArgs& n, const Tensor& y) {
      for (const Tensor& t : {n.x, n.residual, n.mul})
        if (t.valid() && meet(t, y) && !side_by_side(t, y)) return true;
      return false;
    };
    return !read(b, a.y) && !read(a, b.y) && (!meet(a.y, b.y) || side_by_side(a.y, b.y));
  }
  // Columns of one matrix, of which none are shared.
  static bool side_by_side(const Tensor& a, const Tensor& b) {
    const auto [left, right] = a.data < b.data ? std::pair(&a, &b) : std::pair(&b, &a);
    const std::ptrdiff_t apart = right->data - left->data;
    return a.pitch == b.pitch && a.rows == b.rows && apart >= int64_t{left->cols} * 4 &&
           apart + int64_t{right->cols} * 4 <= a.pitch;
  }
  // Whether the next operation's products compute these norms of a single row by themselves.
  bool goes_ahead(const RowNorms& norms, RowSet rows) const {
    const auto& ops = program_.ops();
    const auto next = static_cast<size_t>(index_) + 1;
    if (norms.n == 0 || next >= ops.size() || ops[next].rows != rows) return false;
    const OpRecord& op = ops[next];
    if (!follow({op.op}, next)) return false;
    if (op.op == Op::GateUp) return norms_fit(norms, op.as<GateUpArgs>(), device_);
    return op.op == Op::Matmul && norms_fit(norms, op.as<MatmulArgs>(), device_);
  }
  void add(const PointwiseArgs& a, RowSet rows) {
    push([=](const Context& c) { pointwise(c, a, rows); });
    writes(a.y);
  }
  void add(const LayerNormArgs& a, RowSet rows) {
    push([=](const Context& c) { layer_norm(c, a, rows); });
    writes(a.y);
  }
  void add(const BandAttentionArgs& a, RowSet rows) {
    push([=](const Context& c) { band_attention(c, a, rows); });
    writes(a.y);
  }
  void add(const RouteArgs& a, RowSet rows) {
    push([=](const Context& c) { route(c, a, rows); });
    writes(a.weights), writes(a.experts);
  }
  void add(const TopArgs& a, RowSet rows) {
    push([=](const Context& c) { top(c, a, rows); });
  }
  void add(const ShareArgs& a, RowSet rows) {
    if (a.parts == 1) return;
    auto* links = static_cast<Links*>(a.exchange->links.get());
    require(links != nullptr, "devices that do not reach each other");
    require(row_bytes(a.y.type, 1) == 4, "columns that are not of four bytes");
    require(static_cast<uint32_t>(a.number) + 1 < kMostShares, "more shares than a step has numbers");
    exe_->exchange = a.exchange;
    if (fits_boxes(a)) {
      const int32_t turn = boxes_++ % 2;
      push([=](const Context& c) { share_boxes(c, a, links->of(a.part), links->boxes(a.part, turn), rows); });
      return writes(a.y);
    }
    const int64_t bytes = int64_t{4} * a.gives[a.part].cols * a.y.rows;
    ShareBefore before;
    for (int32_t p = 0; p < a.parts && bytes > 0; ++p) {
      if (p == a.part || !(a.takes >> p & 1) || links->direct(a.part, p)) continue;
      links->reserve(a.part, static_cast<size_t>(bytes));
      before.number[p] = std::exchange(fetched_[p], static_cast<uint32_t>(a.number) + 1);
    }
    push([=](const Context& c) { share(c, a, links->of(a.part), before, rows); });
    writes(a.y);
  }
  // Products know no gelu by erf: it comes behind.
  static bool by_erf(const MatmulArgs& a) { return a.act == Act::gelu; }
  void add(MatmulArgs a, RowSet rows) {
    if (rounds_before(a)) a.x = e4m3_once(a.w.type, a.x, rows);
    if (by_erf(a)) {
      MatmulArgs sums = a;
      sums.act = Act::none, sums.mul = {};
      add(sums, rows);
      return add(PointwiseArgs{.y = a.y, .x = a.y, .add = {}, .mul = a.mul, .act = a.act}, rows);
    }
    std::vector<MatmulArgs> all = {a};
    const auto& ops = program_.ops();
    auto next = static_cast<size_t>(index_) + 1;
    for (; all.size() < kMatmulsAtOnce && reads_too(next, a, rows); ++next) {
      const auto& b = ops[next].as<MatmulArgs>();
      if (!matmuls_at_once(all, b, ahead_, device_) || meet(a.x, b.y) || weights_come(next)) break;
      if (ahead_.n > 0 && !norms_fit(ahead_, b, device_)) break;
      all.push_back(b);
      done_ = static_cast<std::ptrdiff_t>(next) + 1;
    }
    if (const RowNorms ahead = std::exchange(ahead_, {}); ahead.n > 0) {
      push([=](const Context& c) { matmuls(c, ahead, all, rows); });
    } else if (rounds(a.w) && all.size() == 1 && !alone_ && slot_of(a.x, rows) < 0 &&
               !reads_too(next, a, rows) && rounds_itself(a, device_)) {
      push([=](const Context& c) { matmul_rounding(c, a, rows); });
    } else {
      const Rounded x =
          rounds(a.w) ? round_once(a.x, rows) : split_once(a.x, a.w, parts_of(device_, a.w, a.y.rows), rows);
      push([=](const Context& c) { matmuls(c, all, x, rows); });
    }
    for (const MatmulArgs& m : all) writes(m.y);
  }
  // Whether operation i is a product of the same row.
  bool reads_too(size_t i, const MatmulArgs& a, RowSet rows) const {
    if (i >= program_.ops().size()) return false;
    const OpRecord& op = program_.ops()[i];
    return op.op == Op::Matmul && op.rows == rows && !host_.computes(op) && !by_erf(op.as<MatmulArgs>()) &&
           key_of(op.as<MatmulArgs>().x, rows) == key_of(a.x, rows);
  }
  void add(GateUpArgs a, RowSet rows) {
    if (rounds_before(a)) a.x = e4m3_once(a.gate.type, a.x, rows);
    const Rounded x = rounds(a.gate) || rounds(a.up) ? round_once(a.x, rows)
                                                     : split_once(a.x, a.gate, parts_of(device_, a), rows);
    if (const RowNorms ahead = std::exchange(ahead_, {}); ahead.n > 0)
      push([=](const Context& c) { gate_up(c, ahead, a, rows); });
    else
      push([=](const Context& c) { gate_up(c, a, x, rows); });
    writes(a.y);
  }
  void add(ExpertsArgs a, RowSet rows) {
    const bool rounded = rounds_before(a);
    if (rounded) a.x = e4m3_once(a.gate.type, a.x, rows);
    const Rounded x = rounds(a.gate) || rounds(a.up) ? round_once(a.x, rows)
                                                     : split_once(a.x, a.gate, parts_of(device_, a), rows);
    auto* hidden = reinterpret_cast<float*>(exe_->scratch->data() + hidden_at());
    const PairLists lists =
        pair_lists(device_, a, exe_->scratch->data() + hidden_at() + aligned(hidden_) + aligned(inner_));
    if (lists.start) push([=](const Context& c) { list_pairs(c, a, lists, rows); });
    const bool chosen = a.y.rows == 1 && chosen_early();
    push([=](const Context& c) { experts_gate_up(c, a, x, hidden, lists, chosen, rows); });
    Rounded h;
    const int32_t pairs = a.y.rows * a.weights.cols, used = a.weights.cols;
    const Tensor all = make_tensor(hidden, DType::f32, pairs, a.gate.rows);
    if (rounded) push([=, w = a.down.type](const Context& c) { round_to_e4m3(c, w, all, all, rows, used); });
    if (const Parts parts = parts_of(device_, a); parts != Parts::none) {
      h = carve_parts(hidden_at() + aligned(hidden_), pairs, a.gate.rows);
      h.chunks = parts == Parts::chunks;
      push([=, w = a.down](const Context& c) { split_rows(c, w, all, h, rows, used); });
    }
    if (rounds(a.down)) {
      h = carve(hidden_at() + aligned(hidden_), pairs, a.gate.rows);
      push([=](const Context& c) { round_rows(c, all, h, rows, used); });
    }
    push([=](const Context& c) { experts_down(c, a, hidden, h, lists, rows); });
    writes(a.y);
  }
  void add(SliceMatmulArgs a, RowSet rows) {
    if (rounds_before(a)) a.x = e4m3_once(a.w.type, a.x, rows);
    const Rounded x = rounds(a.w) ? round_once(a.x, rows) : Rounded{};
    push([=](const Context& c) { slice_matmul(c, a, x, rows); });
    writes(a.y);
  }
  void add(const QkvPrepArgs& a, RowSet rows) {
    writes(a.q);
    if (attends(a)) {
      done_ = ++index_ + 1;
      return attend(program_.ops()[static_cast<size_t>(index_)].as<AttentionArgs>(), rows, a);
    }
    push([=](const Context& c) { qkv_prep(c, a, rows); });
  }
  // Whether all that becomes of this preparation is the attention behind it, of a single row.
  bool attends(const QkvPrepArgs& a) const {
    const auto i = static_cast<size_t>(index_);
    if (a.q.rows != 1 || !follow({Op::QkvPrep, Op::Attention}, i)) return false;
    const auto& ops = program_.ops();
    const auto& b = ops[i + 1].as<AttentionArgs>();
    const KvView &kv = a.kv, &same = b.kv;
    // Some blocks write y while others still read.
    for (const Tensor& t : {a.q, a.k, a.v})
      if (t.valid() && meet(b.y, t)) return false;
    return key_of(a.q, ops[i].rows) == key_of(b.q, ops[i].rows) && kv.k == same.k && kv.v == same.v &&
           kv.k_page_bytes == same.k_page_bytes && kv.v_page_bytes == same.v_page_bytes &&
           kv.page_tokens == same.page_tokens && kv.ring_tokens == same.ring_tokens && kv.spec == same.spec &&
           (ops[i].rows == RowSet::all || !a.k.valid()) && !read_behind(a.q, ops[i].rows, i + 2);
  }
  // Whether an operation from i on reads some of a row before it is written again. What operations write is
  // their first operand; other results count as read.
  bool read_behind(const Tensor& row, RowSet rows, size_t i) const {
    const std::byte *begin = row.data, *end = row.data + int64_t{row.cols} * 4;
    for (; i < program_.ops().size() && begin < end; ++i) {
      const OpRecord& op = program_.ops()[i];
      const Tensor y = result(op);
      bool first = op.op != Op::QkvPrep, reads = false;  // which rewrites its first
      each_operand(op, [&](const char*, const Tensor& t) {
        if (!std::exchange(first, false) && t.valid())
          reads = reads || (t.data < end && begin < t.data + t.rows * t.pitch);
      });
      if (reads) return true;
      if (y.rows != 1 || (op.rows != rows && op.rows != RowSet::all)) continue;
      const std::byte* to = y.data + int64_t{y.cols} * 4;
      if (y.data <= begin && to > begin)
        begin = to;
      else if (y.data < end && to >= end)
        end = y.data;
    }
    return false;
  }
  void add(const AttentionArgs& a, RowSet rows) { attend(a, rows, {}); }
  void attend(const AttentionArgs& a, RowSet rows, const std::optional<QkvPrepArgs>& prepares) {
    const Span span{a.kv.spec.window, a.both_ways || a.blocks};
    std::vector<Span>& spans = exe_->spans;
    auto it = std::find(spans.begin(), spans.end(), span);
    if (it == spans.end()) it = spans.insert(spans.end(), span);
    AttentionPlan plan{static_cast<int32_t>(it - spans.begin()), a.y.rows <= kSplitRows};
    op_ = nullptr;
    CARAT_CHECK(plan.span < kMaxSpans, "{} kinds of windows", plan.span + 1);
    if (unpacks(a)) {
      plan.unpacked = exe_->scratch->data() + unpacked_offset();
      plan.tiles = exe_->tiles[plan.span] = unpacked_tiles(span.window, exe_->max_rows);
    }
    if (plan.split) exe_->split.push_back(a), exe_->split_span.push_back(plan.span);
    if (a.y.rows == 1 && folds_window(span.window))
      need(exe_->left, partial_floats(a, 1, window_segments(span.window)));
    const bool round = attention_rounds(a, plan) && rounded_soon(a.y, rows) && has_room(0, a.y);
    const Rounded r = round ? carve(0, a.y.rows, a.y.cols) : Rounded{};
    push([=](const Context& c) { attention(c, a, plan, r, rows, prepares ? &*prepares : nullptr); });
    writes(a.y);
    if (round) holds(a.y, rows, 0);
  }
  // With the norms of queries and keys behind it, of few rows.
  void add(const ConvArgs& a, RowSet) {
    HeadNorms norms;
    if (const auto i = static_cast<size_t>(index_); follow({Op::Conv, Op::RmsNorm, Op::RmsNorm}, i)) {
      const auto& ops = program_.ops();
      norms = head_norms(a, ops[i + 1].as<RmsNormArgs>(), ops[i + 2].as<RmsNormArgs>());
      if (norms.width > 0) done_ = static_cast<std::ptrdiff_t>(i) + 3;
    }
    push([=](const Context& c) { conv(c, a, norms); });
    writes(a.y);
  }
  void add(const DeltaNetArgs& a, RowSet) {
    const auto i = static_cast<size_t>(index_);
    if (follow({Op::DeltaNet, Op::RmsNorm}, i)) {
      const auto& norm = program_.ops()[i + 1].as<RmsNormArgs>();
      if (delta_row_fits(a, norm)) {
        push([=](const Context& c) { delta_row(c, a, norm); });
        done_ = static_cast<std::ptrdiff_t>(i) + 2;
        writes(a.y);
        return writes(norm.y);
      }
    }
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
  RowNorms ahead_;           // what the next operation's products begin with
  bool alone_ = false;       // kernels of this operation begin when those before have ended
  bool both_ways_ = false;   // some attention sees its sequence's later rows
  bool beside_ = false;      // they run beside those of the operations that follow
  std::ptrdiff_t done_ = 0;  // operations that went with one before them
  int64_t rounded_ = 0, second_ = 0, hidden_ = 0, inner_ = 0, pairs_ = 0, parts_ = 0, e4m3_ = 0;
  int32_t boxes_ = 0;                 // shares that use boxes
  uint32_t fetched_[kMaxParts] = {};  // one more than the share that a part had from the host's memory last
  std::vector<AttentionArgs> unpacked_;
  Tensor cached_[4];  // what the first two parts of scratch hold, and the last two, while it is true
  Key key_[4];
  std::tuple<DType, Parts, uint8_t> parts_kind_;
  DType e4m3_kind_ = DType::f32;
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

}  // namespace carat::cuda
