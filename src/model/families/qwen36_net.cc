#include "model/families/qwen36_net.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace carat::qwen36 {
namespace {

Rope make_rope(const LayerSpec& l, Binder& b) {
  std::vector<float> freq;
  for (int32_t i = 0; i < l.rope_pairs; ++i)
    freq.push_back(static_cast<float>(std::pow(double{l.rope_base}, -1.0 * i / l.rope_pairs) *
                                      rope_stretch(l.rope, l.rope_base, 2 * l.rope_pairs, i)));
  if (freq.empty()) return {};
  Rope rope{reinterpret_cast<const float*>(b.upload(freq).data), l.rope_pairs, l.rope_pairs};
  if (l.rope_height == 0 && l.rope_width == 0) return rope;
  // Interleaved: a third of the first pairs each, as far as a section goes; the rest is time's.
  std::vector<int32_t> axis;
  for (int32_t i = 0; i < l.rope_pairs; ++i)
    axis.push_back(i % 3 == 1 && i < 3 * l.rope_height ? 1 : i % 3 == 2 && i < 3 * l.rope_width ? 2 : 0);
  rope.axis = b.upload_ints(axis);
  return rope;
}

Attention bind_attention(Binder& b, const std::string& blk, const LayerSpec& l, int32_t dim) {
  const int64_t q = int64_t{l.heads} * l.head_dim, kv = int64_t{l.kv_heads} * l.head_dim;
  Attention w;
  // Per head the rows of the query, then those of the gate.
  w.q = b.interleaved(blk + "attn_q.weight", 2 * q, dim, 2 * l.head_dim, 0, l.head_dim);
  w.gate = b.interleaved(blk + "attn_q.weight", 2 * q, dim, 2 * l.head_dim, l.head_dim, l.head_dim);
  w.k = b.linear(blk + "attn_k.weight", kv, dim);
  w.v = b.linear(blk + "attn_v.weight", kv, dim);
  w.o = b.linear(blk + "attn_output.weight", dim, q);
  w.q_norm = b.head_gains(blk + "attn_q_norm.weight", l.head_dim, l.rope, 2 * l.rope_pairs);
  w.k_norm = b.head_gains(blk + "attn_k_norm.weight", l.head_dim, l.rope, 2 * l.rope_pairs);
  w.rope = make_rope(l, b);
  return w;
}

DeltaNet bind_delta(Binder& b, const std::string& blk, const RecurrentSpec& r, int32_t dim) {
  const int64_t value = int64_t{r.v_heads} * r.v_dim;
  DeltaNet w;
  w.qkv = b.linear(blk + "attn_qkv.weight", r.channels, dim);
  w.z = b.linear(blk + "attn_gate.weight", value, dim);
  w.alpha = b.linear(blk + "ssm_alpha.weight", r.v_heads, dim);
  w.beta = b.linear(blk + "ssm_beta.weight", r.v_heads, dim);
  w.out = b.linear(blk + "ssm_out.weight", dim, value);
  const std::vector<float> conv = b.read_matrix(blk + "ssm_conv1d.weight", r.channels, r.taps);
  std::vector<float> by_tap(conv.size());
  for (int32_t c = 0; c < r.channels; ++c)
    for (int32_t t = 0; t < r.taps; ++t) by_tap[size_t(t) * r.channels + c] = conv[size_t(c) * r.taps + t];
  w.conv = make_tensor(b.upload(by_tap).data, DType::f32, r.taps, r.channels);
  w.rate = b.vector(blk + "ssm_a", r.v_heads);
  w.bias = b.vector(blk + "ssm_dt.bias", r.v_heads);
  w.norm = b.vector(blk + "ssm_norm.weight", r.v_dim);
  return w;
}

GatedMlp bind_mlp(Binder& b, const std::string& blk, const char* suffix, int32_t ffn, int32_t dim) {
  const auto name = [&](const char* part) { return fmt::format("{}ffn_{}{}.weight", blk, part, suffix); };
  return {b.linear(name("gate"), ffn, dim), b.linear(name("up"), ffn, dim), b.linear(name("down"), dim, ffn)};
}

Moe bind_moe(Binder& b, const std::string& blk, const LayerSpec& l, int32_t dim) {
  const int32_t n = l.experts, ffn = l.expert_ffn;
  Moe m;
  m.router = b.linear(blk + "ffn_gate_inp.weight", n, dim, WeightUse::product, false);
  if (b.has(blk + "ffn_gate_up_exps.weight")) {
    m.gate = b.experts(blk + "ffn_gate_up_exps.weight", n, 2 * ffn, dim, 0, ffn);
    m.up = b.experts(blk + "ffn_gate_up_exps.weight", n, 2 * ffn, dim, ffn, ffn);
    m.gate_scale = m.up_scale = b.optional_vector(blk + "ffn_gate_up_exps.scale", n);
  } else {
    m.gate = b.experts(blk + "ffn_gate_exps.weight", n, ffn, dim, 0, ffn);
    m.up = b.experts(blk + "ffn_up_exps.weight", n, ffn, dim, 0, ffn);
    m.gate_scale = b.optional_vector(blk + "ffn_gate_exps.scale", n);
    m.up_scale = b.optional_vector(blk + "ffn_up_exps.scale", n);
  }
  m.down = b.experts(blk + "ffn_down_exps.weight", n, dim, ffn, 0, dim);
  m.down_scale = b.optional_vector(blk + "ffn_down_exps.scale", n);
  m.shared_router = b.vector(blk + "ffn_gate_inp_shexp.weight", dim);
  m.shared = bind_mlp(b, blk, "_shexp", l.shared_ffn, dim);
  return m;
}

}  // namespace

