// Matrix products: dense, gated and by experts (docs/numerics.md).
#include <cmath>
#include <vector>

#include "base/error.h"
#include "core/codec.h"
#include "core/int_block.h"
#include "core/kv_codec.h"
#include "ref/ref_ops.h"

namespace carat::ref {
namespace {

// What comes after the sums. Quantized products are f32 from here on, so that every backend can return the
// same bits.
struct Number {
  bool f32;
  double operator()(double v) const { return f32 ? double{static_cast<float>(v)} : v; }
};

bool quantized(DType t) { return info(t).family == Family::block; }

// All rows of w times rows of x: y[m * w.rows + n], as double. w in the documented layout.
class Product {
 public:
  Product(const Tensor& x, int32_t rows, const Tensor& w) : n_(w.rows), y_(size_t(rows) * w.rows) {
    if (quantized(w.type))
      integers(x, rows, w);
    else
      floats(x, rows, w);
  }
  double operator()(int32_t m, int32_t n) const { return y_[size_t(m) * n_ + n]; }

 private:
  void floats(Tensor x, int32_t rows, const Tensor& w) {
    std::vector<float> row(w.cols), rounded;
    if (rounds_to_e4m3(w.type)) x = rounded_to_e4m3(w.type, x, rows, w.cols, rounded);
    for (int32_t n = 0; n < w.rows; ++n) {
      decode_row(w.type, w.row<std::byte>(n), row.data(), w.cols);
      for (int32_t m = 0; m < rows; ++m) {
        const float* xm = x.row<float>(m);
        double sum = 0;
        for (int32_t k = 0; k < w.cols; ++k) sum += double{xm[k]} * row[k];
        y_[size_t(m) * n_ + n] = sum;
      }
    }
  }

  // x as d times e4m3.
  static Tensor rounded_to_e4m3(DType w, const Tensor& x, int32_t rows, int32_t cols,
                                std::vector<float>& to) {
    to.resize(size_t(rows) * cols);
    for (int32_t m = 0; m < rows; ++m) round_to_e4m3(w, x.row<float>(m), &to[size_t(m) * cols], cols);
    return make_tensor(to.data(), DType::f32, rows, cols);
  }

  // acc = fma(d_a, t, acc) over blocks of 256 columns, ascending.
  void integers(const Tensor& x, int32_t rows, const Tensor& w) {
    const int32_t blocks = (w.cols + kIntBlock - 1) / kIntBlock;
    std::vector<int8_t> codes(size_t(rows) * w.cols);
    std::vector<float> scales(size_t(rows) * blocks), acc(rows);
    const auto width = [&](int32_t b) { return std::min(kIntBlock, w.cols - b * kIntBlock); };
    for (int32_t m = 0; m < rows; ++m)
      for (int32_t b = 0; b < blocks; ++b)
        quantize_act(x.row<float>(m) + b * kIntBlock, width(b), &codes[size_t(m) * w.cols + b * kIntBlock],
                     scales[size_t(m) * blocks + b]);
    IntBlock block;
    for (int32_t n = 0; n < w.rows; ++n) {
      std::fill(acc.begin(), acc.end(), 0.0f);
      for (int32_t b = 0; b < blocks; ++b) {
        unpack(w.type, w.row<std::byte>(n), int64_t{b} * kIntBlock, width(b), block);
        for (int32_t m = 0; m < rows; ++m) {
          const float t = block_dot(block, &codes[size_t(m) * w.cols + b * kIntBlock]);
          acc[m] = std::fma(scales[size_t(m) * blocks + b], t, acc[m]);
        }
      }
      for (int32_t m = 0; m < rows; ++m) y_[size_t(m) * n_ + n] = acc[m];
    }
  }

  int32_t n_;
  std::vector<double> y_;
};

}  // namespace

void run(const MatmulArgs& a, const Rows& rows) {
  const Product p(a.x, rows.count(), a.w);
  const Number round{quantized(a.w.type)};
  for (int32_t m = 0; m < rows.count(); ++m) {
    for (int32_t n = 0; n < a.y.cols; ++n) {
      double v = round(p(m, n) * a.scale);
      if (a.bias.valid()) v = round(v + a.bias.row<float>(0)[n]);
      if (a.act != Act::none) v = round(activate(a.act, v));
      if (a.softcap > 0) v = round(a.softcap * std::tanh(v / a.softcap));
      if (a.mul.valid()) v = round(v * a.mul.row<float>(m)[a.mul.cols == 1 ? 0 : n]);
      if (a.residual.valid()) v += a.residual.row<float>(m)[n];
      a.y.row<float>(m)[n] = static_cast<float>(v);
    }
  }
}

void run(const GateUpArgs& a, const Rows& rows) {
  const Product gate(a.x, rows.count(), a.gate), up(a.x, rows.count(), a.up);
  const Number gate_round{quantized(a.gate.type)}, up_round{quantized(a.up.type)};
  for (int32_t m = 0; m < rows.count(); ++m) {
    for (int32_t n = 0; n < a.y.cols; ++n) {
      const double g = gate_round(activate(a.act, gate_round(gate(m, n) * a.gate_scale)));
      a.y.row<float>(m)[n] = static_cast<float>(g * up_round(up(m, n) * a.up_scale));
    }
  }
}

void run(const ExpertsArgs& a, const Rows& rows) {
  const int32_t inner = a.gate.rows;
  std::vector<float> h(inner);
  std::vector<double> y(a.y.cols);
  const auto scale_of = [](const Tensor& t, int32_t e) { return t.valid() ? t.row<float>(0)[e] : 1.0f; };
  for (int32_t m = 0; m < rows.count(); ++m) {
    for (int32_t i = 0; i < a.y.cols; ++i) y[i] = a.residual.valid() ? a.residual.row<float>(m)[i] : 0;
    const Tensor x = a.x.row_range(m, 1);
    for (int32_t s = 0; s < a.weights.cols; ++s) {
      const int32_t e = a.experts.row<int32_t>(m)[s];
      CARAT_CHECK(e >= 0 && e < a.gate.slices, "expert {} of {}", e, a.gate.slices);
      const Tensor hidden = make_tensor(h.data(), DType::f32, 1, inner);
      const GateUpArgs args{
          hidden, x, a.gate.slice(e), a.up.slice(e), scale_of(a.gate_scale, e), scale_of(a.up_scale, e),
          a.act};
      const StepState one{.n_rows = 1};
      run(args, Rows{one, RowSet::all});
      const Product down(hidden, 1, a.down.slice(e));
      const Number round{quantized(a.down.type)};
      for (int32_t i = 0; i < a.y.cols; ++i)
        y[i] += a.weights.row<float>(m)[s] * round(down(0, i) * scale_of(a.down_scale, e));
    }
    for (int32_t i = 0; i < a.y.cols; ++i) a.y.row<float>(m)[i] = static_cast<float>(y[i]);
  }
}

void run(const SliceMatmulArgs& a, const Rows& rows) {
  const Number round{quantized(a.w.type)};
  for (int32_t m = 0; m < rows.count(); ++m)
    for (int32_t s = 0; s < a.chosen.cols; ++s) {
      const int32_t e = a.chosen.row<int32_t>(m)[s];
      CARAT_CHECK(e >= 0 && e < a.w.slices, "slice {} of {}", e, a.w.slices);
      const Product p(a.x.row_range(m, 1), 1, a.w.slice(e));
      float* y = a.y.row<float>(m) + int64_t{s} * a.w.rows;
      for (int32_t n = 0; n < a.w.rows; ++n) y[n] = static_cast<float>(round(p(0, n) * a.scale));
    }
}

}  // namespace carat::ref
