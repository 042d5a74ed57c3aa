#include "tests/op_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/codec.h"
#include "tests/case_list.h"

namespace carat::test {
namespace {

bool quantized(DType t) { return info(t).family == Family::block; }

std::vector<DType> weight_types() {
  std::vector<DType> out{DType::f32, DType::f16, DType::bf16, DType::fp8};
  for (int i = 0; i < kDTypeCount; ++i)
    if (quantized(static_cast<DType>(i))) out.push_back(static_cast<DType>(i));
  return out;
}

// The step's rows as one sequence.
void plain_step(CaseRun& c, int32_t rows) { c.step({{0, rows}}); }

// How far an f32 dot product of length k may be from the exact one.
double dot_error(const Operand& x, int64_t m, const Operand& w, int64_t n) {
  return (std::sqrt(static_cast<double>(x.t.cols)) + 8) * kUlp * x.norm(m) * w.norm(n);
}

// ---- products
// --------------------------------------------------------------------------------------------------------

struct Epilogue {
  float scale = 1, softcap = 0;
  Act act = Act::none;
  bool bias = false, mul = false, residual = false, in_place = false;
  bool by_row = false;  // mul is one number a row
  bool filled = false;  // the bucket has no more rows than the step
};

void matmul(CaseRun& c, DType type, int32_t m, int32_t k, int32_t n, const Epilogue& e,
            RowSet set = RowSet::all) {
  const int32_t bucket = std::max(1, e.filled ? m : m + m % 3);
  if (set == RowSet::all)
    plain_step(c, m);
  else
    c.step({{0, 2 * m}}, 1, 2);
  const Operand x = c.input(bucket, k, m), w = c.weight(type, n, k);
  const Operand bias = c.shared_row(n, -2, 2), mul = c.input(bucket, e.by_row ? 1 : n, m),
                residual = c.input(bucket, n, m);
  const Tensor y = e.in_place ? residual.t : c.output(bucket, n);
  MatmulArgs a{y, x.t, w.t, e.bias ? bias.t : Tensor{}, e.mul ? mul.t : Tensor{}};
  a.scale = e.scale, a.softcap = e.softcap, a.act = e.act;
  if (e.residual) a.residual = residual.t;
  c.push(a, set);
  const auto tolerance = [=](int32_t r, int32_t i) {
    // Activations and the cap bend no steeper than 1.13; their own error is relative to what goes in.
    const double size = x.norm(r) * w.norm(i) * e.scale + 2;
    const double in = (quantized(type) ? 0 : dot_error(x, r, w, i) * e.scale) + 8 * kUlp * size;
    return 1.2 * in * (e.mul ? std::abs(mul.row(r)[e.by_row ? 0 : i]) : 1) +
           (e.residual ? 2 * kUlp * std::abs(residual.row(r)[i]) : 0) + 1e-30;
  };
  const bool exact = quantized(type) && e.act == Act::none && e.softcap == 0;
  c.expect("y", y, m, exact ? std::function<double(int32_t, int32_t)>{} : tolerance);
}

// Products of the same rows, one after the other, the last two over another format: a backend may take them
// together.
void matmuls(CaseRun& c, DType type, DType last, int32_t m, int32_t k) {
  plain_step(c, m);
  const Operand x = c.input(m, k, m);
  for (const int32_t n : {19, 64, 97, 33}) {
    const Operand w = c.weight(n == 97 || n == 33 ? last : type, n, k);
    const Tensor y = c.output(m, n);
    MatmulArgs a{y, x.t, w.t, {}, {}};
    a.scale = 1.0f + static_cast<float>(n);
    c.push(a);
    c.expect("y", y, m);
  }
}

// By some rows of a placed weight: it may be cut at multiples of 32.
void matmul_part(CaseRun& c, DType type, int32_t m, int32_t k) {
  plain_step(c, m);
  const Operand x = c.input(m, k, m), w = c.weight(type, 150, k);
  const Tensor y = c.output(m, 70);
  c.push(MatmulArgs{y, x.t, w.t.row_range(64, 70), {}, {}});
  c.expect("y", y, m);
}

void gate_up(CaseRun& c, DType type, int32_t m, int32_t k, int32_t n, Act act) {
  plain_step(c, m);
  const Operand x = c.input(m, k, m), gate = c.weight(type, n, k), up = c.weight(type, n, k);
  const Tensor y = c.output(m, n);
  const float gs = 0.5f, us = 1.25f;
  c.push(GateUpArgs{y, x.t, gate.t, up.t, gs, us, act});
  const auto tolerance = [=](int32_t r, int32_t i) {
    const double g = x.norm(r) * gate.norm(i) * gs + 1, u = x.norm(r) * up.norm(i) * us + 1;
    const double rel = quantized(type) ? 0 : (std::sqrt(static_cast<double>(k)) + 8) * kUlp;
    return 2.4 * (rel + 8 * kUlp) * g * u;
  };
  c.expect("y", y, m,
           quantized(type) && act == Act::none ? std::function<double(int32_t, int32_t)>{} : tolerance);
}

struct ExpertShape {
  DType gate = DType::f32, up = DType::f32, down = DType::f32;
  int32_t m = 3, dim = 64, inner = 32, experts = 6, used = 2;
  bool fused = false, scales = false, residual = false;
  bool routed = false;  // the choice is an operation before this one
  Act act = Act::gelu_tanh;
};

// Whose share of each row's experts is what: by the logits of an operation, or at will.
struct Chosen {
  Tensor experts, weights;
  std::vector<int32_t> expert;  // [rows * used]
  std::vector<double> weight;
};
Chosen choose_experts(CaseRun& c, const ExpertShape& s, int32_t bucket) {
  Chosen out;
  if (!s.routed) {
    const Operand share = c.input(bucket, s.used, s.m);
    for (int32_t r = 0; r < bucket; ++r)
      for (int32_t j = 0; j < s.used; ++j) out.expert.push_back((r * 5 + j * 7 + r / 2) % s.experts);
    out.weight.assign(share.host.begin(), share.host.end());
    out.experts = c.ints(out.expert, bucket, s.used), out.weights = share.t;
    return out;
  }
  const Operand logits = c.input(bucket, s.experts, s.m, 2), scale = c.shared_row(s.experts, 0.5, 2);
  out.weights = c.output(bucket, s.used), out.experts = c.output(bucket, s.used, DType::i32);
  c.push(RouteArgs{out.weights, out.experts, logits.t, scale.t, s.used});
  for (int32_t r = 0; r < s.m; ++r) {
    std::vector<int32_t> order(static_cast<size_t>(s.experts));
    std::iota(order.begin(), order.end(), 0);
    const float* l = logits.row(r);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return l[a] > l[b]; });
    double sum = 0;
    for (int32_t j = 0; j < s.used; ++j) sum += std::exp(double{l[order[j]]} - l[order[0]]);
    for (int32_t j = 0; j < s.used; ++j) {
      out.expert.push_back(order[j]);
      out.weight.push_back(std::exp(double{l[order[j]]} - l[order[0]]) / sum * scale.host[order[j]]);
    }
  }
  c.expect("experts", out.experts, s.m);
  c.expect("weights", out.weights, s.m, [](int32_t, int32_t) { return 4e-6; });
  return out;
}

