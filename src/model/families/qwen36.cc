#include "model/families/qwen36.h"

#include <algorithm>

#include "base/error.h"
#include "model/families/qwen36_net.h"

namespace carat {
namespace {

using namespace qwen36;

class QwenWeights : public Weights {
 public:
  SharedTables shared() const override { return {embed.w, head.w, embed.scale, head.scale}; }
  Linear embed, head;
  Tensor final_norm;
  std::vector<Layer> layers;
  std::vector<Buffer> owners;
};

std::unique_ptr<Weights> bind(const WeightSource& source, const ModelSpec& s, Backend& backend,
                              const Progress& progress) {
  auto w = std::make_unique<QwenWeights>();
  Binder b(source, backend, progress, w->owners);
  w->embed = b.linear("token_embd.weight", s.vocab, s.dim, WeightUse::rows);
  w->head = b.linear(b.has("output.weight") ? "output.weight" : "token_embd.weight", s.vocab, s.dim);
  w->final_norm = b.vector("output_norm.weight", s.dim);
  for (int i = 0; i < static_cast<int>(s.layers.size()); ++i)
    w->layers.push_back(bind_layer(b, s.layers[i], i, s.dim));
  return w;
}

Outputs build(Build& b, const Weights& weights) {
  CARAT_CHECK(b.rows > 0 && b.out_rows > 0 && b.out_rows <= b.rows, "{} of {}", b.out_rows, b.rows);
  const auto& w = static_cast<const QwenWeights&>(weights);
  const ModelSpec& s = b.spec;
  Program& p = b.program;
  b.arena.reset();
  p.at_layer(-1);
  p.at_rows(RowSet::all);
  Layers layers(p, b.arena, s.layers, s.dim, s.eps, b.rows, b.out_rows);
  Tensor x = b.arena.take(b.rows, s.dim);
  p.push(EmbedArgs{x, w.embed.w, w.embed.scale, true});
  Outputs out;
  for (int i = 0; i < static_cast<int>(s.layers.size()); ++i) {
    p.at_layer(i);
    // In place, unless somebody listens to what the layer before left.
    const bool fresh = !out.taps.empty() && out.taps.back().data == x.data;
    layers.run(s.layers[i], w.layers[i], b.kv, i, x, fresh, i == b.first_out_layer());
    if (b.tapped(i)) out.taps.push_back(x);
  }
  p.at_layer(-1);
  if (b.hidden_all) {
    out.hidden_all = b.arena.take(b.rows, s.dim);
    push_norm(p, out.hidden_all, x, w.final_norm, s.eps);
    out.hidden = layers.gather(out.hidden_all);
  } else {
    if (p.rows() == RowSet::all) x = layers.gather(x);
    out.hidden = b.arena.take(b.out_rows, s.dim);
    push_norm(p, out.hidden, x, w.final_norm, s.eps);
  }
  out.logits = b.arena.take(b.out_rows, s.vocab);
  push_head(p, b.arena, out.logits, out.hidden, w.head);
  p.at_rows(RowSet::all);
  return out;
}

// ---- the drafting head

class Head : public NextnHead {
 public:
  Head(const Model& model, Backend& backend, const NextnOptions& options)
      : source_(options.file ? options.file : model.source),
        spec_(nextn_layer(*source_)),
        dim_(model.spec.dim),
        eps_(model.spec.eps) {
    for (const LayerSpec& l : model.spec.layers)  // a head in a file of its own, too, turns as the trunk does
      if (l.kv_from >= 0) spec_.rope_base = l.rope_base, spec_.rope = l.rope;
    const SharedTables shared = model.weights->shared();
    embed_ = {shared.embed, shared.embed_scale}, head_ = {shared.head, shared.head_scale};
    const int block = nextn_block(*source_);
    const std::string blk = fmt::format("blk.{}.nextn.", block);
    const Progress quiet;
    Binder b(*source_, backend, quiet, owners_), trunk(*model.source, backend, quiet, owners_);
    layer_ = bind_layer(b, spec_, block, dim_);
    proj_ = b.linear(blk + "eh_proj.weight", dim_, 2 * int64_t{dim_});
    embed_norm_ = b.vector(blk + "enorm.weight", dim_);
    hidden_norm_ = b.vector(blk + "hnorm.weight", dim_);
    norm_ = b.vector(blk + "shared_head_norm.weight", dim_);
    if (b.has(blk + "embed_tokens.weight"))
      embed_ = b.linear(blk + "embed_tokens.weight", model.spec.vocab, dim_, WeightUse::rows);
    std::string head = trunk.has("output.weight") ? "output.weight" : "token_embd.weight";
    Binder* of_head = &trunk;
    if (b.has(blk + "shared_head_head.weight")) {
      head = blk + "shared_head_head.weight";
      head_ = b.linear(head, model.spec.vocab, dim_);
      of_head = &b;
    }
    // A vocabulary's first tokens are its most frequent ones: byte-level merges are listed in that order.
    if (options.head_rows > 0 && options.head_rows < model.spec.vocab)
      head_ = of_head->interleaved(head, model.spec.vocab, dim_, model.spec.vocab, 0, options.head_rows);
  }

