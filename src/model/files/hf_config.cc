#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/files/gguf.h"
#include "model/files/hf_dialect.h"

namespace carat {
namespace {

using Json = nlohmann::json;
constexpr int64_t kMaxLayers = 1024, kMaxSize = int64_t{1} << 30;

class Config {
 public:
  Config(std::string_view text, std::string_view name) : name_(name) {
    const auto shallow = [this](int depth, Json::parse_event_t, Json&) {
      if (depth > 32) fail("is nested too deeply");
      return true;
    };
    root_ = Json::parse(text, shallow, false);
    if (!root_.is_object()) fail("is not a JSON object");
    arch_ = read_arch();
    text_ = root_;
    if (const auto it = root_.find("text_config"); it != root_.end()) {
      if (!it->is_object()) fail("has a 'text_config' that is not an object");
      text_ = *it;
    }
  }

  HfModel read() {
    layers_ = integer(text_, "num_hidden_layers", 1, kMaxLayers);
    read_layer_types();
    set("block_count", layers_);
    set("context_length", integer(text_, "max_position_embeddings", 1, kMaxSize));
    set("embedding_length", integer(text_, "hidden_size", 1, kMaxSize));
    set("embedding_length_per_layer_input", integer_or(text_, "hidden_size_per_layer_input", 0));
    read_attention();
    read_feed_forward();
    const Json* cap = find(text_, "final_logit_softcapping");
    set("final_logit_softcapping", cap ? number(text_, "final_logit_softcapping") : 0.0);
    read_rope();
    if (arch_ == "gemma4-assistant") read_assistant();
    out_.tied_head = flag_or(text_, "tie_word_embeddings", flag_or(root_, "tie_word_embeddings", true));
    out_.meta.set("general.architecture", arch_);
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("'{}' {}", name_, what),
                "the config.json of a published Gemma 4 checkpoint is expected");
  }

  std::string read_arch() const {
    const Json* type = find(root_, "model_type");
    if (!type || !type->is_string()) fail("has no 'model_type'");
    const auto& s = type->get_ref<const std::string&>();
    if (s == "gemma4" || s == "gemma4_text" || s == "gemma4_unified" || s == "gemma4_unified_text")
      return "gemma4";
    if (s == "gemma4_assistant" || s == "gemma4_unified_assistant") return "gemma4-assistant";
    throw Error(fmt::format("'{}' is of the model type '{}', which is not known", name_, printable(s)),
                "known: gemma4, gemma4_text, gemma4_assistant, gemma4_unified, qwen3_5, qwen3_5_moe");
  }

  // A null value counts as a missing one: configs write out every field.
  static const Json* find(const Json& object, const char* key) {
    const auto it = object.find(key);
    return it == object.end() || it->is_null() ? nullptr : &*it;
  }
  const Json& get(const Json& object, const char* key) const {
    const Json* v = find(object, key);
    if (!v) fail(fmt::format("has no '{}'", key));
    return *v;
  }
  int64_t integer(const Json& object, const char* key, int64_t low, int64_t high) const {
    const Json& v = get(object, key);
    const int64_t i =
        v.is_number_integer() && (!v.is_number_unsigned() || v.get<uint64_t>() <= uint64_t{1} << 62)
            ? v.get<int64_t>()
            : -1;
    if (i < low || i > high) fail(fmt::format("has a '{}' that is not a number of {} to {}", key, low, high));
    return i;
  }
  int64_t integer_or(const Json& object, const char* key, int64_t value) const {
    return find(object, key) ? integer(object, key, 0, kMaxSize) : value;
  }
  double number(const Json& object, const char* key) const {
    const Json& v = get(object, key);
    if (!v.is_number() || !(v.get<double>() > 0) || v.get<double>() > 1e12) {
      fail(fmt::format("has a '{}' that is not a positive number", key));
    }
    return v.get<double>();
  }
  bool flag_or(const Json& object, const char* key, bool value) const {
    const Json* v = find(object, key);
    if (v && !v->is_boolean()) fail(fmt::format("has a '{}' that is not true or false", key));
    return v ? v->get<bool>() : value;
  }
  void set(std::string_view key, MetaValue value) {
    out_.meta.set(fmt::format("{}.{}", arch_, key), std::move(value));
  }

  void read_layer_types() {
    const Json& types = get(text_, "layer_types");
    if (!types.is_array() || static_cast<int64_t>(types.size()) != layers_) {
      fail("has 'layer_types' that are not one per layer");
    }
    for (const Json& t : types) {
      if (t != "sliding_attention" && t != "full_attention") fail("has an unknown layer type");
      sliding_.push_back(t == "sliding_attention");
    }
  }

  // Value of a layer where the newer style overrides it, else the older style's value for the layer's type.
  int64_t layer_value(int64_t layer, const char* key, int64_t of_type) const {
    const Json* all = find(text_, "per_layer_config");
    if (!all) return of_type;
    if (!all->is_object()) fail("has a 'per_layer_config' that is not an object");
    const Json* one = find(*all, std::to_string(layer).c_str());
    if (!one) return of_type;
    if (!one->is_object()) fail("has a 'per_layer_config' entry that is not an object");
    return find(*one, key) ? integer(*one, key, 1, kMaxSize) : of_type;
  }

