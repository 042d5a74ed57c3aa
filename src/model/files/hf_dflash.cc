// Hugging Face directories of DFlash drafters (z-lab's and speculators' config.json), in the keys that
// llama.cpp gives them.
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "model/files/hf_dialect.h"
#include "model/files/name_parts.h"

namespace carat {
namespace {

using Json = nlohmann::json;
constexpr int64_t kMaxSize = int64_t{1} << 30, kMostLayers = 64;

class DFlashConfig {
 public:
  DFlashConfig(Json root, std::string_view name) : root_(std::move(root)), net_(root_), name_(name) {
    if (const Json* t = object(root_, "transformer_layer_config")) net_ = *t;
    if (const Json* d = object(root_, "dflash_config")) dflash_ = *d;
  }

  HfModel read() {
    out_.tensor_name = dflash_tensor_name;
    out_.meta.set("general.architecture", std::string("dflash"));
    layers_ = integer(net_, "num_hidden_layers", 1, kMostLayers);
    set("block_count", layers_);
    set("context_length", integer_or(net_, "max_position_embeddings", 4096));
    set("embedding_length", integer(net_, "hidden_size", 1, kMaxSize));
    set("feed_forward_length", integer(net_, "intermediate_size", 1, kMaxSize));
    set("attention.head_count", integer(net_, "num_attention_heads", 1, 65536));
    set("attention.head_count_kv", integer(net_, "num_key_value_heads", 1, 65536));
    if (has(net_, "head_dim")) {  // other readers take embedding_length / head_count
      const int64_t dim = integer(net_, "head_dim", 1, 65536);
      for (const char* key : {"attention.key_length", "attention.value_length", "rope.dimension_count"})
        set(key, dim);
    }
    set("attention.layer_norm_rms_epsilon", number(net_, "rms_norm_eps"));
    set("block_size", integer(has(root_, "block_size") ? root_ : dflash_, "block_size", 2, 4096));
    out_.meta.set("tokenizer.ggml.mask_token_id",
                  integer(has(dflash_, "mask_token_id") ? dflash_ : root_, "mask_token_id", 0, kMaxSize));
    read_taps();
    read_masks();
    read_rope();
    if (const Json* v = find(dflash_, "sample_from_anchor"))
      set("sample_from_anchor", flag(*v, "sample_from_anchor"));
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("'{}' {}", name_, what),
                "the config.json of a published DFlash drafter is expected");
  }
  static const Json* find(const Json& o, const char* key) {
    if (!o.is_object()) return nullptr;
    const auto it = o.find(key);
    return it == o.end() || it->is_null() ? nullptr : &*it;
  }
  static bool has(const Json& o, const char* key) { return find(o, key) != nullptr; }
  const Json* object(const Json& o, const char* key) const {
    const Json* v = find(o, key);
    if (v && !v->is_object()) fail(fmt::format("has a '{}' that is not an object", key));
    return v;
  }
  int64_t checked(const Json& v, const char* key, int64_t low, int64_t high) const {
    const bool fits =
        v.is_number_integer() && (!v.is_number_unsigned() || v.get<uint64_t>() <= uint64_t{1} << 62);
    const int64_t i = fits ? v.get<int64_t>() : low - 1;
    if (i < low || i > high) fail(fmt::format("has a '{}' that is not a number of {} to {}", key, low, high));
    return i;
  }
  int64_t integer(const Json& o, const char* key, int64_t low, int64_t high) const {
    const Json* v = find(o, key);
    if (!v) fail(fmt::format("has no '{}'", key));
    return checked(*v, key, low, high);
  }
  int64_t integer_or(const Json& o, const char* key, int64_t value) const {
    return has(o, key) ? integer(o, key, 1, kMaxSize) : value;
  }
  double number(const Json& o, const char* key) const {
    const Json* v = find(o, key);
    if (!v || !v->is_number() || !(v->get<double>() > 0) || v->get<double>() > 1e12)
      fail(fmt::format("has no '{}' that is a positive number", key));
    return v->get<double>();
  }
  bool flag(const Json& v, const char* key) const {
    if (!v.is_boolean()) fail(fmt::format("has a '{}' that is not true or false", key));
    return v.get<bool>();
  }
  void set(std::string_view key, MetaValue value) {
    out_.meta.set(fmt::format("dflash.{}", key), std::move(value));
  }

