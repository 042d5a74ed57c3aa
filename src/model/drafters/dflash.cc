#include "model/drafters/dflash.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "model/spec_keys.h"

namespace carat {
namespace {

// llama.cpp's names, then Lucebox's.
using Names = std::initializer_list<const char*>;
constexpr Names kFc = {"fc.weight", "dflash.fc.weight"};
constexpr Names kHiddenNorm = {"enc.output_norm.weight", "dflash.hidden_norm.weight", "hidden_norm.weight"};

const TensorInfo& get_any(const WeightSource& source, Names names) {
  for (const char* n : names)
    if (const TensorInfo* t = source.find(n)) return *t;
  return source.get(*names.begin());
}

int32_t dimension(const TensorInfo& t, size_t index, size_t count) {
  if (t.shape.size() != count || t.shape[index] < 1 || t.shape[index] > kMaxWidth * 64)
    throw Error(fmt::format("tensor '{}' has an unusable shape", t.name), kSpecHint);
  return static_cast<int32_t>(t.shape[index]);
}

// The first of the keys that the file has, "" if none.
std::string first_of(const SpecKeys& k, Names keys) {
  for (const char* key : keys)
    if (k.has(key)) return key;
  return {};
}

// HF ids of layers whose outputs are tapped. llama.cpp counts layer inputs: its ids are one larger.
std::vector<int32_t> read_taps(const Metadata& meta, const SpecKeys& k, int32_t features) {
  const bool inputs = !k.has("dflash.target_layer_ids");
  const MetaValue* v = meta.find(k.full(inputs ? "target_layers" : "dflash.target_layer_ids"));
  if (!v) return {};
  const auto* ids = std::get_if<std::vector<int64_t>>(v);
  if (!ids || static_cast<int64_t>(ids->size()) != features)
    throw Error(fmt::format("the layers to tap are not {}, as 'fc.weight' is wide", features), kSpecHint);
  std::vector<int32_t> out;
  for (const int64_t id : *ids) {
    if (id < (inputs ? 1 : 0) || id > kMaxLayers)
      throw Error(fmt::format("the layer to tap {} is out of range", id), kSpecHint);
    out.push_back(static_cast<int32_t>(id) - (inputs ? 1 : 0));
  }
  return out;
}

// Widths come from the tensors: of the two converters, each leaves out some of the keys.
DFlashLayer read_layer(const WeightSource& source, int i) {
  const std::string blk = fmt::format("blk.{}.", i);
  DFlashLayer l;
  l.head_dim = dimension(source.get(blk + "attn_q_norm.weight"), 0, 1);
  const int32_t q = dimension(source.get(blk + "attn_q.weight"), 0, 2),
                kv = dimension(source.get(blk + "attn_k.weight"), 0, 2);
  l.heads = q / l.head_dim, l.kv_heads = kv / l.head_dim;
  l.ffn = dimension(source.get(blk + "ffn_gate.weight"), 0, 2);
  if (l.head_dim % 2 || q % l.head_dim || kv % l.head_dim || l.kv_heads == 0 || l.heads % l.kv_heads)
    throw Error(fmt::format("layer {} has queries of {} and keys of {} columns for heads of {}", i, q, kv,
                            l.head_dim),
                kSpecHint);
  return l;
}

void read_masks(const Metadata& meta, const SpecKeys& k, DFlashSpec& s) {
  std::vector<bool> sliding(s.layers.size(), false);
  int32_t window = 0;
  if (k.has("attention.sliding_window_pattern")) {
    sliding = k.pattern(s.layers.size());
    if (std::count(sliding.begin(), sliding.end(), true))
      window = k.integer("attention.sliding_window", 1, 1 << 24);
  }
  std::optional<bool> causal;
  for (const char* key : {"attention.causal", "dflash.causal"})
    if (k.has(key)) causal = meta.get_bool_or(k.full(key), false);
  const float base = k.has("rope.freq_base") ? k.number("rope.freq_base", 1, 1e12) : 1e6F;
  const float base_swa = k.has("rope.freq_base_swa") ? k.number("rope.freq_base_swa", 1, 1e12) : base;
  const RopeScaling scaling = read_rope_scaling(k, k.integer_or("context_length", 0, 0, 1 << 30));
  for (size_t i = 0; i < s.layers.size(); ++i) {
    s.layers[i].window = sliding[i] ? window : 0;
    s.layers[i].both_ways = dflash_both_ways(sliding[i], causal);
    s.layers[i].rope_base = sliding[i] ? base_swa : base;
    if (!sliding[i]) s.layers[i].rope = scaling;
  }
}

}  // namespace

bool is_dflash(std::string_view arch) { return arch == "dflash" || arch.ends_with("dflash-draft"); }

bool dflash_both_ways(bool sliding, std::optional<bool> causal) { return causal ? !*causal : !sliding; }

std::vector<int32_t> default_taps(int32_t layers, int32_t features) {
  std::vector<int32_t> out;
  const double first = 1, last = std::max(1, layers - 3);
  for (int32_t i = 0; i < features; ++i)
    out.push_back(static_cast<int32_t>(
        std::lround(features == 1 ? first : first + (last - first) * i / (features - 1))));
  return out;
}

DFlashSpec read_dflash_spec(const WeightSource& source) {
  const Metadata& meta = source.meta();
  DFlashSpec s;
  s.arch = meta.get_string("general.architecture");
  s.name = meta.get_string_or("general.name", s.arch);
  const SpecKeys k(meta, s.arch);
  const TensorInfo& fc = get_any(source, kFc);
  s.dim = dimension(fc, 0, 2);
  if (dimension(fc, 1, 2) % s.dim)
    throw Error(fmt::format("tensor '{}' is not [width, features x width]", fc.name), kSpecHint);
  s.features = static_cast<int32_t>(fc.shape[1] / s.dim);
  if (source.find("d2t") || source.find("markov_w1.weight") || source.find("selector_prev.weight"))
    throw Error(fmt::format("'{}' is a DFlash drafter with a head or vocabulary of its own", source.path()),
                "drafters that share the target's head can be used");
  s.layers.resize(static_cast<size_t>(k.integer("block_count", 1, 64)));
  for (size_t i = 0; i < s.layers.size(); ++i) s.layers[i] = read_layer(source, static_cast<int>(i));
  s.eps = k.number("attention.layer_norm_rms_epsilon", 0, 1);
  const std::string block = first_of(k, {"block_size", "dflash.block_size"});
  s.block = k.integer(block.empty() ? "block_size" : block, 2, 64);
  const std::string mask = first_of(k, {"dflash.mask_token_id", "mask_token_id"});
  s.mask_token = mask.empty() ? static_cast<int32_t>(std::clamp<int64_t>(
                                    meta.get_int("tokenizer.ggml.mask_token_id"), -1, 1 << 30))
                              : k.integer(mask, 0, 1 << 30);
  s.from_anchor = meta.get_bool_or(k.full("sample_from_anchor"), false);
  s.taps = read_taps(meta, k, s.features);
  read_masks(meta, k, s);
  return s;
}

DFlashNet::DFlashNet(std::shared_ptr<WeightSource> source, Backend& backend, const Progress& progress)
    : source_(std::move(source)), spec_(read_dflash_spec(*source_)) {
  Binder b(*source_, backend, progress, owners_);
  const int32_t dim = spec_.dim;
  fc_ = b.linear(get_any(*source_, kFc).name, dim, int64_t{spec_.features} * dim);
  hidden_norm_ = b.vector(get_any(*source_, kHiddenNorm).name, dim);
  final_norm_ = b.vector("output_norm.weight", dim);
  std::map<std::tuple<float, int32_t, bool>, Rope> ropes;
  for (int i = 0; i < static_cast<int>(spec_.layers.size()); ++i) {
    const DFlashLayer& l = spec_.layers[static_cast<size_t>(i)];
    const std::string blk = fmt::format("blk.{}.", i);
    const int64_t q = int64_t{l.heads} * l.head_dim, kv = int64_t{l.kv_heads} * l.head_dim;
    Layer w;
    w.attn_norm = b.vector(blk + "attn_norm.weight", dim);
    w.q = b.linear(blk + "attn_q.weight", q, dim);
    w.k = b.linear(blk + "attn_k.weight", kv, dim);
    w.v = b.linear(blk + "attn_v.weight", kv, dim);
    w.o = b.linear(blk + "attn_output.weight", dim, q);
    w.q_norm = b.head_gains(blk + "attn_q_norm.weight", l.head_dim, l.rope, l.head_dim);
    w.k_norm = b.head_gains(blk + "attn_k_norm.weight", l.head_dim, l.rope, l.head_dim);
    w.ffn_norm = b.vector(blk + "ffn_norm.weight", dim);
    w.mlp = {b.linear(blk + "ffn_gate.weight", l.ffn, dim), b.linear(blk + "ffn_up.weight", l.ffn, dim),
             b.linear(blk + "ffn_down.weight", dim, l.ffn)};
    Rope& rope = ropes[{l.rope_base, l.head_dim, l.rope.any()}];
    if (!rope.freq) {
      std::vector<float> freq;
      for (int32_t p = 0; p < l.head_dim / 2; ++p)
        freq.push_back(static_cast<float>(std::pow(double{l.rope_base}, -2.0 * p / l.head_dim) *
                                          rope_stretch(l.rope, l.rope_base, l.head_dim, p)));
      rope = {reinterpret_cast<const float*>(b.upload(freq).data), l.head_dim / 2, l.head_dim / 2};
    }
    w.rope = rope;
    layers_.push_back(w);
  }
}

std::vector<int32_t> DFlashNet::taps(const ModelSpec& target) const {
  return spec_.taps.empty() ? default_taps(static_cast<int32_t>(target.layers.size()), spec_.features)
                            : spec_.taps;
}

void DFlashNet::check_target(const ModelSpec& target) const {
  const auto fail = [&](const std::string& what) {
    throw Error(
        fmt::format("the drafter '{}' does not fit the model '{}': {}", spec_.name, target.name, what),
        "use the DFlash drafter that was trained for this model");
  };
  if (spec_.dim != target.dim) fail(fmt::format("it is {} wide, the model {}", spec_.dim, target.dim));
  if (spec_.mask_token < 0 || spec_.mask_token >= target.vocab)
    fail(fmt::format("its mask token {} is not among the model's {} tokens", spec_.mask_token, target.vocab));
  for (const int32_t l : taps(target))
    if (l >= static_cast<int32_t>(target.layers.size()))
      fail(fmt::format("it reads layer {} of a model with {}", l, target.layers.size()));
}

std::vector<KvLayerSpec> kv_layers(const DFlashSpec& spec, DType type) {
  std::vector<KvLayerSpec> out;
  for (const DFlashLayer& l : spec.layers)
    out.push_back({KvSpec{type, type, l.kv_heads, l.head_dim, l.window}, static_cast<int32_t>(out.size())});
  return out;
}

Tensor DFlashNet::build_context(Program& p, Arena& arena, const KvPool& kv, int32_t rows) const {
  int32_t width = 0, head = 0;
  for (const DFlashLayer& l : spec_.layers)
    width = std::max(width, l.kv_heads * l.head_dim), head = std::max(head, l.head_dim);
  const Tensor in = arena.take(rows, spec_.features * spec_.dim), c = arena.take(rows, spec_.dim),
               k = arena.take(rows, width), v = arena.take(rows, width);
  const Tensor unread = arena.take(rows, head);  // the operation wants queries; context asks nothing
  push_linear(p, c, in, fc_);
  push_norm(p, c, c, hidden_norm_, spec_.eps);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const DFlashLayer& l = spec_.layers[i];
    const Layer& w = layers_[i];
    p.at_layer(static_cast<int>(i));
    QkvPrepArgs prep{};
    prep.q = unread.columns(0, l.head_dim);
    prep.k = k.columns(0, l.kv_heads * l.head_dim), prep.v = v.columns(0, l.kv_heads * l.head_dim);
    prep.k_norm = w.k_norm, prep.rope = w.rope, prep.eps = spec_.eps;
    prep.kv = kv.view(static_cast<int>(i));
    push_linear(p, prep.k, c, w.k);
    push_linear(p, prep.v, c, w.v);
    p.push(prep);
  }
  p.at_layer(-1);
  return in;
}

