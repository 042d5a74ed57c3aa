// Qwen3.6's eyes (docs/qwen36.md): blocks with LayerNorm and biases over patches that all see each other,
// rotated by row and column; two by two of them are merged into a row.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "core/codec.h"
#include "model/blocks.h"
#include "model/families/qwen36.h"
#include "model/spec_keys.h"
#include "model/tower.h"

namespace carat {
namespace {

constexpr const char* kProjector = "qwen3vl_merger";
constexpr int64_t kLeastPixels = 65536, kMostPixels = 16777216;  // of published preprocessors

struct Affine {  // LayerNorm's, or a product's
  Linear w;
  Tensor weight, bias;
};
struct Layer {
  Affine ln1, q, k, v, o, ln2, up, down;
};
struct Spec {
  int32_t dim = 0, heads = 0, head_dim = 0, ffn = 0, layers = 0, patch = 0, merge = 0, side = 0;
  float eps = 0;
};

Spec read_tower(const WeightSource& source) {
  require_projector(source, "vision", kProjector);
  const SpecKeys k(source.meta(), "clip.vision");
  Spec s;
  s.dim = k.integer("embedding_length", 4, kMaxWidth);
  s.heads = k.integer("attention.head_count", 1, kMaxHeads);
  s.ffn = k.integer("feed_forward_length", 1, kMaxWidth);
  s.layers = k.integer("block_count", 1, kMaxLayers);
  s.patch = k.integer("patch_size", 1, 256);
  s.merge = k.integer_or("spatial_merge_size", 2, 1, 16);
  s.eps = k.number("attention.layer_norm_epsilon", 0, 1);
  s.head_dim = s.dim / s.heads;
  if (s.dim % s.heads || s.head_dim % 4)
    throw Error(fmt::format("the tower's {} columns are not {} heads of a multiple of 4", s.dim, s.heads),
                kSpecHint);
  const TensorInfo& t = source.get("v.position_embd.weight");
  s.side = t.shape.size() == 2
               ? static_cast<int32_t>(std::lround(std::sqrt(std::min<int64_t>(t.shape[0], 1 << 24))))
               : 0;
  if (s.side < 1 || int64_t{s.side} * s.side != t.shape[0] || t.shape[1] != s.dim)
    throw Error("tensor 'v.position_embd.weight' is not a square of positions", kSpecHint);
  return s;
}

// What a picture's i-th row or column of n takes of a table's side: corners meet corners.
struct Between {
  int32_t low, high;
  double part;  // of high
};
Between between(int32_t i, int32_t n, int32_t side) {
  const double at = n > 1 ? static_cast<double>(i) * (side - 1) / (n - 1) : 0;
  const int32_t low = std::min(static_cast<int32_t>(at), side - 1);
  return {low, std::min(low + 1, side - 1), at - low};
}

class QwenVision : public VisionTower {
 public:
  QwenVision(std::shared_ptr<const WeightSource> source, Backend& backend, const Progress& progress)
      : source_(std::move(source)), s_(read_tower(*source_)) {
    Binder b(*source_, backend, progress, owners_);
    bind_patch(b, backend);
    for (int i = 0; i < s_.layers; ++i) layers_.push_back(bind_layer(b, fmt::format("v.blk.{}.", i)));
    merger_norm_ = norm(b, "v.post_ln");
    const int32_t wide = s_.dim * s_.merge * s_.merge;
    const int64_t out = source_->meta().get_int("clip.vision.projection_dim");
    first_ = product(b, "mm.0", wide, wide), second_ = product(b, "mm.2", out, wide);
    std::vector<float> freq;
    std::vector<int32_t> axis;
    const int32_t quarter = s_.head_dim / 4;
    for (const int32_t of : {1, 2})  // height, width
      for (int32_t i = 0; i < quarter; ++i) {
        freq.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / (s_.head_dim / 2))));
        axis.push_back(of);
      }
    rope_ = {b.upload(freq).row<const float>(0), 2 * quarter, 2 * quarter, 0, b.upload_ints(axis)};
    shape_ = {static_cast<int32_t>(out),
              s_.patch * s_.merge,
              s_.merge * s_.merge,
              1 << 16,
              static_cast<int32_t>(source_->meta().get_int_or("clip.vision.image_token_id", -1)),
              "<|image_pad|>",
              {},
              {},
              {"<|vision_start|><|video_pad|><|vision_end|>", "<|video_pad|>", "<|vision_start|>",
               "<|vision_end|>"}};
  }

  GridSize size(const Picture& p, int32_t budget) const override {
    const Metadata& m = source_->meta();
    int64_t most = m.get_int_or("clip.vision.image_max_pixels", kMostPixels);
    if (budget) most = std::min<int64_t>(most, int64_t{budget} * shape_.cell * shape_.cell);
    const int64_t least = std::min(most, m.get_int_or("clip.vision.image_min_pixels", kLeastPixels));
    return qwen_size(p.width, p.height, least, most, shape_.cell);
  }

  void prepare(const Picture& p, Input& in) const override {
    const int32_t patch = s_.patch, cell = shape_.cell, across = p.width / patch, down = p.height / patch;
    const TensorInfo& t = source_->get("v.position_embd.weight");
    std::vector<float> table(static_cast<size_t>(t.elements()));
    for (int64_t r = 0; r < t.shape[0]; ++r)
      decode_row(t.type, t.data + r * row_bytes(t.type, s_.dim), &table[static_cast<size_t>(r * s_.dim)],
                 s_.dim);
    std::array<float, 256> value;
    for (size_t v = 0; v < value.size(); ++v) value[v] = (static_cast<float>(v) / 255.0f - 0.5f) / 0.5f;
    const auto patches = static_cast<size_t>(across) * down;
    in.pixels.resize(patches * 3 * patch * patch), in.positions.resize(patches * s_.dim);
    in.place.clear();
    float *pixel = in.pixels.data(), *position = in.positions.data();
    for (int32_t cy = 0; cy < p.height / cell; ++cy)
      for (int32_t cx = 0; cx < p.width / cell; ++cx)
        for (int32_t i = 0; i < shape_.group; ++i) {
          const int32_t x = cx * s_.merge + i % s_.merge, y = cy * s_.merge + i / s_.merge;
          in.place.insert(in.place.end(), {0, y, x});
          const Between h = between(y, down, s_.side), w = between(x, across, s_.side);
          const auto at = [&](int32_t row, int32_t column) {
            return &table[(static_cast<size_t>(row) * s_.side + column) * s_.dim];
          };
          const float *a = at(h.low, w.low), *b = at(h.low, w.high), *c = at(h.high, w.low),
                      *e = at(h.high, w.high);
          for (int32_t d = 0; d < s_.dim; ++d)
            *position++ =
                static_cast<float>((1 - h.part) * ((1 - w.part) * double{a[d]} + w.part * double{b[d]}) +
                                   h.part * ((1 - w.part) * double{c[d]} + w.part * double{e[d]}));
          pixel = patch_pixels(p, x, y, patch, value, pixel);
        }
  }

  Io build(Program& p, Arena& arena, int32_t patches, bool taps) const override {
    CARAT_CHECK(patches > 0 && patches % shape_.group == 0, "{} patches", patches);
    const auto take = [&](int32_t cols) { return arena.take(patches, cols); };
    Io io;
    io.pixels = take(3 * s_.patch * s_.patch), io.positions = take(s_.dim);
    Tensor x = take(s_.dim);
    const Tensor u = take(s_.dim), q = take(s_.dim), k = take(s_.dim), v = take(s_.dim), h = take(s_.ffn);
    KvView kv;  // of all layers, a page: the step is whole
    kv.k = take(s_.dim).data, kv.v = take(s_.dim).data;
    kv.spec = {DType::f32, DType::f32, s_.heads, s_.head_dim, 0};
    kv.page_tokens = patches;
    kv.k_page_bytes = kv.v_page_bytes = int64_t{patches} * s_.dim * 4;
    const auto tap = [&] {
      if (!taps) return;
      io.taps.push_back(x);
      x = take(s_.dim);
      p.push(PointwiseArgs{.y = x, .x = io.taps.back(), .add = {}, .mul = {}});
    };
    const auto multiply = [&](const Tensor& y, const Tensor& in, const Affine& w, LinearOptions o = {}) {
      o.bias = w.bias;
      push_linear(p, y, in, w.w, o);
    };
    p.at_layer(-1);
    p.at_rows(RowSet::all);
    if (taps) {  // without positions, as the goldens have it
      io.taps.push_back(take(s_.dim));
      multiply(io.taps.back(), io.pixels, patch_);
    }
    multiply(x, io.pixels, patch_, {.residual = io.positions});
    tap();
    for (int32_t i = 0; i < s_.layers; ++i) {
      p.at_layer(i);
      const Layer& l = layers_[static_cast<size_t>(i)];
      p.push(LayerNormArgs{u, x, l.ln1.weight, l.ln1.bias, s_.eps});
      multiply(q, u, l.q), multiply(k, u, l.k), multiply(v, u, l.v);
      QkvPrepArgs prep{};
      prep.q = q, prep.k = k, prep.v = v, prep.rope = rope_, prep.kv = kv;
      p.push(prep);
      const float scale = 1 / std::sqrt(static_cast<float>(s_.head_dim));
      p.push(AttentionArgs{u, q, kv, scale, 0, false, true});
      multiply(x, u, l.o, {.residual = x});
      p.push(LayerNormArgs{u, x, l.ln2.weight, l.ln2.bias, s_.eps});
      multiply(h, u, l.up, {.act = Act::gelu_tanh});
      multiply(x, h, l.down, {.residual = x});
      tap();
    }
    p.at_layer(-1);
    p.push(LayerNormArgs{u, x, merger_norm_.weight, merger_norm_.bias, s_.eps});
    p.at_rows(RowSet::out);
    Tensor merged = u;  // a row's patches side by side
    merged.rows /= shape_.group, merged.cols *= shape_.group, merged.pitch *= shape_.group;
    const Tensor hidden = arena.take(merged.rows, merged.cols);
    io.rows = arena.take(merged.rows, shape_.dim);
    multiply(hidden, merged, first_, {.act = Act::gelu});
    multiply(io.rows, hidden, second_);
    p.at_rows(RowSet::all);
    return io;
  }

 private:
  // Both frames of a still picture are the same: their projections add up.
  void bind_patch(Binder& b, Backend& backend) {
    const int32_t in = 3 * s_.patch * s_.patch;
    std::vector<float> sum(static_cast<size_t>(s_.dim) * in);
    for (const char* name : {"v.patch_embd.weight", "v.patch_embd.weight.1"}) {
      const TensorInfo& t = source_->get(name);
      if (t.elements() != static_cast<int64_t>(sum.size()) || info(t.type).family != Family::plain)
        throw Error(fmt::format("tensor '{}' is not a projection of patches", name), kSpecHint);
      std::vector<float> one(sum.size());
      decode_row(t.type, t.data, one.data(), static_cast<int64_t>(one.size()));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += one[i];
    }
    patch_sum_ = std::move(sum);
    const Tensor host = make_tensor(patch_sum_.data(), DType::f32, s_.dim, in);
    Buffer owner;
    patch_.w.w = backend.place_weight(host, WeightUse::product, owner);
    if (owner.size()) owners_.push_back(std::move(owner));
    patch_.bias = b.vector("v.patch_embd.bias", s_.dim);
  }
  Affine norm(Binder& b, const std::string& name) const {
    return {{}, b.vector(name + ".weight", s_.dim), b.vector(name + ".bias", s_.dim)};
  }
  Affine product(Binder& b, const std::string& name, int64_t out, int64_t in) const {
    return {b.linear(name + ".weight", out, in), {}, b.vector(name + ".bias", out)};
  }
  Layer bind_layer(Binder& b, const std::string& blk) const {
    Layer w;
    w.ln1 = norm(b, blk + "ln1"), w.ln2 = norm(b, blk + "ln2");
    const std::vector<float> bias = b.read(blk + "attn_qkv.bias", 3 * int64_t{s_.dim});
    Affine* parts[] = {&w.q, &w.k, &w.v};
    for (int32_t i = 0; i < 3; ++i) {
      parts[i]->w = b.interleaved(blk + "attn_qkv.weight", 3 * int64_t{s_.dim}, s_.dim, 3 * int64_t{s_.dim},
                                  int64_t{i} * s_.dim, s_.dim);
      parts[i]->bias = b.upload({bias.begin() + i * s_.dim, bias.begin() + (i + 1) * s_.dim});
    }
    w.o = product(b, blk + "attn_out", s_.dim, s_.dim);
    w.up = product(b, blk + "ffn_up", s_.ffn, s_.dim);
    w.down = product(b, blk + "ffn_down", s_.dim, s_.ffn);
    return w;
  }

  std::shared_ptr<const WeightSource> source_;
  Spec s_;
  std::vector<Buffer> owners_;
  std::vector<float> patch_sum_;
  Affine patch_, merger_norm_, first_, second_;
  Rope rope_;
  std::vector<Layer> layers_;
};

}  // namespace

std::shared_ptr<const VisionTower> qwen36_vision(std::shared_ptr<const WeightSource> towers, Backend& backend,
                                                 const Progress& progress) {
  return std::make_shared<QwenVision>(std::move(towers), backend, progress);
}

}  // namespace carat
