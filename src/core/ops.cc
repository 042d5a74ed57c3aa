#include "core/ops.h"

#include <cmath>

#include "base/error.h"
#include "core/kv_codec.h"
#include "core/program.h"

namespace carat {
namespace {

// The rules of one operation; every failure names the operation, the operand and the rule.
class Checker {
 public:
  explicit Checker(const OpRecord& op) : op_(op) {}

  template <class... T>
  void require(bool ok, fmt::format_string<T...> rule, T&&... v) const {
    if (ok) return;
    const std::string where = op_.layer >= 0 ? fmt::format(" (layer {})", op_.layer) : std::string();
    throw Error(fmt::format("{}{}: {}", kOpNames[static_cast<size_t>(op_.op)], where,
                            fmt::format(rule, std::forward<T>(v)...)),
                "the model's shapes do not fit together, or the build has an error");
  }

  // A row-major f32 (or i32) matrix in plain layout.
  void plain(const char* name, const Tensor& t, DType type = DType::f32) const {
    require(t.valid(), "{} is missing", name);
    require(t.type == type && t.packing == 0, "{} must be {}, not {}", name, info(type).name,
            info(t.type).name);
    require(t.rows > 0 && t.cols > 0 && t.slices == 1, "{} is {} x {} x {}", name, t.slices, t.rows, t.cols);
    require(t.rows == 1 || t.pitch >= row_bytes(t.type, t.cols), "the rows of {} overlap", name);
    require(t.pitch % 4 == 0 && reinterpret_cast<uintptr_t>(t.data) % 4 == 0, "{} is not aligned to 4 bytes",
            name);
  }

  // One row of `cols` f32 that all rows share.
  void shared_row(const char* name, const Tensor& t, int32_t cols) const {
    plain(name, t);
    require(t.rows == 1 && t.cols == cols, "{} is [{}, {}], expected [1, {}]", name, t.rows, t.cols, cols);
  }

  // Activations [rows of y, cols].
  void matrix(const char* name, const Tensor& t, int32_t rows, int32_t cols, DType type = DType::f32) const {
    plain(name, t, type);
    require(t.rows == rows && t.cols == cols, "{} is [{}, {}], expected [{}, {}]", name, t.rows, t.cols, rows,
            cols);
  }

  void weight(const char* name, const Tensor& t, int32_t rows, int32_t cols, int32_t slices = 1) const {
    require(t.valid(), "{} is missing", name);
    const bool floats = t.type == DType::f32 || t.type == DType::f16 || t.type == DType::bf16 ||
                        t.type == DType::fp8 || rounds_to_e4m3(t.type);
    require(floats || info(t.type).family == Family::block, "{} cannot be {}", name, info(t.type).name);
    require(t.rows == rows && t.cols == cols && t.slices == slices,
            "{} is [{}, {}, {}], expected [{}, {}, {}]", name, t.slices, t.rows, t.cols, slices, rows, cols);
    require(rows > 0 && cols > 0, "{} is empty", name);
    require(cols % info(t.type).elems == 0, "the {} columns of {} are not a multiple of {}'s block of {}",
            cols, name, info(t.type).name, info(t.type).elems);
    if (t.packing != 0) return;  // a private layout: its backend knows the pitches
    require(rows == 1 || t.pitch >= row_bytes(t.type, cols), "the rows of {} overlap", name);
    require(slices == 1 || t.slice_pitch > 0, "{} has no slice pitch", name);
  }

  void distinct(const char* a, const Tensor& ta, const char* b, const Tensor& tb) const {
    require(ta.data != tb.data, "{} and {} may not be the same memory", a, b);
  }

  void finite(const char* name, float v) const { require(std::isfinite(v), "{} is not finite", name); }
  void softcap(float v) const { require(std::isfinite(v) && v >= 0, "softcap is {}", v); }

