#include "tools/shapes.h"

#include <cmath>

#include "base/error.h"

namespace carat {
namespace {

const ModelShape kShapes[] = {
    {.name = "e2b",
     .title = "Gemma 4 E2B",
     .layers = 35,
     .period = 5,
     .dim = 1536,
     .heads = 8,
     .kv_sliding = 1,
     .kv_global = 1,
     .ffn = 6144,
     .per_layer = 256,
     .shared = 20,
     .wide_shared = true,
     .window = 512,
     .context = 131072,
     .parameters = 4647449891},
    {.name = "e4b",
     .title = "Gemma 4 E4B",
     .layers = 42,
     .period = 6,
     .dim = 2560,
     .heads = 8,
     .kv_sliding = 2,
     .kv_global = 2,
     .ffn = 10240,
     .per_layer = 256,
     .shared = 18,
     .window = 512,
     .context = 131072,
     .parameters = 7518069034},
    {.name = "26b-a4b",
     .title = "Gemma 4 26B A4B",
     .layers = 30,
     .period = 6,
     .dim = 2816,
     .heads = 16,
     .kv_sliding = 8,
     .kv_global = 2,
     .ffn = 2112,
     .experts = 128,
     .experts_used = 8,
     .expert_ffn = 704,
     .window = 1024,
     .context = 262144,
     .parameters = 25233141790},
    {.name = "31b",
     .title = "Gemma 4 31B",
     .layers = 60,
     .period = 6,
     .dim = 5376,
     .heads = 32,
     .kv_sliding = 16,
     .kv_global = 4,
     .ffn = 21504,
     .window = 1024,
     .context = 262144,
     .parameters = 30697345340},
    {.name = "tiny",
     .title = "Tiny",
     .layers = 6,
     .period = 3,
     .dim = 256,
     .heads = 4,
     .kv_sliding = 2,
     .kv_global = 1,
     .head_sliding = 64,
     .head_global = 128,
     .ffn = 512,
     .window = 64,
     .context = 8192,
     .vocab = 768},
    {.name = "tiny-moe",
     .title = "Tiny MoE",
     .layers = 4,
     .period = 2,
     .dim = 256,
     .heads = 4,
     .kv_sliding = 2,
     .kv_global = 1,
     .head_sliding = 64,
     .head_global = 128,
     .ffn = 288,
     .experts = 8,
     .experts_used = 2,
     .expert_ffn = 96,
     .window = 64,
     .context = 8192,
     .vocab = 768},
    {.name = "tiny-e",
     .title = "Tiny E",
     .layers = 8,
     .period = 4,
     .dim = 256,
     .heads = 4,
     .kv_sliding = 1,
     .kv_global = 1,
     .head_sliding = 64,
     .head_global = 128,
     .ffn = 512,
     .per_layer = 64,
     .shared = 4,
     .wide_shared = true,
     .window = 64,
     .context = 8192,
     .vocab = 768},
    {.name = "qwen3.6-27b",
     .title = "Qwen3.6 27B",
     .layers = 64,
     .period = 4,
     .dim = 5120,
     .heads = 24,
     .kv_sliding = 4,
     .kv_global = 4,
     .head_global = 256,
     .ffn = 17408,
     .context = 262144,
     .vocab = 248320,
     .parameters = 27320697856,
     .k_heads = 16,
     .v_heads = 48,
     .state_dim = 128,
     .arch = "qwen35"},
    {.name = "qwen3.6-35b-a3b",
     .title = "Qwen3.6 35B A3B",
     .layers = 40,
     .period = 4,
     .dim = 2048,
     .heads = 16,
     .kv_sliding = 2,
     .kv_global = 2,
     .head_global = 256,
     .experts = 256,
     .experts_used = 8,
     .expert_ffn = 512,
     .context = 262144,
     .vocab = 248320,
     .k_heads = 16,
     .v_heads = 32,
     .state_dim = 128,
     .shared_ffn = 512,
     .arch = "qwen35moe"},
    // The same pattern for small machines.
    {.name = "qwen3.6-2b",
     .title = "2B of Qwen3.6's pattern",
     .layers = 24,
     .period = 4,
     .dim = 2048,
     .heads = 8,
     .kv_sliding = 2,
     .kv_global = 2,
     .head_global = 256,
     .ffn = 6144,
     .context = 262144,
     .vocab = 248320,
     .k_heads = 16,
     .v_heads = 16,
     .state_dim = 128,
     .arch = "qwen35"},
    {.name = "tiny-hybrid",
     .title = "Tiny hybrid",
     .layers = 8,
     .period = 4,
     .dim = 256,
     .heads = 4,
     .kv_sliding = 2,
     .kv_global = 2,
     .head_global = 64,
     .ffn = 512,
     .context = 8192,
     .vocab = 768,
     .k_heads = 2,
     .v_heads = 4,
     .state_dim = 64,
     .arch = "qwen35"},
    {.name = "tiny-hybrid-moe",
     .title = "Tiny hybrid MoE",
     .layers = 4,
     .period = 2,
     .dim = 256,
     .heads = 4,
     .kv_sliding = 1,
     .kv_global = 1,
     .head_global = 64,
     .experts = 8,
     .experts_used = 2,
     .expert_ffn = 96,
     .context = 8192,
     .vocab = 768,
     .k_heads = 2,
     .v_heads = 4,
     .state_dim = 64,
     .shared_ffn = 128,
     .arch = "qwen35moe"},
    {.name = "e2b-assistant",
     .title = "Gemma 4 E2B assistant",
     .layers = 4,
     .period = 4,
     .dim = 256,
     .heads = 4,
     .kv_sliding = 1,
     .kv_global = 1,
     .ffn = 2048,
     .window = 512,
     .context = 131072,
     .target_dim = 1536,
     .clusters = 2048,
     .top_clusters = 32},
    {.name = "e4b-assistant",
     .title = "Gemma 4 E4B assistant",
     .layers = 4,
     .period = 4,
     .dim = 256,
     .heads = 4,
     .kv_sliding = 2,
     .kv_global = 2,
     .ffn = 2048,
     .window = 512,
     .context = 131072,
     .target_dim = 2560,
     .clusters = 2048,
     .top_clusters = 32},
    {.name = "26b-a4b-assistant",
     .title = "Gemma 4 26B A4B assistant",
     .layers = 4,
     .period = 4,
     .dim = 1024,
     .heads = 16,
     .kv_sliding = 8,
     .kv_global = 2,
     .ffn = 8192,
     .window = 1024,
     .context = 262144,
     .target_dim = 2816},
    {.name = "31b-assistant",
     .title = "Gemma 4 31B assistant",
     .layers = 4,
     .period = 4,
     .dim = 1024,
     .heads = 32,
     .kv_sliding = 16,
     .kv_global = 4,
     .ffn = 8192,
     .window = 1024,
     .context = 262144,
     .target_dim = 5376},
    // Head counts and MLP widths of these two are not published: such that the parameters come out (1.54 and
    // 0.43 billion).
    {.name = "31b-dflash",
     .title = "Gemma 4 31B DFlash",
     .layers = 5,
     .period = 5,
     .dim = 5376,
     .heads = 32,
     .kv_sliding = 8,
     .kv_global = 8,
     .head_sliding = 128,
     .head_global = 128,
     .ffn = 13568,
     .window = 2048,
     .context = 262144,
     .features = 6},
    {.name = "26b-a4b-dflash",
     .title = "Gemma 4 26B A4B DFlash",
     .layers = 5,
     .period = 5,
     .dim = 2816,
     .heads = 32,
     .kv_sliding = 8,
     .kv_global = 8,
     .head_sliding = 128,
     .head_global = 128,
     .ffn = 5632,
     .window = 2048,
     .context = 262144,
     .features = 6},
    {.name = "qwen3.6-27b-dflash",
     .title = "Qwen3.6 27B DFlash",
     .layers = 5,
     .period = 5,
     .dim = 5120,
     .heads = 32,
     .kv_sliding = 8,
     .kv_global = 8,
     .head_sliding = 128,
     .head_global = 128,
     .ffn = 17408,
     .window = 2048,
     .context = 262144,
     .vocab = 248320,
     .features = 5,
     .mask_token = 248070,
     .theta = 1e7},
    {.name = "tiny-assistant",
     .title = "Tiny assistant",
     .layers = 4,
     .period = 4,
     .dim = 64,
     .heads = 4,
     .kv_sliding = 2,
     .kv_global = 1,
     .head_sliding = 64,
     .head_global = 128,
     .ffn = 128,
     .window = 64,
     .context = 8192,
     .vocab = 768,
     .target_dim = 256},
    {.name = "tiny-e-assistant",
     .title = "Tiny E assistant",
     .layers = 4,
     .period = 4,
     .dim = 64,
     .heads = 4,
     .kv_sliding = 1,
     .kv_global = 1,
     .head_sliding = 64,
     .head_global = 128,
     .ffn = 128,
     .window = 64,
     .context = 8192,
     .vocab = 768,
     .target_dim = 256,
     .clusters = 32,
     .top_clusters = 8},
    {.name = "tiny-dflash",
     .title = "Tiny DFlash",
     .layers = 3,
     .period = 3,
     .dim = 256,
     .heads = 4,
     .kv_sliding = 2,
     .kv_global = 2,
     .head_sliding = 64,
     .head_global = 64,
     .ffn = 384,
     .window = 48,
     .context = 8192,
     .features = 3},
};

class Lister {
 public:
  explicit Lister(const ModelShape& s) : s_(s) {}