Layer bind_layer(Binder& b, const LayerSpec& l, int block, int32_t dim) {
  const std::string blk = fmt::format("blk.{}.", block);
  Layer w;
  w.mixer_norm = b.vector(blk + "attn_norm.weight", dim);
  w.ffn_norm = b.vector(blk + "post_attention_norm.weight", dim);
  if (l.recurrent.valid())
    w.delta = bind_delta(b, blk, l.recurrent, dim);
  else
    w.attention = bind_attention(b, blk, l, dim);
  if (l.experts) {
    w.moe = bind_moe(b, blk, l, dim);
    return w;
  }
  w.mlp = bind_mlp(b, blk, "", l.ffn, dim);
  return w;
}

Layers::Layers(Program& program, Arena& arena, std::span<const LayerSpec> specs, int32_t dim, float eps,
               int32_t rows, int32_t out_rows)
    : p_(program), arena_(arena), dim_(dim), rows_(rows), out_rows_(out_rows), eps_(eps) {
  int32_t wide = 0, mixed = 0, heads = 0, kv = 0, ffn = 0, experts = 0, used = 0;
  for (const LayerSpec& l : specs) {
    const RecurrentSpec& r = l.recurrent;
    wide = std::max(wide, r.channels);
    mixed = std::max({mixed, r.channels, l.heads * l.head_dim, r.v_heads * r.v_dim});
    heads = std::max(heads, r.v_heads);
    kv = std::max(kv, l.kv_heads * l.head_dim);
    ffn = std::max({ffn, l.ffn, l.shared_ffn});
    experts = std::max(experts, l.experts), used = std::max(used, l.experts_used);
  }
  const auto take = [&](int32_t cols, DType type = DType::f32) {
    return cols ? arena.take(rows, cols, type) : Tensor{};
  };
  u_ = take(dim), wide_ = take(std::max(wide, mixed)), mixed_ = take(mixed), gated_ = take(mixed);
  a_ = take(heads), beta_ = take(heads), k_ = take(kv), v_ = take(kv), h_ = take(ffn);
  router_ = take(experts), chosen_ = take(used, DType::i32), share_ = take(used);
  if (experts) shared_ = take(1), of_shared_ = take(dim);
}

Tensor Layers::now(const Tensor& t, int32_t cols) const {
  Tensor r = t.row_range(0, rows_);
  r.cols = cols;
  return r;
}

Tensor Layers::gather(const Tensor& t) {
  p_.at_rows(RowSet::out);
  rows_ = out_rows_;
  const Tensor y = arena_.take(out_rows_, t.cols);
  p_.push(GatherArgs{y, t});
  return y;
}

void Layers::run(const LayerSpec& l, const Layer& w, const KvPool& kv, int layer, Tensor& x, bool fresh,
                 bool cut) {
  push_norm(p_, now(u_), x, w.mixer_norm, eps_);
  const bool attends = !l.recurrent.valid();
  const Tensor mixed = attends ? attention(l, w.attention, kv, layer, x, cut) : delta(l, w.delta, kv, layer);
  const Tensor y = fresh ? arena_.take(rows_, dim_) : x;
  push_linear(p_, y, mixed, attends ? w.attention.o : w.delta.out, {.residual = x});
  x = y;
  push_norm(p_, now(u_), x, w.ffn_norm, eps_);
  if (l.experts) return experts(l, w.moe, x);
  const Tensor h = now(h_, l.ffn);
  p_.push(GateUpArgs{h, now(u_), w.mlp.gate.w, w.mlp.up.w, w.mlp.gate.scale, w.mlp.up.scale, Act::silu});
  push_linear(p_, x, h, w.mlp.down, {.residual = x});
}

