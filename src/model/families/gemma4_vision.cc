// Gemma 4's eyes (docs/gemma4.md, "Vision and audio"): blocks like the text model's over patches that all
// see each other, rotated by column and row; three by three of them become a row.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "core/codec.h"
#include "model/blocks.h"
#include "model/families/gemma4.h"
#include "model/families/gemma4_limits.h"
#include "model/spec_keys.h"
#include "model/tower.h"

namespace carat {
namespace {

struct Layer {
  Tensor attn_norm, post_attn_norm, q_norm, k_norm, ffn_norm, post_ffn_norm;
  Limited q, k, v, o, gate, up, down;
  bool plain_mlp() const { return !gate.in.any() && !gate.out.any() && !up.in.any() && !up.out.any(); }
};
struct Spec {
  int32_t dim = 0, heads = 0, head_dim = 0, ffn = 0, layers = 0, patch = 0, pool = 0, table = 0;
  float eps = 0, base = 0;
};

constexpr const char* kProjector = "gemma4v";
constexpr int32_t kUsualRows = 280;

Spec read_tower(const WeightSource& source) {
  require_projector(source, "vision", kProjector);
  const SpecKeys k(source.meta(), "clip.vision");
  Spec s;
  s.dim = k.integer("embedding_length", 4, kMaxWidth);
  s.heads = k.integer("attention.head_count", 1, kMaxHeads);
  s.ffn = k.integer("feed_forward_length", 1, kMaxWidth);
  s.layers = k.integer("block_count", 1, kMaxLayers);
  s.patch = k.integer("patch_size", 1, 256);
  s.pool = k.integer_or("projector.scale_factor", 3, 1, 16);
  s.eps = k.number("attention.layer_norm_epsilon", 0, 1);
  s.base = k.has("rope.freq_base") ? k.number("rope.freq_base", 1, 1e12) : 100;
  s.head_dim = s.dim / s.heads;
  if (s.dim % s.heads || s.head_dim % 4)
    throw Error(fmt::format("the tower's {} columns are not {} heads of a multiple of 4", s.dim, s.heads),
                kSpecHint);
  const TensorInfo& t = source.get("v.position_embd.weight");
  if (t.shape.size() != 3 || t.shape[0] != 2 || t.shape[2] != s.dim || t.shape[1] < 1 || t.shape[1] > 1 << 20)
    throw Error("tensor 'v.position_embd.weight' is not [2, positions, width]", kSpecHint);
  s.table = static_cast<int32_t>(t.shape[1]);
  return s;
}

// Where element j of a head stands in files: there each half of a head, of columns and of rows, has its pairs
// a quarter apart; here all pairs are half a head apart.
int32_t from_halves(int32_t j, int32_t head_dim) {
  const int32_t quarter = head_dim / 4, part = j / quarter;
  return part == 1 ? j + quarter : part == 2 ? j - quarter : j;
}

class Gemma4Vision : public VisionTower {
 public:
  Gemma4Vision(std::shared_ptr<const WeightSource> source, Backend& backend, const Progress& progress)
      : source_(std::move(source)), s_(read_tower(*source_)) {
    Binder b(*source_, backend, progress, owners_);
    patch_ = b.flat("v.patch_embd.weight", s_.dim, 3 * s_.patch * s_.patch);
    for (int i = 0; i < s_.layers; ++i) layers_.push_back(bind_layer(b, fmt::format("v.blk.{}.", i)));
    const int64_t out = source_->meta().get_int("clip.vision.projection_dim");
    project_ = b.linear("mm.input_projection.weight", out, s_.dim);
    bind_exit(b);
    std::vector<float> freq;
    std::vector<int32_t> axis;
    const int32_t quarter = s_.head_dim / 4;
    for (const int32_t of : {2, 1})  // width, height
      for (int32_t i = 0; i < quarter; ++i) {
        freq.push_back(static_cast<float>(std::pow(double{s_.base}, -2.0 * i / (s_.head_dim / 2))));
        axis.push_back(of);
      }
    rope_ = {b.upload(freq).row<const float>(0), 2 * quarter, 2 * quarter, 0, b.upload_ints(axis)};
    shape_ = {static_cast<int32_t>(out),
              s_.patch * s_.pool,
              s_.pool * s_.pool,
              s_.table / s_.pool,
              static_cast<int32_t>(source_->meta().get_int_or("clip.vision.image_token_id", -1)),
              "<|image|>",
              "<|image>",
              "<image|>",
              {"<|video|>", "<|video|>", "<|image>", "<image|>", true}};
  }

