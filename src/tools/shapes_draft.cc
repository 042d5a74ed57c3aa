// Tensors and metadata of drafters' shapes: Gemma 4's assistants and DFlash.
#include <cmath>

#include "base/error.h"
#include "tools/shapes.h"

namespace carat {
namespace {

class DraftLister {
 public:
  explicit DraftLister(const ModelShape& s) : s_(s) {}

  std::vector<ShapeTensor> assistant() {
    matrix("token_embd.weight", s_.vocab, s_.dim);
    matrix("nextn.pre_projection.weight", s_.dim, 2 * int64_t{s_.target_dim});
    matrix("nextn.post_projection.weight", s_.target_dim, s_.dim);
    if (s_.clusters) {
      matrix("masked_embd_centroids.weight", s_.clusters, s_.dim);
      out_.push_back({"masked_embd_ordering", {s_.vocab}});
    }
    vector("output_norm.weight", s_.dim, 4);
    out_.push_back({"rope_freqs.weight", {s_.head_global / 2}});
    for (int32_t i = 0; i < s_.layers; ++i) {
      const std::string blk = fmt::format("blk.{}.", i);
      const int64_t head = s_.is_global(i) ? s_.head_global : s_.head_sliding;
      vector(blk + "attn_norm.weight", s_.dim, 1);
      matrix(blk + "attn_q.weight", s_.heads * head, s_.dim);
      matrix(blk + "attn_output.weight", s_.dim, s_.heads * head);
      vector(blk + "attn_q_norm.weight", head, std::pow(static_cast<float>(head), -0.25F));
      vector(blk + "post_attention_norm.weight", s_.dim, 0.4F);
      mlp(blk, "ffn_norm.weight");
      vector(blk + "post_ffw_norm.weight", s_.dim, 1);
      vector(blk + "layer_output_scale.weight", 1, 0.55F);
    }
    return std::move(out_);
  }

  std::vector<ShapeTensor> dflash() {
    matrix("fc.weight", s_.dim, int64_t{s_.features} * s_.dim);
    vector("enc.output_norm.weight", s_.dim, 1);
    vector("output_norm.weight", s_.dim, 4);
    const int64_t head = s_.head_global;
    for (int32_t i = 0; i < s_.layers; ++i) {
      const std::string blk = fmt::format("blk.{}.", i);
      vector(blk + "attn_norm.weight", s_.dim, 1);
      matrix(blk + "attn_q.weight", s_.heads * head, s_.dim);
      matrix(blk + "attn_k.weight", s_.kv_global * head, s_.dim);
      matrix(blk + "attn_v.weight", s_.kv_global * head, s_.dim);
      matrix(blk + "attn_output.weight", s_.dim, s_.heads * head);
      vector(blk + "attn_q_norm.weight", head, 1);
      vector(blk + "attn_k_norm.weight", head, 1);
      mlp(blk, "ffn_norm.weight");
    }
    return std::move(out_);
  }

 private:
  void matrix(const std::string& name, int64_t rows, int64_t cols) {
    out_.push_back({name, {rows, cols}, 0, 1 / std::sqrt(static_cast<float>(cols))});
  }
  void vector(const std::string& name, int64_t n, float mean) {
    out_.push_back({name, {n}, mean, 0.1F * mean});
  }
  void mlp(const std::string& blk, const char* norm) {
    vector(blk + norm, s_.dim, 1);
    matrix(blk + "ffn_gate.weight", s_.ffn, s_.dim);
    matrix(blk + "ffn_up.weight", s_.ffn, s_.dim);
    matrix(blk + "ffn_down.weight", s_.dim, s_.ffn);
  }

  const ModelShape& s_;
  std::vector<ShapeTensor> out_;
};

std::vector<bool> sliding_layers(const ModelShape& s) {
  std::vector<bool> out;
  for (int32_t i = 0; i < s.layers; ++i) out.push_back(!s.is_global(i));
  return out;
}

}  // namespace

std::vector<ShapeTensor> draft_shape_tensors(const ModelShape& s) {
  return s.features ? DraftLister(s).dflash() : DraftLister(s).assistant();
}

Metadata draft_shape_metadata(const ModelShape& s) {
  Metadata m;
  const std::string arch = s.features ? "dflash" : "gemma4-assistant";
  const auto set = [&](std::string_view key, MetaValue v) {
    m.set(fmt::format("{}.{}", arch, key), std::move(v));
  };
  m.set("general.architecture", arch);
  m.set("general.name", fmt::format("{} (random weights)", s.title));
  set("block_count", int64_t{s.layers});
  set("context_length", int64_t{s.context});
  set("embedding_length", int64_t{s.dim});
  set("feed_forward_length", int64_t{s.ffn});
  set("attention.head_count", int64_t{s.heads});
  set("attention.key_length", int64_t{s.head_global});
  set("attention.value_length", int64_t{s.head_global});
  set("attention.layer_norm_rms_epsilon", 1e-6);
  set("attention.sliding_window", int64_t{s.window});
  set("attention.sliding_window_pattern", sliding_layers(s));
  set("rope.freq_base", s.theta);
  if (s.features) {
    set("attention.head_count_kv", int64_t{s.kv_global});
    set("block_size", int64_t{16});
    m.set("tokenizer.ggml.mask_token_id", int64_t{s.mask_token});
    return m;  // no layers to tap: those at even distances, as published drafters have them
  }
  std::vector<int64_t> kv;
  for (int32_t i = 0; i < s.layers; ++i) kv.push_back(s.is_global(i) ? s.kv_global : s.kv_sliding);
  set("attention.head_count_kv", kv);
  set("attention.key_length_swa", int64_t{s.head_sliding});
  set("attention.value_length_swa", int64_t{s.head_sliding});
  set("attention.shared_kv_layers", int64_t{s.layers});
  set("nextn_predict_layers", int64_t{s.layers});
  set("embedding_length_out", int64_t{s.target_dim});
  set("rope.freq_base_swa", 1e4);
  set("rope.dimension_count", int64_t{s.head_global});
  set("rope.dimension_count_swa", int64_t{s.head_sliding});
  set("use_ordered_embeddings", s.clusters > 0);
  if (s.clusters) {
    set("n_centroids", int64_t{s.clusters});
    set("centroid_top_k", int64_t{s.top_clusters});
  }
  return m;
}

}  // namespace carat
