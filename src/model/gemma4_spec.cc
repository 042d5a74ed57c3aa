// Gemma 4's specification from the file's metadata, with every combination that could not run refused here.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "core/codec.h"
#include "model/gemma4_spec.h"

namespace carat::gemma4 {
namespace {

constexpr const char* kHint = "the file is damaged or was converted by an incompatible program";

// Reads "gemma4.KEY" within a range.
class Keys {
 public:
  explicit Keys(const Metadata& meta) : meta_(meta) {}

  static std::string full(std::string_view key) { return fmt::format("gemma4.{}", key); }
  bool has(std::string_view key) const { return meta_.find(full(key)) != nullptr; }

  int32_t integer(std::string_view key, int64_t low, int64_t high) const {
    return ranged(key, meta_.get_int(full(key)), low, high);
  }
  int32_t integer_or(std::string_view key, int64_t value, int64_t low, int64_t high) const {
    return has(key) ? integer(key, low, high) : static_cast<int32_t>(value);
  }
  float number(std::string_view key, double low, double high) const {
    const double v = meta_.get_float(full(key));
    if (!(v >= low && v <= high))
      throw Error(fmt::format("'{}' is {:g}, expected {:g} to {:g}", full(key), v, low, high), kHint);
    return static_cast<float>(v);
  }
  std::vector<int32_t> per_layer(std::string_view key, size_t layers, int64_t low, int64_t high) const {
    std::vector<int32_t> out;
    for (const int64_t v : meta_.get_ints_per_layer(full(key), layers))
      out.push_back(ranged(key, v, low, high));
    return out;
  }
  // true = sliding.
  std::vector<bool> pattern(size_t layers) const {
    const std::string key = full("attention.sliding_window_pattern");
    const MetaValue* v = meta_.find(key);
    std::vector<bool> out;
    if (v && std::holds_alternative<std::vector<bool>>(*v)) {
      out = std::get<std::vector<bool>>(*v);
    } else if (v && std::holds_alternative<std::vector<int64_t>>(*v)) {
      for (const int64_t i : std::get<std::vector<int64_t>>(*v)) out.push_back(i != 0);
    } else {
      throw Error(fmt::format("'{}' is missing or is not an array of booleans", key), kHint);
    }
    if (out.size() != layers)
      throw Error(fmt::format("'{}' has {} entries for {} layers", key, out.size(), layers), kHint);
    return out;
  }

