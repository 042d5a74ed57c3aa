#include "tools/hf_texts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "core/codec.h"
#include "tools/vocab.h"

namespace carat {
namespace {

using Json = nlohmann::ordered_json;

class GemmaConfig {
 public:
  explicit GemmaConfig(const WeightSource& source) : source_(source), meta_(source.meta()) {}

  // Gemma4ForCausalLM, in the keys of published checkpoints: the towers are in another file.
  Json write() {
    Json j = {{"architectures", {"Gemma4ForCausalLM"}}, {"model_type", "gemma4_text"}, {"dtype", dtype()}};
    layers_ = static_cast<size_t>(get("block_count"));
    j["num_hidden_layers"] = layers_;
    j["max_position_embeddings"] = get("context_length");
    const TensorInfo& table = source_.get("token_embd.weight");
    j["hidden_size"] = table.shape[1], j["vocab_size"] = table.shape[0];
    attention(j);
    feed_forward(j);
    per_layer_inputs(j);
    const double cap = meta_.get_float_or(key("final_logit_softcapping"), 0);
    j["final_logit_softcapping"] = cap > 0 ? Json(cap) : Json();
    j["hidden_activation"] = "gelu_pytorch_tanh";
    j["tie_word_embeddings"] = source_.find("output.weight") == nullptr;
    rope(j);
    return j;
  }

 private:
  static std::string key(std::string_view name) { return fmt::format("gemma4.{}", name); }
  int64_t get(std::string_view name) const { return meta_.get_int(key(name)); }
  int64_t get_or(std::string_view name, int64_t value) const { return meta_.get_int_or(key(name), value); }

  const char* dtype() const {
    const auto& all = source_.tensors();
    const bool half = std::any_of(all.begin(), all.end(), [](auto& t) { return t.type == DType::f16; });
    return half ? "float16" : "bfloat16";
  }

  void attention(Json& j) {
    sliding_ = meta_.get_ints_per_layer(key("attention.sliding_window_pattern"), layers_);
    const auto heads = meta_.get_ints_per_layer(key("attention.head_count_kv"), layers_);
    Json types = Json::array(), kv[2];
    bool same = false;
    for (size_t i = 0; i < layers_; ++i) {
      const bool s = sliding_[i] != 0;
      types.push_back(s ? "sliding_attention" : "full_attention");
      if (!kv[s].is_null() && kv[s] != heads[i])
        throw Error(
            fmt::format("layers of one kind of '{}' have different numbers of KV heads", source_.path()),
            "give the model's Hugging Face directory");
      kv[s] = heads[i];
      // Keys that serve as values: the projection is not in the file.
      same |= !s && !source_.find(fmt::format("blk.{}.attn_v.weight", i)) &&
              source_.find(fmt::format("blk.{}.attn_k.weight", i));
    }
    j["layer_types"] = types;
    j["num_attention_heads"] = get("attention.head_count");
    j["num_key_value_heads"] = kv[1].is_null() ? kv[0] : kv[1];
    j["num_global_key_value_heads"] = kv[0];
    j["head_dim"] = get_or("attention.key_length_swa", get("attention.key_length"));
    j["global_head_dim"] = get("attention.key_length");
    j["attention_k_eq_v"] = same;
    j["sliding_window"] = get("attention.sliding_window");
    j["num_kv_shared_layers"] = shared_ = static_cast<size_t>(get_or("attention.shared_kv_layers", 0));
    j["rms_norm_eps"] = shortest(meta_.get_float(key("attention.layer_norm_rms_epsilon")));
  }

  void feed_forward(Json& j) const {
    const auto widths = meta_.get_ints_per_layer(key("feed_forward_length"), layers_);
    const auto [low, high] = std::minmax_element(widths.begin(), widths.end());
    j["intermediate_size"] = *low;
    j["use_double_wide_mlp"] = *high > *low;
    const int64_t experts = get_or("expert_count", 0);
    j["enable_moe_block"] = experts > 0;
    if (experts == 0) return;
    j["num_experts"] = experts;
    j["top_k_experts"] = get("expert_used_count");
    j["moe_intermediate_size"] = get("expert_feed_forward_length");
  }

