#include "tests/op_cases.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "core/codec.h"
#include "core/kv_codec.h"

namespace carat::test {
namespace {

constexpr double kUlp = 0x1p-24;  // half a unit in the last place of 1

bool quantized(DType t) { return info(t).family == Family::block; }

std::vector<DType> weight_types() {
  std::vector<DType> out{DType::f32, DType::f16, DType::bf16};
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
double dot(const float* x, const float* w, int32_t n) {
  double s = 0;
  for (int32_t i = 0; i < n; ++i) s += double{x[i]} * w[i];
  return s;
}

// ---- products
// --------------------------------------------------------------------------------------------------------

struct Epilogue {
  float scale = 1, softcap = 0;
  Act act = Act::none;
  bool bias = false, mul = false, residual = false, in_place = false;
};

void matmul(CaseRun& c, DType type, int32_t m, int32_t k, int32_t n, const Epilogue& e,
            RowSet set = RowSet::all) {
  const int32_t bucket = std::max(1, m + m % 3);
  if (set == RowSet::all)
    plain_step(c, m);
  else
    c.step({{0, 2 * m}}, 1, 2);
  const Operand x = c.input(bucket, k, m), w = c.weight(type, n, k);
  const Operand bias = c.shared_row(n, -2, 2), mul = c.input(bucket, n, m), residual = c.input(bucket, n, m);
  const Tensor y = e.in_place ? residual.t : c.output(bucket, n);
  MatmulArgs a{y, x.t, w.t, e.bias ? bias.t : Tensor{}, e.mul ? mul.t : Tensor{}};
  a.scale = e.scale, a.softcap = e.softcap, a.act = e.act;
  if (e.residual) a.residual = residual.t;
  c.push(a, set);
  const auto tolerance = [=](int32_t r, int32_t i) {
    // Activations and the cap bend no steeper than 1.13; their own error is relative to what goes in.
    const double size = x.norm(r) * w.norm(i) * e.scale + 2;
    const double in = (quantized(type) ? 0 : dot_error(x, r, w, i) * e.scale) + 8 * kUlp * size;
    return 1.2 * in * (e.mul ? std::abs(mul.row(r)[i]) : 1) +
           (e.residual ? 2 * kUlp * std::abs(residual.row(r)[i]) : 0) + 1e-30;
  };
  const bool exact = quantized(type) && e.act == Act::none && e.softcap == 0;
  c.expect("y", y, m, exact ? std::function<double(int32_t, int32_t)>{} : tolerance);
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
  Act act = Act::gelu_tanh;
};

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
  const Operand ds = c.shared_row(s.experts, 0.5, 2), share = c.input(bucket, s.used, s.m);
  std::vector<int32_t> chosen;
  for (int32_t r = 0; r < bucket; ++r)
    for (int32_t j = 0; j < s.used; ++j) chosen.push_back((r * 5 + j * 7 + r / 2) % s.experts);
  const Tensor ids = c.ints(chosen, bucket, s.used), y = c.output(bucket, s.dim);
  const Tensor none;
  c.push(ExpertsArgs{y, x.t, gate.t, up.t, down.t, share.t, ids, s.scales ? gs.t : none,
                     s.scales ? us.t : none, s.scales ? ds.t : none, s.act, s.residual ? res.t : none});
  std::vector<double> size(static_cast<size_t>(s.m) * s.dim);  // bound of the error per output
  for (int32_t r = 0; r < s.m; ++r)
    for (int32_t j = 0; j < s.used; ++j) {
      const int32_t e = chosen[r * s.used + j];
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
        // A hidden value next to a rounding boundary may fall to the other side.
        if (quantized(s.down)) err += 0.05 * top / 127 * down.max_abs(row);
        size[static_cast<size_t>(r) * s.dim + d] += std::abs(share.row(r)[j]) * err * (s.scales ? 2 : 1);
      }
    }
  c.expect("y", y, s.m, [=](int32_t r, int32_t i) { return size[static_cast<size_t>(r) * s.dim + i]; });
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
  int in_place = 0;  // 1: y is x; 2: y is residual
};

void rms_norm(CaseRun& c, const NormShape& s) {
  plain_step(c, s.rows);
  const int32_t width = s.width ? s.width : s.cols;
  const Operand x = c.input(s.rows + 1, s.cols, s.rows, 3), res = c.input(s.rows + 1, s.cols, s.rows);
  const Operand w = c.shared_row(width, -2, 2), row = c.shared_row(s.cols, 0.5, 2),
                one = c.shared_row(1, 0.5, 2);
  const Tensor y = s.in_place == 1 ? x.t : s.in_place == 2 ? res.t : c.output(s.rows + 1, s.cols);
  const Tensor none;
  RmsNormArgs a{y, x.t, s.weight ? w.t : none, s.residual ? res.t : none,
                s.gain_row   ? row.t
                : s.gain_one ? one.t
                             : none};
  a.width = s.width, a.eps = 1e-6f, a.scale = 0.7f;
  c.push(a);
  c.expect("y", y, s.rows, [=](int32_t r, int32_t i) {
    const int32_t first = i / width * width;
    const double mean = dot(x.row(r) + first, x.row(r) + first, width) / width;
    const double v =
        std::abs(x.row(r)[i] / std::sqrt(mean + 1e-6)) * (s.weight ? std::abs(w.host[i - first]) : 1);
    const double size =
        v * (std::sqrt(static_cast<double>(width)) + 8) + 4 * (s.residual ? std::abs(res.row(r)[i]) : 0);
    return 2 * kUlp * size * (s.gain_row ? row.host[i] : s.gain_one ? one.host[0] : 1) + 1e-30;
  });
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

// ---- attention
// -------------------------------------------------------------------------------------------------------

struct AttentionShape {
  int32_t dim = 64, kv_heads = 2, groups = 2, window = 0, page_tokens = 64;
  DType k = DType::f32, v = DType::f32;
  std::vector<Rows> sequences{{0, 3}};
  bool ring = false, out_rows = false, both_ways = false;
  float softcap = 0;
  int32_t pairs = 0;  // one copy of K = V
};

void attention(CaseRun& c, const AttentionShape& s) {
  c.step(s.sequences, 1, s.out_rows ? 2 : 1);
  const KvSpec spec{s.k, s.v, s.kv_heads, s.dim, s.window, s.pairs};
  const KvView kv = c.cache(spec, s.page_tokens, s.ring, true);
  const int32_t heads = s.kv_heads * s.groups, m = s.out_rows ? c.n_out() : c.n_rows();
  const Operand q = c.input(m + 1, heads * s.dim, m, 1.5 / std::sqrt(static_cast<double>(s.dim)));
  const Tensor y = c.output(m + 1, heads * s.dim);
  AttentionArgs a{y, q.t, kv, 1.1f, s.softcap, s.both_ways};
  c.push(a, s.out_rows ? RowSet::out : RowSet::all);
  for (int32_t r = 0; r < m; ++r) {
    const int32_t row = s.out_rows ? c.state().out_row[r] : r;
    const int32_t pos = c.state().pos[row], seq = c.state().seq[row];
    const int32_t first = s.window ? std::max(0, pos - s.window + 1) : 0;
    int32_t last = pos;
    for (int32_t i = row; s.both_ways && i < c.n_rows() && c.state().seq[i] == seq; ++i)
      last = c.state().pos[i];
    std::vector<double> tolerance;
    for (int32_t h = 0; h < heads; ++h) {
      double k_norm = 0, v_max = 0;
      for (int32_t p = first; p <= last; ++p) {
        double norm = 0;
        for (const float f : c.stored(kv, seq, c.state().slot_seen(row, p), h / s.groups, true))
          norm += double{f} * f;
        for (const float f : c.stored(kv, seq, c.state().slot_seen(row, p), h / s.groups, false)) {
          v_max = std::max(v_max, std::abs(double{f}));
          if (s.pairs) norm += double{f} * f;
        }
        k_norm = std::max(k_norm, std::sqrt(norm));
      }
      const float* qh = q.row(r) + h * s.dim;
      double gain = 1;  // the most a query grows by
      for (int32_t i = 0; s.pairs && i < s.dim; ++i) gain = std::max(gain, std::abs(double{kv.gain[i]}));
      const double scores = std::sqrt(dot(qh, qh, s.dim)) * gain * k_norm * 1.1;
      const double rel = 4 * kUlp * (std::sqrt(static_cast<double>(s.dim)) + 8) * (1 + scores) +
                         4 * kUlp * std::sqrt(static_cast<double>(last - first + 16));
      // Rotating back gives every element a share of all errors.
      const double spread = rotation_of(s.v) == KvRotation::none ? 1 : 3;
      tolerance.insert(tolerance.end(), static_cast<size_t>(s.dim), spread * rel * v_max);
    }
    c.expect_row(fmt::format("y[{}]", r), y.row<std::byte>(r), DType::f32, std::move(tolerance));
  }
}

struct PrepShape {
  int32_t dim = 64, heads = 4, kv_heads = 2, pairs = 32, page_tokens = 64, window = 0;
  DType k = DType::f32, v = DType::f32;
  std::vector<Rows> sequences{{0, 3}};
  bool ring = false, k_is_v = false, queries_only = false, norms = true, v_norm = true;
  int32_t ahead = 0;
  bool single = false;  // one copy of K = V
};

// What storing may add to a difference of t between two values about x, in a row whose largest is top.
double stored_error(DType type, double t, double x, double top) {
  switch (type) {
    case DType::f32: return t;
    case DType::f16: return t + std::abs(x) * 0x1p-10 + 1e-7;
    case DType::bf16: return t + std::abs(x) * 0x1p-7;
    default: return t + top * (type == DType::q8_0 ? 1 / 100.0 : 0.35);
  }
}

void qkv_prep(CaseRun& c, const PrepShape& s) {
  c.step(s.sequences);
  const int32_t m = c.n_rows(), q_cols = s.heads * s.dim, kv_cols = s.kv_heads * s.dim;
  const KvSpec spec{s.k, s.v, s.kv_heads, s.dim, s.window, s.single ? s.pairs : 0};
  const KvView kv = c.cache(spec, s.page_tokens, s.ring, false);
  const Operand q = c.input(m + 1, q_cols, m, 2), k = c.input(m + 1, kv_cols, m, 3);
  const Operand v = s.k_is_v ? k : c.input(m + 1, kv_cols, m);
  const Operand qn = c.shared_row(s.dim, 0.5, 1.5), kn = c.shared_row(s.dim, -1.5, 1.5);
  std::vector<float> freq;
  for (int32_t i = 0; i < s.pairs; ++i)
    freq.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / s.dim)));
  const Tensor none;
  QkvPrepArgs a{};
  a.q = q.t;
  if (!s.queries_only) a.k = k.t, a.v = v.t;
  if (s.norms) a.q_norm = qn.t, a.k_norm = kn.t;
  if (s.pairs) a.rope = {c.floats(freq), s.pairs, s.dim / 2, s.ahead};
  a.eps = 1e-6f, a.v_norm = s.v_norm, a.kv = kv;
  c.push(a);
  // Values of a head after the norm: what the tolerance is relative to.
  const auto normed = [&](const float* x, const Tensor& weight, const std::vector<float>& w, bool norm) {
    std::vector<double> y(x, x + s.dim);
    const double inv = 1 / std::sqrt(dot(x, x, s.dim) / s.dim + 1e-6);
    for (int32_t i = 0; norm && i < s.dim; ++i) y[i] *= inv * (weight.valid() ? w[i] : 1);
    return y;
  };
  const double rel = 2 * kUlp * (std::sqrt(static_cast<double>(s.dim)) + 16);
  // type: how it is stored; domain: the format whose rotation it has; y: a head, or a part of it in which
  // pairs are half its size apart.
  const auto tolerances = [&](const std::vector<double>& y, DType type, DType domain, bool rotated) {
    const auto n = y.size();
    double top = 0, norm = 0;
    for (const double f : y) top = std::max(top, std::abs(f)), norm += f * f;
    norm = std::sqrt(norm);
    if (rotation_of(domain) != KvRotation::none) {  // every element depends on all; two steps of the grids
      const double size = norm / std::sqrt(static_cast<double>(n));
      return std::vector<double>(y.size(), stored_error(type, 2 * rel * norm, 0, 2 * size));
    }
    std::vector<double> out;
    for (size_t i = 0; i < n; ++i) {
      const double pair = rotated ? std::hypot(y[i], y[(i + n / 2) % n]) : std::abs(y[i]);
      out.push_back(stored_error(type, rel * pair + 1e-30, pair, 1.5 * top));
    }
    return out;
  };
  for (int32_t r = 0; r < m; ++r) {
    const int32_t slot = c.state().slot_of(r);
    const SeqView& seq = c.state().seqs[c.state().seq[r]];
    std::vector<double> tol;
    for (int32_t h = 0; h < s.heads; ++h) {
      const auto t = tolerances(normed(q.row(r) + h * s.dim, qn.t, qn.host, s.norms), DType::f32,
                                s.single ? DType::f32 : s.k, s.pairs > 0);
      tol.insert(tol.end(), t.begin(), t.end());
    }
    c.expect_row(fmt::format("q[{}]", r), q.t.row<std::byte>(r), DType::f32, std::move(tol));
    for (int32_t h = 0; h < s.kv_heads && !s.queries_only; ++h) {
      std::vector<double> key = normed(k.row(r) + h * s.dim, kn.t, kn.host, s.norms);
      if (s.single) {
        for (int32_t i = 0; i < s.pairs; ++i) key[s.pairs + i] = key[s.dim / 2 + i];
        key.resize(static_cast<size_t>(2 * s.pairs));
      }
      c.expect_row(fmt::format("k[{}] head {}", r, h), kv.k_row(seq, slot, h), s.k,
                   tolerances(key, s.k, s.k, s.pairs > 0));
      c.expect_row(fmt::format("v[{}] head {}", r, h), kv.v_row(seq, slot, h), s.v,
                   tolerances(normed(v.row(r) + h * s.dim, none, {}, s.v_norm), s.v, s.v, false));
    }
  }
}