  std::vector<ShapeTensor> list() {
    matrix("token_embd.weight", s_.vocab, s_.dim);
    if (s_.per_layer) {
      const int64_t all = int64_t{s_.layers} * s_.per_layer;
      matrix("per_layer_token_embd.weight", s_.vocab, all);
      out_.back().spread = 1 / std::sqrt(static_cast<float>(s_.per_layer));  // scaled by this root on use
      matrix("per_layer_model_proj.weight", all, s_.dim);
      vector("per_layer_proj_norm.weight", s_.per_layer, 1);
    }
    // Large enough for a peaked distribution, far enough below the soft-cap.
    vector("output_norm.weight", s_.dim, 4);
    out_.push_back({"rope_freqs.weight", {s_.head_global / 2}});
    for (int32_t i = 0; i < s_.layers; ++i) layer(i);
    return std::move(out_);
  }

 private:
  void matrix(const std::string& name, int64_t rows, int64_t cols) {
    out_.push_back({name, {rows, cols}, 0, 1 / std::sqrt(static_cast<float>(cols))});
  }
  void stack(const std::string& name, int64_t n, int64_t rows, int64_t cols) {
    matrix(name, rows, cols);
    out_.back().shape.insert(out_.back().shape.begin(), n);
  }
  void vector(const std::string& name, int64_t n, float mean) {
    out_.push_back({name, {n}, mean, 0.1F * mean});
  }

