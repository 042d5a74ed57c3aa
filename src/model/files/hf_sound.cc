// The tower for sound of a Hugging Face directory of Gemma 4, translated to the names and keys of llama.cpp's
// mmproj files (docs/gemma4.md, "Vision and audio").
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "core/codec.h"
#include "model/files/hf_dialect.h"
#include "model/files/name_parts.h"

namespace carat {
namespace {

using Json = nlohmann::json;

// Behind "audio_tower.".
constexpr NamePair kNames[] = {
    {"subsample_conv_projection.layer0.conv.weight", "a.conv1d.0.weight"},
    {"subsample_conv_projection.layer0.norm.weight", "a.conv1d.0.norm.weight"},
    {"subsample_conv_projection.layer1.conv.weight", "a.conv1d.1.weight"},
    {"subsample_conv_projection.layer1.norm.weight", "a.conv1d.1.norm.weight"},
    {"subsample_conv_projection.input_proj_linear.weight", "a.input_projection.weight"},
    {"output_proj.weight", "a.pre_encode.out.weight"},
    {"output_proj.bias", "a.pre_encode.out.bias"},
};
// Behind "audio_tower.layers.N." and "a.blk.N.". The norms of the convolution have each other's names.
constexpr NamePair kLayerNames[] = {
    {"feed_forward1.pre_layer_norm.weight", "ffn_norm.weight"},
    {"feed_forward1.post_layer_norm.weight", "ffn_post_norm.weight"},
    {"feed_forward2.pre_layer_norm.weight", "ffn_norm_1.weight"},
    {"feed_forward2.post_layer_norm.weight", "ffn_post_norm_1.weight"},
    {"norm_pre_attn.weight", "attn_pre_norm.weight"},
    {"norm_post_attn.weight", "attn_post_norm.weight"},
    {"self_attn.relative_k_proj.weight", "attn_k_rel.weight"},
    {"self_attn.per_dim_scale", "per_dim_scale.weight"},
    {"lconv1d.pre_layer_norm.weight", "conv_norm.weight"},
    {"lconv1d.conv_norm.weight", "norm_conv.weight"},
    {"lconv1d.depthwise_conv1d.weight", "conv_dw.weight"},
    {"norm_out.weight", "ln2.weight"},
};
// Products, which may have limits beside their weights.
constexpr NamePair kProducts[] = {
    {"feed_forward1.ffw_layer_1.", "ffn_up."},
    {"feed_forward1.ffw_layer_2.", "ffn_down."},
    {"feed_forward2.ffw_layer_1.", "ffn_up_1."},
    {"feed_forward2.ffw_layer_2.", "ffn_down_1."},
    {"self_attn.q_proj.", "attn_q."},
    {"self_attn.k_proj.", "attn_k."},
    {"self_attn.v_proj.", "attn_v."},
    {"self_attn.post.", "attn_out."},
    {"lconv1d.linear_start.", "conv_pw1."},
    {"lconv1d.linear_end.", "conv_pw2."},
};
// Buffers that follow from the configuration.
constexpr std::string_view kBuffers[] = {"inv_timescales", "softcap", "local_causal_valid_mask"};

void soften(HfTensors& t, TensorInfo& w) {  // softplus, in f32
  const int64_t n = w.elements();
  if (info(w.type).family != Family::plain)
    throw Error(fmt::format("tensor '{}' is {}, expected floats", w.name, info(w.type).name));
  std::vector<float> v(static_cast<size_t>(n));
  decode_row(w.type, w.data, v.data(), n);
  w.type = DType::f32, w.bytes = v.size() * sizeof(float);
  auto* to = reinterpret_cast<float*>(t.own(w.bytes));
  w.data = reinterpret_cast<const std::byte*>(to);
  for (const float x : v) *to++ = static_cast<float>(x > 20 ? x : std::log1p(std::exp(double{x})));
}

}  // namespace

std::optional<std::string> sound_tensor_name(std::string_view name) {
  if (name == "embed_audio.embedding_projection.weight") return "mm.a.input_projection.weight";
  if (!skip_prefix(name, "audio_tower.")) return "";
  for (const std::string_view buffer : kBuffers)
    if (name.ends_with(buffer)) return "";
  for (const auto& [hf, gguf] : kNames)
    if (name == hf) return std::string(gguf);
  if (!skip_prefix(name, "layers.")) return std::nullopt;
  return tower_layer_name(name, "a.blk.", kLayerNames, kProducts);
}

void adapt_sound(HfTensors& t) {
  for (TensorInfo& w : t.list) {
    if (!w.name.starts_with("a.blk.")) continue;
    if (w.name.ends_with(".per_dim_scale.weight")) soften(t, w);
    if (w.name.ends_with(".conv_dw.weight") && w.shape.size() == 3 && w.shape[1] == 1)
      w.shape = {w.shape[0], w.shape[2]};
  }
}

void read_sound_config(std::string_view json, std::string_view name, Metadata& m) {
  const Json root = Json::parse(json, nullptr, false);
  const auto audio = root.find("audio_config");
  if (audio == root.end() || !audio->is_object()) return;
  const auto fail = [&](const char* key, const char* why) {
    throw Error(fmt::format("'{}' has a '{}' of its tower for sound that is {}", name, key, why),
                "the config.json of a published checkpoint is expected");
  };
  const auto integer = [&](const char* key) {
    const auto v = audio->find(key);
    if (v == audio->end() || !v->is_number_integer() || v->get<int64_t>() < 1 || v->get<int64_t>() > 1 << 20)
      fail(key, "missing or absurd");
    return v->get<int64_t>();
  };
  // llama.cpp's files have no keys for these.
  const std::pair<const char*, double> fixed[] = {
      {"attention_context_left", 13}, {"attention_context_right", 0}, {"attention_logit_cap", 50},
      {"conv_kernel_size", 5},        {"residual_weight", 0.5},
  };
  for (const auto& [key, value] : fixed)
    if (const auto v = audio->find(key); v != audio->end() && (!v->is_number() || v->get<double>() != value))
      fail(key, "not that of published models");
  m.set("clip.has_audio_encoder", true);
  m.set("clip.audio.projector_type", std::string("gemma4a"));
  m.set("clip.audio.num_mel_bins", int64_t{128});
  m.set("clip.audio.embedding_length", integer("hidden_size"));
  m.set("clip.audio.feed_forward_length", 4 * integer("hidden_size"));
  m.set("clip.audio.block_count", integer("num_hidden_layers"));
  m.set("clip.audio.attention.head_count", integer("num_attention_heads"));
  const auto eps = audio->find("rms_norm_eps");
  m.set("clip.audio.attention.layer_norm_epsilon",
        eps != audio->end() && eps->is_number() ? eps->get<double>() : 1e-6);
  m.set("clip.audio.projection_dim", m.get_int("clip.vision.projection_dim"));
  if (const auto id = root.find("audio_token_id"); id != root.end() && id->is_number_integer())
    m.set("clip.audio.audio_token_id", id->get<int64_t>());
}

}  // namespace carat
