// Hugging Face's names, configuration and layouts of Qwen3.5 and Qwen3.6, translated to GGUF's
// (docs/qwen36.md, "Files").
#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "core/codec.h"
#include "model/files/gguf.h"
#include "model/files/hf_dialect.h"
#include "model/files/hf_rope.h"
#include "model/files/name_parts.h"

namespace carat {
namespace {

using Json = nlohmann::json;

// ---- names

// Behind "layers.N." and "blk.N.".
constexpr NamePair kLayerNames[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"post_attention_layernorm.weight", "post_attention_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"linear_attn.in_proj_qkv.weight", "attn_qkv.weight"},
    {"linear_attn.in_proj_z.weight", "attn_gate.weight"},
    {"linear_attn.in_proj_a.weight", "ssm_alpha.weight"},
    {"linear_attn.in_proj_b.weight", "ssm_beta.weight"},
    {"linear_attn.conv1d.weight", "ssm_conv1d.weight"},
    {"linear_attn.A_log", "ssm_a"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},
    {"linear_attn.norm.weight", "ssm_norm.weight"},
    {"linear_attn.out_proj.weight", "ssm_out.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"mlp.gate.weight", "ffn_gate_inp.weight"},
    {"mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"mlp.experts.down_proj", "ffn_down_exps.weight"},
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"},
};
constexpr NamePair kGlobalNames[] = {
    {"embed_tokens.weight", "token_embd.weight"},
    {"lm_head.weight", "output.weight"},
    {"norm.weight", "output_norm.weight"},
};
// The drafting head's block is behind the layers: its number is filled in when they are known.
constexpr std::string_view kNextn = "blk.nextn.";
constexpr NamePair kNextnNames[] = {
    {"mtp.fc.weight", "nextn.eh_proj.weight"},
    {"mtp.pre_fc_norm_embedding.weight", "nextn.enorm.weight"},
    {"mtp.pre_fc_norm_hidden.weight", "nextn.hnorm.weight"},
    {"mtp.norm.weight", "nextn.shared_head_norm.weight"},
};
// Checkpoints with a tensor per expert: behind "mlp.experts.E.".
constexpr NamePair kExpertNames[] = {
    {"gate_proj.weight", "ffn_gate_exps.weight"},
    {"up_proj.weight", "ffn_up_exps.weight"},
    {"down_proj.weight", "ffn_down_exps.weight"},
};

std::optional<std::string> layer_name(const std::string& block, std::string_view name) {
  for (const auto& [hf, gguf] : kLayerNames)
    if (name == hf) return block + std::string(gguf);
  if (!skip_prefix(name, "mlp.experts.")) return std::nullopt;
  const std::optional<int> expert = take_number(name);
  if (!expert) return std::nullopt;
  for (const auto& [hf, gguf] : kExpertNames)
    if (name == hf) return fmt::format("{}{}#{}", block, gguf, *expert);
  return std::nullopt;
}

std::optional<std::string> tensor_name(std::string_view name) {
  for (const auto& [hf, gguf] : kNextnNames)
    if (name == hf) return std::string(kNextn) + std::string(gguf);
  if (skip_prefix(name, "mtp.layers.0.")) return layer_name(std::string(kNextn), name);
  skip_prefix(name, "model.");
  skip_prefix(name, "language_model.");
  skip_prefix(name, "model.");
  if (name.starts_with("visual.")) return "";
  for (const auto& [hf, gguf] : kGlobalNames)
    if (name == hf) return std::string(gguf);
  if (!skip_prefix(name, "layers.")) return std::nullopt;
  const std::optional<int> layer = take_number(name);
  if (!layer) return std::nullopt;
  return layer_name(fmt::format("blk.{}.", *layer), name);
}

// ---- layouts

constexpr const char* kHint = "config.json and the tensors are of different checkpoints";

// Value heads: the checkpoint lists them by key head (those of key head 0 first), GGUF by their place among
// the heads of a key head, so that value head h reads key head h % k_heads.
struct Heads {
  int64_t k_heads, v_heads, dim;
  int64_t from(int64_t head) const { return head % k_heads * (v_heads / k_heads) + head / k_heads; }
};

class Adapter {
 public:
  explicit Adapter(HfTensors& t) : t_(t), arch_(t.meta.get_string("general.architecture") + ".") {
    heads_ = {integer("ssm.group_count"), integer("ssm.time_step_rank"), integer("ssm.state_size")};
  }

  void run() {
    const std::string block = fmt::format("blk.{}.", integer("block_count") - 1);
    for (TensorInfo& t : t_.list)
      if (t.name.starts_with(kNextn)) t.name = block + t.name.substr(kNextn.size());
    for (TensorInfo& t : t_.list) adapt(t);
  }

 private:
  int64_t integer(const char* key) const { return t_.meta.get_int(arch_ + key); }

  void expect(const TensorInfo& t, bool ok) const {
    if (!ok)
      throw Error(fmt::format("tensor '{}' does not have the shape that config.json says", t.name), kHint);
  }
  std::byte* replace(TensorInfo& t, size_t bytes) {
    std::byte* p = t_.own(bytes);
    t.data = p;
    t.bytes = bytes;
    return p;
  }

  void adapt(TensorInfo& t) {
    const auto is = [&](std::string_view suffix) { return t.name.ends_with(suffix); };
    if (is("norm.weight") && !is("ssm_norm.weight")) return values(t, [](float w) { return 1 + w; });
    if (is(".ssm_a")) {
      reorder_rows(t, 0, 1);
      return values(t, [](float a) { return -std::exp(a); });
    }
    if (is(".ssm_dt.bias") || is(".ssm_alpha.weight") || is(".ssm_beta.weight")) return reorder_rows(t, 0, 1);
    if (is(".attn_gate.weight")) return reorder_rows(t, 0, heads_.dim);
    if (is(".attn_qkv.weight")) return reorder_rows(t, 2 * heads_.k_heads * heads_.dim, heads_.dim);
    if (is(".ssm_conv1d.weight")) return conv(t);
    if (is(".ssm_out.weight")) return reorder_columns(t);
    if (is(".ffn_gate_inp_shexp.weight")) return shared_router(t);
  }

  template <class F>
  void values(TensorInfo& t, F&& f) {
    expect(t, t.shape.size() == 1 && t.type == DType::f32);
    std::vector<float> v(static_cast<size_t>(t.elements()));
    std::memcpy(v.data(), t.data, t.bytes);
    for (float& x : v) x = f(x);
    std::memcpy(replace(t, t.bytes), v.data(), t.bytes);
  }

  // Rows [first, ...) hold `per` rows of every value head.
  void reorder_rows(TensorInfo& t, int64_t first, int64_t per) {
    const int64_t rows = t.shape.empty() ? 0 : t.shape[0];
    expect(t, rows == first + heads_.v_heads * per);
    const size_t row = t.bytes / static_cast<size_t>(rows), block = row * static_cast<size_t>(per);
    const std::byte* from = t.data;
    std::byte* to = replace(t, t.bytes);
    std::memcpy(to, from, row * static_cast<size_t>(first));
    from += row * static_cast<size_t>(first), to += row * static_cast<size_t>(first);
    for (int64_t h = 0; h < heads_.v_heads; ++h)
      std::memcpy(to + static_cast<size_t>(h) * block, from + static_cast<size_t>(heads_.from(h)) * block,
                  block);
  }

  void reorder_columns(TensorInfo& t) {
    expect(t, t.shape.size() == 2 && t.shape[1] == heads_.v_heads * heads_.dim &&
                  heads_.dim % info(t.type).elems == 0);
    const size_t block = static_cast<size_t>(heads_.dim / info(t.type).elems) * info(t.type).bytes,
                 columns = block * static_cast<size_t>(heads_.v_heads),
                 row = t.bytes / static_cast<size_t>(t.shape[0]);
    const std::byte* from = t.data;
    std::byte* to = replace(t, t.bytes);
    for (int64_t r = 0; r < t.shape[0]; ++r, from += row, to += row) {
      for (int64_t h = 0; h < heads_.v_heads; ++h)
        std::memcpy(to + static_cast<size_t>(h) * block, from + static_cast<size_t>(heads_.from(h)) * block,
                    block);
      std::memcpy(to + columns, from + columns, row - columns);  // the row's own scale, where there is one
    }
  }

  void to_f32(TensorInfo& t) {
    if (t.type == DType::f32) return;
    const auto n = static_cast<size_t>(t.elements());
    std::vector<float> v(n);
    decode_row(t.type, t.data, v.data(), static_cast<int64_t>(n));
    std::memcpy(replace(t, n * 4), v.data(), n * 4);
    t.type = DType::f32;
  }

  // [channels, 1, taps] -> f32 [channels, taps]
  void conv(TensorInfo& t) {
    if (t.shape.size() == 3 && t.shape[1] == 1) t.shape.erase(t.shape.begin() + 1);
    expect(t, t.shape.size() == 2);
    to_f32(t);
    reorder_rows(t, 2 * heads_.k_heads * heads_.dim, heads_.dim);
  }
  // [1, dim] -> f32 [dim]
  void shared_router(TensorInfo& t) {
    expect(t, t.shape.size() == 2 && t.shape[0] == 1);
    t.shape.erase(t.shape.begin());
    to_f32(t);
  }

  HfTensors& t_;
  std::string arch_;
  Heads heads_{};
};

void adapt(HfTensors& tensors) { Adapter(tensors).run(); }

// ---- config.json

class Config {
 public:
  Config(const Json& root, std::string_view name, std::string arch)
      : name_(name), arch_(std::move(arch)), root_(root), text_(root) {
    if (const auto it = root.find("text_config"); it != root.end()) text_ = *it;
    if (!text_.is_object()) fail("has a 'text_config' that is not an object");
  }

  HfModel read() {
    const int64_t layers = integer("num_hidden_layers", 1, 1023);
    const int64_t nextn = find("mtp_num_hidden_layers") ? integer("mtp_num_hidden_layers", 0, 1) : 0;
    set("block_count", layers + nextn);
    set("nextn_predict_layers", nextn);
    copy("context_length", "max_position_embeddings");
    copy("embedding_length", "hidden_size");
    copy("attention.head_count", "num_attention_heads");
    copy("attention.head_count_kv", "num_key_value_heads");
    const int64_t dim = integer("head_dim", 2, 65536);
    set("attention.key_length", dim);
    set("attention.value_length", dim);
    set("attention.layer_norm_rms_epsilon", number(get(text_, "rms_norm_eps"), "rms_norm_eps"));
    read_rope(dim);
    read_pattern(layers, nextn);
    read_recurrent();
    read_feed_forward();
    out_.tied_head = flag(text_, "tie_word_embeddings", flag(root_, "tie_word_embeddings", false));
    out_.meta.set("general.architecture", arch_);
    out_.tensor_name = tensor_name;
    out_.adapt = adapt;
    return std::move(out_);
  }

 private:
  static constexpr int64_t kMaxSize = int64_t{1} << 30;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("'{}' {}", name_, what),
                "the config.json of a published Qwen3.5 or Qwen3.6 checkpoint is expected");
  }
  const Json* find(const char* key) const {
    const auto it = text_.find(key);
    return it == text_.end() || it->is_null() ? nullptr : &*it;
  }
  const Json& get(const Json& object, const char* key) const {
    const auto it = object.find(key);
    if (it == object.end() || it->is_null()) fail(fmt::format("has no '{}'", key));
    return *it;
  }
  int64_t integer(const char* key, int64_t low, int64_t high) const {
    const Json& v = get(text_, key);
    if (!v.is_number_integer() || (v.is_number_unsigned() && v.get<uint64_t>() > uint64_t{1} << 62) ||
        v.get<int64_t>() < low || v.get<int64_t>() > high)
      fail(fmt::format("has a '{}' that is not a number of {} to {}", key, low, high));
    return v.get<int64_t>();
  }
  double number(const Json& v, const char* key) const {
    if (!v.is_number() || !(v.get<double>() > 0) || v.get<double>() > 1e12)
      fail(fmt::format("has a '{}' that is not a positive number", key));
    return v.get<double>();
  }
  bool flag(const Json& object, const char* key, bool value) const {
    const auto it = object.find(key);
    if (it == object.end() || it->is_null()) return value;
    if (!it->is_boolean()) fail(fmt::format("has a '{}' that is not true or false", key));
    return it->get<bool>();
  }
  void set(std::string_view key, MetaValue value) {
    out_.meta.set(fmt::format("{}.{}", arch_, key), std::move(value));
  }
  void copy(std::string_view key, const char* hf) { set(key, integer(hf, 1, kMaxSize)); }

  void read_rope(int64_t dim) {
    const Json& rope = get(text_, "rope_parameters");
    if (!rope.is_object()) fail("has 'rope_parameters' that are not an object");
    read_hf_rope_scaling(rope, arch_, name_, out_.meta);
    if (const Json* older = find("rope_scaling"); older && older->is_object())
      read_hf_rope_scaling(*older, arch_, name_, out_.meta);
    const auto factor = rope.find("partial_rotary_factor");
    const double part = factor != rope.end() ? number(*factor, "partial_rotary_factor") : 0.25;
    if (part > 1) fail("has a 'partial_rotary_factor' above 1");
    set("rope.freq_base", number(get(rope, "rope_theta"), "rope_theta"));
    set("rope.dimension_count", static_cast<int64_t>(part * static_cast<double>(dim)) / 2 * 2);
    std::vector<int64_t> sections{0, 0, 0, 0};
    if (const auto s = rope.find("mrope_section"); s != rope.end()) {
      if (!s->is_array() || s->size() > 4) fail("has an 'mrope_section' that is not up to four numbers");
      for (size_t i = 0; i < s->size(); ++i) {
        if (!(*s)[i].is_number_unsigned() || (*s)[i].get<uint64_t>() > 65536)
          fail("has an 'mrope_section' that is not up to four numbers");
        sections[i] = (*s)[i].get<int64_t>();
      }
    }
    set("rope.dimension_sections", sections);
  }

  // A regular pattern by its interval, any other one layer by layer (with the drafting head's).
  void read_pattern(int64_t layers, int64_t nextn) {
    const Json& types = get(text_, "layer_types");
    if (!types.is_array() || static_cast<int64_t>(types.size()) != layers)
      fail("has 'layer_types' that are not one per layer");
    std::vector<bool> recurrent;
    for (const Json& t : types) {
      if (t != "linear_attention" && t != "full_attention") fail("has an unknown layer type");
      recurrent.push_back(t == "linear_attention");
    }
    const auto first = std::find(recurrent.begin(), recurrent.end(), false);
    const int64_t interval = first - recurrent.begin() + 1;
    bool regular = first != recurrent.end();
    for (int64_t i = 0; i < layers; ++i)
      regular &= recurrent[static_cast<size_t>(i)] == ((i + 1) % interval != 0);
    if (regular) return set("full_attention_interval", interval);
    recurrent.resize(static_cast<size_t>(layers + nextn), false);
    set("attention.recurrent_layers", recurrent);
  }

  void read_recurrent() {
    const int64_t k = integer("linear_key_head_dim", 1, 65536),
                  v = integer("linear_value_head_dim", 1, 65536);
    const int64_t k_heads = integer("linear_num_key_heads", 1, 65536),
                  v_heads = integer("linear_num_value_heads", 1, 65536);
    if (k != v) fail("has linear key and value heads of different sizes");
    if (v_heads % k_heads) fail("has value heads that do not share key heads evenly");
    copy("ssm.conv_kernel", "linear_conv_kernel_dim");
    set("ssm.state_size", k);
    set("ssm.group_count", k_heads);
    set("ssm.time_step_rank", v_heads);
    set("ssm.inner_size", v_heads * v);
  }

  void read_feed_forward() {
    if (find("intermediate_size")) copy("feed_forward_length", "intermediate_size");
    if (!arch_.ends_with("moe")) return;
    copy("expert_count", "num_experts");
    copy("expert_used_count", "num_experts_per_tok");
    copy("expert_feed_forward_length", "moe_intermediate_size");
    copy("expert_shared_feed_forward_length", "shared_expert_intermediate_size");
  }

  std::string_view name_;
  std::string arch_;
  const Json& root_;
  Json text_;
  HfModel out_;
};

}  // namespace

std::optional<HfModel> read_qwen_config(std::string_view json, std::string_view name) {
  const auto shallow = [](int depth, Json::parse_event_t, Json&) { return depth <= 32; };
  const Json root = Json::parse(json, shallow, false);
  if (!root.is_object()) return std::nullopt;
  const auto type = root.find("model_type");
  if (type == root.end() || !type->is_string()) return std::nullopt;
  const auto& s = type->get_ref<const std::string&>();
  if (s == "qwen3_5" || s == "qwen3_5_text") return Config(root, name, "qwen35").read();
  if (s == "qwen3_5_moe" || s == "qwen3_5_moe_text") return Config(root, name, "qwen35moe").read();
  return std::nullopt;
}

}  // namespace carat
