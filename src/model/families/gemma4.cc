#include "model/families/gemma4.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "model/blocks.h"
#include "model/families/gemma4_spec.h"

namespace carat {
namespace {

struct Moe {
  Linear router;
  Tensor router_scale, expert_scale;            // [1, dim], [1, experts] or none
  Tensor gate, up, down, gate_scale, up_scale;  // stacks
  Tensor pre_norm, post_dense_norm, post_norm;  // pre_2, post_1, post_2
};

struct Layer {
  Tensor attn_norm, post_attn_norm, q_norm, k_norm, ffn_norm, post_ffn_norm, gain;
  Linear q, k, v, o;  // k, v absent where another layer's cache is read; v absent where K = V
  Rope rope;
  GatedMlp mlp;
  Moe moe;
  Linear ple_gate, ple_proj;
  Tensor ple_norm;
};

class Gemma4Weights : public Weights {
 public:
  SharedTables shared() const override { return {embed.w, head.w, embed.scale, head.scale}; }
  const float* key_gain(int layer) const override { return layers[layer].k_norm.row<const float>(0); }
  Linear embed, head, ple_table, ple_context;
  Tensor ple_norm, final_norm;
  std::vector<Layer> layers;
  std::vector<Buffer> owners;
};

// ---- binding
// ---------------------------------------------------------------------------------------------------------

Rope make_rope(const LayerSpec& l, const WeightSource& source, Binder& b) {
  const std::vector<float> freq = gemma4::rope_frequencies(l, source);
  if (freq.empty()) return {};
  return {reinterpret_cast<const float*>(b.upload(freq).data), l.rope_pairs, l.head_dim / 2};
}

Moe bind_moe(Binder& b, const std::string& blk, const LayerSpec& l, int32_t dim) {
  Moe m;
  const int32_t n = l.experts, ffn = l.expert_ffn;
  m.router = {b.linear(blk + "ffn_gate_inp.weight", n, dim, WeightUse::product, false)};
  m.router_scale = b.vector(blk + "ffn_gate_inp.scale", dim);
  m.expert_scale = b.optional_vector(blk + "ffn_down_exps.scale", n);
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
  m.pre_norm = b.vector(blk + "pre_ffw_norm_2.weight", dim);
  m.post_dense_norm = b.vector(blk + "post_ffw_norm_1.weight", dim);
  m.post_norm = b.vector(blk + "post_ffw_norm_2.weight", dim);
  return m;
}

Layer bind_layer(Binder& b, const ModelSpec& s, int i) {
  const LayerSpec& l = s.layers[i];
  const std::string blk = fmt::format("blk.{}.", i);
  const int64_t q_width = int64_t{l.heads} * l.head_dim, kv_width = int64_t{l.kv_heads} * l.head_dim;
  Layer w;
  w.attn_norm = b.vector(blk + "attn_norm.weight", s.dim);
  w.q = b.linear(blk + "attn_q.weight", q_width, s.dim);
  w.q_norm = b.head_gains(blk + "attn_q_norm.weight", l.head_dim, l.rope, l.head_dim);
  if (l.kv_from == i) {
    w.k = b.linear(blk + "attn_k.weight", kv_width, s.dim);
    w.k_norm = b.head_gains(blk + "attn_k_norm.weight", l.head_dim, l.rope, l.head_dim);
    if (!l.k_is_v) w.v = b.linear(blk + "attn_v.weight", kv_width, s.dim);
  }
  w.o = b.linear(blk + "attn_output.weight", s.dim, q_width);
  w.post_attn_norm = b.vector(blk + "post_attention_norm.weight", s.dim);
  w.ffn_norm = b.vector(blk + "ffn_norm.weight", s.dim);
  w.mlp.gate = b.linear(blk + "ffn_gate.weight", l.ffn, s.dim);
  w.mlp.up = b.linear(blk + "ffn_up.weight", l.ffn, s.dim);
  w.mlp.down = b.linear(blk + "ffn_down.weight", s.dim, l.ffn);
  w.post_ffn_norm = b.vector(blk + "post_ffw_norm.weight", s.dim);
  w.gain = gemma4::output_gain(b, i);
  if (l.experts) w.moe = bind_moe(b, blk, l, s.dim);
  if (s.per_layer_dim) {
    w.ple_gate = b.linear(blk + "inp_gate.weight", s.per_layer_dim, s.dim);
    w.ple_proj = b.linear(blk + "proj.weight", s.dim, s.per_layer_dim);
    w.ple_norm = b.vector(blk + "post_norm.weight", s.dim);
  }
  return w;
}

std::unique_ptr<Weights> bind(const WeightSource& source, const ModelSpec& s, Backend& backend,
                              const Progress& progress) {
  auto w = std::make_unique<Gemma4Weights>();
  Binder b(source, backend, progress, w->owners);
  w->embed = b.linear("token_embd.weight", s.vocab, s.dim, WeightUse::rows);
  w->head = b.linear(b.has("output.weight") ? "output.weight" : "token_embd.weight", s.vocab, s.dim);
  w->final_norm = b.vector("output_norm.weight", s.dim);
  if (s.per_layer_dim) {
    const int64_t width = static_cast<int64_t>(s.layers.size()) * s.per_layer_dim;
    w->ple_table = b.linear("per_layer_token_embd.weight", s.vocab, width, WeightUse::rows);
    w->ple_context = b.linear("per_layer_model_proj.weight", width, s.dim);
    w->ple_norm = b.vector("per_layer_proj_norm.weight", s.per_layer_dim);
  }
  std::map<bool, Rope> ropes;  // by whether the layer is sliding
  for (int i = 0; i < static_cast<int>(s.layers.size()); ++i) {
    const LayerSpec& l = s.layers[i];
    w->layers.push_back(bind_layer(b, s, i));
    if (!ropes.contains(l.window > 0)) ropes[l.window > 0] = make_rope(l, source, b);
    w->layers.back().rope = ropes[l.window > 0];
  }
  return w;
}

// ---- one step
// --------------------------------------------------------------------------------------------------------

// Pushes one step. Tensors are named as in the reference: x residual stream, u normed input, f branch output.
class Step {
 public:
  Step(Build& b, const Gemma4Weights& w) : b_(b), s_(b.spec), p_(b.program), w_(w), rows_(b.rows) {
    int32_t q = 0, kv = 0, ffn = 0;
    for (const LayerSpec& l : s_.layers) {
      q = std::max(q, l.heads * l.head_dim);
      kv = std::max(kv, l.kv_heads * l.head_dim);
      ffn = std::max(ffn, l.ffn);
    }
    x_ = b.arena.take(b.rows, s_.dim);
    if (b.rows == 1) spare_ = b.arena.take(1, s_.dim);
    u_ = b.arena.take(b.rows, s_.dim);
    f_ = b.arena.take(b.rows, s_.dim);
    q_ = b.arena.take(b.rows, q);
    att_ = b.arena.take(b.rows, q);
    k_ = b.arena.take(b.rows, kv);
    v_ = b.arena.take(b.rows, kv);
    h_ = b.arena.take(b.rows, ffn);
    if (s_.layers[0].experts) {
      moe_ = b.arena.take(b.rows, s_.dim);
      e_ = b.arena.take(b.rows, s_.dim);
      seen_ = b.arena.take(b.rows, s_.dim);
      router_ = b.arena.take(b.rows, s_.layers[0].experts);
      chosen_ = b.arena.take(b.rows, s_.layers[0].experts_used, DType::i32);
      share_ = b.arena.take(b.rows, s_.layers[0].experts_used);
    }
    if (s_.per_layer_dim) g_ = b.arena.take(b.rows, s_.per_layer_dim);
  }