// ---- the lists
// -------------------------------------------------------------------------------------------------------

class List {
 public:
  template <class... T>
  void add(std::function<void(CaseRun&)> build, fmt::format_string<T...> name, T&&... v) {
    cases.push_back({fmt::format(name, std::forward<T>(v)...), std::move(build)});
  }
  std::vector<OpCase> cases;
};

void add_matmuls(List& l) {
  for (const DType t : weight_types()) {
    const int32_t e = info(t).elems;
    // Whole blocks of 256 columns, a shorter last one, and less than one.
    std::vector<int32_t> inner =
        e == 256 ? std::vector<int32_t>{256, 768} : std::vector<int32_t>{e, 5 * 64, 704};
    if (e == 1) inner = {1, 17, 300};
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
    for (const int32_t m : {1, 5})
      l.add([=](CaseRun& c) { embed(c, t, m, inner[inner.size() - 1]); }, "embed {} {} rows", info(t).name,
            m);
  }
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
  };
  for (const DType t : {f32, bf16, f16, q8_0, q4_k, q6_k, q4_0, iq4_nl})
    for (const int32_t m : {1, 3, 40})
      l.add([=](CaseRun& c) { slice_matmul(c, t, m, 256, m == 3 ? 37 : 32, 13, 5); }, "slices {} {} rows",
            info(t).name, m);
  int i = 0;
  for (const ExpertShape& s : shapes) l.add([=](CaseRun& c) { experts(c, s); }, "experts {}", i++);
}

