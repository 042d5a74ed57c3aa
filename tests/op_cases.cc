#include "tests/op_cases.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
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

// How far an f32 dot product of length k may be from the exact one. Sums of a GPU's FP8 products have 13
// bits.
double dot_part(DType w, int32_t cols) {
  return rounds_to_e4m3(w) ? 1e-3 : (std::sqrt(static_cast<double>(cols)) + 8) * kUlp;
}
double dot_error(const Operand& x, int64_t m, const Operand& w, int64_t n) {
  return dot_part(w.file.type, x.t.cols) * x.norm(m) * w.norm(n);
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
    const double rel = quantized(type) ? 0 : dot_part(type, k);
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
        const bool eight = rounds_to_e4m3(s.down);
        const double rel = eight ? 3e-3 : 3 * (std::sqrt(static_cast<double>(s.dim + s.inner)) + 24) * kUlp;
        double err = rel * std::sqrt(sum) * down.norm(row);
        if (s.routed) err += 8e-6 * std::sqrt(sum) * down.norm(row);  // of the shares
        // A hidden value next to a rounding boundary may fall to the other side.
        if (quantized(s.down)) err += 0.05 * top / 127 * down.max_abs(row);
        if (eight) err += 3 * top / 16 * down.max_abs(row);
        size[static_cast<size_t>(r) * s.dim + d] += std::abs(chosen.weight[at]) * err * (s.scales ? 2 : 1);
      }
    }
  c.expect("y", y, s.m, [=](int32_t r, int32_t i) { return size[static_cast<size_t>(r) * s.dim + i]; });
}

// Hidden values of gate and up, from row `first` of both on, of row x: how large they are, how far their sums
// may be off.
struct Hidden {
  std::vector<double> value, error;
  double top = 0, norm = 0, off = 0;
  Hidden(const std::vector<float>& x, const Operand& gate, const Operand& up, int64_t first, int32_t n) {
    const auto cols = static_cast<int32_t>(x.size());
    const double length = std::sqrt(dot(x.data(), x.data(), cols));
    const double rel = quantized(gate.t.type) ? 0 : (std::sqrt(double{1} * cols) + 8) * kUlp * length;
    for (int64_t i = first; i < first + n; ++i) {
      const double g = dot(x.data(), gate.row(i), cols), u = dot(x.data(), up.row(i), cols),
                   silu = g / (1 + std::exp(-g));
      value.push_back(silu * u);
      error.push_back(rel * (1.2 * gate.norm(i) * std::abs(u) + up.norm(i) * std::abs(silu)) +
                      1e-5 * (std::abs(silu * u) + 0.1 * gate.norm(i) * up.norm(i)));
      top = std::max(top, std::abs(value.back()));
      norm += value.back() * value.back(), off += error.back() * error.back();
    }
    norm = std::sqrt(norm), off = std::sqrt(off);
  }
  // Of their product with row `row` of w. A value next to a rounding boundary may fall to the other side.
  double bound(const Operand& w, int64_t row) const {
    const double rel = (std::sqrt(static_cast<double>(value.size())) + 8) * kUlp;
    return (off + rel * norm) * w.norm(row) + (quantized(w.t.type) ? 3 * top / 127 * w.max_abs(row) : 0);
  }
};