  void kv(const KvView& v) const {
    require(v.k && v.v, "the KV cache is missing");
    require(v.spec.heads > 0 && v.spec.dim > 0, "the KV cache has {} heads of {}", v.spec.heads, v.spec.dim);
    require(v.page_tokens > 0, "the KV cache's pages hold {} positions", v.page_tokens);
    require(v.spec.window >= 0, "the window is {}", v.spec.window);
    require(v.ring_tokens >= 0 && v.ring_tokens % v.page_tokens == 0,
            "a ring of {} positions is not whole pages of {}", v.ring_tokens, v.page_tokens);
    require(v.ring_tokens == 0 || (v.spec.window > 0 && v.ring_tokens >= v.spec.window),
            "a ring of {} positions cannot hold a window of {}", v.ring_tokens, v.spec.window);
    for (const auto& [t, dim] : {std::pair{v.spec.k, v.spec.key_dim()}, std::pair{v.spec.v, v.spec.dim}}) {
      require(is_kv_format(t), "the KV cache cannot be {}", info(t).name);
      require(dim % info(t).elems == 0, "heads of {} are not a multiple of {}'s block of {}", dim,
              info(t).name, info(t).elems);
    }
    require(v.spec.pairs >= 0 && 2 * v.spec.pairs < v.spec.dim, "keys of {} have {} pairs of their own",
            v.spec.dim, v.spec.pairs);
    require(v.spec.pairs == 0 || v.gain, "keys are values without a gain");
    const int64_t rows = int64_t{v.spec.heads} * v.page_tokens;
    require(v.k_page_bytes >= rows * v.spec.k_bytes(), "the K pages overlap");
    require(v.v_page_bytes >= rows * v.spec.v_bytes(), "the V pages overlap");
    const KvProtect& p = v.spec.protect;
    require(p.sinks >= 0 && p.recent >= 0, "{} first and {} last positions are protected", p.sinks, p.recent);
    if (p.any()) {
      require(v.k_edge && v.v_edge, "the protected rows are missing");
      require(v.edge_ring > 0, "the ring of protected rows holds none");
    }
  }

  void recurrent(const RecurrentView& v, int64_t base, int64_t entry) const {
    const RecurrentSpec& s = v.spec;
    require(v.base != nullptr, "the state is missing");
    require(v.entries >= 0 && (v.entries == 0 || v.log), "the log of {} entries is missing", v.entries);
    require(s.k_heads > 0 && s.v_heads > 0 && s.v_heads % s.k_heads == 0,
            "{} value heads do not share {} key heads evenly", s.v_heads, s.k_heads);
    require(s.k_dim > 0 && s.v_dim > 0 && s.v_dim % 16 == 0, "values of {} are not a multiple of 16",
            s.v_dim);
    require(s.taps > 1 && s.taps <= kMaxTaps, "{} taps, expected 2 to {}", s.taps, kMaxTaps);
    require(v.base_floats >= base && v.entry_floats >= entry, "the states overlap");
  }