  Outputs run() {
    p_.at_layer(-1);
    p_.at_rows(RowSet::all);
    p_.push(EmbedArgs{x_, w_.embed.w, s_.embed_scale * w_.embed.scale, true});
    if (s_.per_layer_dim) per_layer_inputs();
    for (int i = 0; i < static_cast<int>(s_.layers.size()); ++i) layer(i);
    p_.at_layer(-1);
    Outputs out;
    out.taps = std::move(taps_);
    if (b_.hidden_all) {
      out.hidden_all = b_.arena.take(b_.rows, s_.dim);
      push_norm(p_, out.hidden_all, x_, w_.final_norm, s_.eps);
      out.hidden = gather(out.hidden_all);
    } else {
      if (p_.rows() == RowSet::all) x_ = gather(x_);
      out.hidden = b_.arena.take(b_.out_rows, s_.dim);
      push_norm(p_, out.hidden, x_, w_.final_norm, s_.eps);
    }
    out.logits = b_.arena.take(b_.out_rows, s_.vocab);
    push_head(p_, b_.arena, out.logits, out.hidden, w_.head, s_.final_softcap);
    p_.at_rows(RowSet::all);
    return out;
  }

 private:
  // A scratch matrix as the current rows see it, `cols` wide.
  Tensor now(const Tensor& t, int32_t cols) const {
    Tensor r = t.row_range(0, rows_);
    r.cols = cols;
    return r;
  }
  Tensor now(const Tensor& t) const { return now(t, t.cols); }