  KvLayerSpec cache(DType k, DType v) const override {
    return {KvSpec{k, v, spec_.kv_heads, spec_.head_dim, 0}, 0};
  }

  Io build(Program& p, Arena& arena, const KvPool& kv, int32_t rows, int32_t out_rows) const override {
    arena.reset();
    p.at_layer(-1);
    p.at_rows(RowSet::all);
    Layers layers(p, arena, {&spec_, 1}, dim_, eps_, rows, out_rows);
    Io io;
    io.hidden_in = arena.take(rows, dim_);
    Tensor x = arena.take(rows, dim_);
    const Tensor both = arena.take(rows, 2 * dim_), e = both.columns(0, dim_), h = both.columns(dim_, dim_);
    p.push(EmbedArgs{e, embed_.w, embed_.scale});
    push_norm(p, e, e, embed_norm_, eps_);
    push_norm(p, h, io.hidden_in, hidden_norm_, eps_);
    push_linear(p, x, both, proj_);
    layers.run(spec_, layer_, kv, 0, x, false, rows > 1);
    if (p.rows() == RowSet::all) x = layers.gather(x);
    io.hidden = arena.take(out_rows, dim_);
    io.logits = arena.take(out_rows, head_.w.rows);
    push_norm(p, io.hidden, x, norm_, eps_);
    push_linear(p, io.logits, io.hidden, head_);
    p.at_rows(RowSet::all);
    return io;
  }

 private:
  std::shared_ptr<WeightSource> source_;
  LayerSpec spec_;
  int32_t dim_;
  float eps_;
  Linear embed_, head_, proj_;
  Tensor embed_norm_, hidden_norm_, norm_;
  Layer layer_;
  std::vector<Buffer> owners_;
};

std::unique_ptr<NextnHead> nextn(const Model& model, Backend& backend, const NextnOptions& options) {
  if (nextn_block(options.file ? *options.file : *model.source) < 0) return nullptr;
  if (options.file) {
    const std::string arch = options.file->meta().get_string("general.architecture");
    const int64_t dim = options.file->meta().get_int(arch + ".embedding_length");
    if (arch != model.spec.arch || dim != model.spec.dim)
      throw Error(
          fmt::format("the drafting head '{}' is of a {} model of width {}, this one is a {} of width {}",
                      options.file->path(), arch, dim, model.spec.arch, model.spec.dim),
          "use the head that was made for this model");
  }
  return std::make_unique<Head>(model, backend, options);
}

KvLayerSpec nextn_cache(const WeightSource& source, DType k, DType v) {
  if (nextn_block(source) < 0) return {};
  const LayerSpec l = nextn_layer(source);
  return {KvSpec{k, v, l.kv_heads, l.head_dim, 0}, 0};
}

bool is_head(const WeightSource& source) {
  const auto tensors = source.tensors();
  return nextn_block(source) > 0 && std::none_of(tensors.begin(), tensors.end(), [](const TensorInfo& t) {
           return t.name.starts_with("blk.0.");
         });
}

}  // namespace

const ModelFamily kQwen35{"qwen35", read_spec, bind, build, nextn, nextn_cache, is_head, qwen36_vision};
const ModelFamily kQwen35Moe{"qwen35moe", read_spec, bind, build, nextn, nextn_cache, is_head, qwen36_vision};

}  // namespace carat
