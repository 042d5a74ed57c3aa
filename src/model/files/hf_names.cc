#include <fmt/format.h>

#include <utility>

#include "model/files/hf_dialect.h"
#include "model/files/name_parts.h"

namespace carat {
namespace {

// Behind "layers.N." and "blk.N.".
constexpr NamePair kLayerNames[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"post_attention_layernorm.weight", "post_attention_norm.weight"},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {"layer_scalar", "layer_output_scale.weight"},
    {"per_layer_input_gate.weight", "inp_gate.weight"},
    {"per_layer_projection.weight", "proj.weight"},
    {"post_per_layer_input_norm.weight", "post_norm.weight"},
    {"router.proj.weight", "ffn_gate_inp.weight"},
    {"router.scale", "ffn_gate_inp.scale"},
    {"router.per_expert_scale", "ffn_down_exps.scale"},
    {"experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"experts.down_proj", "ffn_down_exps.weight"},
    {"moe.per_expert_scale", "ffn_down_exps.scale"},
    {"moe.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"moe.down_proj", "ffn_down_exps.weight"},
    {"pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"},
    {"post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"},
    {"post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"},
};

// Quantized checkpoints have a tensor per expert: behind "experts.E." or "moe.experts.E.".
constexpr NamePair kExpertNames[] = {
    {"gate_proj.weight", "ffn_gate_exps.weight"},
    {"up_proj.weight", "ffn_up_exps.weight"},
    {"down_proj.weight", "ffn_down_exps.weight"},
};

constexpr NamePair kGlobalNames[] = {
    {"embed_tokens.weight", "token_embd.weight"},
    {"lm_head.weight", "output.weight"},
    {"norm.weight", "output_norm.weight"},
    {"embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
    {"per_layer_model_projection.weight", "per_layer_model_proj.weight"},
    {"per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
    {"pre_projection.weight", "nextn.pre_projection.weight"},
    {"post_projection.weight", "nextn.post_projection.weight"},
    {"masked_embedding.centroids.weight", "masked_embd_centroids.weight"},
    {"masked_embedding.token_ordering", "masked_embd_ordering"},
};

constexpr std::string_view kPassedOver[] = {"vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.",
                                            "rotary_emb."};

}  // namespace

std::optional<std::string> gguf_tensor_name(std::string_view name) {
  skip_prefix(name, "model.");
  skip_prefix(name, "language_model.");
  skip_prefix(name, "model.");  // text-only exports of multimodal checkpoints: language_model.model.
  for (const std::string_view prefix : kPassedOver)
    if (name.starts_with(prefix)) return "";
  for (const auto& [hf, gguf] : kGlobalNames)
    if (name == hf) return std::string(gguf);
  if (!skip_prefix(name, "layers.")) return std::nullopt;
  const std::optional<int> layer = take_number(name);
  if (!layer) return std::nullopt;
  const std::string block = fmt::format("blk.{}.", *layer);
  if (name.starts_with("self_attn.rotary_emb.")) return "";
  for (const auto& [hf, gguf] : kLayerNames)
    if (name == hf) return block + std::string(gguf);
  skip_prefix(name, "moe.");
  if (!skip_prefix(name, "experts.")) return std::nullopt;
  const std::optional<int> expert = take_number(name);
  if (!expert) return std::nullopt;
  for (const auto& [hf, gguf] : kExpertNames)
    if (name == hf) return fmt::format("{}{}#{}", block, gguf, *expert);
  return std::nullopt;
}

// Where several names of Hugging Face's mean one tensor, the first in the tables is today's.
std::string hf_tensor_name(std::string_view name) {
  for (const auto& [hf, gguf] : kGlobalNames)
    if (name == gguf) return std::string(hf);
  if (!skip_prefix(name, "blk.")) return {};
  const std::optional<int> layer = take_number(name);
  if (!layer) return {};
  for (const auto& [hf, gguf] : kLayerNames)
    if (name == gguf) return fmt::format("layers.{}.{}", *layer, hf);
  return {};
}

}  // namespace carat