  GridSize size(const Picture& p, int32_t budget) const override {
    return gemma_size(p.width, p.height, budget ? budget : kUsualRows, s_.patch, s_.pool);
  }

  void prepare(const Picture& p, Input& in) const override {
    const int32_t cell = shape_.cell, patch = s_.patch, across = p.width / cell, down = p.height / cell;
    const auto positions = [&](int32_t which, int32_t n) {
      const TensorInfo& t = source_->get("v.position_embd.weight");
      std::vector<float> rows(static_cast<size_t>(n) * s_.dim);
      for (int32_t i = 0; i < n; ++i)
        decode_row(t.type, t.data + (int64_t{which} * s_.table + i) * row_bytes(t.type, s_.dim),
                   &rows[static_cast<size_t>(i) * s_.dim], s_.dim);
      return rows;
    };
    const std::vector<float> columns = positions(0, p.width / patch), rows = positions(1, p.height / patch);
    std::array<float, 256> value;
    for (size_t v = 0; v < value.size(); ++v) value[v] = 2 * (static_cast<float>(v) / 255.0f - 0.5f);
    const auto patches = static_cast<size_t>(across) * down * shape_.group;
    in.pixels.resize(patches * 3 * patch * patch), in.positions.resize(patches * s_.dim);
    in.place.clear();
    float *pixel = in.pixels.data(), *position = in.positions.data();
    for (int32_t cy = 0; cy < down; ++cy)
      for (int32_t cx = 0; cx < across; ++cx)
        for (int32_t i = 0; i < shape_.group; ++i) {
          const int32_t x = cx * s_.pool + i % s_.pool, y = cy * s_.pool + i / s_.pool;
          in.place.insert(in.place.end(), {0, y, x});
          const float *column = &columns[static_cast<size_t>(x) * s_.dim],
                      *row = &rows[static_cast<size_t>(y) * s_.dim];
          for (int32_t d = 0; d < s_.dim; ++d) *position++ = column[d] + row[d];
          pixel = patch_pixels(p, x, y, patch, value, pixel);
        }
  }

  Io build(Program& program, Arena& arena, int32_t patches, bool taps) const override;

 private:
  friend class VisionStep;

  Limited limited(Binder& b, const std::string& name, int64_t out, int64_t in, bool rotated = false) {
    Limited l;
    if (rotated) {
      std::vector<int64_t> rows;
      for (int64_t r = 0; r < out; ++r) {
        const auto j = static_cast<int32_t>(r % s_.head_dim);
        rows.push_back(r - j + from_halves(j, s_.head_dim));
      }
      static_cast<Linear&>(l) = b.picked(name + ".weight", out, in, rows);
    } else {
      static_cast<Linear&>(l) = b.linear(name + ".weight", out, in);
    }
    read_limits(b, name, l);
    return l;
  }
  Tensor head_norm(Binder& b, const std::string& name) const {
    const std::vector<float> stored = b.read(name, s_.head_dim);
    std::vector<float> v;
    for (int32_t j = 0; j < s_.head_dim; ++j) v.push_back(stored[from_halves(j, s_.head_dim)]);
    return b.upload(v);
  }
  Layer bind_layer(Binder& b, const std::string& blk) {
    Layer w;
    w.attn_norm = b.vector(blk + "ln1.weight", s_.dim);
    w.q = limited(b, blk + "attn_q", s_.dim, s_.dim, true);
    w.k = limited(b, blk + "attn_k", s_.dim, s_.dim, true);
    w.v = limited(b, blk + "attn_v", s_.dim, s_.dim);
    w.o = limited(b, blk + "attn_out", s_.dim, s_.dim);
    w.q_norm = head_norm(b, blk + "attn_q_norm.weight");
    w.k_norm = head_norm(b, blk + "attn_k_norm.weight");
    w.post_attn_norm = b.vector(blk + "attn_post_norm.weight", s_.dim);
    w.ffn_norm = b.vector(blk + "ln2.weight", s_.dim);
    w.gate = limited(b, blk + "ffn_gate", s_.ffn, s_.dim);
    w.up = limited(b, blk + "ffn_up", s_.ffn, s_.dim);
    w.down = limited(b, blk + "ffn_down", s_.dim, s_.ffn);
    w.post_ffn_norm = b.vector(blk + "ffn_post_norm.weight", s_.dim);
    return w;
  }
  // The mean of a row's patches times the root of the width; with a standardization, less its bias, scaled.
  void bind_exit(Binder& b) {
    const float gain = std::sqrt(static_cast<float>(s_.dim)) / static_cast<float>(s_.pool * s_.pool);
    mean_ = b.upload(std::vector<float>(static_cast<size_t>(s_.dim), gain));
    if (!b.has("v.std_bias")) return;
    std::vector<float> bias = b.read("v.std_bias", s_.dim);
    for (float& v : bias) v = -v;
    std_bias_ = b.upload(bias);
    std_scale_ = b.vector("v.std_scale", s_.dim);
  }