void add_rows(List& l) {
  for (const int32_t keep : {1, 2, 5, 40})
    l.add([=](CaseRun& c) { gather(c, 23, keep); }, "gather every {}", keep);
  for (const int32_t cols : {1, 7, 16, 64, 100, 257, 1536}) {
    NormShape s{.rows = 1 + cols % 5, .cols = cols};
    l.add([=](CaseRun& c) { rms_norm(c, s); }, "norm {}", cols);
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
  }
}

// Every cache format in every head size, as pages and as a ring, a chain and a tree; keys and values differ.
void add_cache_formats(List& l) {
  const std::span<const DType> formats = kv_formats();
  int i = 0;
  for (size_t f = 0; f < formats.size(); ++f)
    for (const int32_t dim : {64, 128, 256, 512}) {
      const DType k = formats[f], v = formats[(f + static_cast<size_t>(i)) % formats.size()];
      for (const bool ring : {false, true}) {
        AttentionShape a{.dim = dim, .kv_heads = 1 + i % 2, .groups = 1 + i % 3, .k = k, .v = v};
        const int32_t rows = dim < 256 ? 1 + 3 * i % 32 : 1 + i % 4;  // ref is slow
        a.sequences = {{i % 2 ? 60 : 125, rows}, {30, 5, {-1, 0, 0, 1, 2}}};
        a.window = ring ? 40 : 0, a.ring = ring, a.page_tokens = i % 3 ? 64 : 16;
        l.add([=](CaseRun& c) { attention(c, a); }, "attention cache {} {} heads of {} ring {}", info(k).name,
              info(v).name, dim, ring);
        PrepShape p{.dim = dim, .heads = 3, .kv_heads = 1 + i % 2, .pairs = dim / 4, .k = k, .v = v};
        p.sequences = a.sequences, p.window = a.window, p.ring = ring, p.k_is_v = i % 2;
        p.queries_only = i % 7 == 6;
        l.add([=](CaseRun& c) { qkv_prep(c, p); }, "prep cache {} {} heads of {} ring {}", info(k).name,
              info(v).name, dim, ring);
        ++i;
      }
    }
}