  // Ours count layer inputs, as llama.cpp does: one more than the ids here, which count outputs.
  void read_taps() {
    const Json* ids = find(dflash_, "target_layer_ids");
    if (!ids) ids = find(root_, "aux_hidden_state_layer_ids");
    if (!ids) return;
    if (!ids->is_array() || ids->empty() || ids->size() > 1024)
      fail("has 'target_layer_ids' that are no list");
    std::vector<int64_t> out;
    for (const Json& id : *ids) out.push_back(checked(id, "target_layer_ids", 0, 1023) + 1);
    set("target_layers", out);
  }

  void read_masks() {
    if (const Json* types = find(net_, "layer_types")) {
      if (!types->is_array() || static_cast<int64_t>(types->size()) != layers_)
        fail("has 'layer_types' that are not one per layer");
      std::vector<bool> sliding;
      for (const Json& t : *types) {
        if (t != "sliding_attention" && t != "full_attention") fail("has an unknown layer type");
        sliding.push_back(t == "sliding_attention");
        if (sliding.back()) set("attention.sliding_window", integer(net_, "sliding_window", 1, kMaxSize));
      }
      set("attention.sliding_window_pattern", sliding);
    }
    const std::pair<const Json*, const char*> given[] = {
        {find(root_, "is_causal"), "is_causal"},
        {find(dflash_, "causal"), "causal"},
        {find(dflash_, "causal_head"), "causal_head"},
    };
    for (const auto& [v, key] : given) {
      if (!v) continue;
      set("attention.causal", flag(*v, key));
      return;
    }
  }

  double theta(const Json* rope) const {
    return rope && has(*rope, "rope_theta") ? number(*rope, "rope_theta") : 0;
  }
  void read_rope() {
    const Json* rope = object(net_, "rope_parameters");
    if (!rope) rope = object(net_, "rope_scaling");
    const Json *full = rope ? object(*rope, "full_attention") : nullptr,
               *sliding = rope ? object(*rope, "sliding_attention") : nullptr;
    for (const Json* part : {rope, full, sliding})
      if (part)
        for (const char* key : {"rope_type", "type"})
          if (const Json* t = find(*part, key); t && *t != "default")
            fail("has a rope type other than 'default'");
    double base = theta(full);
    if (base == 0) base = theta(rope);
    if (base == 0) base = number(net_, "rope_theta");
    set("rope.freq_base", base);
    if (sliding && theta(sliding) > 0) set("rope.freq_base_swa", theta(sliding));
  }

  Json root_, net_, dflash_ = Json::object();
  std::string_view name_;
  HfModel out_;
  int64_t layers_ = 0;
};

constexpr NamePair kLayerNames[] = {
    {"input_layernorm.weight", "attn_norm.weight"},    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},      {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"}, {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"}, {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},       {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
};
constexpr NamePair kGlobalNames[] = {
    {"fc.weight", "fc.weight"},
    {"hidden_norm.weight", "enc.output_norm.weight"},
    {"norm.weight", "output_norm.weight"},
    {"embed_tokens.weight", ""},  // copies of the target's
    {"lm_head.weight", ""},
    {"d2t", "d2t"},
    {"t2d", ""},
};

}  // namespace

std::optional<HfModel> read_dflash_config(std::string_view json, std::string_view name) {
  // Configs that are too deep or no JSON are refused by the reader of models.
  const auto shallow = [](int depth, Json::parse_event_t, Json&) { return depth <= 32; };
  Json root = Json::parse(json, shallow, false);
  if (!root.is_object()) return std::nullopt;
  bool is = root.contains("dflash_config") || root.contains("transformer_layer_config");
  if (const auto it = root.find("architectures"); it != root.end() && it->is_array())
    for (const Json& a : *it) is |= a.is_string() && a.get_ref<const std::string&>().starts_with("DFlash");
  if (!is) return std::nullopt;
  return DFlashConfig(std::move(root), name).read();
}

std::optional<std::string> dflash_tensor_name(std::string_view name) {
  skip_prefix(name, "model.");
  for (const auto& [hf, gguf] : kGlobalNames)
    if (name == hf) return std::string(gguf);
  if (name.starts_with("rotary_emb.")) return "";
  if (!skip_prefix(name, "layers.")) return std::nullopt;
  const std::optional<int> layer = take_number(name);
  if (!layer) return std::nullopt;
  for (const auto& [hf, gguf] : kLayerNames)
    if (name == hf) return fmt::format("blk.{}.{}", *layer, gguf);
  return std::nullopt;
}

}  // namespace carat