  void layer(int32_t i) {
    const std::string blk = fmt::format("blk.{}.", i);
    const bool global = s_.is_global(i),
               shares_v = global && s_.per_layer == 0;  // K = V without per-layer embeddings
    const int64_t head = global ? s_.head_global : s_.head_sliding,
                  kv = global ? s_.kv_global : s_.kv_sliding;
    const float score = std::pow(static_cast<float>(head), -0.25F);
    vector(blk + "attn_norm.weight", s_.dim, 1);
    matrix(blk + "attn_q.weight", s_.heads * head, s_.dim);
    matrix(blk + "attn_k.weight", kv * head, s_.dim);
    if (!shares_v) matrix(blk + "attn_v.weight", kv * head, s_.dim);
    matrix(blk + "attn_output.weight", s_.dim, s_.heads * head);
    vector(blk + "attn_q_norm.weight", head, score);
    vector(blk + "attn_k_norm.weight", head, score);
    // Averages over many positions point the same way at all of them; at full size they would drown the
    // token.
    vector(blk + "post_attention_norm.weight", s_.dim, 0.4F);
    vector(blk + "ffn_norm.weight", s_.dim, 1);
    matrix(blk + "ffn_gate.weight", s_.ffn_of(i), s_.dim);
    matrix(blk + "ffn_up.weight", s_.ffn_of(i), s_.dim);
    matrix(blk + "ffn_down.weight", s_.dim, s_.ffn_of(i));
    vector(blk + "post_ffw_norm.weight", s_.dim, 1);
    vector(blk + "layer_output_scale.weight", 1, 0.55F);
    if (s_.per_layer) {
      matrix(blk + "inp_gate.weight", s_.per_layer, s_.dim);
      matrix(blk + "proj.weight", s_.dim, s_.per_layer);
      vector(blk + "post_norm.weight", s_.dim, 1);
    }
    if (s_.experts) experts(blk);
  }