// One copy of K = V: every format, heads of Gemma 4's shape, pages and rings, chains and trees.
void add_single_copies(List& l) {
  const std::span<const DType> formats = kv_formats();
  int i = 0;
  for (size_t f = 0; f < formats.size(); ++f)
    for (const int32_t dim : {256, 512}) {
      const DType k = formats[f], v = formats[(f + static_cast<size_t>(i)) % formats.size()];
      AttentionShape a{.dim = dim, .kv_heads = 1 + i % 2, .groups = 1 + i % 8, .k = k, .v = v};
      a.pairs = dim / 8, a.sequences = {{i % 2 ? 60 : 125, 1 + i % 6}, {30, 5, {-1, 0, 0, 1, 2}}};
      a.ring = i % 4 == 3, a.window = a.ring ? 40 : 0, a.page_tokens = i % 3 ? 64 : 16;
      l.add([=](CaseRun& c) { attention(c, a); }, "attention one copy {} {} heads of {}", info(k).name,
            info(v).name, dim);
      PrepShape p{.dim = dim, .heads = 3, .kv_heads = a.kv_heads, .pairs = a.pairs, .k = k, .v = v};
      p.sequences = a.sequences, p.window = a.window, p.ring = a.ring, p.k_is_v = p.single = true;
      p.queries_only = i % 7 == 6;
      l.add([=](CaseRun& c) { qkv_prep(c, p); }, "prep one copy {} {} heads of {}", info(k).name,
            info(v).name, dim);
      ++i;
    }
  // Key parts and heads that fill no vector.
  for (const int32_t pairs : {1, 5, 24}) {
    AttentionShape a{.dim = 80, .groups = 3, .k = DType::f32, .v = DType::f16, .pairs = pairs};
    a.sequences = {{250, 9}, {61, 3}}, a.out_rows = pairs == 5, a.both_ways = pairs == 24;
    l.add([=](CaseRun& c) { attention(c, a); }, "attention one copy, {} pairs", pairs);
  }
}