  std::shared_ptr<const WeightSource> source_;
  Spec s_;
  std::vector<Buffer> owners_;
  Linear patch_, project_;
  Rope rope_;
  std::vector<Layer> layers_;
  Tensor mean_, std_bias_, std_scale_;
};

class VisionStep {
 public:
  VisionStep(const Gemma4Vision& t, Program& p, Arena& arena, int32_t patches, bool taps)
      : t_(t), s_(t.s_), p_(p), arena_(arena), patches_(patches), taps_(taps) {
    const auto take = [&](int32_t cols) { return arena.take(patches, cols); };
    io_.pixels = take(3 * s_.patch * s_.patch), io_.positions = take(s_.dim);
    x_ = take(s_.dim), u_ = take(s_.dim), f_ = take(s_.dim);
    q_ = take(s_.dim), k_ = take(s_.dim), v_ = take(s_.dim);
    h_ = take(s_.ffn);
    const bool limits =
        std::any_of(t.layers_.begin(), t.layers_.end(), [](const Layer& l) { return !l.plain_mlp(); });
    if (limits) up_ = take(s_.ffn);
    // All layers use one cache, a page: the step is whole.
    kv_.k = take(s_.dim).data, kv_.v = take(s_.dim).data;
    kv_.spec = {DType::f32, DType::f32, s_.heads, s_.head_dim, 0};
    kv_.page_tokens = patches;
    kv_.k_page_bytes = kv_.v_page_bytes = int64_t{patches} * s_.dim * 4;
  }

  VisionTower::Io run() {
    p_.at_layer(-1);
    p_.at_rows(RowSet::all);
    push_linear(p_, x_, io_.pixels, t_.patch_, {.residual = io_.positions});
    tap();
    for (int32_t i = 0; i < s_.layers; ++i) {
      p_.at_layer(i);
      attention(t_.layers_[static_cast<size_t>(i)]);
      mlp(t_.layers_[static_cast<size_t>(i)]);
      tap();
    }
    p_.at_layer(-1);
    exit();
    return std::move(io_);
  }

 private:
  void tap() {
    if (!taps_) return;
    io_.taps.push_back(x_);
    x_ = arena_.take(patches_, s_.dim);
    last_ = io_.taps.back();
  }
  // What the layer begins with: x, or the tap that holds it.
  const Tensor& stream() const { return last_.valid() ? last_ : x_; }

  // x within limits; in a copy, which holds until the next call with others.
  Tensor within(const Tensor& x, const Limits& l) {
    if (!l.any()) return x;
    if (kept_ == l && kept_of_ == x.data) return kept_in_;
    Tensor& to = x.cols == s_.dim ? narrow_ : wide_;
    if (!to.valid()) to = arena_.take(patches_, x.cols);
    p_.push(PointwiseArgs{.y = to, .x = x, .add = {}, .mul = {}, .low = l.low, .high = l.high});
    kept_ = l, kept_of_ = x.data;
    return kept_in_ = to;
  }
  void product(const Tensor& y, const Tensor& x, const Limited& w) {
    push_linear(p_, y, within(x, w.in), w);
    if (w.out.any())
      p_.push(PointwiseArgs{.y = y, .x = y, .add = {}, .mul = {}, .low = w.out.low, .high = w.out.high});
  }
  // x = stream + norm(f)
  void add_norm(const Tensor& weight) {
    push_norm(p_, x_, f_, weight, s_.eps, {.residual = stream()});
    last_ = {};
  }
  void norm(const Tensor& weight) {
    push_norm(p_, u_, stream(), weight, s_.eps);
    kept_of_ = nullptr;
  }