// A normed row's router and choice, a dense branch times a number a row, and the experts: a layer of a
// mixture, of which a device may compute some at once. added: the number is a product of the row, too, and
// the branch is added to the experts. wide: columns of the branch between its products.
void mixture(CaseRun& c, DType type, DType down_type, int32_t m, int32_t dim, int32_t inner, int32_t wide,
             bool added) {
  constexpr int32_t kExperts = 7, kUsed = 4;
  plain_step(c, m);
  const Operand x = c.input(m, dim, m), share = c.input(m, 1, m), residual = c.input(m, dim, m);
  const Operand own_router = added ? c.weight(DType::f32, 1, dim) : Operand{};
  const Operand router = c.weight(DType::f32, kExperts, dim);
  const Operand gate = c.weight(type, wide, dim), up = c.weight(type, wide, dim),
                down = c.weight(down_type, dim, wide);
  const Operand gates = c.weight(type, inner, dim, kExperts), ups = c.weight(type, inner, dim, kExperts),
                downs = c.weight(down_type, dim, inner, kExperts);
  const Tensor none, u = c.output(m, dim), logits = c.output(m, kExperts), weights = c.output(m, kUsed),
                     ids = c.output(m, kUsed, DType::i32), h = c.output(m, wide), s = c.output(m, dim);
  c.push(RmsNormArgs{.y = u, .x = x.t, .weight = none, .residual = none, .gain = none, .eps = 1e-6f});
  if (added) {
    MatmulArgs own{.y = share.t, .x = u, .w = own_router.t, .bias = none, .mul = none};
    own.act = Act::sigmoid;
    c.push(own);
  }
  c.push(MatmulArgs{.y = logits, .x = u, .w = router.t, .bias = none, .mul = none});
  c.push(RouteArgs{weights, ids, logits, none, kUsed});
  c.push(GateUpArgs{h, u, gate.t, up.t, 1, 1, Act::silu});
  c.push(MatmulArgs{.y = s, .x = h, .w = down.t, .bias = none, .mul = share.t});
  c.push(ExpertsArgs{residual.t, u, gates.t, ups.t, downs.t, weights, ids, none, none, none, Act::silu,
                     residual.t});
  if (added) c.push(PointwiseArgs{.y = residual.t, .x = residual.t, .add = s, .mul = {}});
  std::vector<double> hidden, dense, chosen;  // bounds, by row
  for (int32_t r = 0; r < m; ++r) {
    std::vector<float> row(x.row(r), x.row(r) + dim);
    const double scale = 1 / std::sqrt(dot(row.data(), row.data(), dim) / dim + 1e-6);
    for (float& v : row) v = static_cast<float>(v * scale);
    const Hidden own(row, gate, up, 0, wide);
    hidden.insert(hidden.end(), own.error.begin(), own.error.end());
    std::vector<Hidden> experts;
    for (int64_t e = 0; e < kExperts; ++e) experts.emplace_back(row, gates, ups, e * inner, inner);
    for (int32_t d = 0; d < dim; ++d) {
      // Its own number is off by 1e-5 of at most 1.
      dense.push_back(added ? own.bound(down, d) + 1e-5 * own.norm * down.norm(d)
                            : std::abs(share.row(r)[0]) * own.bound(down, d));
      double worst = 0;  // shares add up to 1, and are off by 1e-5 of it
      for (int64_t e = 0; e < kExperts; ++e) {
        const Hidden& of = experts[static_cast<size_t>(e)];
        worst = std::max(worst, of.bound(downs, e * dim + d) + 1e-5 * of.norm * downs.norm(e * dim + d));
      }
      chosen.push_back(worst + (added ? dense.back() : 0));
    }
  }
  const auto of = [](std::vector<double> bounds, int32_t cols) {
    return [bounds = std::move(bounds), cols](int32_t r, int32_t i) {
      return bounds[static_cast<size_t>(r) * static_cast<size_t>(cols) + static_cast<size_t>(i)];
    };
  };
  const auto near = [](int32_t, int32_t) { return 1e-5; };
  c.expect("normed", u, m, near);
  if (added) c.expect("share", share.t, m, near);
  c.expect("logits", logits, m,
           [=](int32_t, int32_t i) { return 2e-6 * std::sqrt(double{1} * dim) * router.norm(i); });
  c.expect("experts", ids, m);
  c.expect("weights", weights, m, near);
  c.expect("hidden", h, m, of(hidden, wide));
  c.expect("dense", s, m, of(dense, dim));
  c.expect("y", residual.t, m, of(chosen, dim));
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

// Rows rounded twice, their products, and the sums of both: every one of them to the bit, but for the cap.
void refined_product(CaseRun& c, DType type, int32_t keep, int32_t cols, int32_t outputs, float softcap) {
  c.step({{0, keep + 2}}, 1, keep);
  const int32_t m = c.n_out();
  const Operand x = c.input(m + 1, cols, m, 3), w = c.weight(type, outputs, cols);
  const Tensor both = c.output(2 * m + 2, cols), products = c.output(2 * m + 2, outputs),
               y = c.output(m + 1, outputs);
  c.push(RefineArgs{both, x.t}, RowSet::out);
  c.push(MatmulArgs{products, both, w.t, {}, {}}, RowSet::refined);
  c.push(FoldArgs{y, products, softcap}, RowSet::out);
  c.expect("both", both, 2 * m);
  c.expect("products", products, 2 * m);
  c.expect("y", y, m, [=](int32_t, int32_t) { return softcap > 0 ? 10 * kUlp * softcap : 0; });
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
    if (quantized(t))
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
  for (const DType t : {DType::q4_k, DType::q6_k, DType::q8_0, DType::mxfp4})
    for (const int32_t m : {1, 6}) {
      const int32_t cols = t == DType::q8_0 || t == DType::mxfp4 ? k - 64 : k;
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
      {.gate = mxfp4, .up = mxfp4, .down = iq4_nl, .m = 1, .dim = 96, .inner = 160, .fused = true},
      {.gate = nvfp4,
       .up = nvfp4,
       .down = nvfp4,
       .m = 40,
       .dim = 320,
       .inner = 192,
       .experts = 5,
       .scales = true},
      {.gate = iq4_xs, .up = iq4_xs, .down = q3_k, .m = 70, .dim = 256, .inner = 256, .experts = 2},
      {.gate = q3_k, .up = q3_k, .down = iq4_xs, .m = 19, .dim = 256, .inner = 256, .experts = 70, .used = 3},
      {.gate = iq4_nl, .up = iq4_nl, .down = mxfp4, .m = 90, .dim = 96, .inner = 160, .experts = 4},
      {.gate = q4_1,
       .up = q4_1,
       .down = q5_1,
       .m = 40,
       .dim = 96,
       .inner = 160,
       .experts = 5,
       .scales = true},
      {.gate = q5_1, .up = q5_1, .down = q4_1, .m = 1, .dim = 160, .inner = 96, .fused = true},
      {.gate = q2_k, .up = q2_k, .down = q2_k, .m = 70, .dim = 256, .inner = 256, .experts = 2},
      {.gate = iq3_s, .up = iq3_s, .down = iq2_xs, .m = 70, .dim = 256, .inner = 256, .experts = 2},
      {.gate = iq2_xxs, .up = iq2_xxs, .down = iq2_s, .m = 40, .dim = 256, .inner = 256, .experts = 5},
      {.gate = iq3_xxs, .up = iq3_xxs, .down = iq3_xxs, .m = 1, .dim = 512, .inner = 256, .fused = true},
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
  for (const auto& [type, down] : {std::pair{q4_k, q6_k},
                                   {q4_k, q4_k},
                                   {f32, f32},
                                   {nvfp4, nvfp4},
                                   {iq4_xs, q3_k},
                                   {mxfp4, iq4_nl},
                                   {q2_k, q4_1},
                                   {iq3_s, iq2_xs}})
    for (const int32_t m : {1, 3})
      for (const bool added : {false, true})
        l.add([=](CaseRun& c) { mixture(c, type, down, m, 1536, 256, 256, added); },
              "mixture{} {} and {} {} rows", added ? ", added," : "", info(type).name, info(down).name, m);
  for (const int32_t m : {1, 2, 4, 11})
    for (const bool added : {false, true})
      l.add([=](CaseRun& c) { mixture(c, q8_0, q5_0, m, 1536, 544, 224, added); },
            "mixture{} narrow q8_0 and q5_0 {} rows", added ? ", added," : "", m);
}

void add_normed(List& l) {
  using enum DType;
  // Rows that fill a block's threads once and twice, and a little less and more.
  for (const int32_t cols : {768, 3328, 3584, 5376})
    for (const DType t : {q4_k, q5_k, q8_0, q2_k, q3_k, q4_1, q5_1, iq4_xs, iq4_nl, mxfp4, nvfp4, iq2_xxs,
                          iq2_xs, iq2_s, iq3_xxs, iq3_s}) {
      const bool usual = t == q4_k || t == q5_k || t == q8_0;
      if (!usual && cols != 3584) continue;  // they share all but what a tile is
      const DType last = t == q4_k || t == q5_k ? q6_k : t;
      l.add([=](CaseRun& c) { normed_products(c, t, last, cols, false); }, "norms, matmul single row {} {}",
            info(t).name, cols);
      l.add([=](CaseRun& c) { normed_products(c, t, t, cols, true); }, "norms, gate-up single row {} {}",
            info(t).name, cols);
    }
}

// Float weights where kernels for few rows go around their rings more than once, where tiles are cut, and
// those whose products round activations to e4m3.
void add_float_weights(List& l) {
  const auto add = [&](DType t, int32_t m, int32_t k, int32_t n) {
    l.add([=](CaseRun& c) { matmul(c, t, m, k, n, {.scale = 0.5f, .residual = true}); },
          "matmul {} long {}x{}x{}", info(t).name, m, k, n);
  };
  for (const DType t : {DType::bf16, DType::f16, DType::fp8, DType::fp8_a8})
    for (const int32_t m : {1, 6, 12}) add(t, m, 2608, 37);
  for (const DType t : {DType::f16, DType::fp8_a8}) add(t, 130, 2560, 300);
  const DType t = DType::fp8_a8;
  add(t, 3, 17, 19), add(t, 5, 304, 64), add(t, 40, 304, 150), add(t, 70, 1008, 200);
  for (const auto [m, k, n] : {std::array{1, 304, 48}, std::array{3, 30, 17}, std::array{40, 608, 150}})
    l.add([=](CaseRun& c) { gate_up(c, t, m, k, n, Act::gelu_tanh); }, "gate-up {} {}x{}x{}", info(t).name, m,
          k, n);
  for (ExpertShape s : {ExpertShape{.m = 1, .dim = 96, .inner = 48, .fused = true},
                        ExpertShape{.m = 40, .dim = 288, .inner = 80, .scales = true},
                        ExpertShape{.m = 3, .dim = 70, .inner = 30, .residual = true}}) {
    s.gate = s.up = s.down = t;
    l.add([=](CaseRun& c) { experts(c, s); }, "experts {} {} rows", info(t).name, s.m);
  }
  l.add([=](CaseRun& c) { slice_matmul(c, t, 3, 256, 37, 13, 5); }, "slices {}", info(t).name);
}

// Weights of 4 bits whose products round activations to e4m3: a GPU's steps of 128 columns whole and cut, its
// tiles of 8, 32 and 128 rows.
void add_four_bits_fp8(List& l, DType t) {
  const int32_t e = info(t).elems;
  for (const auto [m, k, n] :
       {std::array{1, 2560 + e, 37}, std::array{6, 2560 + e, 37}, std::array{12, 2560 + e, 37},
        std::array{2, e, 5}, std::array{3, 2 * e, 19}, std::array{9, 3 * e, 33}, std::array{5, 320, 64},
        std::array{40, 320, 150}, std::array{70, 1024, 200}, std::array{130, 2560, 300}})
    l.add([=](CaseRun& c) { matmul(c, t, m, k, n, {.scale = 0.5f, .residual = true}); },
          "matmul {} long {}x{}x{}", info(t).name, m, k, n);
  for (const auto [m, k, n] :
       {std::array{1, 320, 48}, std::array{3, e, 17}, std::array{40, 640, 150}, std::array{90, 256 + e, 70}})
    l.add([=](CaseRun& c) { gate_up(c, t, m, k, n, Act::gelu_tanh); }, "gate-up {} {}x{}x{}", info(t).name, m,
          k, n);
  for (ExpertShape s : {ExpertShape{.m = 1, .dim = 128, .inner = 64, .fused = true},
                        ExpertShape{.m = 40, .dim = 320, .inner = 128, .scales = true},
                        ExpertShape{.m = 3, .dim = 64, .inner = 192, .residual = true},
                        ExpertShape{.m = 70, .dim = 192, .inner = 64, .experts = 2, .used = 2}}) {
    s.gate = s.up = s.down = t;
    l.add([=](CaseRun& c) { experts(c, s); }, "experts {} {} rows", info(t).name, s.m);
  }
  l.add([=](CaseRun& c) { slice_matmul(c, t, 3, 256, 37, 13, 5); }, "slices {}", info(t).name);
}

// What add_matmuls() and add_experts() have for the other formats that a Hopper's warpgroups multiply.
void add_warpgroup_formats(List& l) {
  for (const DType t : {DType::iq4_xs, DType::q3_k, DType::q2_k}) {
    l.add([=](CaseRun& c) { matmul(c, t, 66, 1792, 96, {}); }, "matmul {} many rows, long", info(t).name);
    add_cut_tiles(l, t, {23, 50, 128}, 2560, 600);
    ExpertShape s{.m = 70, .dim = 512, .inner = 256, .experts = 3, .used = 2, .scales = true};
    s.gate = s.up = s.down = t;
    l.add([=](CaseRun& c) { experts(c, s); }, "experts {} many rows", info(t).name);
  }
  for (const DType t : {DType::q8_0, DType::nvfp4}) add_cut_tiles(l, t, {50, 150}, 2496, 600);
  for (const DType t : {DType::iq2_xs, DType::iq3_s}) add_cut_tiles(l, t, {50, 150}, 2560, 600);
}

// Rows rounded twice, as of an output head.
void add_refined(List& l) {
  for (const DType t : weight_types()) {
    if (!quantized(t)) continue;
    const int32_t k = info(t).elems == 256 ? 768 : 704;
    for (const int32_t m : {1, 3, 8, 20, 40})
      l.add([=](CaseRun& c) { refined_product(c, t, m, k, 67, m == 3 ? 30 : 0); },
            "refined product {} {} rows", info(t).name, m);
  }
}

}  // namespace

std::vector<OpCase> op_cases() {
  List l;
  add_matmuls(l);
  add_two_formats(l);
  add_shared_out(l, 1098, 4608, 150, 15360);
  add_experts(l);
  add_normed(l);
  for (const auto& part : {row_cases, attention_cases, recurrent_cases})
    for (OpCase& c : part()) l.cases.push_back(std::move(c));
  add_float_weights(l);
  for (const DType t : {DType::mxfp4_a8, DType::nvfp4_a8}) add_four_bits_fp8(l, t);
  add_warpgroup_formats(l);
  add_refined(l);
  for (OpCase& c : protected_prompt_cases()) l.cases.push_back(std::move(c));
  return std::move(l.cases);
}

size_t one_case_in() {
  const char* sample = std::getenv("CARAT_TESTS_SAMPLE");
  return sample ? std::max<size_t>(1, std::strtoul(sample, nullptr, 10)) : 1;
}

std::vector<OpCase> large_op_cases() {
  List l;
  add_shared_out(l, 8482, 7680, 5970, 15360);
  for (const DType t : {DType::q4_k, DType::q6_k}) add_cut_tiles(l, t, {128, 400}, 1536, 8900);
  return std::move(l.cases);
}

}  // namespace carat::test