void add_attention(List& l) {
  using enum DType;
  const std::vector<Rows> seams[] = {
      {{0, 1}}, {{0, 40}}, {{62, 4}}, {{127, 1}, {0, 5}, {300, 3}}, {{255, 2}, {511, 1}}};
  int i = 0;
  for (const int32_t dim : {16, 32, 64, 80, 128, 256, 512})
    for (const DType t : {f32, f16, bf16, q8_0}) {
      if (dim % info(t).elems) continue;
      AttentionShape s{.dim = dim, .kv_heads = 1 + i % 3, .groups = 1 + i % 4, .k = t, .v = t};
      s.sequences = seams[i % 5];
      s.page_tokens = i % 3 == 0 ? 16 : 64;
      l.add([=](CaseRun& c) { attention(c, s); }, "attention {} {} {}", dim, info(t).name, i);
      s.window = 5 + 37 * (i % 4), s.ring = i % 2;
      s.out_rows = i % 5 == 4;
      l.add([=](CaseRun& c) { attention(c, s); }, "attention {} {} window {} ring {}", dim, info(t).name,
            s.window, s.ring);
      ++i;
    }
  for (const auto& seqs : seams)
    for (const int32_t window : {1, 64, 65, 200}) {
      AttentionShape s{.dim = 32, .groups = 8, .window = window, .page_tokens = 8, .k = f16, .v = f16};
      s.sequences = seqs, s.ring = true;
      l.add([=](CaseRun& c) { attention(c, s); }, "attention ring {} from {} x {}", window, seqs[0].first_pos,
            seqs[0].count);
    }
  for (const auto& seqs : seams)
    for (const bool ring : {false, true}) {
      AttentionShape s{.dim = 32, .groups = 2, .page_tokens = 8, .k = f16, .v = f16};
      s.sequences = seqs, s.ring = ring, s.window = ring ? 40 : 0, s.both_ways = true;
      s.out_rows = seqs.size() > 1;
      l.add([=](CaseRun& c) { attention(c, s); }, "attention both ways, ring {}, from {} x {}", ring,
            seqs[0].first_pos, seqs[0].count);
    }
  AttentionShape cap{.softcap = 20};
  cap.sequences = {{70, 9}};
  l.add([=](CaseRun& c) { attention(c, cap); }, "attention softcap");
  AttentionShape mixed{.dim = 64, .k = f16, .v = q8_0};
  mixed.sequences = {{1000, 6}};
  l.add([=](CaseRun& c) { attention(c, mixed); }, "attention f16 keys, q8_0 values");

  for (const int32_t dim : {16, 32, 64, 96, 128, 256, 512})
    for (const DType t : {f32, f16, bf16, q8_0}) {
      if (dim % info(t).elems) continue;
      PrepShape s{.dim = dim, .heads = 1 + i % 5, .kv_heads = 1 + i % 3, .pairs = dim / 2, .k = t, .v = t};
      s.sequences = seams[i % 5];
      s.page_tokens = i % 2 ? 64 : 16;
      s.k_is_v = i % 3 == 0;
      l.add([=](CaseRun& c) { qkv_prep(c, s); }, "prep {} {} {}", dim, info(t).name, i);
      s.pairs = dim / 8, s.window = 20, s.ring = true, s.queries_only = i % 4 == 3;
      l.add([=](CaseRun& c) { qkv_prep(c, s); }, "prep {} {} ring {}", dim, info(t).name, i);
      ++i;
    }
  // Trees: wide, deep, several roots, beside chains; windows smaller than the tree; rings whose seam is
  // inside.
  const std::vector<int32_t> wide{-1, 0, 0, 0, 1, 1, 2, 4, 4, 6, 7, 3},
      deep{-1, 0, 1, 2, 3, 4, 5, 6, 2, 8, 9, 0, 11}, roots{-1, -1, 0, 1, 1, 2};
  const std::vector<Rows> forests[] = {{{0, 12, wide}},
                                       {{250, 13, deep}},
                                       {{61, 12, wide}, {100, 3}, {1020, 13, deep}},
                                       {{5, 1}, {63, 6, roots}, {255, 12, wide}}};
  for (const int32_t dim : {64, 96, 256, 512})
    for (const auto& seqs : forests) {
      AttentionShape s{.dim = dim, .kv_heads = 1 + i % 2, .groups = 1 + i % 8, .page_tokens = 16};
      s.k = s.v = i % 3 == 0 ? f32 : i % 3 == 1 ? f16 : q8_0;
      s.sequences = seqs;
      l.add([=](CaseRun& c) { attention(c, s); }, "attention {} tree {}", dim, i);
      s.window = i % 4 == 0 ? 3 : 20 + i % 3, s.ring = i % 4 != 1, s.out_rows = i % 2;
      l.add([=](CaseRun& c) { attention(c, s); }, "attention {} tree {} window {} ring {}", dim, i, s.window,
            s.ring);
      PrepShape prep{.dim = dim, .pairs = dim / 4, .page_tokens = 16, .window = s.window, .k = s.k, .v = s.v};
      prep.sequences = seqs, prep.ring = s.ring;
      l.add([=](CaseRun& c) { qkv_prep(c, prep); }, "prep {} tree {}", dim, i);
      ++i;
    }
  add_cache_formats(l);
  add_single_copies(l);
  PrepShape far{.dim = 64, .k = f16, .v = f16};
  far.sequences = {{4090, 9}};
  l.add([=](CaseRun& c) { qkv_prep(c, far); }, "prep far");
  far.window = 16, far.ring = true, far.sequences = {{262000, 5}};
  l.add([=](CaseRun& c) { qkv_prep(c, far); }, "prep at position 262000");
  PrepShape ahead{.queries_only = true, .ahead = 1};
  ahead.sequences = {{77, 2}, {5, 1}};
  l.add([=](CaseRun& c) { qkv_prep(c, ahead); }, "prep one position ahead");
  PrepShape bare{.pairs = 0, .norms = false, .v_norm = false};
  l.add([=](CaseRun& c) { qkv_prep(c, bare); }, "prep without norms and rotation");
}

}  // namespace

std::vector<OpCase> op_cases() {
  List l;
  add_matmuls(l);
  add_experts(l);
  add_rows(l);
  add_attention(l);
  for (OpCase& c : recurrent_cases()) l.cases.push_back(std::move(c));
  return std::move(l.cases);
}

}  // namespace carat::test
