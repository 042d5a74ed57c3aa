// Gemma 4's specification from the file's metadata, with every combination that could not run refused here.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "core/codec.h"
#include "model/families/gemma4_spec.h"
#include "model/spec_keys.h"

namespace carat::gemma4 {
namespace {

// Head size of sliding or global layers: key and value sizes must agree, and the rotation must span the head.
int32_t head_dim(const SpecKeys& k, const char* suffix) {
  const auto named = [&](const char* key) { return fmt::format("{}{}", key, suffix); };
  const int32_t dim = k.integer(named("attention.key_length"), 2, kMaxHeadDim);
  if (dim % 2)
    throw Error(fmt::format("'{}' is odd: {}", k.full(named("attention.key_length")), dim), kSpecHint);
  for (const char* key : {"attention.value_length", "rope.dimension_count"}) {
    const int32_t other = k.integer_or(named(key), dim, 0, kMaxHeadDim);
    if (other != dim)
      throw Error(fmt::format("'{}' is {}, but '{}' is {}", k.full(named(key)), other,
                              k.full(named("attention.key_length")), dim),
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

void read_attention(const WeightSource& source, const SpecKeys& k, ModelSpec& s, bool query_only) {
  const size_t n = s.layers.size();
  const std::vector<bool> sliding = k.pattern(n);
  const auto heads = k.per_layer("attention.head_count", n, 1, kMaxHeads);
  const auto kv_heads = k.per_layer("attention.head_count_kv", n, 1, kMaxHeads);
  const bool any_sliding = std::count(sliding.begin(), sliding.end(), true) > 0;
  const int32_t global_dim = head_dim(k, ""), sliding_dim = any_sliding ? head_dim(k, "_swa") : global_dim;
  const int32_t window = any_sliding ? k.integer("attention.sliding_window", 1, 1 << 24) : 0;
  // Where a file does not say, what all published models have.
  const float base = k.has("rope.freq_base") ? k.number("rope.freq_base", 1, 1e12) : 1e6F;
  const float base_swa = k.has("rope.freq_base_swa") ? k.number("rope.freq_base_swa", 1, 1e12) : 1e4F;
  const RopeScaling scaling = read_rope_scaling(k, s.context);
  const int32_t shared =
      query_only ? 0 : k.integer_or("attention.shared_kv_layers", 0, 0, static_cast<int64_t>(n) - 1);
  int32_t donor[2] = {-1, -1};  // the last layer of each type that owns a cache
  for (size_t i = 0; i < n; ++i) {
    LayerSpec& l = s.layers[i];
    l.heads = heads[i];
    l.kv_heads = kv_heads[i];
    if (l.heads % l.kv_heads)
      throw Error(fmt::format("layer {} has {} query heads for {} KV heads", i, l.heads, l.kv_heads),
                  kSpecHint);
    l.head_dim = sliding[i] ? sliding_dim : global_dim;
    l.window = sliding[i] ? window : 0;
    l.rope_base = sliding[i] ? base_swa : base;
    if (!sliding[i]) l.rope = scaling;
    l.rope_pairs = sliding[i] ? sliding_dim / 2 : global_pairs(source, global_dim);
    if (query_only) continue;
    if (i < n - shared) {
      donor[sliding[i]] = static_cast<int32_t>(i);
      // Global layers without a V projection use the K projection as values.
      l.k_is_v = !sliding[i] && !source.find(fmt::format("blk.{}.attn_v.weight", i));
    }
    l.kv_from = donor[sliding[i]];
    if (l.kv_from < 0)
      throw Error(fmt::format("layer {} shares keys and values, but no earlier layer of its type has any", i),
                  kSpecHint);
    if (s.layers[l.kv_from].kv_heads != l.kv_heads)
      throw Error(fmt::format("layer {} has {} KV heads, but shares those of layer {}, which has {}", i,
                              l.kv_heads, l.kv_from, s.layers[l.kv_from].kv_heads),
                  kSpecHint);
  }
}

void read_experts(const SpecKeys& k, ModelSpec& s) {
  const int32_t experts = k.integer_or("expert_count", 0, 0, 65536);
  if (!experts) return;
  const int32_t used = k.integer("expert_used_count", 1, experts);
  const int32_t ffn = k.integer("expert_feed_forward_length", 1, kMaxWidth);
  for (LayerSpec& l : s.layers) l.experts = experts, l.experts_used = used, l.expert_ffn = ffn;
}

ModelSpec read_any(const WeightSource& source, std::string_view prefix, bool query_only) {
  const SpecKeys k(source.meta(), prefix);
  ModelSpec s;
  s.arch = prefix;
  s.name = source.meta().get_string_or("general.name", prefix);
  s.layers.resize(static_cast<size_t>(k.integer("block_count", 1, kMaxLayers)));
  s.dim = k.integer("embedding_length", 1, kMaxWidth);
  s.context = k.integer("context_length", 1, 1 << 30);
  s.per_layer_dim = k.integer_or("embedding_length_per_layer_input", 0, 0, kMaxWidth);
  if (int64_t{s.per_layer_dim} * static_cast<int64_t>(s.layers.size()) > 1 << 22)
    throw Error(fmt::format("per-layer embeddings of {} x {}", s.layers.size(), s.per_layer_dim), kSpecHint);
  s.eps = k.number("attention.layer_norm_rms_epsilon", 0, 1);
  s.embed_scale = std::sqrt(static_cast<float>(s.dim));
  s.blocks = !s.per_layer_dim && !query_only;  // the large models' pictures; files do not say
  s.final_softcap = k.has("final_logit_softcapping") ? k.number("final_logit_softcapping", 0, 1e6) : 0;
  const auto ffn = k.per_layer("feed_forward_length", s.layers.size(), 1, kMaxWidth);
  for (size_t i = 0; i < s.layers.size(); ++i) s.layers[i].ffn = ffn[i];
  read_attention(source, k, s, query_only);
  read_experts(k, s);
  const TensorInfo& table = source.get("token_embd.weight");
  if (table.shape.size() != 2 || table.shape[1] != s.dim || table.shape[0] < 1 || table.shape[0] > 1 << 24)
    throw Error(fmt::format("tensor 'token_embd.weight' is not [vocabulary, {}]", s.dim), kSpecHint);
  s.vocab = static_cast<int32_t>(table.shape[0]);
  return s;
}

}  // namespace

std::vector<float> rope_factors(const WeightSource& source, int32_t dim) {
  const TensorInfo& t = source.get("rope_freqs.weight");
  if (t.type != DType::f32 || t.shape != std::vector<int64_t>{dim / 2})
    throw Error(fmt::format("tensor 'rope_freqs.weight' is not {} values of f32", dim / 2), kSpecHint);
  std::vector<float> f(static_cast<size_t>(dim / 2));
  decode_row(t.type, t.data, f.data(), dim / 2);
  for (const float v : f)
    if (!(v > 0)) throw Error("tensor 'rope_freqs.weight' has a value that is not positive", kSpecHint);
  return f;
}

ModelSpec read_spec(const WeightSource& source) { return read_any(source, "gemma4", false); }

ModelSpec read_query_only_spec(const WeightSource& source, std::string_view prefix) {
  return read_any(source, prefix, true);
}

std::vector<float> rope_frequencies(const LayerSpec& l, const WeightSource& source) {
  std::vector<float> factor(static_cast<size_t>(l.head_dim / 2), 1.0f), freq;
  if (l.window == 0 && source.find("rope_freqs.weight")) factor = rope_factors(source, l.head_dim);
  for (int32_t i = 0; i < l.rope_pairs; ++i) {
    const double f = std::pow(double{l.rope_base}, -2.0 * i / l.head_dim) *
                     rope_stretch(l.rope, l.rope_base, l.head_dim, i);
    freq.push_back(factor[i] < kStandstill ? static_cast<float>(f / factor[i]) : 0.0f);
  }
  return freq;
}

Tensor output_gain(Binder& b, int layer) {
  const auto name = [](int i) { return fmt::format("blk.{}.layer_output_scale.weight", i); };
  return b.has(name(0)) ? b.vector(name(layer), 1) : b.optional_vector(name(layer), 1);
}

}  // namespace carat::gemma4
