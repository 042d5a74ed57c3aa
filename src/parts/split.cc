#include "parts/split.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "core/operands.h"

namespace carat::parts {
namespace {

constexpr int32_t kRows = 32;  // outputs of a product are cut at multiples of it

class Splitter {
 public:
  Splitter(const Program& program, Memory& memory, Cuts& cuts, Exchange* exchange)
      : program_(program),
        memory_(memory),
        cuts_(cuts),
        exchange_(exchange),
        devices_(memory.devices()),
        out_{std::vector<Program>(static_cast<size_t>(devices_)), Holders(devices_), 0} {}

  Parts run() {
    int32_t last = -1;
    for (const OpRecord& op : program_.ops()) last = std::max<int32_t>(last, op.layer);
    // Drafters and towers are small: they stay together, where the model's output is.
    const bool model = last + 1 >= cuts_.layers();
    here_ = model ? 0 : devices_ - 1;
    for (at_ = 0; at_ < program_.ops().size(); ++at_) {
      const OpRecord& op = program_.ops()[at_];
      if (model && op.layer >= 0) here_ = cuts_.layer_device(op.layer);
      switch (op.op) {
#define X(name) \
  case Op::name: add(op, op.as<name##Args>()); break;
        CARAT_OPS(X)
#undef X
      }
    }
    return std::move(out_);
  }

 private:
  bool tensor() const { return cuts_.mode() == SplitMode::tensor; }
  // Where an operation runs that is not split.
  Mask place() const { return tensor() ? out_.left.all() : bit(here_); }

  // ---- operations for devices

  template <class A>
  void push(int32_t d, const OpRecord& like, const A& args) {
    OpRecord op = like;
    op.op = OpOf<A>::value;
    std::memset(op.args, 0, sizeof op.args);
    std::memcpy(op.args, &args, sizeof args);
    const WeightUse use = op.op == Op::Embed     ? WeightUse::rows
                          : op.op == Op::Experts ? WeightUse::experts
                                                 : WeightUse::product;
    each_operand(op, [&](const char*, Tensor& t) {
      if (!t.valid()) return;
      if (memory_.is_weight(t))
        t = memory_.weight(d, t, use);
      else
        t.data = memory_.local(d, t.data);
    });
    out_.programs[static_cast<size_t>(d)].push(op);
  }
  Rope local(int32_t d, Rope r) {
    r.freq = memory_.local_of(d, r.freq), r.axis = memory_.local_of(d, r.axis);
    return r;
  }

  // ---- what devices need of others

  struct Need {
    Mask devices;
    int32_t first, cols;
  };
  // One operation for every run of columns that a device gives.
  void need(const OpRecord& op, const Tensor& t, const std::vector<Need>& needs) {
    if (!t.valid() || memory_.is_weight(t)) return;
    std::vector<ShareArgs> shares;
    for (const Need& n : needs)
      out_.left.each_column(t, n.first, n.cols, [&](int32_t first, int32_t cols, Mask has) {
        const Mask lacks = n.devices & ~has;
        if (!lacks) return;
        int32_t giver = 0;
        while (!(has & bit(giver))) ++giver;
        give(shares, t, giver, first, cols, lacks);
      });
    for (const ShareArgs& s : shares) meet(op, s);
  }
  void need(const OpRecord& op, const Tensor& t, Mask devices) {
    if (t.valid()) need(op, t, std::vector<Need>{{devices, 0, t.cols}});
  }
  void give(std::vector<ShareArgs>& shares, const Tensor& t, int32_t giver, int32_t first, int32_t cols,
            Mask to) {
    for (ShareArgs& s : shares) {
      ShareArgs::Run& run = s.gives[giver];
      const bool follows = run.cols == 0 || run.first + run.cols == first;
      if (follows && in_order(s, giver, first, cols)) {
        if (run.cols == 0) run.first = first;
        run.cols += cols, s.takes |= to;
        return;
      }
      if (run.cols > 0 && first >= run.first && first + cols <= run.first + run.cols) {
        s.takes |= to;
        return;
      }
    }
    ShareArgs s;
    s.y = t, s.exchange = exchange_, s.parts = devices_;
    s.gives[giver] = {first, cols}, s.takes = to;
    shares.push_back(s);
  }
  static bool in_order(const ShareArgs& s, int32_t giver, int32_t first, int32_t cols) {
    for (int32_t p = 0; p < s.parts; ++p) {
      const ShareArgs::Run r = s.gives[p];
      if (p == giver || r.cols == 0) continue;
      if (p < giver ? r.first + r.cols > first : r.first < first + cols) return false;
    }
    return true;
  }
  void meet(const OpRecord& op, ShareArgs s) {
    s.number = out_.shares++;
    for (int32_t d = 0; d < devices_; ++d)
      if (s.gives[d].cols > 0 || (s.takes & bit(d))) s.at[d] = memory_.local(d, s.y.data);
    for (int32_t d = 0; d < devices_; ++d) {
      s.part = d;
      if (s.gives[d].cols > 0 || (s.takes & bit(d))) push(d, op, s);
    }
    for (int32_t p = 0; p < devices_; ++p)
      if (s.gives[p].cols > 0) {
        Mask has = 0;
        out_.left.each_column(s.y, s.gives[p].first, 1, [&](int32_t, int32_t, Mask m) { has = m; });
        out_.left.set(s.y, s.gives[p].first, s.gives[p].cols, has | s.takes);
      }
  }
  void holds(const Tensor& t, Mask devices) {
    if (t.valid()) out_.left.set(t, 0, t.cols, devices);
  }

  // The whole operation on each of these devices. Operands: outputs first, as each_operand has them.
  template <class A>
  void whole(const OpRecord& op, const A& a, Mask devices, int outputs) {
    OpRecord copy = op;
    int i = 0;
    each_operand(copy, [&](const char*, Tensor& t) {
      if (i++ >= outputs) need(op, t, devices);
    });
    for (int32_t d = 0; d < devices_; ++d)
      if (devices & bit(d)) push(d, op, prepared(d, a));
    i = 0;
    each_operand(copy, [&](const char*, Tensor& t) {
      if (i++ < outputs) holds(t, devices);
    });
  }
  template <class A>
  A prepared(int32_t, const A& a) {
    return a;
  }
  ConvArgs prepared(int32_t d, ConvArgs a) { return a.state = state(d, a.state), a; }
  DeltaNetArgs prepared(int32_t d, DeltaNetArgs a) { return a.state = state(d, a.state), a; }
  RecurrentView state(int32_t d, RecurrentView v) {
    v.base = memory_.local_of(d, v.base), v.log = memory_.local_of(d, v.log);
    return v;
  }

  template <class A>
  void add(const OpRecord& op, const A& a) {
    whole(op, a, place(), 1);
  }
  void add(const OpRecord& op, const EmbedArgs& a) {
    if (tensor()) return whole(op, a, place(), 1);
    const int32_t placed = memory_.weight_device(a.table, WeightUse::rows);
    whole(op, a, bit(placed >= 0 ? placed : here_), 1);
  }
  // Each device gathers the columns that it has.
  void add(const OpRecord& op, const GatherArgs& a) {
    std::vector<std::tuple<int32_t, int32_t, Mask>> pieces;
    out_.left.each_column(a.x, 0, a.x.cols,
                          [&](int32_t first, int32_t cols, Mask m) { pieces.emplace_back(first, cols, m); });
    for (int32_t d = 0; d < devices_; ++d)
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (!(std::get<2>(pieces[i]) & bit(d))) continue;
        const int32_t first = std::get<0>(pieces[i]);
        int32_t end = first;
        for (; i < pieces.size() && (std::get<2>(pieces[i]) & bit(d)); ++i)
          end = std::get<0>(pieces[i]) + std::get<1>(pieces[i]);
        push(d, op, GatherArgs{a.y.columns(first, end - first), a.x.columns(first, end - first)});
      }
    for (const auto& [first, cols, mask] : pieces) out_.left.set(a.y, first, cols, mask);
  }
  void add(const OpRecord& op, const FoldArgs& a) {
    OpRecord both = op;
    both.rows = RowSet::refined;
    need(both, a.x, place());
    whole(op, a, place(), 1);
  }
  void add(const OpRecord& op, const RouteArgs& a) { whole(op, a, place(), 2); }
  void add(const OpRecord& op, const ShareArgs& a) {
    CARAT_CHECK(a.parts == 1, "a part of a part");
    (void)op;
  }
  // One device has the experts of a layer, the next one those of the next.
  void add(const OpRecord& op, const ExpertsArgs& a) {
    const int32_t d = tensor() ? cuts_.expert_device(std::max<int32_t>(0, op.layer)) : here_;
    whole(op, a, bit(d), 1);
  }
  // The states are small and everywhere.
  void add(const OpRecord& op, const ConvArgs& a) { recurrent(op, a); }
  void add(const OpRecord& op, const DeltaNetArgs& a) { recurrent(op, a); }
  template <class A>
  void recurrent(const OpRecord& op, const A& a) {
    if (tensor()) return whole(op, a, place(), 1);
    int32_t d = memory_.owner(a.state.base);
    if (d < 0) {
      d = here_;
      for (float* p : {a.state.base, a.state.log})
        if (p) memory_.lay_out(p, owned(d, 4));
    }
    whole(op, a, bit(d), 1);
  }
  void add(const OpRecord& op, const TopArgs& a) { whole(op, a, bit(tensor() ? 0 : here_), 3); }

