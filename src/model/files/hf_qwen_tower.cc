// The tower of a Hugging Face directory of Qwen3.5 or Qwen3.6, translated to the names and keys of
// llama.cpp's mmproj files (docs/qwen36.md).
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "core/codec.h"
#include "model/files/gguf.h"
#include "model/files/hf_dialect.h"
#include "model/files/name_parts.h"

namespace carat {
namespace {

using Json = nlohmann::json;

// Behind "visual.".
constexpr NamePair kNames[] = {
    {"patch_embed.proj.weight", "v.patch_embd.weight"},
    {"patch_embed.proj.bias", "v.patch_embd.bias"},
    {"pos_embed.weight", "v.position_embd.weight"},
    {"merger.norm.weight", "v.post_ln.weight"},
    {"merger.norm.bias", "v.post_ln.bias"},
    {"merger.linear_fc1.weight", "mm.0.weight"},
    {"merger.linear_fc1.bias", "mm.0.bias"},
    {"merger.linear_fc2.weight", "mm.2.weight"},
    {"merger.linear_fc2.bias", "mm.2.bias"},
};
// Behind "visual.blocks.N." and "v.blk.N.", before "weight" or "bias".
constexpr NamePair kLayerNames[] = {
    {"norm1.", "ln1."},
    {"norm2.", "ln2."},
    {"attn.qkv.", "attn_qkv."},
    {"attn.proj.", "attn_out."},
    {"mlp.linear_fc1.", "ffn_up."},
    {"mlp.linear_fc2.", "ffn_down."},
};

std::optional<std::string> tensor_name(std::string_view name) {
  skip_prefix(name, "model.");
  if (!skip_prefix(name, "visual.") || name.find("rotary_pos_emb.") != name.npos) return "";
  for (const auto& [hf, gguf] : kNames)
    if (name == hf) return std::string(gguf);
  if (!skip_prefix(name, "blocks.")) return std::nullopt;
  const std::optional<int> block = take_number(name);
  if (!block) return std::nullopt;
  for (const auto& [hf, gguf] : kLayerNames) {
    std::string_view rest = name;
    if (skip_prefix(rest, hf) && (rest == "weight" || rest == "bias"))
      return fmt::format("v.blk.{}.{}{}", *block, gguf, rest);
  }
  return std::nullopt;
}

// The projection of two frames, [hidden, channel, frame, row, column], becomes one of each.
void adapt(HfTensors& t) {
  const int64_t p = t.meta.get_int("clip.vision.patch_size");
  for (size_t i = 0; i < t.list.size(); ++i) {
    TensorInfo w = t.list[i];
    if (w.name != "v.patch_embd.weight") continue;
    const std::vector<int64_t> expected{w.shape.empty() ? 0 : w.shape[0], 3, 2, p, p};
    if (w.shape != expected || info(w.type).family != Family::plain)
      throw Error("the vision tower's patch projection is not one of two frames",
                  "config.json and the tensors are of different checkpoints");
    const size_t frame = static_cast<size_t>(p * p) * info(w.type).bytes;
    w.shape = {w.shape[0], 3, p, p};
    w.bytes /= 2;
    const std::byte* from = w.data;
    for (size_t f = 0; f < 2; ++f) {
      std::byte* to = t.own(w.bytes);
      w.data = to;
      for (int64_t r = 0; r < 3 * w.shape[0]; ++r, to += frame)
        std::memcpy(to, from + (static_cast<size_t>(r) * 2 + f) * frame, frame);
      w.name = f ? "v.patch_embd.weight.1" : "v.patch_embd.weight";
      if (f)
        t.list.push_back(w);
      else
        t.list[i] = w;
    }
    return;
  }
}

}  // namespace

std::optional<HfModel> read_qwen_tower(std::string_view json, std::string_view name) {
  const auto shallow = [](int depth, Json::parse_event_t, Json&) { return depth <= 32; };
  const Json root = Json::parse(json, shallow, false);
  if (!root.is_object()) return std::nullopt;
  const auto type = root.find("model_type"), vision = root.find("vision_config");
  if (type == root.end() || (*type != "qwen3_5" && *type != "qwen3_5_moe") || vision == root.end() ||
      !vision->is_object())
    return std::nullopt;
  const auto integer = [&](const char* key) {
    const auto v = vision->find(key);
    if (v == vision->end() || !v->is_number_integer() || v->get<int64_t>() < 1 || v->get<int64_t>() > 1 << 20)
      throw Error(fmt::format("'{}' has a '{}' of its vision tower that is missing or absurd", name, key),
                  "the config.json of a published checkpoint is expected");
    return v->get<int64_t>();
  };
  HfModel out;
  Metadata& m = out.meta;
  m.set("general.architecture", std::string("clip"));
  m.set("clip.has_vision_encoder", true);
  m.set("clip.vision.projector_type", std::string("qwen3vl_merger"));
  m.set("clip.use_gelu", true);
  m.set("clip.vision.patch_size", integer("patch_size"));
  m.set("clip.vision.embedding_length", integer("hidden_size"));
  m.set("clip.vision.feed_forward_length", integer("intermediate_size"));
  m.set("clip.vision.block_count", integer("depth"));
  m.set("clip.vision.projection_dim", integer("out_hidden_size"));
  m.set("clip.vision.attention.head_count", integer("num_heads"));
  m.set("clip.vision.attention.layer_norm_epsilon", 1e-6);
  m.set("clip.vision.spatial_merge_size", integer("spatial_merge_size"));
  if (const auto id = root.find("image_token_id"); id != root.end() && id->is_number_integer())
    m.set("clip.vision.image_token_id", id->get<int64_t>());
  if (const auto deep = vision->find("deepstack_visual_indexes"); deep != vision->end() && !deep->empty())
    throw Error(fmt::format("'{}' has a tower that feeds several layers (deepstack)", name),
                "such towers are not known");
  out.tied_head = false;
  out.tensor_name = tensor_name;
  out.adapt = adapt;
  return out;
}

}  // namespace carat
