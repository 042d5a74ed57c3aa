// Gemma 4's ears (docs/gemma4.md, "Vision and audio"): two convolutions make a row of four frames, blocks of
// conformers run over the rows, each of which sees itself and eleven before it.
//
// The convolutions are products with views: a picture of frames and frequencies, [C] channels each, lies in
// memory with a border of zeros, `wide` points a line. Point r of the halved picture is the weights of nine
// points, 2 r and those right of it and below, times them; at the end of each line that makes points which
// are none, and which nothing reads.
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "core/codec.h"
#include "model/blocks.h"
#include "model/families/gemma4.h"
#include "model/families/gemma4_limits.h"
#include "model/sound_tower.h"

namespace carat {
namespace {

constexpr const char* kProjector = "gemma4a";
constexpr int32_t kWindow = 12, kTaps = 5, kKernel = 3;
constexpr float kCap = 50, kHalf = 0.5f;
constexpr double kSeconds = 30;  // 750 rows: what the reference takes

struct Spec {
  int32_t dim = 0, heads = 0, head_dim = 0, ffn = 0, layers = 0, out = 0;
  int32_t channels[2] = {};          // of the two convolutions
  int32_t halves = 0, quarters = 0;  // frequencies behind the first and the second
  float eps = 0;
  int32_t wide() const { return halves + 2; }  // points of a line between the convolutions
};
struct Feed {
  Tensor norm, post_norm;
  Limited up, down;
};
struct Layer {
  Feed before, after;
  Tensor attn_norm, post_attn_norm, q_scale, k_scale, ahead;
  Limited q, k, v, o;
  Tensor conv_norm, conv_out_norm, conv;
  Limited conv_in, conv_out;
  Tensor out_norm;
};

int32_t first_size(const WeightSource& source, const std::string& name, size_t dims) {
  const TensorInfo& t = source.get(name);
  if (t.shape.size() != dims || t.shape[0] < 1 || t.shape[0] > kMaxWidth)
    throw Error(fmt::format("tensor '{}' has not the shape that it has in towers for sound", name),
                kSpecHint);
  return static_cast<int32_t>(t.shape[0]);
}

Spec read_tower(const WeightSource& source) {
  require_projector(source, "audio", kProjector);
  const SpecKeys k(source.meta(), "clip.audio");
  Spec s;
  s.dim = k.integer("embedding_length", 4, kMaxWidth);
  s.heads = k.integer("attention.head_count", 1, kMaxHeads);
  s.ffn = k.integer("feed_forward_length", 1, kMaxWidth);
  s.layers = k.integer("block_count", 1, kMaxLayers);
  s.eps = k.number("attention.layer_norm_epsilon", 0, 1);
  s.head_dim = s.dim / s.heads;
  if (s.dim % s.heads || s.dim % 2)
    throw Error(fmt::format("the tower's {} columns are not {} heads", s.dim, s.heads), kSpecHint);
  if (k.integer("num_mel_bins", 1, kMaxWidth) != LogMel::kBins)
    throw Error(fmt::format("the tower hears other features than {} bins", LogMel::kBins), kSpecHint);
  s.halves = (LogMel::kBins + 1) / 2, s.quarters = (s.halves + 1) / 2;
  for (int i = 0; i < 2; ++i) s.channels[i] = first_size(source, fmt::format("a.conv1d.{}.weight", i), 4);
  s.out = first_size(source, "a.pre_encode.out.weight", 2);
  return s;
}

std::vector<float> values_of(const WeightSource& source, const std::string& name, int64_t n) {
  const TensorInfo& t = source.get(name);
  if (t.elements() != n || info(t.type).family != Family::plain)
    throw Error(fmt::format("tensor '{}' is not {} floats", name, n), kSpecHint);
  std::vector<float> v(static_cast<size_t>(n));
  decode_row(t.type, t.data, v.data(), n);
  return v;
}

class Gemma4Sound : public SoundTower {
 public:
  Gemma4Sound(std::shared_ptr<const WeightSource> source, Backend& backend, const Progress& progress)
      : source_(std::move(source)), s_(read_tower(*source_)) {
    Binder b(*source_, backend, progress, owners_);
    bind_convolutions(b);
    enter_ = b.linear("a.input_projection.weight", s_.dim, int64_t{s_.quarters} * s_.channels[1]);
    for (int i = 0; i < s_.layers; ++i) layers_.push_back(bind_layer(b, fmt::format("a.blk.{}.", i)));
    const int64_t out = source_->meta().get_int("clip.audio.projection_dim");
    leave_ = b.linear("a.pre_encode.out.weight", s_.out, s_.dim);
    leave_bias_ = b.vector("a.pre_encode.out.bias", s_.out);
    project_ = b.linear("mm.a.input_projection.weight", out, s_.out);
    shape_ = {static_cast<int32_t>(out),
              kSeconds,
              static_cast<int32_t>(source_->meta().get_int_or("clip.audio.audio_token_id", -1)),
              "<|audio|>",
              "<|audio>",
              "<audio|>"};
  }