  void per_layer_inputs(Json& j) const {
    const int64_t width = get_or("embedding_length_per_layer_input", 0);
    j["hidden_size_per_layer_input"] = width;
    if (width > 0) j["vocab_size_per_layer_input"] = source_.get("per_layer_token_embd.weight").shape[0];
  }

  void rope(Json& j) const {
    Json full = {{"rope_type", "proportional"},
                 {"rope_theta", meta_.get_float(key("rope.freq_base"))},
                 {"partial_rotary_factor", turned()}};
    if (meta_.get_string_or(key("rope.scaling.type"), "") == "linear")
      full["factor"] = meta_.get_float(key("rope.scaling.factor"));
    j["rope_parameters"] = {
        {"full_attention", full},
        {"sliding_attention",
         {{"rope_type", "default"}, {"rope_theta", meta_.get_float_or(key("rope.freq_base_swa"), 10000)}}}};
  }

  // Pairs whose divisor is 1 turn; the rest has one that stops them.
  double turned() const {
    const TensorInfo* t = source_.find("rope_freqs.weight");
    if (!t) return 1;
    std::vector<float> divisor(static_cast<size_t>(t->elements()));
    decode_row(t->type, t->data, divisor.data(), t->elements());
    const auto n = std::count_if(divisor.begin(), divisor.end(), [](float d) { return d < 1e10F; });
    return static_cast<double>(n) / static_cast<double>(divisor.size());
  }

  // GGUF's floats are 32 bits wide: 1e-06 and not 9.99999997e-07.
  static double shortest(double v) { return std::stod(fmt::format("{}", static_cast<float>(v))); }

  const WeightSource& source_;
  const Metadata& meta_;
  size_t layers_ = 0, shared_ = 0;
  std::vector<int64_t> sliding_;
};

Json generation(const TokenizerData& d) {
  Json j = {{"do_sample", true}, {"eos_token_id", d.end_of_generation}};
  if (d.bos >= 0) j["bos_token_id"] = d.bos;
  if (d.pad >= 0) j["pad_token_id"] = d.pad;
  return j;
}

Json tokenizer_config(const TokenizerData& d) {
  Json j = {{"tokenizer_class", "PreTrainedTokenizerFast"},
            {"add_bos_token", d.add_bos},
            {"add_eos_token", d.add_eos},
            {"clean_up_tokenization_spaces", false}};
  const std::pair<const char*, Token> named[] = {{"bos_token", d.bos},
                                                 {"eos_token", d.eos},
                                                 {"unk_token", d.unk},
                                                 {"pad_token", d.pad},
                                                 {"mask_token", d.mask}};
  for (const auto& [name, id] : named)
    if (id >= 0) j[name] = d.tokens[static_cast<size_t>(id)];
  return j;
}

}  // namespace

std::map<std::string, std::string> hf_texts(const WeightSource& source) {
  std::map<std::string, std::string> out;
  Json config = GemmaConfig(source).write();
  if (has_tokenizer(source)) {
    const TokenizerData d = tokenizer_from_source(source);
    out["tokenizer.json"] = write_tokenizer_json(d);
    out["tokenizer_config.json"] = tokenizer_config(d).dump(2) + "\n";
    out["generation_config.json"] = generation(d).dump(2) + "\n";
    if (!d.chat_template.empty()) out["chat_template.jinja"] = d.chat_template;
    if (d.bos >= 0) config["bos_token_id"] = d.bos;
    if (d.eos >= 0) config["eos_token_id"] = d.eos;
    if (d.pad >= 0) config["pad_token_id"] = d.pad;
  }
  out["config.json"] = config.dump(2) + "\n";
  return out;
}

}  // namespace carat
