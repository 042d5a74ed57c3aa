#include "core/program.h"

#include <fmt/format.h>

#include "core/operands.h"

namespace carat {
namespace {

constexpr std::string_view kActNames[] = {"none", "silu", "gelu_tanh", "sigmoid", "gelu"};

std::string act(Act a) {
  return a == Act::none ? "" : fmt::format(" act={}", kActNames[static_cast<size_t>(a)]);
}
std::string number(const char* name, float v, float usual) {
  return v == usual ? "" : fmt::format(" {}={:g}", name, v);
}
std::string cache(const KvView& kv) {
  const KvProtect& p = kv.spec.protect;
  return fmt::format(" kv={}x{} {}/{}{}{}{}{}", kv.spec.heads, kv.spec.dim, info(kv.spec.k).name,
                     info(kv.spec.v).name, kv.spec.pairs ? fmt::format(" pairs={}", kv.spec.pairs) : "",
                     kv.spec.window ? fmt::format(" window={}", kv.spec.window) : "",
                     kv.ring_tokens ? fmt::format(" ring={}", kv.ring_tokens) : "",
                     p.any() ? fmt::format(" protect={}+{}", p.sinks, p.recent) : "");
}

// What operands do not say.
template <class Args>
std::string describe(const Args&) {
  return {};
}
std::string describe(const EmbedArgs& a) { return number("scale", a.scale, 1) + (a.soft ? " soft" : ""); }
std::string describe(const RmsNormArgs& a) {
  return (a.width ? fmt::format(" width={}", a.width) : "") + number("eps", a.eps, 0) +
         number("scale", a.scale, 1) + act(a.act);
}
std::string describe(const MatmulArgs& a) {
  return number("scale", a.scale, 1) + act(a.act) + number("softcap", a.softcap, 0);
}
std::string describe(const FoldArgs& a) { return number("softcap", a.softcap, 0); }
std::string describe(const PointwiseArgs& a) {
  const bool clamps = std::isfinite(a.low) || std::isfinite(a.high);
  return (clamps ? fmt::format(" clamp={:g}..{:g}", a.low, a.high) : "") + act(a.act);
}
std::string describe(const BandAttentionArgs& a) {
  return fmt::format(" heads={} window={}", a.heads, a.ahead.rows) + number("softcap", a.softcap, 0);
}
std::string describe(const GateUpArgs& a) {
  return number("gate_scale", a.gate_scale, 1) + number("up_scale", a.up_scale, 1) + act(a.act);
}
std::string describe(const RouteArgs& a) { return fmt::format(" top_k={}", a.top_k); }
std::string describe(const ExpertsArgs& a) { return act(a.act); }
std::string describe(const SliceMatmulArgs& a) { return number("scale", a.scale, 1); }
std::string describe(const QkvPrepArgs& a) {
  return fmt::format(" rope={}+{}{}{}{}{}", a.rope.pairs, a.rope.offset, a.rope.axis ? " axes" : "",
                     a.rope.ahead ? fmt::format(" ahead={}", a.rope.ahead) : "", a.v_norm ? " v_norm" : "",
                     cache(a.kv));
}
std::string describe(const AttentionArgs& a) {
  return number("scale", a.scale, 1) + number("softcap", a.softcap, 0) + (a.both_ways ? " both_ways" : "") +
         (a.blocks ? " blocks" : "") + cache(a.kv);
}

std::string describe(const ShareArgs& a) {
  std::string s = fmt::format(" part={} takes={:b}", a.part, a.takes);
  for (int32_t p = 0; p < a.parts; ++p)
    if (a.gives[p].cols) s += fmt::format(" {}:{}+{}", p, a.gives[p].first, a.gives[p].cols);
  return s;
}
std::string describe(const ConvArgs& a) { return act(a.act); }
std::string describe(const DeltaNetArgs& a) {
  const RecurrentSpec& s = a.state.spec;
  return fmt::format(" state={}/{}x{}x{}", s.v_heads, s.k_heads, s.k_dim, s.v_dim);
}

std::string describe(const OpRecord& op) {
  switch (op.op) {
#define X(name) \
  case Op::name: return describe(op.as<name##Args>());
    CARAT_OPS(X)
#undef X
  }
  return {};
}

}  // namespace

std::string dump(const Program& program) {
  std::string s;
  for (const OpRecord& op : program.ops()) {
    s += op.layer >= 0 ? fmt::format("{:3} ", op.layer) : std::string("  - ");
    constexpr const char* kSets[] = {"all", "out", "refined"};
    s += fmt::format("{:<9} {}", kOpNames[static_cast<size_t>(op.op)], kSets[static_cast<size_t>(op.rows)]);
    each_operand(op, [&](const char* name, const Tensor& t) {
      if (!t.valid()) return;
      s += fmt::format(" {}:{}[", name, info(t.type).name);
      if (t.slices != 1) s += fmt::format("{},", t.slices);
      s += fmt::format("{},{}]", t.rows, t.cols);
      if (t.packing) s += fmt::format("p{}", t.packing);
    });
    s += describe(op) + "\n";
  }
  return s;
}

}  // namespace carat