  // ---- products

  static Cuts::Key key(const Tensor& w) { return {w.data, w.rows, w.cols}; }

  // Whose every row a device computes; none: all devices compute all.
  std::optional<Cuts::Bounds> bounds_of(const Tensor& w, const Tensor& y, const Tensor& mul) {
    if (const auto it = cuts_.weights.find(key(w)); it != cuts_.weights.end())
      return it->second.empty() ? std::nullopt : std::optional(it->second);
    std::optional<Cuts::Bounds> b = choose(y, mul);
    cuts_.weights[key(w)] = b.value_or(Cuts::Bounds());
    return b;
  }
  std::optional<Cuts::Bounds> choose(const Tensor& y, const Tensor& mul) {
    for (size_t i = at_ + 1; i < program_.ops().size() && i < at_ + 12; ++i) {
      const OpRecord& op = program_.ops()[i];
      // Routers and what gates the heads of a recurrent layer are small.
      if (op.op == Op::Route && op.as<RouteArgs>().logits.data == y.data) return {};
      if (op.op == Op::DeltaNet &&
          (op.as<DeltaNetArgs>().a.data == y.data || op.as<DeltaNetArgs>().beta.data == y.data))
        return {};
      if (op.op != Op::QkvPrep) continue;
      const auto& p = op.as<QkvPrepArgs>();
      if (p.q.data != y.data && p.k.data != y.data && p.v.data != y.data) continue;
      Cuts::Bounds b = cuts_.of(p.kv.spec.heads, 1);
      for (int32_t& n : b) n *= y.cols / p.kv.spec.heads;
      return b;
    }
    if (mul.valid() && mul.cols == y.cols)
      if (auto b = held_in_order(mul)) return b;
    if (y.cols < 2 * kRows) return {};
    return cuts_.of(y.cols, kRows);
  }
  // A matrix of which every device has a run.
  std::optional<Cuts::Bounds> held_in_order(const Tensor& t) const {
    Cuts::Bounds b(static_cast<size_t>(devices_) + 1, t.cols);
    b[0] = 0;
    int32_t next = 0;  // the device whose run is next
    bool ok = true;
    out_.left.each_column(t, 0, t.cols, [&](int32_t first, int32_t cols, Mask m) {
      int32_t d = 0;
      while (d < devices_ && m != bit(d)) ++d;
      if (d == devices_ || d < next - 1) return void(ok = false);
      for (; next <= d; ++next) b[static_cast<size_t>(next)] = first;
      (void)cols;
    });
    return ok ? std::optional(b) : std::nullopt;
  }

