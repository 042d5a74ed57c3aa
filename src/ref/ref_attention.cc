#include <algorithm>
#include <cmath>
#include <vector>

#include "core/codec.h"
#include "core/kv_codec.h"
#include "ref/ref_ops.h"

namespace carat::ref {
namespace {

// y = x / sqrt(mean(x^2) + eps) * weight
void head_norm(const float* x, const float* weight, float eps, std::vector<double>& y) {
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += double{x[i]} * x[i];
  const double inv = 1 / std::sqrt(sum / static_cast<double>(y.size()) + eps);
  for (size_t i = 0; i < y.size(); ++i) y[i] = x[i] * inv * (weight ? weight[i] : 1);
}

// place: the row's, or null.
void rotate(std::vector<double>& x, const Rope& rope, int32_t pos, const int32_t* place) {
  for (int32_t i = 0; i < rope.pairs; ++i) {
    const int32_t p = rope.axis && place ? place[rope.axis[i]] : pos;
    const float angle = static_cast<float>(p + rope.ahead) * rope.freq[i];
    const double c = std::cos(double{angle}), s = std::sin(double{angle});
    const double a = x[i], b = x[i + rope.offset];
    x[i] = a * c - b * s;
    x[i + rope.offset] = b * c + a * s;
  }
}

// Into the domain of a cache in this format.
std::vector<float> stored_as(DType type, const std::vector<double>& x) {
  std::vector<float> y(x.begin(), x.end());
  rotate(rotation_of(type), y.data(), static_cast<int32_t>(y.size()));
  return y;
}

}  // namespace

void run(const QkvPrepArgs& a, const Rows& rows) {
  const int32_t dim = a.kv.spec.dim;
  std::vector<double> head(dim);
  // Queries go where K lives.
  const auto prepare = [&](const float* x, const Tensor& norm, int32_t m) {
    if (norm.valid())
      head_norm(x, norm.row<float>(0), a.eps, head);
    else
      head.assign(x, x + dim);
    rotate(head, a.rope, rows.pos(m),
           rows.step.place ? rows.step.place + 3 * int64_t{rows.step_row(m)} : nullptr);
    if (a.kv.spec.pairs) return std::vector<float>(head.begin(), head.end());
    return stored_as(a.kv.spec.k, head);
  };
  for (int32_t m = 0; m < rows.count(); ++m) {
    const int32_t slot = rows.slot(m);
    for (int32_t h = 0; h * dim < a.q.cols; ++h) {
      float* q = a.q.row<float>(m) + h * dim;
      const std::vector<float> y = prepare(q, a.q_norm, m);
      std::copy(y.begin(), y.end(), q);
    }
    if (!a.k.valid()) continue;
    for (int32_t h = 0; h < a.kv.spec.heads; ++h) {
      std::vector<float> k = prepare(a.k.row<float>(m) + h * dim, a.k_norm, m);
      if (const int32_t pairs = a.kv.spec.pairs) {
        std::vector<float> part(static_cast<size_t>(2 * pairs));
        rotary_part(k.data(), dim, pairs, part.data());
        k = stored_as(a.kv.spec.k, {part.begin(), part.end()});
      }
      encode_row(a.kv.spec.k, k.data(), a.kv.k_row(rows.seq(m), slot, h), a.kv.spec.key_dim());
      const bool edge = a.kv.spec.protect.any();
      if (edge) encode_row(DType::f16, k.data(), a.kv.k_edge_row(rows.seq(m), slot, h), a.kv.spec.key_dim());
      const float* raw = a.v.row<float>(m) + h * dim;
      head.assign(raw, raw + dim);
      if (a.v_norm) head_norm(raw, nullptr, a.eps, head);
      const std::vector<float> v = stored_as(a.kv.spec.v, head);
      encode_row(a.kv.spec.v, v.data(), a.kv.v_row(rows.seq(m), slot, h), dim);
      if (edge) encode_row(DType::f16, v.data(), a.kv.v_edge_row(rows.seq(m), slot, h), dim);
    }
  }
}

void run(const AttentionArgs& a, const Rows& rows) {
  const KvSpec& spec = a.kv.spec;
  const int32_t heads = a.q.cols / spec.dim;
  const int32_t key_dim = spec.key_dim();
  std::vector<float> row(spec.dim), key(key_dim), by_value(spec.dim), by_key(key_dim);
  for (int32_t m = 0; m < rows.count(); ++m) {
    const int32_t pos = rows.pos(m);
    const int32_t first = spec.window ? std::max(0, pos - spec.window + 1) : 0;
    const int32_t last = a.both_ways ? rows.last_pos(m) : a.blocks ? rows.until(m) : pos;
    const auto slot = [&](int32_t t) { return rows.step.slot_seen(rows.step_row(m), t); };
    const auto read_key = [&](int32_t t, int32_t kv_head, float* to) {
      if (spec.protect.covers(pos, t))
        decode_row(DType::f16, a.kv.k_edge_row(rows.seq(m), slot(t), kv_head), to, key_dim);
      else
        decode_row(spec.k, a.kv.k_row(rows.seq(m), slot(t), kv_head), to, key_dim);
    };
    const auto read_value = [&](int32_t t, int32_t kv_head, float* to) {
      if (spec.protect.covers(pos, t))
        decode_row(DType::f16, a.kv.v_edge_row(rows.seq(m), slot(t), kv_head), to, spec.dim);
      else
        decode_row(spec.v, a.kv.v_row(rows.seq(m), slot(t), kv_head), to, spec.dim);
    };
    for (int32_t h = 0; h < heads; ++h) {
      const int32_t kv_head = h / (heads / spec.heads);
      const float* q = a.q.row<float>(m) + h * spec.dim;
      if (spec.pairs)
        split_query(spec.k, spec.v, a.kv.gain, q, spec.dim, spec.pairs, by_value.data(), by_key.data());
      else
        by_key.assign(q, q + spec.dim);
      std::vector<double> p;
      double top = -INFINITY, sum = 0;
      for (int32_t t = first; t <= last; ++t) {
        read_key(t, kv_head, key.data());
        double s = 0;
        for (int32_t i = 0; i < key_dim; ++i) s += double{by_key[i]} * key[i];
        if (spec.pairs) {
          read_value(t, kv_head, row.data());
          for (int32_t i = 0; i < spec.dim; ++i) s += double{by_value[i]} * row[i];
        }
        s *= a.scale;
        if (a.softcap > 0) s = a.softcap * std::tanh(s / a.softcap);
        p.push_back(s);
        top = std::max(top, s);
      }
      std::vector<double> y(spec.dim);
      for (int32_t t = first; t <= last; ++t) {
        const double w = std::exp(p[t - first] - top);
        sum += w;
        read_value(t, kv_head, row.data());
        for (int32_t i = 0; i < spec.dim; ++i) y[i] += w * row[i];
      }
      float* out = a.y.row<float>(m) + h * spec.dim;
      for (int32_t i = 0; i < spec.dim; ++i) out[i] = static_cast<float>(y[i] / sum);
      rotate_back(rotation_of(spec.v), out, spec.dim);
    }
  }
}

void run(const BandAttentionArgs& a, const Rows& rows) {
  const int32_t dim = a.y.cols / a.heads;
  const int32_t* seq = rows.step.seq;
  for (int32_t m = 0; m < rows.count(); ++m) {
    int32_t first = m;
    while (first > 0 && m - first + 1 < a.ahead.rows && seq[first - 1] == seq[m]) --first;
    for (int32_t at = 0; at < a.y.cols; at += dim) {
      std::vector<double> p;
      for (int32_t j = first; j <= m; ++j) {
        double s = 0;
        for (int32_t i = at; i < at + dim; ++i)
          s += a.q.row<float>(m)[i] * (double{a.k.row<float>(j)[i]} + a.ahead.row<float>(m - j)[i]);
        p.push_back(a.softcap > 0 ? a.softcap * std::tanh(s / a.softcap) : s);
      }
      const double top = *std::max_element(p.begin(), p.end());
      double sum = 0;
      for (double& s : p) sum += s = std::exp(s - top);
      for (int32_t i = at; i < at + dim; ++i) {
        double y = 0;
        for (int32_t j = first; j <= m; ++j) y += p[static_cast<size_t>(j - first)] * a.v.row<float>(j)[i];
        a.y.row<float>(m)[i] = static_cast<float>(y / sum);
      }
    }
  }
}

}  // namespace carat::ref
