// Hybrids: gated delta nets, gated attention in every period-th layer, and a drafting head (qwen36.md).
#include <cmath>

#include "base/error.h"
#include "tools/shapes.h"

namespace carat {
namespace {

class HybridLister {
 public:
  explicit HybridLister(const ModelShape& s) : s_(s) {}

  std::vector<ShapeTensor> list() {
    matrix("token_embd.weight", s_.vocab, s_.dim);
    out_.back().spread = 1;  // not scaled on use
    vector("output_norm.weight", s_.dim, 4);
    matrix("output.weight", s_.vocab, s_.dim);
    for (int32_t i = 0; i < s_.layers; ++i) {
      const std::string blk = fmt::format("blk.{}.", i);
      vector(blk + "attn_norm.weight", s_.dim, 1);
      s_.is_global(i) ? attention(blk) : delta_net(blk);
      feed_forward(blk);
    }
    nextn(fmt::format("blk.{}.", s_.layers));
    return std::move(out_);
  }

 private:
  void matrix(const std::string& name, int64_t rows, int64_t cols, float scale = 1) {
    out_.push_back({name, {rows, cols}, 0, scale / std::sqrt(static_cast<float>(cols))});
  }
  void stack(const std::string& name, int64_t n, int64_t rows, int64_t cols) {
    matrix(name, rows, cols);
    out_.back().shape.insert(out_.back().shape.begin(), n);
  }
  void vector(const std::string& name, int64_t n, float mean) {
    out_.push_back({name, {n}, mean, 0.1F * std::abs(mean)});
  }

  void attention(const std::string& blk) {
    const int64_t head = s_.head_global, kv = s_.kv_global * head, q = s_.heads * head;
    matrix(blk + "attn_q.weight", 2 * q, s_.dim);
    matrix(blk + "attn_k.weight", kv, s_.dim);
    matrix(blk + "attn_v.weight", kv, s_.dim);
    matrix(blk + "attn_output.weight", s_.dim, q);
    vector(blk + "attn_q_norm.weight", head, 1);
    vector(blk + "attn_k_norm.weight", head, 1);
  }

  void delta_net(const std::string& blk) {
    const int64_t value = int64_t{s_.v_heads} * s_.state_dim, key = int64_t{s_.k_heads} * s_.state_dim;
    matrix(blk + "attn_qkv.weight", 2 * key + value, s_.dim);
    matrix(blk + "attn_gate.weight", value, s_.dim);
    matrix(blk + "ssm_alpha.weight", s_.v_heads, s_.dim);
    matrix(blk + "ssm_beta.weight", s_.v_heads, s_.dim);
    matrix(blk + "ssm_conv1d.weight", 2 * key + value, s_.taps);
    // Decays of 0.6 to 0.99 a token.
    out_.push_back({blk + "ssm_a", {s_.v_heads}, -1, 0.8F});
    out_.push_back({blk + "ssm_dt.bias", {s_.v_heads}, -3, 1});
    vector(blk + "ssm_norm.weight", s_.state_dim, 1);
    matrix(blk + "ssm_out.weight", s_.dim, value);
  }

  void feed_forward(const std::string& blk) {
    vector(blk + "post_attention_norm.weight", s_.dim, 1);
    if (!s_.experts) {
      matrix(blk + "ffn_gate.weight", s_.ffn, s_.dim);
      matrix(blk + "ffn_up.weight", s_.ffn, s_.dim);
      matrix(blk + "ffn_down.weight", s_.dim, s_.ffn);
      return;
    }
    matrix(blk + "ffn_gate_inp.weight", s_.experts, s_.dim, 1.5F);
    stack(blk + "ffn_gate_exps.weight", s_.experts, s_.expert_ffn, s_.dim);
    stack(blk + "ffn_up_exps.weight", s_.experts, s_.expert_ffn, s_.dim);
    stack(blk + "ffn_down_exps.weight", s_.experts, s_.dim, s_.expert_ffn);
    out_.push_back(
        {blk + "ffn_gate_inp_shexp.weight", {s_.dim}, 0, 1 / std::sqrt(static_cast<float>(s_.dim))});
    matrix(blk + "ffn_gate_shexp.weight", s_.shared_ffn, s_.dim);
    matrix(blk + "ffn_up_shexp.weight", s_.shared_ffn, s_.dim);
    matrix(blk + "ffn_down_shexp.weight", s_.dim, s_.shared_ffn);
  }

  void nextn(const std::string& blk) {
    vector(blk + "attn_norm.weight", s_.dim, 1);
    attention(blk);
    feed_forward(blk);
    matrix(blk + "nextn.eh_proj.weight", s_.dim, 2 * int64_t{s_.dim});
    vector(blk + "nextn.enorm.weight", s_.dim, 1);
    vector(blk + "nextn.hnorm.weight", s_.dim, 1);
    vector(blk + "nextn.shared_head_norm.weight", s_.dim, 4);
  }

  const ModelShape& s_;
  std::vector<ShapeTensor> out_;
};

}  // namespace

std::vector<ShapeTensor> hybrid_shape_tensors(const ModelShape& shape) { return HybridLister(shape).list(); }

Metadata hybrid_shape_metadata(const ModelShape& s) {
  Metadata m;
  const auto set = [&](std::string_view key, MetaValue v) {
    m.set(fmt::format("{}.{}", s.arch, key), std::move(v));
  };
  const int64_t pairs = s.head_global / 8;  // a quarter of the head turns
  m.set("general.architecture", std::string(s.arch));
  m.set("general.name", fmt::format("{} (random weights)", s.title));
  set("block_count", int64_t{s.layers} + 1);
  set("nextn_predict_layers", int64_t{1});
  set("context_length", int64_t{s.context});
  set("embedding_length", int64_t{s.dim});
  if (s.ffn) set("feed_forward_length", int64_t{s.ffn});
  set("attention.head_count", int64_t{s.heads});
  set("attention.head_count_kv", int64_t{s.kv_global});
  set("attention.key_length", int64_t{s.head_global});
  set("attention.value_length", int64_t{s.head_global});
  set("attention.layer_norm_rms_epsilon", 1e-6);
  set("full_attention_interval", int64_t{s.period});
  set("rope.freq_base", 1e7);
  set("rope.dimension_count", 2 * pairs);
  // time, height, width; of 64 turned values 11, 11, 10
  set("rope.dimension_sections", std::vector<int64_t>{pairs - 2 * (pairs / 3), pairs / 3, pairs / 3, 0});
  set("ssm.conv_kernel", int64_t{s.taps});
  set("ssm.state_size", int64_t{s.state_dim});
  set("ssm.group_count", int64_t{s.k_heads});
  set("ssm.time_step_rank", int64_t{s.v_heads});
  set("ssm.inner_size", int64_t{s.v_heads} * s.state_dim);
  if (s.experts) {
    set("expert_count", int64_t{s.experts});
    set("expert_used_count", int64_t{s.experts_used});
    set("expert_feed_forward_length", int64_t{s.expert_ffn});
    set("expert_shared_feed_forward_length", int64_t{s.shared_ffn});
  }
  return m;
}

}  // namespace carat