  // x = (x + norm(y)) * gain. A single row goes from one buffer to the other: some backends read the old one
  // in many places while the new one is written. What somebody listens to stays.
  void add_norm(const Tensor& y, const Tensor& weight, const Tensor& gain = {}) {
    const Tensor to = b_.rows == 1 ? now(spare_) : x_;
    const bool heard =
        std::any_of(taps_.begin(), taps_.end(), [&](const Tensor& t) { return t.data == to.data; });
    const Tensor next = heard ? b_.arena.take(rows_, s_.dim) : to;
    push_norm(p_, next, y, weight, s_.eps, {.residual = x_, .gain = gain});
    spare_ = x_, x_ = next;
  }

  // The wanted rows of t, packed; from here on the program runs over them.
  Tensor gather(const Tensor& t) {
    p_.at_rows(RowSet::out);
    rows_ = b_.out_rows;
    const Tensor y = b_.arena.take(b_.out_rows, t.cols);
    p_.push(GatherArgs{y, t});
    return y;
  }

  void per_layer_inputs() {
    const int layers = static_cast<int>(s_.layers.size());
    ple_ = b_.arena.take(b_.rows, layers * s_.per_layer_dim);
    p_.push(EmbedArgs{ple_, w_.ple_table.w,
                      std::sqrt(static_cast<float>(s_.per_layer_dim)) * w_.ple_table.scale});
    // The projections of layers that run for wanted rows alone wait until then. (Placed weights are cut at
    // multiples of 32 rows.)
    const int cut = b_.first_out_layer(), first_out = cut * s_.per_layer_dim % 32 ? layers : cut;
    project_inputs(x_, 0, first_out);
    if (first_out == layers) return;
    embedded_ = gather(x_);
    p_.at_rows(RowSet::all);
    rows_ = b_.rows;
  }

  // Adds to the inputs of layers [first, last) what they take from the embeddings x.
  void project_inputs(const Tensor& x, int first, int last) {
    if (first == last) return;
    const int32_t from = first * s_.per_layer_dim, width = (last - first) * s_.per_layer_dim;
    const Tensor context = b_.arena.take(rows_, width), inputs = ple_.columns(from, width);
    const Linear w = {w_.ple_context.w.row_range(from, width), w_.ple_context.scale};
    push_linear(p_, context, x, w, {.scale = 1 / std::sqrt(static_cast<float>(s_.dim))});
    push_norm(p_, inputs, context, w_.ple_norm, s_.eps,
              {.residual = inputs, .width = s_.per_layer_dim, .scale = std::sqrt(0.5f)});
  }

  void layer(int i) {
    p_.at_layer(i);
    const LayerSpec& l = s_.layers[i];
    const Layer& w = w_.layers[i];
    attention(i, l, w);
    const Tensor branch = l.experts ? moe(l, w) : dense(l, w);
    // The per-layer branch, where there is one, comes before the gain.
    const bool ple = s_.per_layer_dim > 0;
    add_norm(branch, w.post_ffn_norm, ple ? Tensor{} : w.gain);
    if (ple) per_layer_branch(i, w);
    if (b_.tapped(i)) taps_.push_back(x_);
  }