  int32_t rows(size_t samples) const override { return sound_tokens(samples); }

  Input prepare(std::span<const float> samples) const override {
    const LogMel mel = log_mel(samples);
    Input in;
    in.rows = mel.tokens();
    in.points = points(in.rows), in.halved = in.rows * s_.wide();
    in.values.assign(static_cast<size_t>(in.points) * kKernel * kKernel, 0);
    const int32_t lines = (mel.frames + 1) / 2;
    for (int32_t line = 0; line < lines; ++line)
      for (int32_t column = 0; column < s_.halves; ++column) {
        const int32_t point = (line + 1) * s_.wide() + column + 1;  // behind the border
        float* to = &in.values[static_cast<size_t>(point) * kKernel * kKernel];
        for (int32_t i = 0; i < kKernel * kKernel; ++i) {
          const int32_t frame = 2 * line + i / kKernel - 1, bin = 2 * column + i % kKernel - 1;
          if (frame >= 0 && frame < mel.frames && bin >= 0 && bin < LogMel::kBins)
            to[i] = mel.values[static_cast<size_t>(frame) * LogMel::kBins + bin];
        }
      }
    return in;
  }

  Io build(Program& first, Program& second, Arena& arena, int32_t rows, bool taps) const override;

 private:
  friend class SoundStep;

  // Of the picture between the convolutions, as far as the second reads it for so many rows.
  int32_t points(int32_t rows) const { return 2 * (rows + 1) * s_.wide() + 1; }

  void bind_convolutions(Binder& b) {
    const int32_t c0 = s_.channels[0], c1 = s_.channels[1], taps = kKernel * kKernel;
    conv0_ = b.flat("a.conv1d.0.weight", c0, taps);
    const std::vector<float> w = values_of(*source_, "a.conv1d.1.weight", int64_t{c1} * c0 * taps);
    // Points 0 and 1 of a line lie side by side in the view, the third is apart.
    for (int line = 0; line < kKernel; ++line)
      for (const auto& [from, n] : {std::pair{0, 2}, std::pair{2, 1}}) {
        std::vector<float> part;
        for (int32_t o = 0; o < c1; ++o)
          for (int at = from; at < from + n; ++at)
            for (int32_t c = 0; c < c0; ++c)
              part.push_back(w[(static_cast<size_t>(o) * c0 + c) * taps + line * kKernel + at]);
        conv1_.push_back({make_tensor(b.upload(part).data, DType::f32, c1, n * c0)});
      }
    norm_[0] = b.vector("a.conv1d.0.norm.weight", c0);
    norm_[1] = b.vector("a.conv1d.1.norm.weight", c1);
  }