  void add(const OpRecord& op, const MatmulArgs& a) {
    if (!tensor()) {
      const int32_t placed = memory_.weight_device(a.w, WeightUse::product);
      return whole(op, a, bit(placed >= 0 ? placed : here_), 1);
    }
    const auto b = bounds_of(a.w, a.y, a.mul);
    if (!b) return whole(op, a, place(), 1);
    cut(op, a.y, a.x, *b, {&a.mul, &a.residual}, [&](int32_t d, int32_t first, int32_t n) {
      MatmulArgs part = a;
      part.y = a.y.columns(first, n), part.w = a.w.row_range(first, n);
      for (Tensor* t : {&part.bias, &part.mul, &part.residual})
        if (t->valid() && t->cols == a.y.cols) *t = t->columns(first, n);
      push(d, op, part);
    });
  }
  void add(const OpRecord& op, const GateUpArgs& a) {
    if (!tensor()) return whole(op, a, bit(here_), 1);
    const auto b = bounds_of(a.gate, a.y, {});
    if (!b) return whole(op, a, place(), 1);
    cut(op, a.y, a.x, *b, {}, [&](int32_t d, int32_t first, int32_t n) {
      GateUpArgs part = a;
      part.y = a.y.columns(first, n);
      part.gate = a.gate.row_range(first, n), part.up = a.up.row_range(first, n);
      push(d, op, part);
    });
  }
  template <class F>
  void cut(const OpRecord& op, const Tensor& y, const Tensor& x, const Cuts::Bounds& b,
           std::initializer_list<const Tensor*> beside, F&& f) {
    const auto run = [&](int32_t d) {
      const int32_t first = b[static_cast<size_t>(d)];
      return std::pair(first, b[static_cast<size_t>(d) + 1] - first);
    };
    Mask some = 0;
    std::vector<Need> own;
    for (int32_t d = 0; d < devices_; ++d)
      if (const auto [first, n] = run(d); n > 0) some |= bit(d), own.push_back({bit(d), first, n});
    need(op, x, some);
    for (const Tensor* t : beside)
      if (t->valid()) t->cols == y.cols ? need(op, *t, own) : need(op, *t, some);
    for (int32_t d = 0; d < devices_; ++d)
      if (const auto [first, n] = run(d); n > 0) f(d, first, n);
    for (int32_t d = 0; d < devices_; ++d)
      if (const auto [first, n] = run(d); n > 0) out_.left.set(y, first, n, bit(d));
  }