  void experts(const std::string& blk) {
    matrix(blk + "ffn_gate_inp.weight", s_.experts, s_.dim);
    vector(blk + "ffn_gate_inp.scale", s_.dim,
           1.5F * std::sqrt(static_cast<float>(s_.dim)));  // router logits of size 1.5
    stack(blk + "ffn_gate_up_exps.weight", s_.experts, 2 * s_.expert_ffn, s_.dim);
    stack(blk + "ffn_down_exps.weight", s_.experts, s_.dim, s_.expert_ffn);
    vector(blk + "ffn_down_exps.scale", s_.experts, 1);
    vector(blk + "pre_ffw_norm_2.weight", s_.dim, 1);
    vector(blk + "post_ffw_norm_1.weight", s_.dim, 1);
    vector(blk + "post_ffw_norm_2.weight", s_.dim, 1);
  }

  const ModelShape& s_;
  std::vector<ShapeTensor> out_;
};

}  // namespace

const ModelShape& find_shape(std::string_view name) {
  for (const ModelShape& s : kShapes)
    if (s.name == name) return s;
  throw Error(fmt::format("unknown shape '{}'", name), "known shapes: " + shape_names());
}

std::string shape_names() {
  std::string names;
  for (const ModelShape& s : kShapes) names += fmt::format("{}{}", names.empty() ? "" : " ", s.name);
  return names;
}

std::vector<ShapeTensor> shape_tensors(const ModelShape& shape) {
  if (shape.is_drafter()) return draft_shape_tensors(shape);
  return shape.is_hybrid() ? hybrid_shape_tensors(shape) : Lister(shape).list();
}

int64_t parameter_count(const std::vector<ShapeTensor>& tensors) {
  int64_t total = 0;
  for (const ShapeTensor& t : tensors) {
    int64_t n = t.name != "rope_freqs.weight" && t.name != "masked_embd_ordering";
    for (const int64_t d : t.shape) n *= d;
    total += n;
  }
  return total;
}

Metadata shape_metadata(const ModelShape& s) {
  if (s.is_hybrid()) return hybrid_shape_metadata(s);
  if (s.is_drafter()) return draft_shape_metadata(s);
  Metadata m;
  const auto set = [&](std::string_view key, MetaValue v) {
    m.set(fmt::format("gemma4.{}", key), std::move(v));
  };
  std::vector<bool> sliding;
  std::vector<int64_t> kv, ffn;
  for (int32_t i = 0; i < s.layers; ++i) {
    sliding.push_back(!s.is_global(i));
    kv.push_back(s.is_global(i) ? s.kv_global : s.kv_sliding);
    ffn.push_back(s.ffn_of(i));
  }
  m.set("general.architecture", "gemma4");
  m.set("general.name", fmt::format("{} (random weights)", s.title));
  set("block_count", int64_t{s.layers});
  set("context_length", int64_t{s.context});
  set("embedding_length", int64_t{s.dim});
  set("embedding_length_per_layer_input", int64_t{s.per_layer});
  set("feed_forward_length", s.wide_shared ? MetaValue(ffn) : MetaValue(int64_t{s.ffn}));
  set("attention.head_count", int64_t{s.heads});
  set("attention.head_count_kv",
      s.kv_sliding != s.kv_global ? MetaValue(kv) : MetaValue(int64_t{s.kv_sliding}));
  set("attention.key_length", int64_t{s.head_global});
  set("attention.value_length", int64_t{s.head_global});
  set("attention.key_length_swa", int64_t{s.head_sliding});
  set("attention.value_length_swa", int64_t{s.head_sliding});
  set("attention.layer_norm_rms_epsilon", 1e-6);
  set("attention.sliding_window", int64_t{s.window});
  set("attention.sliding_window_pattern", sliding);
  set("attention.shared_kv_layers", int64_t{s.shared});
  set("rope.freq_base", 1e6);
  set("rope.freq_base_swa", 1e4);
  set("rope.dimension_count", int64_t{s.head_global});
  set("rope.dimension_count_swa", int64_t{s.head_sliding});
  set("final_logit_softcapping", 30.0);
  if (s.experts) {
    set("expert_count", int64_t{s.experts});
    set("expert_used_count", int64_t{s.experts_used});
    set("expert_feed_forward_length", int64_t{s.expert_ffn});
  }
  return m;
}

}  // namespace carat
