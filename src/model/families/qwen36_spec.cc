// Qwen3.6's specification from the file's metadata, with every combination that could not run refused here.
#include <algorithm>

#include "base/error.h"
#include "model/families/qwen36_net.h"
#include "model/spec_keys.h"

namespace carat::qwen36 {
namespace {

SpecKeys keys_of(const WeightSource& source) {
  return {source.meta(), source.meta().get_string("general.architecture")};
}

// 1 if the last block is a drafting head: by its key, or, where the key is lost, by its tensors. Read as a
// layer of the trunk it would change every token.
int32_t nextn_count(const WeightSource& source, const SpecKeys& k) {
  const int32_t last = k.integer("block_count", 1, kMaxLayers) - 1;
  const bool head = source.find(fmt::format("blk.{}.nextn.eh_proj.weight", last)) != nullptr;
  return k.integer_or("nextn_predict_layers", head ? 1 : 0, 0, 1);
}

// true: recurrent. Layers of the trunk.
std::vector<bool> pattern(const WeightSource& source, const SpecKeys& k, size_t layers) {
  const std::string key = k.full("attention.recurrent_layers");
  std::vector<bool> out;
  if (const MetaValue* v = source.meta().find(key)) {
    if (const auto* b = std::get_if<std::vector<bool>>(v)) out = *b;
    if (const auto* n = std::get_if<std::vector<int64_t>>(v))
      for (const int64_t i : *n) out.push_back(i != 0);
    if (out.size() < layers || out.size() > layers + 1)
      throw Error(fmt::format("'{}' has {} entries for {} layers", key, out.size(), layers), kSpecHint);
    out.resize(layers);
    return out;
  }
  const int32_t interval = k.integer_or("full_attention_interval", 4, 1, kMaxLayers);
  for (size_t i = 0; i < layers; ++i) out.push_back((i + 1) % static_cast<size_t>(interval) != 0);
  return out;
}

RecurrentSpec recurrent(const SpecKeys& k) {
  RecurrentSpec r;
  r.taps = k.integer("ssm.conv_kernel", 2, kMaxTaps);
  r.k_dim = r.v_dim = k.integer("ssm.state_size", 16, kMaxHeadDim);
  r.k_heads = k.integer("ssm.group_count", 1, kMaxHeads);
  r.v_heads = k.integer("ssm.time_step_rank", 1, kMaxHeads);
  const int32_t inner = k.integer("ssm.inner_size", 1, kMaxWidth);
  if (r.v_dim % 16)
    throw Error(
        fmt::format("'{}' is {}: states need heads of a multiple of 16", k.full("ssm.state_size"), r.v_dim),
        kSpecHint);
  if (r.v_heads % r.k_heads)
    throw Error(fmt::format("'{}' of {} value heads do not share {} key heads evenly",
                            k.full("ssm.time_step_rank"), r.v_heads, r.k_heads),
                kSpecHint);
  if (int64_t{inner} != int64_t{r.v_heads} * r.v_dim)
    throw Error(fmt::format("{} value heads of {} do not make '{}' of {}", r.v_heads, r.v_dim,
                            k.full("ssm.inner_size"), inner),
                kSpecHint);
  const int64_t channels = 2 * int64_t{r.k_heads} * r.k_dim + inner;
  if (channels > kMaxWidth) throw Error(fmt::format("convolutions over {} channels", channels), kSpecHint);
  r.channels = static_cast<int32_t>(channels);
  return r;
}

void read_attention(const SpecKeys& k, LayerSpec& l) {
  l.heads = k.integer("attention.head_count", 1, kMaxHeads);
  l.kv_heads = k.integer("attention.head_count_kv", 1, kMaxHeads);
  if (l.heads % l.kv_heads)
    throw Error(fmt::format("{} query heads for {} KV heads", l.heads, l.kv_heads), kSpecHint);
  l.head_dim = k.integer("attention.key_length", 2, kMaxHeadDim);
  if (k.integer_or("attention.value_length", l.head_dim, 1, kMaxHeadDim) != l.head_dim)
    throw Error(fmt::format("'{}' differs from '{}'", k.full("attention.value_length"),
                            k.full("attention.key_length")),
                "only heads with equal sizes are known");
  const int32_t turned = k.integer_or("rope.dimension_count", l.head_dim / 4, 0, l.head_dim);
  if (turned % 2) throw Error(fmt::format("'{}' is odd", k.full("rope.dimension_count")), kSpecHint);
  l.rope_pairs = turned / 2;
  l.rope_base = k.number("rope.freq_base", 1, 1e12);
  l.rope = read_rope_scaling(k, k.integer_or("context_length", 0, 0, 1 << 30));
  if (!k.has("rope.dimension_sections")) return;
  const std::vector<int32_t> sections = k.sections("rope.dimension_sections", l.rope_pairs);
  l.rope_height = sections[1], l.rope_width = sections[2];
}

LayerSpec attention_layer(const SpecKeys& k) {
  LayerSpec l;
  read_attention(k, l);
  l.experts = k.integer_or("expert_count", 0, 0, 65536);
  if (!l.experts) {
    l.ffn = k.integer("feed_forward_length", 1, kMaxWidth);
    return l;
  }
  l.experts_used = k.integer("expert_used_count", 1, l.experts);
  l.expert_ffn = k.integer("expert_feed_forward_length", 1, kMaxWidth);
  l.shared_ffn = k.integer("expert_shared_feed_forward_length", 1, kMaxWidth);
  return l;
}

}  // namespace

int nextn_block(const WeightSource& source) {
  const SpecKeys k = keys_of(source);
  const int32_t block = k.integer("block_count", 1, kMaxLayers) - 1;
  // Some exports keep the key and drop the tensors.
  return nextn_count(source, k) && source.find(fmt::format("blk.{}.nextn.eh_proj.weight", block)) ? block
                                                                                                  : -1;
}

LayerSpec nextn_layer(const WeightSource& source) {
  LayerSpec l = attention_layer(keys_of(source));
  l.kv_from = 0;
  return l;
}

ModelSpec read_spec(const WeightSource& source) {
  const SpecKeys k = keys_of(source);
  ModelSpec s;
  s.arch = source.meta().get_string("general.architecture");
  s.name = source.meta().get_string_or("general.name", s.arch);
  s.dim = k.integer("embedding_length", 1, kMaxWidth);
  s.context = k.integer("context_length", 1, 1 << 30);
  s.eps = k.number("attention.layer_norm_rms_epsilon", 0, 1);
  const int32_t layers = k.integer("block_count", 1, kMaxLayers) - nextn_count(source, k);
  if (layers < 1)
    throw Error(fmt::format("'{}' leaves no layers", k.full("nextn_predict_layers")), kSpecHint);
  const LayerSpec full = attention_layer(k);
  const std::vector<bool> is_recurrent = pattern(source, k, static_cast<size_t>(layers));
  const bool any = std::count(is_recurrent.begin(), is_recurrent.end(), true) > 0;
  const RecurrentSpec r = any ? recurrent(k) : RecurrentSpec{};
  for (int32_t i = 0; i < layers; ++i) {
    LayerSpec l = full;
    l.kv_from = i;
    if (is_recurrent[static_cast<size_t>(i)]) {
      l.heads = l.kv_heads = l.head_dim = l.rope_pairs = l.rope_height = l.rope_width = 0;
      l.rope = {};
      l.kv_from = -1;
      l.recurrent = r;
    }
    s.layers.push_back(l);
    s.axes = s.axes || l.rope_height > 0 || l.rope_width > 0;
  }
  const TensorInfo& table = source.get("token_embd.weight");
  if (table.shape.size() != 2 || table.shape[1] != s.dim || table.shape[0] < 1 || table.shape[0] > 1 << 24)
    throw Error(fmt::format("tensor 'token_embd.weight' is not [vocabulary, {}]", s.dim), kSpecHint);
  s.vocab = static_cast<int32_t>(table.shape[0]);
  return s;
}

}  // namespace carat::qwen36