void experts(CaseRun& c, const ExpertShape& s) {
  plain_step(c, s.m);
  const int32_t bucket = std::max(1, s.m);
  const Operand x = c.input(bucket, s.dim, s.m);
  Operand gate, up;
  if (s.fused) {
    const Operand both = c.weight(s.gate, 2 * s.inner, s.dim, s.experts);
    gate = c.weight_rows(both, 0, s.inner);
    up = c.weight_rows(both, s.inner, s.inner);
  } else {
    gate = c.weight(s.gate, s.inner, s.dim, s.experts);
    up = c.weight(s.up, s.inner, s.dim, s.experts);
  }
  const Operand down = c.weight(s.down, s.dim, s.inner, s.experts);
  const Operand res = c.input(bucket, s.dim, s.m);
  const Operand gs = c.shared_row(s.experts, 0.5, 2), us = c.shared_row(s.experts, 0.5, 2);
  const Operand ds = c.shared_row(s.experts, 0.5, 2);
  const Chosen chosen = choose_experts(c, s, bucket);
  const Tensor none, y = c.output(bucket, s.dim);
  c.push(ExpertsArgs{y, x.t, gate.t, up.t, down.t, chosen.weights, chosen.experts, s.scales ? gs.t : none,
                     s.scales ? us.t : none, s.scales ? ds.t : none, s.act, s.residual ? res.t : none});
  std::vector<double> size(static_cast<size_t>(s.m) * s.dim);  // bound of the error per output
  for (int32_t r = 0; r < s.m; ++r)
    for (int32_t j = 0; j < s.used; ++j) {
      const size_t at = static_cast<size_t>(r * s.used + j);
      const int32_t e = chosen.expert[at];
      double top = 0, sum = 0;  // of the hidden row, by norms
      for (int32_t i = 0; i < s.inner; ++i) {
        const int64_t row = int64_t{e} * s.inner + i;
        const double h =
            (x.norm(r) * gate.norm(row) + 1) * (x.norm(r) * up.norm(row) + 1) * (s.scales ? 4 : 1);
        top = std::max(top, h);
        sum += h * h;
      }
      for (int32_t d = 0; d < s.dim; ++d) {
        const int64_t row = int64_t{e} * s.dim + d;
        const double rel = 3 * (std::sqrt(static_cast<double>(s.dim + s.inner)) + 24) * kUlp;
        double err = rel * std::sqrt(sum) * down.norm(row);
        if (s.routed) err += 8e-6 * std::sqrt(sum) * down.norm(row);  // of the shares
        // A hidden value next to a rounding boundary may fall to the other side.
        if (quantized(s.down)) err += 0.05 * top / 127 * down.max_abs(row);
        size[static_cast<size_t>(r) * s.dim + d] += std::abs(chosen.weight[at]) * err * (s.scales ? 2 : 1);
      }
    }
  c.expect("y", y, s.m, [=](int32_t r, int32_t i) { return size[static_cast<size_t>(r) * s.dim + i]; });
}

