#include "model/drafters/gemma4_mtp.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "base/error.h"
#include "core/codec.h"
#include "model/blocks.h"
#include "model/families/gemma4_spec.h"
#include "model/spec_keys.h"

namespace carat {
namespace {

// llama.cpp's names first; AtomicBot's, ik_llama.cpp's and other converters' behind them.
using Names = std::initializer_list<const char*>;
constexpr Names kPre = {"nextn.pre_projection.weight", "mtp.pre_projection.weight", "mtp_pre_proj.weight"};
constexpr Names kPost = {"nextn.post_projection.weight", "mtp.post_projection.weight",
                         "mtp_post_proj.weight"};
constexpr Names kCentroids = {"masked_embd_centroids.weight", "mtp.centroids.weight", "mtp_centroids.weight"};
constexpr Names kOrdering = {"masked_embd_ordering", "masked_embd_ordering.weight",
                             "mtp.token_ordering.weight", "mtp.token_ordering", "mtp_token_ordering.weight"};

const TensorInfo* find_any(const WeightSource& source, Names names) {
  for (const char* n : names)
    if (const TensorInfo* t = source.find(n)) return t;
  return nullptr;
}
const TensorInfo& get_any(const WeightSource& source, Names names) {
  const TensorInfo* t = find_any(source, names);
  return t ? *t : source.get(*names.begin());
}

int32_t bounded(int64_t v, int64_t low, int64_t high, const TensorInfo& t) {
  if (v < low || v > high)
    throw Error(fmt::format("tensor '{}' has a dimension of {}", t.name, v), kSpecHint);
  return static_cast<int32_t>(v);
}

// A number for each token. Some converters write floats: numbers below 2^24 are exact.
std::vector<int64_t> read_numbers(const TensorInfo& t, int32_t vocab) {
  if ((t.type != DType::i32 && t.type != DType::i64 && t.type != DType::f32) || t.elements() != vocab)
    throw Error(fmt::format("tensor '{}' is not {} integers", t.name, vocab), kSpecHint);
  const auto at = [&]<typename T>(T v, size_t i) {
    std::memcpy(&v, t.data + i * sizeof(T), sizeof(T));
    return v;
  };
  std::vector<int64_t> out(static_cast<size_t>(vocab));
  for (size_t i = 0; i < out.size(); ++i) {
    if (t.type == DType::f32) {
      const float f = at(float{}, i);
      out[i] = f >= 0 && f < static_cast<float>(vocab) ? static_cast<int64_t>(f) : -1;
    } else {
      out[i] = t.type == DType::i64 ? at(int64_t{}, i) : at(int32_t{}, i);
    }
    if (out[i] < 0 || out[i] >= vocab)
      throw Error(fmt::format("tensor '{}' has a value that is no token", t.name), kSpecHint);
  }
  return out;
}

// The tokens of cluster 0, then those of cluster 1 and so on. ik_llama.cpp's files have the cluster of each
// token under the same name instead: every number below `clusters`, equally often.
std::vector<int32_t> read_ordering(const TensorInfo& t, int32_t vocab, int32_t clusters) {
  const std::vector<int64_t> given = read_numbers(t, vocab);
  const auto size = static_cast<size_t>(vocab / clusters);
  std::vector<int32_t> order(given.size());
  if (clusters < vocab && std::all_of(given.begin(), given.end(), [&](int64_t v) { return v < clusters; })) {
    std::vector<size_t> taken(static_cast<size_t>(clusters));
    for (size_t i = 0; i < given.size(); ++i) {
      const auto c = static_cast<size_t>(given[i]);
      if (taken[c] == size)
        throw Error(fmt::format("tensor '{}' gives its clusters unequal numbers of tokens", t.name),
                    kSpecHint);
      order[c * size + taken[c]++] = static_cast<int32_t>(i);
    }
    return order;
  }
  std::vector<bool> seen(given.size());
  for (size_t i = 0; i < given.size(); ++i) {
    const auto v = static_cast<size_t>(given[i]);
    if (seen[v]) throw Error(fmt::format("tensor '{}' does not hold every token once", t.name), kSpecHint);
    seen[v] = true;
    order[i] = static_cast<int32_t>(v);
  }
  return order;
}

}  // namespace

bool is_mtp(std::string_view arch) {
  return arch == "gemma4-assistant" || arch == "gemma4_assistant" || arch == "gemma4_mtp";
}

MtpSpec read_mtp_spec(const WeightSource& source) {
  const std::string& arch = source.meta().get_string("general.architecture");
  const SpecKeys k(source.meta(), arch);
  MtpSpec s;
  s.net = gemma4::read_query_only_spec(source, arch);
  if (s.net.per_layer_dim || k.integer_or("expert_count", 0, 0, 65536))
    throw Error(fmt::format("'{}' has experts or per-layer embeddings, which no drafter has", source.path()),
                kSpecHint);
  const TensorInfo& pre = get_any(source, kPre);
  if (pre.shape.size() != 2 || pre.shape[1] % 2)
    throw Error(fmt::format("tensor '{}' is not [{}, 2 x width of the target]", pre.name, s.net.dim),
                kSpecHint);
  s.target_dim = bounded(pre.shape[1] / 2, 1, kMaxWidth, pre);
  const TensorInfo* centroids = find_any(source, kCentroids);
  if (!centroids || !find_any(source, kOrdering)) return s;
  if (!source.meta().get_bool_or(k.full("use_ordered_embeddings"), true)) return s;
  if (centroids->shape.size() != 2)
    throw Error(fmt::format("tensor '{}' is no matrix", centroids->name), kSpecHint);
  s.clusters = bounded(centroids->shape[0], 1, s.net.vocab, *centroids);
  s.top_clusters = k.integer_or("centroid_top_k", std::min(32, s.clusters), 1, s.clusters);
  if (s.net.vocab % s.clusters)
    throw Error(fmt::format("{} clusters do not share {} tokens evenly", s.clusters, s.net.vocab), kSpecHint);
  return s;
}

MtpNet::MtpNet(std::shared_ptr<WeightSource> source, Backend& backend, const Progress& progress,
               const ModelSpec* target)
    : source_(std::move(source)), spec_(read_mtp_spec(*source_)) {
  if (target) follow_positions(*target);
  Binder b(*source_, backend, progress, owners_);
  const ModelSpec& s = spec_.net;
  pre_ = b.linear(get_any(*source_, kPre).name, s.dim, 2 * int64_t{spec_.target_dim});
  post_ = b.linear(get_any(*source_, kPost).name, spec_.target_dim, s.dim);
  final_norm_ = b.vector("output_norm.weight", s.dim);
  for (int i = 0; i < static_cast<int>(s.layers.size()); ++i) bind_layer(b, i);
  bind_head(b, backend);
}

// Queries turn as the keys do that they meet.
void MtpNet::follow_positions(const ModelSpec& target) {
  for (LayerSpec& l : spec_.net.layers)
    if (const int from = donor(target, l); from >= 0) {
      const LayerSpec& t = target.layers[static_cast<size_t>(from)];
      l.rope_base = t.rope_base, l.rope = t.rope;
    }
}

void MtpNet::bind_layer(Binder& b, int i) {
  const ModelSpec& s = spec_.net;
  const LayerSpec& l = s.layers[static_cast<size_t>(i)];
  const std::string blk = fmt::format("blk.{}.", i);
  const int64_t q_width = int64_t{l.heads} * l.head_dim;
  Layer w;
  w.attn_norm = b.vector(blk + "attn_norm.weight", s.dim);
  w.q = b.linear(blk + "attn_q.weight", q_width, s.dim);
  w.q_norm = b.head_gains(blk + "attn_q_norm.weight", l.head_dim, l.rope, l.head_dim);
  w.o = b.linear(blk + "attn_output.weight", s.dim, q_width);
  w.post_attn_norm = b.vector(blk + "post_attention_norm.weight", s.dim);
  w.ffn_norm = b.vector(blk + "ffn_norm.weight", s.dim);
  w.mlp.gate = b.linear(blk + "ffn_gate.weight", l.ffn, s.dim);
  w.mlp.up = b.linear(blk + "ffn_up.weight", l.ffn, s.dim);
  w.mlp.down = b.linear(blk + "ffn_down.weight", s.dim, l.ffn);
  w.post_ffn_norm = b.vector(blk + "post_ffw_norm.weight", s.dim);
  w.gain = gemma4::output_gain(b, i);
  const std::vector<float> freq = gemma4::rope_frequencies(l, *source_);
  if (!freq.empty())
    w.rope = {reinterpret_cast<const float*>(b.upload(freq).data), l.rope_pairs, l.head_dim / 2};
  layers_.push_back(w);
}

// The clustered head: the table's rows sorted by cluster, so that a cluster is a slice of it.
void MtpNet::bind_head(Binder& b, Backend& backend) {
  const ModelSpec& s = spec_.net;
  const std::string name = b.has("output.weight") ? "output.weight" : "token_embd.weight";
  if (!spec_.clusters) {
    head_ = b.linear(name, s.vocab, s.dim);
    return;
  }
  centroids_ = b.linear(get_any(*source_, kCentroids).name, spec_.clusters, s.dim);
  ordering_ = read_ordering(get_any(*source_, kOrdering), s.vocab, spec_.clusters);
  const TensorInfo& t = source_->get(name);
  const bool floats = t.type == DType::f32 || t.type == DType::f16 || t.type == DType::bf16;
  if (t.shape != std::vector<int64_t>{s.vocab, s.dim} || (!floats && info(t.type).family != Family::block))
    throw Error(fmt::format("tensor '{}' is not a table of [{}, {}]", name, s.vocab, s.dim), kSpecHint);
  const auto row = static_cast<size_t>(row_bytes(t.type, s.dim));
  table_.resize(row * static_cast<size_t>(s.vocab));
  for (size_t i = 0; i < ordering_.size(); ++i)
    std::memcpy(&table_[i * row], t.data + static_cast<size_t>(ordering_[i]) * row, row);
  Buffer owner;
  slices_ =
      backend.place_weight(make_tensor(table_.data(), t.type, spec_.cluster_size(), s.dim, spec_.clusters),
                           WeightUse::product, owner);
  if (owner.size()) owners_.push_back(std::move(owner));
  if (slices_.data != table_.data()) table_ = {};
}

int MtpNet::donor(const ModelSpec& target, const LayerSpec& layer) const {
  int last = -1;
  for (int i = 0; i < static_cast<int>(target.layers.size()); ++i) {
    const LayerSpec& t = target.layers[static_cast<size_t>(i)];
    if (t.kv_from == i && (t.window > 0) == (layer.window > 0)) last = i;
  }
  return last;
}

void MtpNet::check_target(const ModelSpec& target) const {
  const auto fail = [&](const std::string& what) {
    throw Error(
        fmt::format("the drafter '{}' does not fit the model '{}': {}", spec_.net.name, target.name, what),
        "use the assistant that was published for this model, or one that was made from it");
  };
  if (spec_.target_dim != target.dim)
    fail(fmt::format("it reads hidden states of {} values, the model's have {}", spec_.target_dim,
                     target.dim));
  if (spec_.net.vocab != target.vocab)
    fail(fmt::format("it has a vocabulary of {}, the model one of {}", spec_.net.vocab, target.vocab));
  for (size_t i = 0; i < spec_.net.layers.size(); ++i) {
    const LayerSpec& l = spec_.net.layers[i];
    const int from = donor(target, l);
    if (from < 0)
      fail(fmt::format("no layer has the {} cache that its layer {} reads", l.window ? "sliding" : "global",
                       i));
    const LayerSpec& t = target.layers[static_cast<size_t>(from)];
    if (t.head_dim != l.head_dim || t.kv_heads != l.kv_heads)
      fail(fmt::format("its layer {} reads {} KV heads of {}, layer {} has {} of {}", i, l.kv_heads,
                       l.head_dim, from, t.kv_heads, t.head_dim));
    if (l.window > t.window && t.window)
      fail(fmt::format("its layer {} looks {} positions back, layer {} keeps {}", i, l.window, from,
                       t.window));
  }
}

MtpNet::Io MtpNet::build(Program& p, Arena& arena, const Model& target, const KvPool& kv, int32_t rows,
                         const MtpOptions& options) const {
  const ModelSpec& s = spec_.net;
  const SharedTables tables = target.weights->shared();
  CARAT_CHECK(tables.embed.valid(), "{} shares no tables", target.spec.arch);
  int32_t q_width = 0, ffn = 0;
  for (const LayerSpec& l : s.layers)
    q_width = std::max(q_width, l.heads * l.head_dim), ffn = std::max(ffn, l.ffn);
  const Tensor in = arena.take(rows, 2 * spec_.target_dim), x = arena.take(rows, s.dim),
               u = arena.take(rows, s.dim), f = arena.take(rows, s.dim), q_all = arena.take(rows, q_width),
               att_all = arena.take(rows, q_width), h = arena.take(rows, ffn);
  Io io;
  io.hidden_in = in.columns(spec_.target_dim, spec_.target_dim);
  p.push(
      EmbedArgs{in.columns(0, spec_.target_dim), tables.embed, target.spec.embed_scale * tables.embed_scale});
  push_linear(p, x, in, pre_);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerSpec& l = s.layers[i];
    const Layer& w = layers_[i];
    p.at_layer(static_cast<int>(i));
    const Tensor q = q_all.columns(0, l.heads * l.head_dim), att = att_all.columns(0, l.heads * l.head_dim);
    QkvPrepArgs prep{};
    prep.q = q, prep.q_norm = w.q_norm, prep.rope = w.rope, prep.eps = s.eps;
    prep.rope.ahead = options.at_anchor ? 1 : 0;
    prep.kv = kv.view(donor(target.spec, l));
    // The newest token's own key is in no cache: of the window, one key less.
    if (l.window) prep.kv.spec.window = std::max(1, l.window - prep.rope.ahead);
    push_norm(p, u, x, w.attn_norm, s.eps);
    push_linear(p, q, u, w.q);
    p.push(prep);
    p.push(AttentionArgs{att, q, prep.kv, 1, 0});
    push_linear(p, f, att, w.o);
    push_norm(p, x, f, w.post_attn_norm, s.eps, {.residual = x});
    push_norm(p, u, x, w.ffn_norm, s.eps);
    push_mlp(p, f, u, h.columns(0, l.ffn), w.mlp, Act::gelu_tanh);
    push_norm(p, x, f, w.post_ffn_norm, s.eps, {.residual = x, .gain = w.gain});
  }
  p.at_layer(-1);
  push_norm(p, u, x, final_norm_, s.eps);
  io.hidden = arena.take(rows, spec_.target_dim);
  push_linear(p, io.hidden, u, post_);
  if (!spec_.clusters) {
    io.logits = arena.take(rows, s.vocab);
    push_linear(p, io.logits, u, head_);
    return io;
  }
  const Tensor scores = arena.take(rows, spec_.clusters), share = arena.take(rows, spec_.top_clusters);
  io.chosen = arena.take(rows, spec_.top_clusters, DType::i32);
  io.logits = arena.take(rows, spec_.top_clusters * spec_.cluster_size());
  push_linear(p, scores, u, centroids_);
  p.push(RouteArgs{share, io.chosen, scores, {}, spec_.top_clusters});
  p.push(SliceMatmulArgs{io.logits, u, slices_, io.chosen});
  return io;
}

int32_t MtpNet::token_at(const int32_t* chosen, int32_t column) const {
  if (!spec_.clusters) return column;
  const int32_t n = spec_.cluster_size(), cluster = chosen[column / n];
  return ordering_[static_cast<size_t>(cluster) * static_cast<size_t>(n) + static_cast<size_t>(column % n)];
}

}  // namespace carat