  void attention(const Layer& w) {
    norm(w.attn_norm);
    product(q_, u_, w.q), product(k_, u_, w.k), product(v_, u_, w.v);
    QkvPrepArgs prep{.q = q_,
                     .k = k_,
                     .v = v_,
                     .q_norm = w.q_norm,
                     .k_norm = w.k_norm,
                     .rope = t_.rope_,
                     .eps = s_.eps,
                     .v_norm = true,
                     .kv = kv_};
    p_.push(prep);
    p_.push(AttentionArgs{
        .y = u_, .q = q_, .kv = kv_, .scale = 1, .softcap = 0, .both_ways = false, .blocks = true});
    kept_of_ = nullptr;
    product(f_, u_, w.o);
    add_norm(w.post_attn_norm);
  }
  void mlp(const Layer& w) {
    norm(w.ffn_norm);
    if (w.plain_mlp()) {
      p_.push(GateUpArgs{h_, u_, w.gate.w, w.up.w, w.gate.scale, w.up.scale, Act::gelu_tanh});
    } else {
      product(up_, u_, w.up);
      push_linear(p_, h_, within(u_, w.gate.in), w.gate);
      p_.push(PointwiseArgs{.y = h_,
                            .x = h_,
                            .add = {},
                            .mul = up_,
                            .low = w.gate.out.low,
                            .high = w.gate.out.high,
                            .act = Act::gelu_tanh});
    }
    kept_of_ = nullptr;
    product(f_, h_, w.down);
    add_norm(w.post_ffn_norm);
  }

  // Patch `i` of every row, as a matrix over rows.
  Tensor patch_of_rows(int32_t i) const {
    const int32_t group = t_.shape_.group;
    Tensor t = stream();
    t.data += i * t.pitch, t.rows /= group, t.pitch *= group;
    return t;
  }
  void exit() {
    const int32_t rows = patches_ / t_.shape_.group, group = t_.shape_.group;
    p_.at_rows(RowSet::out);
    const Tensor pooled = arena_.take(rows, s_.dim), normed = arena_.take(rows, s_.dim);
    for (int32_t i = 1; i < std::max(2, group); ++i)
      p_.push(PointwiseArgs{.y = pooled,
                            .x = i == 1 ? patch_of_rows(0) : pooled,
                            .add = group > 1 ? patch_of_rows(i) : Tensor{},
                            .mul = i + 1 >= group ? t_.mean_ : Tensor{}});
    if (t_.std_bias_.valid())
      p_.push(PointwiseArgs{.y = pooled, .x = pooled, .add = t_.std_bias_, .mul = t_.std_scale_});
    if (taps_) io_.taps.push_back(pooled);
    push_norm(p_, normed, pooled, {}, s_.eps);
    io_.rows = arena_.take(rows, t_.shape_.dim);
    push_linear(p_, io_.rows, normed, t_.project_);
    p_.at_rows(RowSet::all);
  }

  const Gemma4Vision& t_;
  const Spec& s_;
  Program& p_;
  Arena& arena_;
  int32_t patches_;
  bool taps_;
  VisionTower::Io io_;
  KvView kv_;
  Tensor x_, u_, f_, q_, k_, v_, h_, up_, last_;
  Tensor narrow_, wide_, kept_in_;
  Limits kept_;
  const std::byte* kept_of_ = nullptr;
};

VisionTower::Io Gemma4Vision::build(Program& program, Arena& arena, int32_t patches, bool taps) const {
  CARAT_CHECK(patches > 0 && patches % shape_.group == 0, "{} patches", patches);
  return VisionStep(*this, program, arena, patches, taps).run();
}

}  // namespace

std::shared_ptr<const VisionTower> gemma4_vision(std::shared_ptr<const WeightSource> source, Backend& backend,
                                                 const Progress& progress) {
  return std::make_shared<Gemma4Vision>(std::move(source), backend, progress);
}

}  // namespace carat