 private:
  int32_t ranged(std::string_view key, int64_t v, int64_t low, int64_t high) const {
    if (v < low || v > high)
      throw Error(fmt::format("'{}' is {}, expected {} to {}", full(key), v, low, high), kHint);
    return static_cast<int32_t>(v);
  }
  const Metadata& meta_;
};

constexpr int64_t kMaxLayers = 1024, kMaxWidth = 1 << 20, kMaxHeads = 4096, kMaxHeadDim = 4096;

// Head size of sliding or global layers: key and value sizes must agree, and the rotation must span the head.
int32_t head_dim(const Keys& k, const char* suffix) {
  const auto named = [&](const char* key) { return fmt::format("{}{}", key, suffix); };
  const int32_t dim = k.integer(named("attention.key_length"), 2, kMaxHeadDim);
  if (dim % 2)
    throw Error(fmt::format("'{}' is odd: {}", Keys::full(named("attention.key_length")), dim), kHint);
  for (const char* key : {"attention.value_length", "rope.dimension_count"}) {
    const int32_t other = k.integer_or(named(key), dim, 0, kMaxHeadDim);
    if (other != dim)
      throw Error(fmt::format("'{}' is {}, but '{}' is {}", Keys::full(named(key)), other,
                              Keys::full(named("attention.key_length")), dim),
                  "only heads with equal sizes and a rotation over the whole head are known");
  }
  return dim;
}

// Global layers rotate the pairs that rope_freqs does not stretch to standstill; without the tensor, a
// quarter.
int32_t global_pairs(const WeightSource& source, int32_t dim) {
  if (!source.find("rope_freqs.weight")) return dim / 8;
  const std::vector<float> f = rope_factors(source, dim);
  int32_t pairs = 0;
  for (int32_t i = 0; i < dim / 2; ++i)
    if (f[i] < kStandstill) pairs = i + 1;
  return pairs;
}

void read_attention(const WeightSource& source, const Keys& k, ModelSpec& s) {
  const size_t n = s.layers.size();
  const std::vector<bool> sliding = k.pattern(n);
  const auto heads = k.per_layer("attention.head_count", n, 1, kMaxHeads);
  const auto kv_heads = k.per_layer("attention.head_count_kv", n, 1, kMaxHeads);
  const bool any_sliding = std::count(sliding.begin(), sliding.end(), true) > 0;
  const int32_t global_dim = head_dim(k, ""), sliding_dim = any_sliding ? head_dim(k, "_swa") : global_dim;
  const int32_t window = any_sliding ? k.integer("attention.sliding_window", 1, 1 << 24) : 0;
  const float base = k.number("rope.freq_base", 1, 1e12);
  const float base_swa = any_sliding ? k.number("rope.freq_base_swa", 1, 1e12) : base;
  const int32_t shared = k.integer_or("attention.shared_kv_layers", 0, 0, static_cast<int64_t>(n) - 1);
  int32_t donor[2] = {-1, -1};  // the last layer of each type that owns a cache
  for (size_t i = 0; i < n; ++i) {
    LayerSpec& l = s.layers[i];
    l.heads = heads[i];
    l.kv_heads = kv_heads[i];
    if (l.heads % l.kv_heads)
      throw Error(fmt::format("layer {} has {} query heads for {} KV heads", i, l.heads, l.kv_heads), kHint);
    l.head_dim = sliding[i] ? sliding_dim : global_dim;
    l.window = sliding[i] ? window : 0;
    l.rope_base = sliding[i] ? base_swa : base;
    l.rope_pairs = sliding[i] ? sliding_dim / 2 : global_pairs(source, global_dim);
    if (i < n - shared) {
      donor[sliding[i]] = static_cast<int32_t>(i);
      // Global layers without a V projection use the K projection as values.
      l.k_is_v = !sliding[i] && !source.find(fmt::format("blk.{}.attn_v.weight", i));
    }
    l.kv_from = donor[sliding[i]];
    if (l.kv_from < 0)
      throw Error(fmt::format("layer {} shares keys and values, but no earlier layer of its type has any", i),
                  kHint);
    if (s.layers[l.kv_from].kv_heads != l.kv_heads)
      throw Error(fmt::format("layer {} has {} KV heads, but shares those of layer {}, which has {}", i,
                              l.kv_heads, l.kv_from, s.layers[l.kv_from].kv_heads),
                  kHint);
  }
}

void read_experts(const Keys& k, ModelSpec& s) {
  const int32_t experts = k.integer_or("expert_count", 0, 0, 65536);
  if (!experts) return;
  const int32_t used = k.integer("expert_used_count", 1, experts);
  const int32_t ffn = k.integer("expert_feed_forward_length", 1, kMaxWidth);
  for (LayerSpec& l : s.layers) l.experts = experts, l.experts_used = used, l.expert_ffn = ffn;
}

}  // namespace

std::vector<float> rope_factors(const WeightSource& source, int32_t dim) {
  const TensorInfo& t = source.get("rope_freqs.weight");
  if (t.type != DType::f32 || t.shape != std::vector<int64_t>{dim / 2})
    throw Error(fmt::format("tensor 'rope_freqs.weight' is not {} values of f32", dim / 2), kHint);
  std::vector<float> f(static_cast<size_t>(dim / 2));
  decode_row(t.type, t.data, f.data(), dim / 2);
  for (const float v : f)
    if (!(v > 0)) throw Error("tensor 'rope_freqs.weight' has a value that is not positive", kHint);
  return f;
}

ModelSpec read_spec(const WeightSource& source) {
  const Keys k(source.meta());
  ModelSpec s;
  s.arch = "gemma4";
  s.name = source.meta().get_string_or("general.name", "gemma4");
  s.layers.resize(static_cast<size_t>(k.integer("block_count", 1, kMaxLayers)));
  s.dim = k.integer("embedding_length", 1, kMaxWidth);
  s.context = k.integer("context_length", 1, 1 << 30);
  s.per_layer_dim = k.integer_or("embedding_length_per_layer_input", 0, 0, kMaxWidth);
  if (int64_t{s.per_layer_dim} * static_cast<int64_t>(s.layers.size()) > 1 << 22)
    throw Error(fmt::format("per-layer embeddings of {} x {}", s.layers.size(), s.per_layer_dim), kHint);
  s.eps = k.number("attention.layer_norm_rms_epsilon", 0, 1);
  s.embed_scale = std::sqrt(static_cast<float>(s.dim));
  s.final_softcap = k.has("final_logit_softcapping") ? k.number("final_logit_softcapping", 0, 1e6) : 0;
  const auto ffn = k.per_layer("feed_forward_length", s.layers.size(), 1, kMaxWidth);
  for (size_t i = 0; i < s.layers.size(); ++i) s.layers[i].ffn = ffn[i];
  read_attention(source, k, s);
  read_experts(k, s);
  const TensorInfo& table = source.get("token_embd.weight");
  if (table.shape.size() != 2 || table.shape[1] != s.dim || table.shape[0] < 1 || table.shape[0] > 1 << 24)
    throw Error(fmt::format("tensor 'token_embd.weight' is not [vocabulary, {}]", s.dim), kHint);
  s.vocab = static_cast<int32_t>(table.shape[0]);
  return s;
}

}  // namespace carat::gemma4