  Limited limited(Binder& b, const std::string& name, int64_t out, int64_t in) const {
    Limited l;
    static_cast<Linear&>(l) = b.linear(name + ".weight", out, in);
    read_limits(b, name, l);
    return l;
  }
  // Half of its result is added.
  Feed bind_feed(Binder& b, const std::string& blk, const std::string& suffix) const {
    Feed f;
    f.norm = b.vector(blk + "ffn_norm" + suffix + ".weight", s_.dim);
    f.up = limited(b, blk + "ffn_up" + suffix, s_.ffn, s_.dim);
    f.down = limited(b, blk + "ffn_down" + suffix, s_.dim, s_.ffn);
    std::vector<float> post = b.read(blk + "ffn_post_norm" + suffix + ".weight", s_.dim);
    for (float& v : post) v *= kHalf;
    f.post_norm = b.upload(post);
    return f;
  }
  Layer bind_layer(Binder& b, const std::string& blk) const {
    Layer w;
    const auto vector = [&](const char* name) { return b.vector(blk + name, s_.dim); };
    w.before = bind_feed(b, blk, ""), w.after = bind_feed(b, blk, "_1");
    w.attn_norm = vector("attn_pre_norm.weight"), w.post_attn_norm = vector("attn_post_norm.weight");
    w.q = limited(b, blk + "attn_q", s_.dim, s_.dim), w.k = limited(b, blk + "attn_k", s_.dim, s_.dim);
    w.v = limited(b, blk + "attn_v", s_.dim, s_.dim), w.o = limited(b, blk + "attn_out", s_.dim, s_.dim);
    bind_scales(b, blk, w);
    w.ahead = b.upload(distances(b.read_matrix(blk + "attn_k_rel.weight", s_.dim, s_.dim)));
    w.ahead = make_tensor(w.ahead.data, DType::f32, kWindow, s_.dim);
    // The two norms have each other's names in such files.
    w.conv_norm = vector("conv_norm.weight"), w.conv_out_norm = vector("norm_conv.weight");
    w.conv_in = limited(b, blk + "conv_pw1", 2 * int64_t{s_.dim}, s_.dim);
    w.conv_out = limited(b, blk + "conv_pw2", s_.dim, s_.dim);
    const std::vector<float> conv = values_of(*source_, blk + "conv_dw.weight", int64_t{s_.dim} * kTaps);
    std::vector<float> by_tap;
    for (int32_t t = 0; t < kTaps; ++t)
      for (int32_t c = 0; c < s_.dim; ++c) by_tap.push_back(conv[static_cast<size_t>(c * kTaps + t)]);
    w.conv = make_tensor(b.upload(by_tap).data, DType::f32, kTaps, s_.dim);
    w.out_norm = vector("ln2.weight");
    return w;
  }
  // What queries and keys are multiplied with; the files' per_dim_scale has its softplus already.
  void bind_scales(Binder& b, const std::string& blk, Layer& w) const {
    const std::vector<float> each = b.read(blk + "per_dim_scale.weight", s_.head_dim);
    const double scale = 1 / (std::sqrt(double{s_.head_dim * 1.0}) * std::numbers::ln2);
    std::vector<float> q;
    for (int32_t i = 0; i < s_.dim; ++i)
      q.push_back(static_cast<float>(scale * each[static_cast<size_t>(i % s_.head_dim)]));
    w.q_scale = b.upload(q);
    const auto k = static_cast<float>(std::log2(1 + std::numbers::e));
    w.k_scale = b.upload(std::vector<float>(static_cast<size_t>(s_.dim), k));
  }
  // [kWindow, dim]: what a key is more for standing so many rows ahead of the query: sines, then cosines of
  // the distance, through the layer's matrix.
  std::vector<float> distances(const std::vector<float>& matrix) const {
    const int32_t n = s_.dim / 2;
    const double step = std::log(1e4) / std::max(n - 1, 1);
    std::vector<float> out;
    for (int32_t distance = 0; distance < kWindow; ++distance) {
      std::vector<double> wave;
      for (int32_t i = 0; i < n; ++i) wave.push_back(std::sin(distance * std::exp(-step * i)));
      for (int32_t i = 0; i < n; ++i) wave.push_back(std::cos(distance * std::exp(-step * i)));
      for (int32_t o = 0; o < s_.dim; ++o) {
        double sum = 0;
        for (int32_t i = 0; i < s_.dim; ++i)
          sum += double{matrix[static_cast<size_t>(o) * s_.dim + i]} * wave[static_cast<size_t>(i)];
        out.push_back(static_cast<float>(sum));
      }
    }
    return out;
  }