// softmax(q k^T) v * sigmoid(gate)
Tensor Layers::attention(const LayerSpec& l, const Attention& w, const KvPool& kv, int layer, Tensor& x,
                         bool cut) {
  const int32_t width = l.heads * l.head_dim, kv_width = l.kv_heads * l.head_dim;
  Tensor q = now(wide_, width), u = now(u_);
  QkvPrepArgs prep{};
  prep.q = q, prep.k = now(k_, kv_width), prep.v = now(v_, kv_width);
  push_linear(p_, q, u, w.q);
  push_linear(p_, prep.k, u, w.k);
  push_linear(p_, prep.v, u, w.v);
  prep.q_norm = w.q_norm, prep.k_norm = w.k_norm, prep.rope = w.rope, prep.eps = eps_;
  prep.kv = kv.view(layer);
  p_.push(prep);
  if (cut) {  // the caches are complete: nobody reads the other rows from here on
    q = gather(q);
    x = gather(x);
    u = gather(u);
  }
  const Tensor y = now(mixed_, width), gated = now(gated_, width);
  p_.push(AttentionArgs{y, q, prep.kv, 1 / std::sqrt(static_cast<float>(l.head_dim)), 0});
  push_linear(p_, gated, u, w.gate, {.act = Act::sigmoid, .mul = y});
  return gated;
}

// norm(delta rule(conv(x))) * silu(z)
Tensor Layers::delta(const LayerSpec& l, const DeltaNet& w, const KvPool& kv, int layer) {
  const RecurrentSpec& r = l.recurrent;
  const int32_t keys = r.k_heads * r.k_dim, values = r.v_heads * r.v_dim;
  const Tensor u = now(u_), in = now(wide_, r.channels), c = now(mixed_, r.channels), z = now(gated_, values);
  // All products of u, one behind the other: a device may take them at once.
  push_linear(p_, in, u, w.qkv);
  push_linear(p_, z, u, w.z);
  push_linear(p_, now(a_, r.v_heads), u, w.alpha);
  push_linear(p_, now(beta_, r.v_heads), u, w.beta, {.act = Act::sigmoid});
  p_.push(ConvArgs{c, in, w.conv, kv.conv(layer), Act::silu});
  const Tensor q = c.columns(0, keys), k = c.columns(keys, keys), v = c.columns(2 * keys, values);
  // x / sqrt(sum x^2 + eps), and the queries times 1 / sqrt(k_dim)
  const auto dim = static_cast<float>(r.k_dim);
  push_norm(p_, q, q, {}, eps_ / dim, {.width = r.k_dim, .scale = 1 / dim});
  push_norm(p_, k, k, {}, eps_ / dim, {.width = r.k_dim, .scale = 1 / std::sqrt(dim)});
  const Tensor y = now(wide_, values);
  p_.push(
      DeltaNetArgs{y, q, k, v, now(a_, r.v_heads), now(beta_, r.v_heads), w.rate, w.bias, kv.matrix(layer)});
  push_norm(p_, z, y, w.norm, eps_, {.width = r.v_dim, .mul = z, .act = Act::silu});
  return z;
}

// x = x + experts(u) + sigmoid(shared router u) * shared expert(u)
void Layers::experts(const LayerSpec& l, const Moe& w, const Tensor& x) {
  const Tensor u = now(u_), none;
  push_linear(p_, now(shared_), u, {w.shared_router}, {.act = Act::sigmoid});
  push_linear(p_, now(router_, l.experts), u, w.router);
  p_.push(RouteArgs{now(share_, l.experts_used), now(chosen_, l.experts_used), now(router_, l.experts), none,
                    l.experts_used});
  // Between choice and experts, as Gemma's dense branch: what one row chose comes while these are computed.
  const Tensor h = now(h_, l.shared_ffn);
  const GatedMlp& s = w.shared;
  p_.push(GateUpArgs{h, u, s.gate.w, s.up.w, s.gate.scale, s.up.scale, Act::silu});
  push_linear(p_, now(of_shared_), h, s.down, {.mul = now(shared_)});
  ExpertsArgs routed{};
  routed.y = routed.residual = x, routed.x = u, routed.gate = w.gate, routed.up = w.up, routed.down = w.down;
  routed.weights = now(share_, l.experts_used), routed.experts = now(chosen_, l.experts_used);
  routed.gate_scale = w.gate_scale, routed.up_scale = w.up_scale, routed.down_scale = w.down_scale;
  routed.act = Act::silu;
  p_.push(routed);
  p_.push(PointwiseArgs{.y = x, .x = x, .add = now(of_shared_), .mul = {}});
}

}  // namespace carat::qwen36