  void read_attention() {
    const int64_t head_dim = integer(text_, "head_dim", 2, 65536);
    const int64_t kv_heads = integer(text_, "num_key_value_heads", 1, 65536);
    const int64_t global_dim = integer_or(text_, "global_head_dim", head_dim);
    const int64_t global_heads = integer_or(text_, "num_global_key_value_heads", kv_heads);
    std::vector<int64_t> heads;
    int64_t dims[2] = {0, 0};  // [sliding]
    for (int64_t i = 0; i < layers_; ++i) {
      const bool s = sliding_[static_cast<size_t>(i)];
      heads.push_back(layer_value(i, "num_key_value_heads", s ? kv_heads : global_heads));
      const int64_t dim = layer_value(i, "head_dim", s ? head_dim : global_dim);
      if (dims[s] && dims[s] != dim) fail("has layers of one type with different head sizes");
      dims[s] = dim;
    }
    global_dim_ = dims[0] ? dims[0] : global_dim;
    sliding_dim_ = dims[1] ? dims[1] : head_dim;
    set("attention.head_count", integer(text_, "num_attention_heads", 1, 65536));
    set_per_layer("attention.head_count_kv", heads);
    set("attention.key_length", global_dim_);
    set("attention.value_length", global_dim_);
    set("attention.key_length_swa", sliding_dim_);
    set("attention.value_length_swa", sliding_dim_);
    set("attention.layer_norm_rms_epsilon", number(text_, "rms_norm_eps"));
    set("attention.sliding_window", integer(text_, "sliding_window", 1, kMaxSize));
    set("attention.sliding_window_pattern", sliding_);
    shared_ = integer_or(text_, "num_kv_shared_layers", 0);
    if (shared_ > layers_) fail("shares the keys and values of more layers than it has");
    set("attention.shared_kv_layers", shared_);
  }

  void set_per_layer(std::string_view key, const std::vector<int64_t>& values) {
    const bool same = std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == values[0]; });
    if (same) {
      set(key, values[0]);
    } else {
      set(key, values);
    }
  }

  void read_feed_forward() {
    const int64_t width = integer(text_, "intermediate_size", 1, kMaxSize);
    const bool wide = flag_or(text_, "use_double_wide_mlp", false);
    std::vector<int64_t> widths;
    for (int64_t i = 0; i < layers_; ++i)
      widths.push_back(wide && i >= layers_ - shared_ ? 2 * width : width);
    set_per_layer("feed_forward_length", widths);
    if (!flag_or(text_, "enable_moe_block", false)) return;
    const int64_t experts = integer(text_, "num_experts", 1, 65536);
    set("expert_count", experts);
    set("expert_used_count", integer(text_, "top_k_experts", 1, experts));
    set("expert_feed_forward_length", integer(text_, "moe_intermediate_size", 1, kMaxSize));
  }

  void read_rope() {
    const Json& rope = get(text_, "rope_parameters");
    if (!rope.is_object()) fail("has 'rope_parameters' that are not an object");
    const auto part = [&](const char* key) -> const Json& {
      const Json& v = get(rope, key);
      if (!v.is_object()) fail(fmt::format("has a '{}' in 'rope_parameters' that is not an object", key));
      return v;
    };
    const Json &full = part("full_attention"), &sliding = part("sliding_attention");
    if (get(sliding, "rope_type") != "default")
      fail("has a rope type for sliding layers other than 'default'");
    const Json& type = get(full, "rope_type");
    if (type != "default" && type != "proportional")
      fail(fmt::format("has the rope type {} for full layers, which is not known", type.dump()));
    if (const Json* stretch = find(full, "factor"); stretch && type == "proportional") {
      set("rope.scaling.type", "linear");
      set("rope.scaling.factor", number(full, "factor"));
    }
    if (const Json* older = find(text_, "rope_scaling"); older && older->is_object() && !older->empty())
      fail("has 'rope_scaling', which no Gemma 4 has: leave it out, and use --rope-scaling");
    const double factor = type == "proportional" && find(full, "partial_rotary_factor")
                              ? number(full, "partial_rotary_factor")
                              : 1.0;
    if (factor > 1) fail("has a 'partial_rotary_factor' above 1");
    const auto pairs = static_cast<size_t>(global_dim_ / 2);
    const auto turned = static_cast<size_t>(factor * static_cast<double>(global_dim_) / 2);
    out_.rope_divisors.assign(pairs, 1e30F);
    std::fill_n(out_.rope_divisors.begin(), turned, 1.0F);
    set("rope.freq_base", number(full, "rope_theta"));
    set("rope.freq_base_swa", number(sliding, "rope_theta"));
    set("rope.dimension_count", global_dim_);
    set("rope.dimension_count_swa", sliding_dim_);
  }

  void read_assistant() {
    set("nextn_predict_layers", layers_);
    set("embedding_length_out", integer(root_, "backbone_hidden_size", 1, kMaxSize));
    const bool ordered = flag_or(root_, "use_ordered_embeddings", false);
    set("use_ordered_embeddings", ordered);
    if (!ordered) return;
    const int64_t clusters = integer(root_, "num_centroids", 1, kMaxSize);
    set("n_centroids", clusters);
    set("centroid_top_k", integer(root_, "centroid_intermediate_top_k", 1, clusters));
  }

  std::string_view name_;
  Json root_, text_;
  std::string arch_;
  HfModel out_;
  int64_t layers_ = 0, shared_ = 0, global_dim_ = 0, sliding_dim_ = 0;
  std::vector<bool> sliding_;
};

}  // namespace

HfModel read_hf_config(std::string_view json, std::string_view name) {
  if (std::optional<HfModel> drafter = read_dflash_config(json, name)) return std::move(*drafter);
  if (std::optional<HfModel> model = read_qwen_config(json, name)) return std::move(*model);
  return Config(json, name).read();
}

}  // namespace carat