  std::shared_ptr<const WeightSource> source_;
  Spec s_;
  std::vector<Buffer> owners_;
  Linear conv0_, enter_, leave_, project_;
  std::vector<Linear> conv1_;
  Tensor norm_[2], leave_bias_;
  std::vector<Layer> layers_;
};

class SoundStep {
 public:
  SoundStep(const Gemma4Sound& t, Program& first, Program& second, Arena& arena, int32_t rows, bool taps)
      : t_(t), s_(t.s_), first_(first), p_(second), arena_(arena), rows_(rows), taps_(taps) {
    const auto take = [&](int32_t cols) { return arena.take(rows, cols); };
    x_ = take(s_.dim), u_ = take(s_.dim), f_ = take(s_.dim), narrow_ = take(s_.dim);
    q_ = take(s_.dim), k_ = take(s_.dim), v_ = take(s_.dim);
    h_ = take(std::max(s_.ffn, 2 * s_.dim));
    // All layers use one state: the step is whole.
    state_.base_floats = int64_t{kTaps - 1} * s_.dim, state_.entry_floats = s_.dim;
    state_.base = arena.take(kTaps - 1, s_.dim).row<float>(0);
    state_.spec = {1, 1, 1, 16, s_.dim, kTaps};
  }

  SoundTower::Io run() {
    const Tensor picture = convolve();
    push_linear(p_, x_, picture, t_.enter_);
    tap(x_);
    for (int32_t i = 0; i < s_.layers; ++i) {
      p_.at_layer(i);
      const Layer& w = t_.layers_[static_cast<size_t>(i)];
      feed(w.before);
      attention(w);
      convolution(w);
      feed(w.after);
      push_norm(p_, x_, x_, w.out_norm, s_.eps);
      tap(x_);
    }
    p_.at_layer(-1);
    leave();
    return std::move(io_);
  }

 private:
  void tap(const Tensor& x) {
    if (!taps_) return;
    io_.taps.push_back(arena_.take(rows_, x.cols));
    p_.push(PointwiseArgs{.y = io_.taps.back(), .x = x, .add = {}, .mul = {}});
  }

  // The two convolutions; a row of what it returns is the frequencies of one time.
  Tensor convolve() {
    constexpr float kConvEps = 1e-6f;
    const int32_t c0 = s_.channels[0], c1 = s_.channels[1], wide = s_.wide(), points = t_.points(rows_);
    io_.values = arena_.take(points, kKernel * kKernel);
    const Tensor between = arena_.take(points, c0), out = arena_.take(rows_ * wide, c1);
    first_.at_rows(RowSet::all);
    push_linear(first_, between, io_.values, t_.conv0_);
    first_.push(LayerNormArgs{between, between, t_.norm_[0], {}, kConvEps});
    first_.push(PointwiseArgs{.y = between, .x = between, .add = {}, .mul = {}, .low = 0});
    first_.at_rows(RowSet::out);
    for (size_t i = 0; i < t_.conv1_.size(); ++i) {
      Tensor view = between;
      view.data += (static_cast<int64_t>(i / 2) * wide + (i % 2 ? 2 : 0)) * between.pitch;
      view.rows = rows_ * wide, view.cols = t_.conv1_[i].w.cols, view.pitch = 2 * between.pitch;
      push_linear(first_, out, view, t_.conv1_[i], {.residual = i ? out : Tensor{}});
    }
    first_.push(LayerNormArgs{out, out, t_.norm_[1], {}, kConvEps});
    first_.push(PointwiseArgs{.y = out, .x = out, .add = {}, .mul = {}, .low = 0});
    Tensor lines = out;
    lines.rows = rows_, lines.cols = s_.quarters * c1, lines.pitch = wide * out.pitch;
    return lines;
  }