// A normed row's choice, a dense branch that takes its share of the result, and the experts: what a layer of
// a mixture is, in which a device may run some at once.
void mixture(CaseRun& c, DType type, DType down_type, int32_t m, int32_t dim, int32_t inner) {
  constexpr int32_t kExperts = 7, kUsed = 4;
  plain_step(c, m);
  const Operand x = c.input(m, dim, m), share = c.input(m, 1, m), logits = c.input(m, kExperts, m, 2),
                residual = c.input(m, dim, m);
  const Operand gate = c.weight(type, inner, dim), up = c.weight(type, inner, dim),
                down = c.weight(down_type, dim, inner);
  const Operand gates = c.weight(type, inner, dim, kExperts), ups = c.weight(type, inner, dim, kExperts),
                downs = c.weight(down_type, dim, inner, kExperts);
  const Tensor none, u = c.output(m, dim), weights = c.output(m, kUsed), ids = c.output(m, kUsed, DType::i32),
                     h = c.output(m, inner), s = c.output(m, dim);
  c.push(RmsNormArgs{.y = u, .x = x.t, .weight = none, .residual = none, .gain = none, .eps = 1e-6f});
  c.push(RouteArgs{weights, ids, logits.t, none, kUsed});
  c.push(GateUpArgs{h, u, gate.t, up.t, 1, 1, Act::silu});
  c.push(MatmulArgs{.y = s, .x = h, .w = down.t, .bias = none, .mul = share.t});
  c.push(ExpertsArgs{residual.t, u, gates.t, ups.t, downs.t, weights, ids, none, none, none, Act::silu,
                     residual.t});
  const double in = 1.01 * std::sqrt(static_cast<double>(dim)),
               rel = 3 * (std::sqrt(static_cast<double>(dim + inner)) + 24) * kUlp + 8e-6;
  // Of each output, whichever of the slices makes it.
  const auto bounds = [=](const Operand& g, const Operand& p, const Operand& w, int32_t slices) {
    std::vector<double> worst(static_cast<size_t>(dim));
    for (int32_t e = 0; e < slices; ++e) {
      double top = 0, sum = 0;
      for (int64_t i = int64_t{e} * inner; i < int64_t{e + 1} * inner; ++i) {
        const double size = (in * g.norm(i) + 1) * (in * p.norm(i) + 1);
        top = std::max(top, size), sum += size * size;
      }
      for (int32_t d = 0; d < dim; ++d) {
        const int64_t row = int64_t{e} * dim + d;
        double& of = worst[static_cast<size_t>(d)];
        of = std::max(of, rel * std::sqrt(sum) * w.norm(row) +
                              (quantized(w.t.type) ? 0.05 * top / 127 * w.max_abs(row) : 0));
      }
    }
    return worst;
  };
  c.expect("normed", u, m, [](int32_t, int32_t) { return 1e-5; });
  c.expect("hidden", h, m, [=](int32_t, int32_t i) {
    return 2.4 * (rel + 8 * kUlp) * (in * gate.norm(i) + 1) * (in * up.norm(i) + 1);
  });
  c.expect("experts", ids, m);
  c.expect("weights", weights, m, [](int32_t, int32_t) { return 4e-6; });
  const std::vector<double> dense = bounds(gate, up, down, 1), chosen = bounds(gates, ups, downs, kExperts);
  c.expect("dense", s, m,
           [=](int32_t r, int32_t i) { return std::abs(share.row(r)[0]) * dense[static_cast<size_t>(i)]; });
  c.expect("y", residual.t, m, [=](int32_t, int32_t i) { return chosen[static_cast<size_t>(i)]; });
}