 private:
  const OpRecord& op_;
};

void check(const Checker& c, const EmbedArgs& a) {
  c.plain("y", a.y);
  c.weight("table", a.table, a.table.rows, a.y.cols);
  c.require(a.table.packing == 0, "table must be in its documented layout");
  c.finite("scale", a.scale);
}

void check(const Checker& c, const GatherArgs& a) {
  c.plain("y", a.y);
  c.plain("x", a.x);
  c.require(a.y.cols == a.x.cols, "y has {} columns, x {}", a.y.cols, a.x.cols);
  c.distinct("y", a.y, "x", a.x);
}

void check(const Checker& c, const RmsNormArgs& a) {
  c.plain("y", a.y);
  c.matrix("x", a.x, a.y.rows, a.y.cols);
  const int32_t width = a.width ? a.width : a.y.cols;
  c.require(width > 0 && a.y.cols % width == 0, "{} columns are not whole groups of {}", a.y.cols, width);
  if (a.weight.valid()) c.shared_row("weight", a.weight, width);
  if (a.residual.valid()) c.matrix("residual", a.residual, a.y.rows, a.y.cols);
  if (a.gain.valid()) c.shared_row("gain", a.gain, a.gain.cols == 1 ? 1 : a.y.cols);
  if (a.mul.valid()) c.matrix("mul", a.mul, a.y.rows, a.y.cols);
  c.require(a.eps >= 0 && std::isfinite(a.eps), "eps is {}", a.eps);
  c.finite("scale", a.scale);
}

void check(const Checker& c, const PointwiseArgs& a) {
  c.plain("y", a.y);
  c.matrix("x", a.x, a.y.rows, a.y.cols);
  if (a.add.valid()) c.matrix("add", a.add, a.add.rows == 1 ? 1 : a.y.rows, a.y.cols);
  if (a.mul.valid()) c.matrix("mul", a.mul, a.mul.rows == 1 ? 1 : a.y.rows, a.y.cols);
  c.require(a.low <= a.high, "clamps to [{}, {}]", a.low, a.high);
}

void check(const Checker& c, const LayerNormArgs& a) {
  c.plain("y", a.y);
  c.matrix("x", a.x, a.y.rows, a.y.cols);
  if (a.weight.valid()) c.shared_row("weight", a.weight, a.y.cols);
  if (a.bias.valid()) c.shared_row("bias", a.bias, a.y.cols);
  c.require(a.eps >= 0 && std::isfinite(a.eps), "eps is {}", a.eps);
}

void check(const Checker& c, const RefineArgs& a) {
  c.plain("x", a.x);
  c.matrix("y", a.y, 2 * a.x.rows, a.x.cols);
  c.distinct("y", a.y, "x", a.x);
}

void check(const Checker& c, const FoldArgs& a) {
  c.plain("y", a.y);
  c.matrix("x", a.x, 2 * a.y.rows, a.y.cols);
  c.distinct("y", a.y, "x", a.x);
  c.softcap(a.softcap);
}

void check(const Checker& c, const MatmulArgs& a) {
  c.plain("y", a.y);
  c.plain("x", a.x);
  c.require(a.x.rows == a.y.rows, "x has {} rows, y {}", a.x.rows, a.y.rows);
  c.weight("w", a.w, a.y.cols, a.x.cols);
  if (a.bias.valid()) c.shared_row("bias", a.bias, a.y.cols);
  if (a.mul.valid()) c.matrix("mul", a.mul, a.y.rows, a.mul.cols == 1 ? 1 : a.y.cols);
  if (a.residual.valid()) c.matrix("residual", a.residual, a.y.rows, a.y.cols);
  c.distinct("y", a.y, "x", a.x);
  c.finite("scale", a.scale);
  c.softcap(a.softcap);
}

void check(const Checker& c, const GateUpArgs& a) {
  c.plain("y", a.y);
  c.plain("x", a.x);
  c.require(a.x.rows == a.y.rows, "x has {} rows, y {}", a.x.rows, a.y.rows);
  c.weight("gate", a.gate, a.y.cols, a.x.cols);
  c.weight("up", a.up, a.y.cols, a.x.cols);
  c.distinct("y", a.y, "x", a.x);
  c.finite("gate_scale", a.gate_scale);
  c.finite("up_scale", a.up_scale);
}

void check(const Checker& c, const RouteArgs& a) {
  c.plain("logits", a.logits);
  c.require(a.top_k > 0 && a.top_k <= a.logits.cols, "top_k is {} of {} experts", a.top_k, a.logits.cols);
  c.matrix("weights", a.weights, a.logits.rows, a.top_k);
  c.matrix("experts", a.experts, a.logits.rows, a.top_k, DType::i32);
  if (a.expert_scale.valid()) c.shared_row("expert_scale", a.expert_scale, a.logits.cols);
}

void check(const Checker& c, const ExpertsArgs& a) {
  c.plain("y", a.y);
  c.matrix("x", a.x, a.y.rows, a.y.cols);
  const int32_t n = a.gate.slices, inner = a.gate.rows;
  c.require(n > 0, "gate has {} experts", n);
  c.weight("gate", a.gate, inner, a.x.cols, n);
  c.weight("up", a.up, inner, a.x.cols, n);
  c.weight("down", a.down, a.y.cols, inner, n);
  c.plain("weights", a.weights);
  c.matrix("weights", a.weights, a.y.rows, a.weights.cols);
  c.matrix("experts", a.experts, a.y.rows, a.weights.cols, DType::i32);
  c.require(a.weights.cols <= n, "{} experts a row of {}", a.weights.cols, n);
  if (a.gate_scale.valid()) c.shared_row("gate_scale", a.gate_scale, n);
  if (a.up_scale.valid()) c.shared_row("up_scale", a.up_scale, n);
  if (a.down_scale.valid()) c.shared_row("down_scale", a.down_scale, n);
  if (a.residual.valid()) c.matrix("residual", a.residual, a.y.rows, a.y.cols);
  c.distinct("y", a.y, "x", a.x);
}

void check(const Checker& c, const SliceMatmulArgs& a) {
  c.plain("y", a.y);
  c.plain("x", a.x);
  c.plain("chosen", a.chosen, DType::i32);
  c.weight("w", a.w, a.w.rows, a.x.cols, a.w.slices);
  c.require(a.w.slices > 0, "w has {} slices", a.w.slices);
  c.require(a.x.rows == a.y.rows, "x has {} rows, y {}", a.x.rows, a.y.rows);
  c.matrix("chosen", a.chosen, a.y.rows, a.chosen.cols, DType::i32);
  c.require(int64_t{a.chosen.cols} * a.w.rows == a.y.cols, "y has {} columns, expected {} slices of {}",
            a.y.cols, a.chosen.cols, a.w.rows);
  c.distinct("y", a.y, "x", a.x);
  c.finite("scale", a.scale);
}

void check(const Checker& c, const QkvPrepArgs& a) {
  c.kv(a.kv);
  const int32_t dim = a.kv.spec.dim;
  c.plain("q", a.q);
  c.require(a.q.cols % dim == 0, "the {} columns of q are not whole heads of {}", a.q.cols, dim);
  c.require(a.k.valid() == a.v.valid(), "k and v must come together");
  if (a.k.valid()) {
    c.matrix("k", a.k, a.q.rows, a.kv.spec.heads * dim);
    c.matrix("v", a.v, a.q.rows, a.kv.spec.heads * dim);
    c.distinct("q", a.q, "k", a.k);
    c.distinct("q", a.q, "v", a.v);
  }
  if (const int32_t pairs = a.kv.spec.pairs; pairs > 0) {
    c.require(a.rope.pairs == pairs && a.rope.offset * 2 == dim,
              "the cache has {} rotated pairs, not {} + {}", pairs, a.rope.pairs, a.rope.offset);
    if (a.k.valid())
      c.require(a.k.data == a.v.data && a.k_norm.valid() && a.v_norm, "keys are not functions of values");
  }
  if (a.q_norm.valid()) c.shared_row("q_norm", a.q_norm, dim);
  if (a.k_norm.valid()) c.shared_row("k_norm", a.k_norm, dim);
  c.require(a.eps >= 0 && std::isfinite(a.eps), "eps is {}", a.eps);
  c.require(a.rope.pairs >= 0 && (a.rope.pairs == 0 || a.rope.freq), "rope has no frequencies");
  c.require(!a.rope.axis || a.rope.pairs > 0, "rope has axes without pairs");
  c.require(a.rope.pairs <= a.rope.offset || a.rope.pairs == 0, "rope rotates {} pairs {} apart",
            a.rope.pairs, a.rope.offset);
  c.require(a.rope.pairs == 0 || a.rope.pairs + a.rope.offset <= dim, "rope pairs {} + {} exceed heads of {}",
            a.rope.pairs, a.rope.offset, dim);
}

void check(const Checker& c, const AttentionArgs& a) {
  c.kv(a.kv);
  c.plain("q", a.q);
  c.matrix("y", a.y, a.q.rows, a.q.cols);
  c.require(a.q.cols % a.kv.spec.dim == 0, "the {} columns of q are not whole heads of {}", a.q.cols,
            a.kv.spec.dim);
  c.require(a.q.cols / a.kv.spec.dim % a.kv.spec.heads == 0, "{} query heads do not share {} KV heads evenly",
            a.q.cols / a.kv.spec.dim, a.kv.spec.heads);
  c.distinct("y", a.y, "q", a.q);
  c.require(!a.both_ways || !a.blocks, "sees later rows by two rules");
  c.finite("scale", a.scale);
  c.softcap(a.softcap);
}

void check(const Checker& c, const BandAttentionArgs& a) {
  c.plain("y", a.y);
  c.require(a.heads > 0 && a.y.cols % a.heads == 0, "{} columns are not {} heads", a.y.cols, a.heads);
  for (const auto& [name, t] : {std::pair{"q", a.q}, std::pair{"k", a.k}, std::pair{"v", a.v}}) {
    c.matrix(name, t, a.y.rows, a.y.cols);
    c.distinct("y", a.y, name, t);
  }
  c.matrix("ahead", a.ahead, a.ahead.rows, a.y.cols);
  c.require(a.ahead.rows <= kMostBand, "a window of {} rows, at most {}", a.ahead.rows, kMostBand);
  c.softcap(a.softcap);
}

void check(const Checker& c, const ConvArgs& a) {
  const RecurrentSpec& s = a.state.spec;
  c.recurrent(a.state, s.conv_base(), s.conv_entry());
  c.plain("y", a.y);
  c.require(a.y.cols == s.channels, "y has {} columns, the state {}", a.y.cols, s.channels);
  c.matrix("x", a.x, a.y.rows, a.y.cols);
  c.matrix("weight", a.weight, s.taps, s.channels);
  c.distinct("y", a.y, "x", a.x);
}

void check(const Checker& c, const DeltaNetArgs& a) {
  const RecurrentSpec& s = a.state.spec;
  c.recurrent(a.state, s.matrix_base(), s.matrix_entry());
  c.plain("y", a.y);
  c.require(a.y.cols == s.v_heads * s.v_dim, "y has {} columns, expected {}", a.y.cols, s.v_heads * s.v_dim);
  c.matrix("q", a.q, a.y.rows, s.k_heads * s.k_dim);
  c.matrix("k", a.k, a.y.rows, s.k_heads * s.k_dim);
  c.matrix("v", a.v, a.y.rows, a.y.cols);
  c.matrix("a", a.a, a.y.rows, s.v_heads);
  c.matrix("beta", a.beta, a.y.rows, s.v_heads);
  c.shared_row("rate", a.rate, s.v_heads);
  c.shared_row("bias", a.bias, s.v_heads);
  c.distinct("y", a.y, "v", a.v);
}

void check(const Checker& c, const TopArgs& a) {
  c.plain("x", a.x);
  c.matrix("column", a.column, a.x.rows, a.column.cols, DType::i32);
  c.require(a.column.cols <= kMostTop, "{} columns of a row, at most {}", a.column.cols, kMostTop);
  if (a.value.valid()) c.matrix("value", a.value, a.x.rows, a.column.cols);
  if (a.share.valid()) c.matrix("share", a.share, a.x.rows, 1);
}

void check(const Checker& c, const ShareArgs& a) {
  c.require(a.y.valid() && info(a.y.type).family == Family::plain && a.y.packing == 0 && a.y.slices == 1,
            "y is missing, or has no plain rows");
  c.require(a.y.rows > 0 && a.y.cols > 0 && (a.y.rows == 1 || a.y.pitch >= row_bytes(a.y.type, a.y.cols)),
            "the rows of y overlap");
  c.require(a.parts >= 1 && a.parts <= kMaxParts, "{} parts, at most {}", a.parts, kMaxParts);
  c.require(a.part >= 0 && a.part < a.parts, "part {} of {}", a.part, a.parts);
  c.require(a.parts == 1 || a.exchange, "the parts meet nowhere");
  c.require(a.number >= 0, "number {}", a.number);
  int32_t end = 0;
  for (int32_t p = 0; p < a.parts; ++p) {
    if (a.gives[p].cols == 0) continue;
    c.require(
        a.gives[p].cols > 0 && a.gives[p].first >= end && a.gives[p].first + a.gives[p].cols <= a.y.cols,
        "part {} gives {} columns from {} on", p, a.gives[p].cols, a.gives[p].first);
    end = a.gives[p].first + a.gives[p].cols;
  }
}

}  // namespace

void check_op(const OpRecord& op) {
  const Checker c(op);
  c.require(op.rows == RowSet::all || (op.op != Op::Conv && op.op != Op::DeltaNet),
            "runs over all rows: a recurrent state must see every one");
  c.require(op.rows == RowSet::out || (op.op != Op::Gather && op.op != Op::Refine && op.op != Op::Fold),
            "runs over the wanted rows only");
  c.require(op.rows != RowSet::refined || op.op == Op::Matmul || op.op == Op::Share,
            "runs over single rows: products alone take refined ones");
  switch (op.op) {
#define X(name) \
  case Op::name: return check(c, op.as<name##Args>());
    CARAT_OPS(X)
#undef X
  }
  c.require(false, "unknown operation {}", static_cast<int>(op.op));
}

}  // namespace carat