  Tensor columns(const Tensor& t, int32_t first, int32_t n) const { return t.columns(first, n); }
  void within(const Tensor& y, const Tensor& x, const Limits& l) {
    p_.push(PointwiseArgs{.y = y, .x = x, .add = {}, .mul = {}, .low = l.low, .high = l.high});
  }
  // y = what goes out of w, within its limits and times `mul`. x stays.
  void product(const Tensor& y, const Tensor& x, const Limited& w, const Tensor& mul = {},
               Act act = Act::none) {
    Tensor in = x;
    if (w.in.any()) within(narrow_, x, w.in), in = narrow_;
    push_linear(p_, y, in, w);
    if (w.out.any() || mul.valid() || act != Act::none)
      p_.push(PointwiseArgs{
          .y = y, .x = y, .add = {}, .mul = mul, .low = w.out.low, .high = w.out.high, .act = act});
  }

  void feed(const Feed& w) {
    const Tensor h = columns(h_, 0, s_.ffn);
    push_norm(p_, u_, x_, w.norm, s_.eps);
    product(h, u_, w.up, {}, Act::silu);
    if (w.down.in.any()) within(h, h, w.down.in);
    push_linear(p_, f_, h, w.down);
    if (w.down.out.any()) within(f_, f_, w.down.out);
    push_norm(p_, x_, f_, w.post_norm, s_.eps, {.residual = x_});
  }
  void attention(const Layer& w) {
    push_norm(p_, u_, x_, w.attn_norm, s_.eps);
    product(q_, u_, w.q, w.q_scale), product(k_, u_, w.k, w.k_scale), product(v_, u_, w.v);
    p_.push(BandAttentionArgs{u_, q_, k_, v_, w.ahead, s_.heads, kCap});
    product(f_, u_, w.o);
    push_norm(p_, x_, f_, w.post_attn_norm, s_.eps, {.residual = x_});
  }
  void convolution(const Layer& w) {
    const Tensor both = columns(h_, 0, 2 * s_.dim), value = columns(both, 0, s_.dim),
                 gate = columns(both, s_.dim, s_.dim);
    const Limits& out = w.conv_in.out;
    push_norm(p_, u_, x_, w.conv_norm, s_.eps);
    if (w.conv_in.in.any()) within(u_, u_, w.conv_in.in);
    push_linear(p_, both, u_, w.conv_in);
    if (out.any()) within(value, value, out);
    p_.push(PointwiseArgs{
        .y = f_, .x = gate, .add = {}, .mul = value, .low = out.low, .high = out.high, .act = Act::sigmoid});
    p_.push(ConvArgs{u_, f_, w.conv, state_});
    push_norm(p_, f_, u_, w.conv_out_norm, s_.eps);
    p_.push(PointwiseArgs{.y = f_, .x = f_, .add = {}, .mul = {}, .act = Act::silu});
    product(u_, f_, w.conv_out);
    p_.push(PointwiseArgs{.y = x_, .x = x_, .add = u_, .mul = {}});
  }

  void leave() {
    const Tensor out = arena_.take(rows_, s_.out), normed = arena_.take(rows_, s_.out);
    push_linear(p_, out, x_, t_.leave_, {.bias = t_.leave_bias_});
    tap(out);
    push_norm(p_, normed, out, {}, s_.eps);
    io_.rows = arena_.take(rows_, t_.shape_.dim);
    push_linear(p_, io_.rows, normed, t_.project_);
  }

  const Gemma4Sound& t_;
  const Spec& s_;
  Program &first_, &p_;
  Arena& arena_;
  int32_t rows_;
  bool taps_;
  SoundTower::Io io_;
  RecurrentView state_;
  Tensor x_, u_, f_, narrow_, q_, k_, v_, h_;
};

SoundTower::Io Gemma4Sound::build(Program& first, Program& second, Arena& arena, int32_t rows,
                                  bool taps) const {
  CARAT_CHECK(rows > 0, "{} rows", rows);
  return SoundStep(*this, first, second, arena, rows, taps).run();
}

}  // namespace

std::shared_ptr<const SoundTower> gemma4_sound(std::shared_ptr<const WeightSource> source, Backend& backend,
                                               const Progress& progress) {
  return std::make_shared<Gemma4Sound>(std::move(source), backend, progress);
}

}  // namespace carat
