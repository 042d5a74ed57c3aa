// Towers of a Hugging Face directory, translated to the names and keys of llama.cpp's mmproj files
// (docs/gemma4.md, "Vision and audio").
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/files/gguf.h"
#include "model/files/hf_dialect.h"
#include "model/files/name_parts.h"

namespace carat {
namespace {

using Json = nlohmann::json;

// Behind "vision_tower.".
constexpr NamePair kVisionNames[] = {
    {"patch_embedder.input_proj.weight", "v.patch_embd.weight"},
    {"patch_embedder.position_embedding_table", "v.position_embd.weight"},
    {"std_bias", "v.std_bias"},
    {"std_scale", "v.std_scale"},
    {"pooler.scale", ""},
};
// Behind "vision_tower.encoder.layers.N." and "v.blk.N.".
constexpr NamePair kVisionNorms[] = {
    {"input_layernorm.weight", "ln1.weight"},
    {"post_attention_layernorm.weight", "attn_post_norm.weight"},
    {"pre_feedforward_layernorm.weight", "ln2.weight"},
    {"post_feedforward_layernorm.weight", "ffn_post_norm.weight"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
};
// Products, which may have limits beside their weights.
constexpr NamePair kVisionProducts[] = {
    {"self_attn.q_proj.", "attn_q."},   {"self_attn.k_proj.", "attn_k."}, {"self_attn.v_proj.", "attn_v."},
    {"self_attn.o_proj.", "attn_out."}, {"mlp.gate_proj.", "ffn_gate."},  {"mlp.up_proj.", "ffn_up."},
    {"mlp.down_proj.", "ffn_down."},
};

std::optional<std::string> tower_tensor_name(std::string_view name) {
  skip_prefix(name, "model.");
  if (name == "embed_vision.embedding_projection.weight") return "mm.input_projection.weight";
  if (name.starts_with("audio_tower.") || name.starts_with("embed_audio.")) return sound_tensor_name(name);
  if (!skip_prefix(name, "vision_tower.") || name.find("rotary_emb.") != name.npos) return "";
  for (const auto& [hf, gguf] : kVisionNames)
    if (name == hf) return std::string(gguf);
  if (!skip_prefix(name, "encoder.layers.")) return std::nullopt;
  return tower_layer_name(name, "v.blk.", kVisionNorms, kVisionProducts);
}

// Patches as [hidden, row, column, channel] become a convolution's [hidden, channel, row, column].
void adapt(HfTensors& t) {
  adapt_sound(t);
  const int64_t p = t.meta.get_int("clip.vision.patch_size");
  for (TensorInfo& w : t.list) {
    if (w.name != "v.patch_embd.weight") continue;
    if (w.shape.size() != 2 || w.shape[1] != 3 * p * p || info(w.type).family != Family::plain)
      throw Error("the vision tower's patch projection is not a matrix over patches",
                  "the checkpoint may be damaged");
    const auto size = static_cast<int64_t>(info(w.type).bytes);
    std::byte* to = t.own(w.bytes);
    const std::byte* from = w.data;
    w.data = to;
    for (int64_t row = 0; row < w.shape[0]; ++row, from += 3 * p * p * size)
      for (int64_t c = 0; c < 3; ++c)
        for (int64_t at = 0; at < p * p; ++at, to += size)
          std::memcpy(to, from + (at * 3 + c) * size, static_cast<size_t>(size));
    w.shape = {w.shape[0], 3, p, p};
  }
}

class TowerConfig {
 public:
  TowerConfig(const Json& vision, const Json& text, std::string_view name)
      : vision_(vision), text_(text), name_(name) {}

  HfModel read() {
    HfModel out;
    Metadata& m = out.meta;
    m.set("general.architecture", std::string("clip"));
    m.set("clip.has_vision_encoder", true);
    m.set("clip.has_audio_encoder", false);
    m.set("clip.vision.projector_type", std::string("gemma4v"));
    m.set("clip.vision.image_size", int64_t{224});  // not used, but asked for
    m.set("clip.vision.image_mean", std::vector<double>(3, 0));
    m.set("clip.vision.image_std", std::vector<double>(3, 1));
    m.set("clip.vision.patch_size", integer(vision_, "patch_size"));
    m.set("clip.vision.embedding_length", integer(vision_, "hidden_size"));
    m.set("clip.vision.feed_forward_length", integer(vision_, "intermediate_size"));
    m.set("clip.vision.block_count", integer(vision_, "num_hidden_layers"));
    m.set("clip.vision.projection_dim", integer(text_, "hidden_size"));
    m.set("clip.vision.attention.head_count", integer(vision_, "num_attention_heads"));
    m.set("clip.vision.attention.layer_norm_epsilon", number(vision_, "rms_norm_eps"));
    m.set("clip.vision.projector.scale_factor", integer(vision_, "pooling_kernel_size"));
    if (const auto rope = vision_.find("rope_parameters"); rope != vision_.end() && rope->is_object())
      m.set("clip.vision.rope.freq_base", number(*rope, "rope_theta"));
    out.tied_head = false;
    out.tensor_name = tower_tensor_name;
    out.adapt = adapt;
    return out;
  }

 private:
  [[noreturn]] void fail(const char* key) const {
    throw Error(fmt::format("'{}' has a '{}' of its vision tower that is missing or absurd", name_, key),
                "the config.json of a published checkpoint is expected");
  }
  int64_t integer(const Json& object, const char* key) const {
    const auto v = object.find(key);
    if (v == object.end() || !v->is_number_integer()) fail(key);
    const auto i = v->get<int64_t>();
    if (i < 1 || i > 1 << 20) fail(key);
    return i;
  }
  double number(const Json& object, const char* key) const {
    const auto v = object.find(key);
    if (v == object.end() || !v->is_number() || !(v->get<double>() > 0) || v->get<double>() > 1e12) fail(key);
    return v->get<double>();
  }
  const Json &vision_, &text_;
  std::string_view name_;
};

}  // namespace

std::optional<HfModel> read_hf_towers(std::string_view json, std::string_view name) {
  if (std::optional<HfModel> other = read_qwen_tower(json, name)) return other;
  const auto shallow = [](int depth, Json::parse_event_t, Json&) {
    if (depth > 32) throw Error("config.json is nested too deeply");
    return true;
  };
  const Json root = Json::parse(json, shallow, false);
  if (!root.is_object()) return std::nullopt;
  const auto type = root.find("model_type"), vision = root.find("vision_config"),
             text = root.find("text_config");
  if (type == root.end() || *type != "gemma4" || vision == root.end() || !vision->is_object() ||
      text == root.end() || !text->is_object())
    return std::nullopt;
  HfModel out = TowerConfig(*vision, *text, name).read();
  if (const auto id = root.find("image_token_id"); id != root.end() && id->is_number_integer())
    out.meta.set("clip.vision.image_token_id", id->get<int64_t>());
  read_sound_config(json, name, out.meta);
  return out;
}

}  // namespace carat