  // ---- attention

  Layout owned(int32_t d, int64_t record) const {
    Layout l{record, std::vector<Layout::Run>(static_cast<size_t>(devices_))};
    l.runs[static_cast<size_t>(d)] = {0, record};
    return l;
  }
  // How a cache's heads lie: bounds of KV heads.
  Cuts::Bounds heads_of(const KvView& v) {
    Cuts::Bounds b;
    if (tensor()) {
      b = cuts_.of(v.spec.heads, 1);
    } else {
      int32_t d = memory_.owner(v.k);
      if (d < 0) d = here_;
      for (int32_t i = 0; i <= devices_; ++i) b.push_back(i > d ? v.spec.heads : 0);
    }
    const auto lay = [&](const void* p, int64_t record) {
      if (!p || record == 0) return;
      const int64_t head = record / v.spec.heads;
      Layout l{record, {}};
      for (size_t d = 0; d + 1 < b.size(); ++d) {
        const int64_t first = b[d] * head, bytes = (b[d + 1] - b[d]) * head;
        l.runs.push_back({bytes ? first : 0, bytes});
      }
      memory_.lay_out(p, l);
    };
    lay(v.k, v.k_page_bytes), lay(v.v, v.v_page_bytes);
    lay(v.k_edge, v.spec.heads * v.spec.k_edge_bytes()), lay(v.v_edge, v.spec.heads * v.spec.v_edge_bytes());
    return b;
  }
  KvView local(int32_t d, KvView v, int32_t heads) {
    v.k_page_bytes = v.k_page_bytes / v.spec.heads * heads;
    v.v_page_bytes = v.v_page_bytes / v.spec.heads * heads;
    v.spec.heads = heads;
    v.k = memory_.local_of(d, v.k), v.v = memory_.local_of(d, v.v);
    v.k_edge = memory_.local_of(d, v.k_edge), v.v_edge = memory_.local_of(d, v.v_edge);
    v.gain = memory_.local_of(d, v.gain);
    return v;
  }
  // Columns of a matrix of `heads` KV heads (or of their query heads) that device d has.
  static std::pair<int32_t, int32_t> head_columns(const Tensor& t, const Cuts::Bounds& b, int32_t heads,
                                                  int32_t d) {
    const int32_t width = t.cols / heads, first = b[static_cast<size_t>(d)];
    return {first * width, (b[static_cast<size_t>(d) + 1] - first) * width};
  }
  void need_heads(const OpRecord& op, const Tensor& t, const Cuts::Bounds& b, int32_t heads) {
    if (!t.valid()) return;
    std::vector<Need> needs;
    for (int32_t d = 0; d < devices_; ++d)
      if (const auto [first, n] = head_columns(t, b, heads, d); n > 0) needs.push_back({bit(d), first, n});
    need(op, t, needs);
  }
  void holds_heads(const Tensor& t, const Cuts::Bounds& b, int32_t heads) {
    for (int32_t d = 0; d < devices_; ++d) {
      const auto [first, n] = head_columns(t, b, heads, d);
      out_.left.set(t, first, n, bit(d));
    }
  }