void slice_matmul(CaseRun& c, DType type, int32_t m, int32_t k, int32_t n, int32_t slices, int32_t choices) {
  plain_step(c, m);
  const int32_t bucket = m + 1;
  const Operand x = c.input(bucket, k, m), w = c.weight(type, n, k, slices);
  std::vector<int32_t> chosen;
  for (int32_t r = 0; r < bucket; ++r)
    for (int32_t j = 0; j < choices; ++j) chosen.push_back((r * 5 + j * 7 + r / 2) % slices);
  const Tensor ids = c.ints(chosen, bucket, choices), y = c.output(bucket, choices * n);
  c.push(SliceMatmulArgs{y, x.t, w.t, ids, 0.6f});
  const auto tolerance = [=](int32_t r, int32_t i) {
    return dot_error(x, r, w, int64_t{chosen[r * choices + i / n]} * n + i % n) + 1e-30;
  };
  c.expect("y", y, m, quantized(type) ? std::function<double(int32_t, int32_t)>{} : tolerance);
}

// ---- rows
// ------------------------------------------------------------------------------------------------------------

void embed(CaseRun& c, DType type, int32_t rows, int32_t dim) {
  c.step({{0, rows}}, 37);
  const Operand table = c.weight(type, 37, dim, 1, WeightUse::rows);
  const Tensor y = c.output(rows + 1, dim);
  c.push(EmbedArgs{y, table.t, 1.7f});
  c.expect("y", y, rows);
}

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

