// Cases of the operations on rows that are no products: norms, choices, pointwise functions.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/case_list.h"

namespace carat::test {
namespace {

void soft_embed(CaseRun& c, int32_t rows, int32_t dim) {
  c.step({{0, rows}}, 37);
  c.soft(dim);
  const Operand table = c.weight(DType::bf16, 37, dim, 1, WeightUse::rows);
  const Tensor y = c.output(rows + 1, dim);
  c.push(EmbedArgs{y, table.t, 1.7f, true});
  c.expect("y", y, rows);
}

struct PointShape {
  int32_t rows = 3, cols = 37;
  float low = -std::numeric_limits<float>::infinity(), high = std::numeric_limits<float>::infinity();
  Act act = Act::none;
  int add = 0, mul = 0;   // 1: a row for all; 2: one each
  bool in_place = false;  // y is x
};
void pointwise(CaseRun& c, const PointShape& s) {
  plain_step(c, s.rows);
  const Operand x = c.input(s.rows + 1, s.cols, s.rows, 3);
  const auto other = [&](int kind) {
    return kind == 0   ? Operand{}
           : kind == 1 ? c.shared_row(s.cols, -2, 2)
                       : c.input(s.rows + 1, s.cols, s.rows);
  };
  const Operand add = other(s.add), mul = other(s.mul);
  const Tensor y = s.in_place ? x.t : c.output(s.rows + 1, s.cols);
  c.push(PointwiseArgs{y, x.t, add.t, mul.t, s.low, s.high, s.act});
  c.expect("y", y, s.rows, [=](int32_t r, int32_t i) {
    const double size = std::abs(x.row(r)[i]) + (s.add ? std::abs(add.row(s.add == 1 ? 0 : r)[i]) : 0) + 1;
    return 10 * kUlp * size * (s.mul ? std::abs(mul.row(s.mul == 1 ? 0 : r)[i]) : 1) + 1e-30;
  });
}

void layer_norm(CaseRun& c, int32_t cols, bool weight, bool bias, bool in_place) {
  constexpr int32_t kRows = 3;
  plain_step(c, kRows);
  const Operand x = c.input(kRows + 1, cols, kRows, 3);
  const Operand w = weight ? c.shared_row(cols, -2, 2) : Operand{},
                b = bias ? c.shared_row(cols, -2, 2) : Operand{};
  const Tensor y = in_place ? x.t : c.output(kRows + 1, cols);
  c.push(LayerNormArgs{y, x.t, w.t, b.t, 1e-6f});
  c.expect("y", y, kRows, [=](int32_t r, int32_t i) {
    double mean = 0, most = 0, square = 0;
    for (int32_t k = 0; k < cols; ++k) mean += x.row(r)[k] / cols, most += std::abs(x.row(r)[k]) / cols;
    for (int32_t k = 0; k < cols; ++k) square += (x.row(r)[k] - mean) * (x.row(r)[k] - mean) / cols;
    const double size = (std::abs(x.row(r)[i]) + most) / std::sqrt(square + 1e-6);
    return 10 * kUlp * (size * (weight ? std::abs(w.row(0)[i]) : 1) + (bias ? std::abs(b.row(0)[i]) : 0)) +
           1e-30;
  });
}

void gather(CaseRun& c, int32_t rows, int32_t keep) {
  c.step({{0, rows}}, 1, keep);
  const Operand x = c.input(rows + 2, 37, rows);
  const Tensor y = c.output(c.n_out() + 1, 37);
  c.push(GatherArgs{y, x.t}, RowSet::out);
  c.expect("y", y, c.n_out());
}

struct NormShape {
  int32_t rows = 3, cols = 64, width = 0;
  bool weight = true, residual = false, gain_row = false, gain_one = false;
  int in_place = 0;  // 1: y is x; 2: y is residual; 3: y is mul
  bool mul = false;
  Act act = Act::none;
};

void rms_norm(CaseRun& c, const NormShape& s) {
  plain_step(c, s.rows);
  const int32_t width = s.width ? s.width : s.cols;
  const Operand x = c.input(s.rows + 1, s.cols, s.rows, 3), res = c.input(s.rows + 1, s.cols, s.rows);
  const Operand w = c.shared_row(width, -2, 2), row = c.shared_row(s.cols, 0.5, 2),
                one = c.shared_row(1, 0.5, 2);
  const Operand mul = s.mul ? c.input(s.rows + 1, s.cols, s.rows) : Operand();
  const Tensor y = s.in_place == 1   ? x.t
                   : s.in_place == 2 ? res.t
                   : s.in_place == 3 ? mul.t
                                     : c.output(s.rows + 1, s.cols);
  const Tensor none;
  RmsNormArgs a{y, x.t, s.weight ? w.t : none, s.residual ? res.t : none,
                s.gain_row   ? row.t
                : s.gain_one ? one.t
                             : none};
  a.width = s.width, a.eps = 1e-6f, a.scale = 0.7f;
  if (s.mul) a.mul = mul.t, a.act = s.act;
  c.push(a);
  c.expect("y", y, s.rows, [=](int32_t r, int32_t i) {
    const int32_t first = i / width * width;
    const double mean = dot(x.row(r) + first, x.row(r) + first, width) / width;
    const double v =
        std::abs(x.row(r)[i] / std::sqrt(mean + 1e-6)) * (s.weight ? std::abs(w.host[i - first]) : 1);
    const double size =
        v * (std::sqrt(static_cast<double>(width)) + 8) + 4 * (s.residual ? std::abs(res.row(r)[i]) : 0);
    const double times = s.mul ? 4 * (1 + std::abs(mul.row(r)[i])) : 1;  // activations have an error, too
    return 2 * kUlp * size * times * (s.gain_row ? row.host[i] : s.gain_one ? one.host[0] : 1) + 1e-30;
  });
}

// Heads of queries and of keys that lie in one row, each normed where it is.
void two_norms(CaseRun& c, int32_t rows, int32_t heads, int32_t width) {
  plain_step(c, rows);
  const Operand x = c.input(rows, 2 * heads * width + 5, rows, 3);
  for (const int32_t i : {0, 1}) {
    const Tensor part = x.t.columns(i * heads * width, heads * width);
    c.push(RmsNormArgs{.y = part,
                       .x = part,
                       .weight = {},
                       .residual = {},
                       .gain = {},
                       .width = width,
                       .eps = 1e-6f,
                       .scale = i ? 0.25f : 1.0f});
    c.expect(i ? "keys" : "queries", part, rows, [](int32_t, int32_t) { return 1e-5; });
  }
}

void route(CaseRun& c, int32_t rows, int32_t n, int32_t k, bool ties, bool scale) {
  plain_step(c, rows);
  Operand logits = c.input(rows + 1, n, rows, 3);
  if (ties) {  // few different values: every choice is a tie
    const auto level = [](float v) { return std::round(v / 3); };
    std::vector<float> values(logits.host.size());
    std::transform(logits.host.begin(), logits.host.end(), values.begin(), level);
    logits.host = values;
    logits.t = make_tensor(const_cast<float*>(c.floats(values)), DType::f32, rows + 1, n);
  }
  const Operand s = c.shared_row(n, 0.5, 2);
  const Tensor weights = c.output(rows + 1, k), ids = c.output(rows + 1, k, DType::i32);
  c.push(RouteArgs{weights, ids, logits.t, scale ? s.t : Tensor{}, k});
  c.expect("experts", ids, rows);
  c.expect("weights", weights, rows, [](int32_t, int32_t) { return 4e-6; });
}

struct TopShape {
  int32_t rows = 3, cols = 64, k = 1;
  bool share = true, value = true;
  double level = 0;  // not 0: few different values
  float odd = 0;     // not 0: in one row, where its best is; -inf: all of it
};

void top(CaseRun& c, const TopShape& s) {
  plain_step(c, s.rows);
  std::vector<float> values = c.input(s.rows + 1, s.cols, s.rows, 3).host;
  if (s.level != 0)
    for (float& v : values) v = static_cast<float>(std::round(v / s.level));
  const auto row = values.begin() + int64_t{s.rows / 2} * s.cols;
  if (s.odd != 0) *std::max_element(row, row + s.cols) = s.odd;
  if (s.odd < 0) std::fill(row, row + s.cols, s.odd);
  const Tensor t = make_tensor(const_cast<float*>(c.floats(values)), DType::f32, s.rows + 1, s.cols);
  const Tensor column = c.output(s.rows + 1, s.k, DType::i32), share = c.output(s.rows + 1, 1),
               value = c.output(s.rows + 1, s.k);
  c.push(TopArgs{column, s.value ? value : Tensor{}, s.share ? share : Tensor{}, t});
  c.expect("column", column, s.rows);
  if (s.value) c.expect("value", value, s.rows);
  if (s.share) c.expect("share", share, s.rows, [](int32_t, int32_t) { return 1e-5; });
}

}  // namespace

std::vector<OpCase> row_cases() {
  List l;
  for (const int32_t rows : {1, 3, 40})
    for (const int32_t width : {24, 128})
      l.add([=](CaseRun& c) { two_norms(c, rows, 5, width); }, "norms side by side {}x{}", rows, width);
  for (const int32_t keep : {1, 2, 5, 40})
    l.add([=](CaseRun& c) { gather(c, 23, keep); }, "gather every {}", keep);
  for (const int32_t cols : {1, 7, 16, 64, 100, 257, 1536}) {
    NormShape s{.rows = 1 + cols % 5, .cols = cols};
    l.add([=](CaseRun& c) { rms_norm(c, s); }, "norm {}", cols);
    for (const int in_place : {0, 3}) {
      s.in_place = in_place, s.mul = true, s.act = Act::silu;
      l.add([=](CaseRun& c) { rms_norm(c, s); }, "norm {} times silu{}", cols, in_place ? " in place" : "");
    }
    s = NormShape{.rows = 1 + cols % 5, .cols = cols};
    s.residual = s.gain_one = true;
    l.add([=](CaseRun& c) { rms_norm(c, s); }, "norm {} residual, one gain", cols);
    s.in_place = 2;
    l.add([=](CaseRun& c) { rms_norm(c, s); }, "norm {} onto the residual", cols);
    s.in_place = 1, s.gain_row = true, s.weight = false;
    l.add([=](CaseRun& c) { rms_norm(c, s); }, "norm {} in place, gains, no weight", cols);
  }
  for (const int32_t width : {1, 5, 16, 48})
    l.add([=](CaseRun& c) { rms_norm(c, {.rows = 6, .cols = width * 7, .width = width, .residual = true}); },
          "norm in groups of {}", width);
  for (const bool flag : {false, true}) {
    l.add([=](CaseRun& c) { route(c, 5, 128, 8, flag, flag); }, "route 8 of 128, ties {}", flag);
    l.add([=](CaseRun& c) { route(c, 33, 16, 4, flag, !flag); }, "route 4 of 16, ties {}", flag);
    l.add([=](CaseRun& c) { route(c, 3, 5, 5, flag, true); }, "route all of 5, ties {}", flag);
    l.add([=](CaseRun& c) { route(c, 2, 1, 1, flag, false); }, "route 1 of 1, ties {}", flag);
    l.add([=](CaseRun& c) { route(c, 4, 300, 9, flag, true); }, "route 9 of 300, ties {}", flag);
    for (const int32_t n : {1, 7, 33, 1024, 1025, 5000, 262144})
      for (const int32_t k : {1, 80})
        l.add(
            [=](CaseRun& c) {
              top(c, {.rows = n > 5000 ? 2 : 5, .cols = n, .k = k, .value = k > 1, .level = flag ? 3.0 : 0});
            },
            "top {} of {}, ties {}", k, n, flag);
    for (const float odd : {NAN, INFINITY, -INFINITY})
      l.add([=](CaseRun& c) { top(c, {.cols = 1500, .k = flag ? 1 : 9, .share = flag, .odd = odd}); },
            "top of 1500 and {}, one {}", odd, flag);
    l.add([=](CaseRun& c) { top(c, {.cols = 9000, .k = 128, .value = flag, .level = 40}); },
          "top 128 of 9000 of few values, value {}", flag);
  }
  l.add([](CaseRun& c) { soft_embed(c, 8, 52); }, "picture embed");
  for (const int32_t cols : {3, 16, 48, 100}) {
    l.add([=](CaseRun& c) { pointwise(c, {.cols = cols, .low = -1.5f, .high = 2}); },
          "picture pointwise {} clamp", cols);
    l.add([=](CaseRun& c) { pointwise(c, {.cols = cols, .add = 1, .mul = 1}); },
          "picture pointwise {} rows for all", cols);
    l.add(
        [=](CaseRun& c) {
          pointwise(c,
                    {.cols = cols, .high = 1, .act = Act::gelu_tanh, .add = 2, .mul = 2, .in_place = true});
        },
        "picture pointwise {} gelu, in place", cols);
    l.add([=](CaseRun& c) { pointwise(c, {.cols = cols, .act = Act::gelu}); }, "picture pointwise {} erf",
          cols);
    l.add([=](CaseRun& c) { layer_norm(c, cols, true, true, false); }, "picture layer norm {}", cols);
    l.add([=](CaseRun& c) { layer_norm(c, cols, cols == 16, cols == 48, true); },
          "picture layer norm {}, in place", cols);
  }
  return std::move(l.cases);
}

}  // namespace carat::test