  void add(const OpRecord& op, const QkvPrepArgs& a) {
    const Cuts::Bounds b = heads_of(a.kv);
    const int32_t heads = a.kv.spec.heads;
    need_heads(op, a.q, b, heads), need_heads(op, a.k, b, heads);
    if (a.v.data != a.k.data) need_heads(op, a.v, b, heads);
    // A device of which nothing is wanted of the queries may still keep keys; both go by heads.
    for (int32_t d = 0; d < devices_; ++d) {
      const int32_t own = b[static_cast<size_t>(d) + 1] - b[static_cast<size_t>(d)];
      if (own == 0) continue;
      QkvPrepArgs part = a;
      for (Tensor* t : {&part.q, &part.k, &part.v})
        if (t->valid()) {
          const auto [first, n] = head_columns(*t, b, heads, d);
          *t = t->columns(first, n);
        }
      part.rope = local(d, a.rope), part.kv = local(d, a.kv, own);
      push(d, op, part);
    }
    holds_heads(a.q, b, heads);
  }
  void add(const OpRecord& op, const AttentionArgs& a) {
    const Cuts::Bounds b = heads_of(a.kv);
    const int32_t heads = a.kv.spec.heads;
    need_heads(op, a.q, b, heads);
    for (int32_t d = 0; d < devices_; ++d) {
      const int32_t own = b[static_cast<size_t>(d) + 1] - b[static_cast<size_t>(d)];
      if (own == 0) continue;
      const auto [first, n] = head_columns(a.q, b, heads, d);
      AttentionArgs part = a;
      part.q = a.q.columns(first, n), part.y = a.y.columns(first, n), part.kv = local(d, a.kv, own);
      push(d, op, part);
    }
    holds_heads(a.y, b, heads);
  }

  const Program& program_;
  Memory& memory_;
  Cuts& cuts_;
  Exchange* exchange_;
  int32_t devices_;
  Parts out_;
  size_t at_ = 0;
  int32_t here_ = 0;  // the device that the layer at hand is on
};

}  // namespace

Parts split(const Program& program, Memory& memory, Cuts& cuts, Exchange* exchange) {
  return Splitter(program, memory, cuts, exchange).run();
}

}  // namespace carat::parts
