// Cases of attention and of what stores keys and values: shapes, windows, rings, trees, cache formats.
#include <algorithm>
#include <cmath>

#include "core/kv_codec.h"
#include "tests/case_list.h"

namespace carat::test {
namespace {

constexpr double kHalfUlp = 0x1p-11;

// Attention to rows shortly before, by distance.
void band(CaseRun& c, const std::vector<Rows>& sequences, int32_t heads, int32_t dim, int32_t window,
          float softcap) {
  c.step(sequences);
  const int32_t m = c.n_rows(), bucket = m + 1, cols = heads * dim;
  const double spread = 1.5 / std::sqrt(static_cast<double>(dim));
  const Operand q = c.input(bucket, cols, m, spread), k = c.input(bucket, cols, m),
                v = c.input(bucket, cols, m), ahead = c.input(window, cols, window);
  const Tensor y = c.output(bucket, cols);
  c.push(BandAttentionArgs{y, q.t, k.t, v.t, ahead.t, heads, softcap});
  c.expect("y", y, m, [=](int32_t r, int32_t i) {
    const int32_t at = i / dim * dim;
    double most = 0, size = 0;
    for (int32_t j = std::max(0, r - window + 1); j <= r; ++j) {
      most = std::max(most, std::abs(double{v.row(j)[i]}));
      const float *a = k.row(j) + at, *b = ahead.row(r - j) + at;
      size = std::max(size, std::sqrt(dot(a, a, dim)) + std::sqrt(dot(b, b, dim)));
    }
    const double scores = std::sqrt(dot(q.row(r) + at, q.row(r) + at, dim)) * size;
    const double root = std::sqrt(static_cast<double>(dim)) + 8;
    return 4 * kUlp * (root * (1 + scores) + window + 16) * most + 1e-30;
  });
}

struct AttentionShape {
  int32_t dim = 64, kv_heads = 2, groups = 2, window = 0, page_tokens = 64;
  DType k = DType::f32, v = DType::f32;
  std::vector<Rows> sequences{{0, 3}};
  bool ring = false, out_rows = false, both_ways = false;
  int32_t block = 0;  // not 0: rows of pictures, so many each
  float softcap = 0;
  int32_t pairs = 0;  // one copy of K = V
  KvProtect protect = {};
  bool filled = false;  // the bucket has no more rows than the step
};

void attention(CaseRun& c, const AttentionShape& s) {
  c.step(s.sequences, 1, s.out_rows ? 2 : 1);
  if (s.block) c.blocks(s.block);
  const KvSpec spec{s.k, s.v, s.kv_heads, s.dim, s.window, s.pairs, s.protect};
  const KvView kv = c.cache(spec, s.page_tokens, s.ring, true);
  const int32_t heads = s.kv_heads * s.groups, m = s.out_rows ? c.n_out() : c.n_rows();
  const int32_t bucket = s.filled ? m : m + 1;
  const Operand q = c.input(bucket, heads * s.dim, m, 1.5 / std::sqrt(static_cast<double>(s.dim)));
  const Tensor y = c.output(bucket, heads * s.dim);
  AttentionArgs a{y, q.t, kv, 1.1f, s.softcap, s.both_ways, s.block > 0};
  c.push(a, s.out_rows ? RowSet::out : RowSet::all);
  for (int32_t r = 0; r < m; ++r) {
    const int32_t row = s.out_rows ? c.state().out_row[r] : r;
    const int32_t pos = c.state().pos[row], seq = c.state().seq[row];
    const int32_t first = s.window ? std::max(0, pos - s.window + 1) : 0;
    int32_t last = pos;
    for (int32_t i = row; s.both_ways && i < c.n_rows() && c.state().seq[i] == seq; ++i)
      last = c.state().pos[i];
    if (s.block) last = c.state().until[row];
    std::vector<double> tolerance;
    for (int32_t h = 0; h < heads; ++h) {
      const float* qh = q.row(r) + h * s.dim;
      // The query's parts that meet keys and values.
      std::vector<float> by_key(qh, qh + s.dim), by_value(static_cast<size_t>(s.dim));
      if (s.pairs)
        split_query(s.k, s.v, c.on_host(kv.gain), qh, s.dim, s.pairs, by_value.data(), by_key.data());
      double k_norm = 0, v_max = 0, spread_of_products = 0;
      for (int32_t p = first; p <= last; ++p) {
        double norm = 0, products = 0;
        const std::vector<float> key = c.stored(kv, row, p, h / s.groups, true),
                                 value = c.stored(kv, row, p, h / s.groups, false);
        for (size_t i = 0; i < key.size(); ++i) {
          norm += double{key[i]} * key[i];
          products += std::pow(double{key[i]} * by_key[i], 2);
        }
        for (size_t i = 0; i < value.size(); ++i) {
          v_max = std::max(v_max, std::abs(double{value[i]}));
          if (!s.pairs) continue;
          norm += double{value[i]} * value[i];
          products += std::pow(double{value[i]} * by_value[i], 2);
        }
        spread_of_products = std::max(spread_of_products, std::sqrt(products));
        k_norm = std::max(k_norm, std::sqrt(norm));
      }
      double gain = 1;  // the most a query grows by
      for (int32_t i = 0; s.pairs && i < s.dim; ++i)
        gain = std::max(gain, std::abs(double{c.on_host(kv.gain)[i]}));
      const double scores = std::sqrt(dot(qh, qh, s.dim)) * gain * k_norm * 1.1;
      double rel = 4 * kUlp * (std::sqrt(static_cast<double>(s.dim)) + 8) * (1 + scores) +
                   4 * kUlp * std::sqrt(static_cast<double>(last - first + 16));
      // Halves on a device's tensor cores: what weights and values lose, half an ulp of each at most, and
      // what the scores do, of whose products' losses a sum keeps the root. A sum over positions keeps less
      // again.
      if (c.halves() && s.k != DType::f32 && s.v != DType::f32)
        rel += kHalfUlp * (1 + 1.1 * spread_of_products);
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
  bool axes = false;    // the rotation is by places in pictures
  bool single = false;  // one copy of K = V
  KvProtect protect = {};
  bool exact = false;  // multiples of 1/2: magnitudes that are equal, sums without rounding; the same bytes
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
  const KvSpec spec{s.k, s.v, s.kv_heads, s.dim, s.window, s.single ? s.pairs : 0, s.protect};
  const KvView kv = c.cache(spec, s.page_tokens, s.ring, false);
  const Operand q = c.input(m + 1, q_cols, m, 2, s.exact), k = c.input(m + 1, kv_cols, m, 3, s.exact);
  const Operand v = s.k_is_v ? k : c.input(m + 1, kv_cols, m, 1, s.exact);
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
  if (s.axes) {
    c.places();
    std::vector<int32_t> axis;
    for (int32_t i = 0; i < s.pairs; ++i) axis.push_back((i * 5 + 1) % 3);
    a.rope.axis = c.ints(axis, 1, s.pairs).row<int32_t>(0);
  }
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
    if (s.exact) return std::vector<double>(n, 0);
    double top = 0, norm = 0;
    for (const double f : y) top = std::max(top, std::abs(f)), norm += f * f;
    norm = std::sqrt(norm);
    if (rotation_of(domain) != KvRotation::none) {  // every element depends on all; two steps of the grids
      const double size = norm / std::sqrt(static_cast<double>(n));
      return std::vector<double>(y.size(), stored_error(type, 2 * rel * norm, 4 * size, 2 * size));
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
      const std::vector<double> value = normed(v.row(r) + h * s.dim, none, {}, s.v_norm);
      c.expect_row(fmt::format("k[{}] head {}", r, h), kv.k_row(seq, slot, h), s.k,
                   tolerances(key, s.k, s.k, s.pairs > 0));
      c.expect_row(fmt::format("v[{}] head {}", r, h), kv.v_row(seq, slot, h), s.v,
                   tolerances(value, s.v, s.v, false));
      if (!s.protect.any()) continue;
      c.expect_row(fmt::format("protected k[{}] head {}", r, h), kv.k_edge_row(seq, slot, h), DType::f16,
                   tolerances(key, DType::f16, s.k, s.pairs > 0));
      c.expect_row(fmt::format("protected v[{}] head {}", r, h), kv.v_edge_row(seq, slot, h), DType::f16,
                   tolerances(value, DType::f16, s.v, false));
    }
  }
}

// Rows of pictures: towers, whose heads are 64 and 72 wide and see all, and blocks among tokens.
void add_pictures(List& l) {
  using enum DType;
  for (const int32_t dim : {64, 72})
    for (const int32_t rows : {9, 300}) {
      AttentionShape a{.dim = dim, .groups = 1, .page_tokens = rows};
      a.sequences = {{0, rows}}, a.block = rows;
      l.add([=](CaseRun& c) { attention(c, a); }, "picture attention, {} rows, heads of {}", rows, dim);
      PrepShape p{.dim = dim, .heads = 2, .pairs = dim / 2, .page_tokens = 300};
      p.sequences = {{0, rows}}, p.axes = true;
      l.add([=](CaseRun& c) { qkv_prep(c, p); }, "picture prep, {} rows, heads of {}", rows, dim);
    }
  for (const int32_t dim : {64, 72}) {  // pictures side by side, in pages that are no whole tiles
    AttentionShape a{.dim = dim, .groups = 2, .page_tokens = 20};
    a.sequences = {{0, 150}, {70, 40}}, a.block = 75;
    l.add([=](CaseRun& c) { attention(c, a); }, "picture attention, two sequences in pages, heads of {}",
          dim);
  }
  for (const int32_t block : {1, 5, 70})
    for (const bool ring : {false, true}) {
      AttentionShape a{.dim = 96, .groups = 2, .page_tokens = 8, .k = f16, .v = f16};
      a.sequences = {{250, 90}, {3, 20}}, a.ring = ring, a.window = ring ? 40 : 0, a.block = block;
      a.out_rows = block == 5;
      l.add([=](CaseRun& c) { attention(c, a); }, "picture attention in blocks of {} ring {}", block, ring);
    }
  for (const DType t : {f16, q8_0, kv4}) {  // as Gemma 4's large models read pictures
    AttentionShape a{.dim = 256, .groups = 2, .page_tokens = 64, .k = t, .v = t};
    a.sequences = {{250, 80}, {3, 20}}, a.ring = true, a.window = 70, a.block = 33;
    l.add([=](CaseRun& c) { attention(c, a); }, "picture attention in blocks, heads of 256 {}", info(t).name);
  }
}

// Prompts of two sequences in one step, which a GPU decodes packed caches for.
void add_two_prompts(List& l) {
  for (const DType t : {DType::f16, DType::q8_0, DType::kv4})
    for (const bool ring : {false, true}) {
      AttentionShape a{.dim = 256, .groups = 2, .page_tokens = 64, .k = t, .v = t};
      a.sequences = {{250, 70}, {3, 20}}, a.ring = ring, a.window = ring ? 70 : 0;
      l.add([=](CaseRun& c) { attention(c, a); }, "attention many rows of two prompts {} ring {}",
            info(t).name, ring);
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

// A single row in a bucket of one, for which GPUs have kernels of their own: Gemma 4's heads, pages and
// rings, few KV heads and many, some segments.
void add_single_rows(List& l) {
  using enum DType;
  for (const DType t : {f16, bf16, q8_0, fp8, kv4, tq4, tq3})
    for (const int32_t dim : {256, 512})
      for (const int32_t kv_heads : {2, 4}) {
        AttentionShape a{
            .dim = dim, .kv_heads = kv_heads, .groups = dim / 64 / (kv_heads / 2), .k = t, .v = t};
        a.filled = true, a.ring = dim == 256, a.window = a.ring ? 170 : 0;
        a.sequences = {{kv_heads == 2 ? 255 : 301, 1}};
        l.add([=](CaseRun& c) { attention(c, a); }, "attention single row {} {} heads of {}", info(t).name,
              kv_heads, dim);
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

// Steps of many sequences, most of them with a row each, beside a prompt and behind a text of many tiles.
void add_many_sequences(List& l) {
  using enum DType;
  std::vector<Rows> alone, beside{{100, 9}};
  for (int32_t i = 0; i < 36; ++i) alone.push_back({i * 37 % 300, 1});
  beside.insert(beside.end(), alone.begin(), alone.end());
  alone.push_back({4200, 1});
  int i = 0;
  for (const int32_t dim : {256, 512})
    for (const DType t : {f16, q8_0, kv4, tq3})
      for (const auto& sequences : {alone, beside}) {
        AttentionShape a{.dim = dim, .kv_heads = 1 + i % 2, .groups = dim == 256 ? 2 : 8, .k = t, .v = t};
        a.sequences = sequences, a.page_tokens = i % 3 ? 64 : 16;
        a.ring = dim == 256 && i % 4 < 2, a.window = a.ring ? 150 : 0;
        l.add([=](CaseRun& c) { attention(c, a); }, "attention of {} sequences from {}, {} {}",
              sequences.size(), sequences[0].first_pos, dim, info(t).name);
        ++i;
      }
}

// Sinks and recent positions of their own: chains longer and shorter than what is protected, trees whose
// branches stand where it begins, windows that end inside it, one copy of K = V.
void add_protected(List& l) {
  using enum DType;
  const std::vector<int32_t> wide{-1, 0, 0, 0, 1, 1, 2, 4, 4, 6, 7, 3}, deep{-1, 0, 1, 2, 3, 4, 5, 6, 2, 8};
  const std::vector<Rows> steps[] = {
      {{0, 1}},         {{0, 40}}, {{62, 4}, {3, 9}}, {{300, 19}}, {{61, 12, wide}, {0, 10, deep}},
      {{250, 10, deep}}};
  const KvProtect protects[] = {{4, 0}, {0, 1}, {4, 32}, {70, 9}, {3, 130}};
  const std::pair<DType, DType> formats[] = {{tq3, tq3}, {kv4, tq4}, {q8_0, tq3_0}, {f32, f16}};
  int i = 0;
  for (const auto& sequences : steps)
    for (const KvProtect& protect : protects) {
      const auto [k, v] = formats[i % 4];
      AttentionShape a{.dim = i % 5 ? 64 : 256, .kv_heads = 1 + i % 2, .groups = 1 + i % 5, .k = k, .v = v};
      a.sequences = sequences, a.protect = protect, a.page_tokens = i % 3 ? 64 : 16;
      a.ring = i % 4 == 1, a.window = a.ring ? 40 : 0, a.out_rows = i % 6 == 5;
      a.both_ways = i % 7 == 3 && sequences[0].parents.empty();
      if (i % 5 == 0) a.pairs = 32, a.ring = false, a.window = 0;
      l.add([=](CaseRun& c) { attention(c, a); }, "attention protected {}+{} {} {} case {}", protect.sinks,
            protect.recent, info(k).name, info(v).name, i);
      PrepShape p{.dim = a.dim, .kv_heads = a.kv_heads, .pairs = 16, .k = k, .v = v};
      p.sequences = sequences, p.protect = protect, p.window = a.window, p.ring = a.ring;
      p.page_tokens = a.page_tokens, p.single = a.pairs > 0;
      if (p.single) p.k_is_v = true, p.pairs = 32;
      l.add([=](CaseRun& c) { qkv_prep(c, p); }, "prep protected {}+{} {} {} case {}", protect.sinks,
            protect.recent, info(k).name, info(v).name, i);
      ++i;
    }
  // Large heads: few rows, whose segments GPUs share out, and many.
  const std::pair<KvProtect, std::vector<Rows>> large[] = {
      {{70, 9}, {{200, 3}, {30, 2}}}, {{4, 130}, {{290, 34}}}, {{5, 60}, {{61, 12, wide}, {0, 10, deep}}}};
  for (const int32_t dim : {256, 512})
    for (const auto& [protect, sequences] : large) {
      AttentionShape a{.dim = dim, .kv_heads = 1 + i / 2 % 2, .groups = 1 + i % 3, .k = kv4, .v = tq3};
      a.sequences = sequences, a.protect = protect, a.pairs = i % 2 ? 64 : 0;
      a.page_tokens = i % 3 ? 64 : 16, a.ring = i % 4 == 0, a.window = a.ring ? 100 : 0;
      l.add([=](CaseRun& c) { attention(c, a); }, "attention protected {}+{} heads of {}", protect.sinks,
            protect.recent, dim);
      ++i;
    }
}

}  // namespace

// Prompts over protected rows in large heads, one beside another or beside a single row; the first at a
// text's beginning, where all tiles come twice.
std::vector<OpCase> protected_prompt_cases() {
  List l;
  using enum DType;
  struct Prompt {
    int32_t dim, pairs, window;
    DType k, v;
    KvProtect protect;
    std::vector<Rows> sequences;
  };
  const Prompt prompts[] = {{512, 0, 0, kv4, tq3, {4, 128}, {{0, 64}, {200, 70}}},
                            {256, 0, 150, tq3, q8_0, {70, 20}, {{250, 80}, {40, 1}}},
                            {512, 64, 0, kv4, kv4, {0, 130}, {{290, 66}}},
                            {512, 0, 0, q8_0, kv4, {66, 0}, {{100, 65}}}};
  int i = 0;
  for (const Prompt& p : prompts) {
    AttentionShape a{.dim = p.dim, .kv_heads = 1 + i % 2, .groups = 2 + i % 3, .k = p.k, .v = p.v};
    a.sequences = p.sequences, a.protect = p.protect, a.pairs = p.pairs, a.window = p.window,
    a.ring = p.window > 0;
    a.page_tokens = i % 4 == 3 ? 16 : 64;
    l.add([=](CaseRun& c) { attention(c, a); }, "attention of prompts protected {}+{} {} {}", p.protect.sinks,
          p.protect.recent, p.dim, info(p.k).name);
    ++i;
  }
  return std::move(l.cases);
}

std::vector<OpCase> attention_cases() {
  List l;
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
  add_pictures(l);
  for (const int32_t dim : {12, 16, 37, 128})
    for (const int32_t window : {1, 12, 40})
      l.add(
          [=](CaseRun& c) {
            band(c, {{0, 30}, {5, 1}, {3, 14}}, 3, dim, window, dim == 16 ? 0 : 5);
          },
          "sound band {} {}", dim, window);
  add_two_prompts(l);
  add_cache_formats(l);
  add_single_rows(l);
  add_single_copies(l);
  add_protected(l);
  add_many_sequences(l);
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
  for (const DType t : {q8_0, kv4})
    for (const int32_t dim : {64, 256}) {
      PrepShape same{.dim = dim, .pairs = 0, .k = t, .v = t, .norms = false, .v_norm = false, .exact = true};
      same.sequences = {{50, 20}};
      l.add([=](CaseRun& c) { qkv_prep(c, same); }, "prep {} {}, many values alike", dim, info(t).name);
    }
  return std::move(l.cases);
}

}  // namespace carat::test