// A single row's norms and the products behind them, the last of which is over another format: a backend may
// take all of them together.
void normed_products(CaseRun& c, DType type, DType last, int32_t cols, bool paired) {
  plain_step(c, 1);
  const int32_t room = (cols + 143) / 280 * 280 + 136;  // whose rows have a pitch of whole 16 bytes
  const auto cut = [&](Tensor t) { return t.cols = cols, t; };
  const Operand x = c.input(1, room, 1, 3), res = c.input(1, room, 1), one = c.shared_row(1, 0.5, 2);
  const Operand w = c.shared_row(cols, -2, 2), next = c.shared_row(cols, 0.5, 2);
  const Tensor y = cut(c.output(1, room)), z = cut(c.output(1, room)), none;
  RmsNormArgs a{y, cut(x.t), w.t, cut(res.t), one.t}, b{z, y, next.t, none, none};
  a.eps = b.eps = 1e-6f;
  c.push(a), c.push(b);
  const auto near = [=](int32_t, int32_t) { return 1e-4; };
  c.expect("y", y, 1, near), c.expect("z", z, 1, near);
  // Values next to a rounding boundary may fall to the other side.
  const auto product = [&](const std::string& name, DType t, int32_t n, const auto& push) {
    const Operand v = c.weight(t, n, cols);
    const Tensor out = c.output(1, n);
    push(out, v.t);
    c.expect(name, out, 1, [=](int32_t, int32_t i) { return 0.3 * v.max_abs(i) + 1e-4 * v.norm(i); });
  };
  const auto plain = [&](const Tensor& out, const Tensor& v) { c.push(MatmulArgs{out, z, v, {}, {}}); };
  if (paired) {
    const Operand gate = c.weight(type, 70, cols), up = c.weight(type, 70, cols);
    const Tensor out = c.output(1, 70);
    c.push(GateUpArgs{out, z, gate.t, up.t, 1, 1, Act::none});
    c.expect("out", out, 1, [=](int32_t, int32_t i) {
      const double g = 0.3 * gate.max_abs(i), u = 0.3 * up.max_abs(i), size = 2.0 * cols;
      return (g * up.norm(i) + u * gate.norm(i) + 1e-4 * gate.norm(i) * up.norm(i)) * std::sqrt(size);
    });
    return;
  }
  product("q", type, 67, plain), product("k", type, 64, plain), product("v", last, 33, plain);
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

// ---- the lists

// Tiles of 128 rows that are no multiple of a GPU's processors, and long enough to be cut. Buckets of 128
// rows have two more, so twice the tiles.
void add_cut_tiles(List& l, DType t, const std::vector<int32_t>& rows, int32_t k, int32_t n) {
  for (const int32_t m : rows) {
    l.add([=](CaseRun& c) { matmul(c, t, m, k, n, {.scale = 0.5f, .residual = true}); },
          "matmul {} many rows, cut {}x{}", info(t).name, m, n);
    l.add([=](CaseRun& c) { gate_up(c, t, m, k, n / 2, Act::gelu_tanh); }, "gate-up {} many rows, cut {}x{}",
          info(t).name, m, n / 2);
  }
}

void add_matmuls(List& l) {
  for (const DType t : weight_types()) {
    const int32_t e = info(t).elems;
    // Whole blocks of 256 columns, a shorter last one, and less than one.
    std::vector<int32_t> inner =
        e == 256 ? std::vector<int32_t>{256, 768} : std::vector<int32_t>{e, 5 * 64, 704};
    if (e == 1) inner = {1, 17, t == DType::fp8 ? 304 : 300};
    for (const int32_t m : {0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 40}) {
      const int32_t k = inner[m % inner.size()], n = m % 2 ? 19 : 64;
      l.add([=](CaseRun& c) { matmul(c, t, m, k, n, {}); }, "matmul {} {}x{}x{}", info(t).name, m, k, n);
    }
    for (const int32_t n : {1, 2, 15, 17, 67, 130}) {
      const int32_t k = inner.back(), m = 1 + n % 5;
      l.add([=](CaseRun& c) { matmul(c, t, m, k, n, {.scale = 0.37f}); }, "matmul {} {}x{}x{} scale",
            info(t).name, m, k, n);
    }
    const int32_t k = inner.back();
    l.add([=](CaseRun& c) { matmul(c, t, 5, k, 21, {.scale = 1.5f, .bias = true}); }, "matmul {} bias",
          info(t).name);
    l.add([=](CaseRun& c) { matmul(c, t, 6, k, 21, {.bias = true, .mul = true}); }, "matmul {} mul",
          info(t).name);
    l.add([=](CaseRun& c) { matmul(c, t, 5, k, 21, {.scale = 0.7f, .residual = true}); },
          "matmul {} residual", info(t).name);
    l.add([=](CaseRun& c) { matmul(c, t, 4, k, 37, {.mul = true, .residual = true, .in_place = true}); },
          "matmul {} mul, onto the residual", info(t).name);
    for (const int32_t m : {1, 5, 40}) {
      if (t != DType::bf16 && t != DType::q8_0 && t != DType::q4_k) continue;  // they share what comes behind
      l.add([=](CaseRun& c) { matmul(c, t, m, k, 37, {.mul = true, .residual = true, .by_row = true}); },
            "matmul {} times a number a row, {} rows", info(t).name, m);
    }
    l.add([=](CaseRun& c) { matmul(c, t, 3, k, 33, {.softcap = 30}); }, "matmul {} softcap", info(t).name);
    l.add([=](CaseRun& c) { matmul(c, t, 4, k, 33, {.scale = 0.1f}, RowSet::out); }, "matmul {} wanted rows",
          info(t).name);
    for (const Act act : {Act::silu, Act::gelu_tanh, Act::sigmoid})
      l.add([=](CaseRun& c) { matmul(c, t, 3, k, 18, {.scale = 0.2f, .act = act, .mul = true}); },
            "matmul {} act {}", info(t).name, static_cast<int>(act));
    for (const int32_t m : {1, 3, 6, 17, 35})
      l.add(
          [=](CaseRun& c) {
            gate_up(c, t, m, inner[m % inner.size()], 19 + m, m == 3 ? Act::none : Act::gelu_tanh);
          },
          "gate-up {} {} rows", info(t).name, m);
    if (quantized(t))
      for (const int32_t m : {1, 2, 7, 40, 70})
        l.add([=](CaseRun& c) { matmuls(c, t, t, m, k); }, "matmul {} four of {} rows", info(t).name, m);
    if (quantized(t))
      for (const int32_t m : {1, 3, 40})
        l.add([=](CaseRun& c) { matmul_part(c, t, m, k); }, "matmul {} some outputs {} rows", info(t).name,
              m);
    if (t == DType::q4_0 || t == DType::q5_0 || t == DType::q8_0 || t == DType::q4_k || t == DType::q5_k ||
        t == DType::q6_k)
      for (const int32_t m : {40, 70, 150}) {  // tiles of 64 and 128 rows on GPUs
        l.add([=](CaseRun& c) { matmul(c, t, m, k, 3 * m - 50, {.scale = 0.5f, .residual = true}); },
              "matmul {} many rows {}", info(t).name, m);
        l.add([=](CaseRun& c) { gate_up(c, t, m, k, m, Act::gelu_tanh); }, "gate-up {} many rows {}",
              info(t).name, m);
      }
    if (!quantized(t))
      for (const int32_t cols : {336, 1008})
        l.add([=](CaseRun& c) { matmul(c, t, 70, cols, 45, {.scale = 0.5f, .residual = true}); },
              "matmul {} many rows of {}", info(t).name, cols);
    if (t == DType::q4_k || t == DType::q5_k || t == DType::q6_k)  // more blocks than GPUs have stages
      l.add([=](CaseRun& c) { matmul(c, t, 66, 1792, 96, {}); }, "matmul {} many rows, long", info(t).name);
    if (t == DType::q4_k || t == DType::q5_k || t == DType::q6_k) {
      add_cut_tiles(l, t, {23, 50, 128, 150}, 2560, 600);
      add_cut_tiles(l, t, {128}, 2560, 300);  // by the bucket's rows only: the step's tiles are too few
    }
    for (const int32_t m : {1, 5})
      l.add([=](CaseRun& c) { embed(c, t, m, inner[inner.size() - 1]); }, "embed {} {} rows", info(t).name,
            m);
  }
}

// As q, k and v of files that mix them; rows of fewer and of more blocks than they come in parts.
void add_two_formats(List& l) {
  for (const DType t : {DType::q4_k, DType::q5_k})
    for (const int32_t m : {1, 2, 5, 8, 11, 16, 23, 40, 70})
      for (const int32_t k : {768, 1280, 2560})
        l.add([=](CaseRun& c) { matmuls(c, t, DType::q6_k, m, k); }, "matmul {} and q6_k, {} rows of {}",
              info(t).name, m, k);
}

// Enough tiles for a GPU to cut groups of outputs between its processors, and for their warps to go around.
void add_shared_out(List& l, int32_t n, int32_t k, int32_t wide_n, int32_t wide_k) {
  for (const DType t : {DType::q4_k, DType::q6_k, DType::q8_0})
    for (const int32_t m : {1, 6}) {
      const int32_t cols = t == DType::q8_0 ? k - 64 : k;
      l.add([=](CaseRun& c) { matmul(c, t, m, cols, n, {.scale = 0.5f, .filled = true}); },
            "matmul {} shared out {}x{}x{}", info(t).name, m, cols, n);
      if (t == DType::q4_k)
        l.add([=](CaseRun& c) { gate_up(c, t, m, cols, n, Act::gelu_tanh); },
              "gate-up {} shared out {}x{}x{}", info(t).name, m, cols, n);
    }
  l.add([=](CaseRun& c) { matmul(c, DType::q4_k, 6, wide_k, wide_n, {.filled = true}); },
        "matmul q4_k shared out 6x{}x{}", wide_k, wide_n);
  for (const int32_t m : {6, 14})
    l.add(
        [=](CaseRun& c) {
          matmul(c, DType::q4_k, m, k, n, {.scale = 0.5f, .residual = true, .filled = true});
        },
        "matmul q4_k shared out {}x{}x{} residual", m, k, n);
}

void add_experts(List& l) {
  using enum DType;
  const ExpertShape shapes[] = {
      {.m = 1},
      {.m = 7, .dim = 65, .inner = 33, .experts = 5, .used = 5, .residual = true},
      {.gate = bf16, .up = bf16, .down = bf16, .m = 9, .dim = 96, .inner = 24, .fused = true},
      {.gate = f16, .up = f16, .down = f16, .m = 4, .dim = 70, .inner = 30, .act = Act::silu},
      {.gate = q8_0, .up = q8_0, .down = q8_0, .m = 5, .dim = 64, .inner = 96, .scales = true},
      {.gate = q4_k,
       .up = q4_k,
       .down = q5_0,
       .m = 17,
       .dim = 256,
       .inner = 96,
       .experts = 8,
       .used = 3,
       .fused = true},
      {.gate = q4_k, .up = q6_k, .down = q5_1, .m = 2, .dim = 512, .inner = 64},
      {.gate = q8_0,
       .up = q8_0,
       .down = q8_0,
       .m = 5,
       .dim = 64,
       .inner = 96,
       .experts = 1,
       .used = 1,
       .residual = true},
      {.gate = q4_0, .up = q4_1, .down = iq4_nl, .m = 40, .dim = 64, .inner = 32, .experts = 4, .used = 4},
      {.gate = nvfp4,
       .up = nvfp4,
       .down = nvfp4,
       .m = 6,
       .dim = 128,
       .inner = 64,
       .fused = true,
       .scales = true},
      {.gate = mxfp4, .up = mxfp4, .down = q8_0, .m = 0, .dim = 64, .inner = 32},
      {.gate = iq2_s, .up = iq3_xxs, .down = q3_k, .m = 3, .dim = 256, .inner = 256},
      {.gate = q4_k,
       .up = q4_k,
       .down = q6_k,
       .m = 40,
       .dim = 256,
       .inner = 256,
       .experts = 5,
       .residual = true},
      {.gate = q8_0,
       .up = q8_0,
       .down = q4_0,
       .m = 90,
       .dim = 96,
       .inner = 160,
       .experts = 2,
       .scales = true},
      {.gate = q5_k, .up = q5_k, .down = q5_0, .m = 19, .dim = 256, .inner = 256, .experts = 70, .used = 3},
      {.gate = q4_k, .up = q4_k, .down = q6_k, .m = 70, .dim = 256, .inner = 256, .experts = 2, .used = 2},
      {.gate = fp8, .up = fp8, .down = fp8, .m = 1, .dim = 96, .inner = 48, .fused = true},
      {.gate = fp8,
       .up = fp8,
       .down = fp8,
       .m = 40,
       .dim = 288,
       .inner = 80,
       .experts = 6,
       .used = 2,
       .scales = true},
      {.gate = fp8, .up = fp8, .down = fp8, .m = 3, .dim = 70, .inner = 30, .residual = true},
  };
  for (const DType t : {f32, bf16, f16, fp8, q8_0, q4_k, q6_k, q4_0, iq4_nl})
    for (const int32_t m : {1, 3, 40})
      l.add([=](CaseRun& c) { slice_matmul(c, t, m, 256, m == 3 ? 37 : 32, 13, 5); }, "slices {} {} rows",
            info(t).name, m);
  int i = 0;
  for (const ExpertShape& s : shapes)
    l.add([=](CaseRun& c) { experts(c, s); }, "experts {}{}", i++, s.m > 16 ? " many rows" : "");
  for (const DType down : {q5_0, q8_0, q6_k, f32})
    for (const int32_t m : {1, 3, 19}) {
      const ExpertShape s{.gate = down == f32 ? f32 : q4_k,
                          .up = down == f32 ? f32 : q4_k,
                          .down = down,
                          .m = m,
                          .dim = 512,
                          .inner = down == q6_k ? 256 : 160,
                          .experts = m == 3 ? 5 : 70,
                          .used = m == 3 ? 5 : 8,
                          .scales = m == 3,
                          .residual = m == 1,
                          .routed = true};
      l.add([=](CaseRun& c) { experts(c, s); }, "routed experts {} {} rows", info(down).name, m);
    }
  // Rows of 1536 floats lie in these cases' memory as they do in a model's: at multiples of 16 bytes.
  for (const DType down : {q6_k, q4_k, f32})
    for (const int32_t m : {1, 3, 19})
      l.add([=](CaseRun& c) { mixture(c, down == f32 ? f32 : q4_k, down, m, 1536, 256); },
            "mixture {} {} rows", info(down).name, m);
}

void add_rows(List& l) {
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
  // Rows that fill a block's threads once and twice, and a little less and more.
  for (const int32_t cols : {768, 3328, 3584, 5376})
    for (const DType t : {DType::q4_k, DType::q5_k, DType::q8_0}) {
      const DType last = t == DType::q8_0 ? t : DType::q6_k;
      l.add([=](CaseRun& c) { normed_products(c, t, last, cols, false); }, "norms, matmul single row {} {}",
            info(t).name, cols);
      l.add([=](CaseRun& c) { normed_products(c, t, t, cols, true); }, "norms, gate-up single row {} {}",
            info(t).name, cols);
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
}

}  // namespace

std::vector<OpCase> op_cases() {
  List l;
  add_matmuls(l);
  add_two_formats(l);
  add_shared_out(l, 1098, 4608, 150, 15360);
  add_experts(l);
  add_rows(l);
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
  for (const auto& part : {attention_cases, recurrent_cases})
    for (OpCase& c : part()) l.cases.push_back(std::move(c));
  return std::move(l.cases);
}

std::vector<OpCase> large_op_cases() {
  List l;
  add_shared_out(l, 8482, 7680, 5970, 15360);
  for (const DType t : {DType::q4_k, DType::q6_k}) add_cut_tiles(l, t, {128, 400}, 1536, 8900);
  return std::move(l.cases);
}

}  // namespace carat::test