  void attention(int i, const LayerSpec& l, const Layer& w) {
    const int32_t q_width = l.heads * l.head_dim, kv_width = l.kv_heads * l.head_dim;
    push_norm(p_, now(u_), x_, w.attn_norm, s_.eps);
    Tensor q = now(q_, q_width);
    push_linear(p_, q, now(u_), w.q);
    QkvPrepArgs prep{};
    prep.q = q;
    prep.q_norm = w.q_norm;
    prep.k_norm = w.k_norm;
    prep.rope = w.rope;
    prep.eps = s_.eps;
    prep.v_norm = true;
    prep.kv = b_.kv.view(i);
    if (l.kv_from == i) {
      prep.k = prep.v = now(k_, kv_width);
      push_linear(p_, prep.k, now(u_), w.k);
      if (!l.k_is_v) {
        prep.v = now(v_, kv_width);
        push_linear(p_, prep.v, now(u_), w.v);
      }
    }
    p_.push(prep);
    if (i == b_.first_out_layer()) {
      // Nobody reads the other rows from here on: the caches are complete.
      q = gather(q);
      x_ = gather(x_);
      if (ple_.valid()) ple_ = gather(ple_);
      if (embedded_.valid()) project_inputs(embedded_, i, static_cast<int>(s_.layers.size()));
    }
    const Tensor a = now(att_, q_width);
    p_.push(AttentionArgs{a, q, prep.kv, 1, 0, false, s_.blocks && l.window > 0});
    push_linear(p_, now(f_), a, w.o);
    add_norm(now(f_), w.post_attn_norm);
  }

  // mlp(norm(x))
  Tensor dense(const LayerSpec& l, const Layer& w) {
    push_norm(p_, now(u_), x_, w.ffn_norm, s_.eps);
    push_mlp(p_, now(f_), now(u_), now(h_, l.ffn), w.mlp, Act::gelu_tanh);
    return now(f_);
  }

  // norm1(mlp(norm(x))) + norm2(experts(norm2(x))), routed by x itself. Norms stand together: some
  // backends take them at once; and experts are chosen early, so that their weights can be asked for.
  Tensor moe(const LayerSpec& l, const Layer& w) {
    const Moe& m = w.moe;
    push_norm(p_, now(u_), x_, w.ffn_norm, s_.eps);
    push_norm(p_, now(seen_), x_, m.router_scale, s_.eps,
              {.scale = 1 / std::sqrt(static_cast<float>(s_.dim))});
    push_norm(p_, now(e_), x_, m.pre_norm, s_.eps);
    push_linear(p_, now(router_), now(seen_), m.router);
    p_.push(RouteArgs{now(share_), now(chosen_), now(router_), m.expert_scale, l.experts_used});
    push_mlp(p_, now(f_), now(u_), now(h_, l.ffn), w.mlp, Act::gelu_tanh);
    p_.push(ExpertsArgs{now(moe_), now(e_), m.gate, m.up, m.down, now(share_), now(chosen_), m.gate_scale,
                        m.up_scale, Tensor{}, Act::gelu_tanh});
    push_norm(p_, now(seen_), now(f_), m.post_dense_norm, s_.eps);
    push_norm(p_, now(e_), now(moe_), m.post_norm, s_.eps, {.residual = now(seen_)});
    return now(e_);
  }

  // x = (x + norm(proj(gelu(gate(x)) * input of this layer))) * gain
  void per_layer_branch(int i, const Layer& w) {
    const Tensor input = ple_.columns(i * s_.per_layer_dim, s_.per_layer_dim);
    push_linear(p_, now(g_), x_, w.ple_gate, {.act = Act::gelu_tanh, .mul = input});
    push_linear(p_, now(f_), now(g_), w.ple_proj);
    add_norm(now(f_), w.ple_norm, w.gain);
  }

  Build& b_;
  const ModelSpec& s_;
  Program& p_;
  const Gemma4Weights& w_;
  int32_t rows_;
  std::vector<Tensor> taps_;
  Tensor x_, spare_, u_, f_, q_, att_, k_, v_, h_, moe_, e_, seen_, router_, chosen_, share_, g_, ple_,
      embedded_;
};

Outputs build(Build& b, const Weights& weights) {
  CARAT_CHECK(b.rows > 0 && b.out_rows > 0 && b.out_rows <= b.rows, "{} of {}", b.out_rows, b.rows);
  b.arena.reset();
  return Step(b, static_cast<const Gemma4Weights&>(weights)).run();
}

}  // namespace

const ModelFamily kGemma4{.arch = "gemma4",
                          .read_spec = gemma4::read_spec,
                          .bind = bind,
                          .build = build,
                          .vision = gemma4_vision,
                          .sound = gemma4_sound};

}  // namespace carat