Tensor DFlashNet::build_block(Program& p, Arena& arena, const Model& target, const KvPool& kv, int32_t rows,
                              int32_t out_rows) const {
  const SharedTables tables = target.weights->shared();
  CARAT_CHECK(tables.embed.valid() && tables.head.valid(), "{} shares no tables", target.spec.arch);
  int32_t q_width = 0, kv_width = 0, ffn = 0;
  for (const DFlashLayer& l : spec_.layers) {
    q_width = std::max(q_width, l.heads * l.head_dim), kv_width = std::max(kv_width, l.kv_heads * l.head_dim);
    ffn = std::max(ffn, l.ffn);
  }
  const Tensor x = arena.take(rows, spec_.dim), u = arena.take(rows, spec_.dim),
               q_all = arena.take(rows, q_width), att_all = arena.take(rows, q_width),
               k = arena.take(rows, kv_width), v = arena.take(rows, kv_width), h = arena.take(rows, ffn);
  p.push(EmbedArgs{x, tables.embed, target.spec.embed_scale * tables.embed_scale});
  for (size_t i = 0; i < layers_.size(); ++i) {
    const DFlashLayer& l = spec_.layers[i];
    const Layer& w = layers_[i];
    p.at_layer(static_cast<int>(i));
    QkvPrepArgs prep{};
    prep.q = q_all.columns(0, l.heads * l.head_dim), prep.q_norm = w.q_norm;
    prep.k = k.columns(0, l.kv_heads * l.head_dim), prep.v = v.columns(0, l.kv_heads * l.head_dim);
    prep.k_norm = w.k_norm, prep.rope = w.rope, prep.eps = spec_.eps;
    prep.kv = kv.view(static_cast<int>(i));
    push_norm(p, u, x, w.attn_norm, spec_.eps);
    push_linear(p, prep.q, u, w.q);
    push_linear(p, prep.k, u, w.k);
    push_linear(p, prep.v, u, w.v);
    p.push(prep);
    const Tensor att = att_all.columns(0, l.heads * l.head_dim);
    p.push(
        AttentionArgs{att, prep.q, prep.kv, 1 / std::sqrt(static_cast<float>(l.head_dim)), 0, l.both_ways});
    push_linear(p, x, att, w.o, {.residual = x});
    push_norm(p, u, x, w.ffn_norm, spec_.eps);
    const Tensor hidden = h.columns(0, l.ffn);
    p.push(GateUpArgs{hidden, u, w.mlp.gate.w, w.mlp.up.w, w.mlp.gate.scale, w.mlp.up.scale, Act::silu});
    push_linear(p, x, hidden, w.mlp.down, {.residual = x});
  }
  p.at_layer(-1);
  p.at_rows(RowSet::out);
  const Tensor wanted = arena.take(out_rows, spec_.dim), logits = arena.take(out_rows, target.spec.vocab);
  p.push(GatherArgs{wanted, x});
  push_norm(p, wanted, wanted, final_norm_, spec_.eps);
  push_linear(p, logits, wanted, {tables.head, tables.head_scale}, {.softcap = target.spec.final_softcap});
  p.at_rows(RowSet::all);
  return logits;
}

}  // namespace carat
