// Layers with a recurrent state: the short convolution and the gated delta rule, base + log.
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "ref/ref_ops.h"

namespace carat::ref {
namespace {

// The rows of one sequence in a step. Recurrent layers run over all rows.
struct Run {
  const StepState& step;
  const SeqView& seq;
  int32_t first, count;

  bool fresh() const { return step.pos[first] == seq.n_kept; }  // its base holds nothing yet
  int32_t settled() const { return std::min(seq.settled, count); }
  int32_t entry(int32_t i) const { return seq.log + i - settled(); }
  // The row of this sequence that row i continues; -1: what is committed.
  int32_t parent(int32_t i) const {
    const int32_t row = continued_row(step, first + i);
    return row < 0 ? -1 : row - first;
  }
};

template <class F>
void each_run(const Rows& rows, F&& f) {
  CARAT_CHECK(rows.set == RowSet::all, "recurrent layers need every row");
  const StepState& s = rows.step;
  for (int32_t first = 0, end; first < s.n_rows; first = end) {
    for (end = first + 1; end < s.n_rows && s.seq[end] == s.seq[first];) ++end;
    f(Run{s, s.seqs[s.seq[first]], first, end - first});
  }
}

double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// One head's matrix [k_dim][v_dim].
struct Matrix {
  int32_t k_dim, v_dim;
  std::vector<float> s;

  float& at(int32_t i, int32_t j) { return s[static_cast<size_t>(i) * v_dim + j]; }
  void fold(const float* k, const float* delta, float decay) {
    for (int32_t i = 0; i < k_dim; ++i)
      for (int32_t j = 0; j < v_dim; ++j)
        at(i, j) = static_cast<float>(double{decay} * at(i, j) + double{k[i]} * delta[j]);
  }
  void project(const float* x, double scale, std::vector<double>& y) {  // y = scale * S^T x
    y.assign(static_cast<size_t>(v_dim), 0);
    for (int32_t i = 0; i < k_dim; ++i)
      for (int32_t j = 0; j < v_dim; ++j) y[j] += double{x[i]} * at(i, j);
    for (double& v : y) v *= scale;
  }
};

void run_head(const DeltaNetArgs& a, const Run& r, int32_t h) {
  const RecurrentSpec& s = a.state.spec;
  const int32_t kh = h % s.k_heads, k_at = kh * s.k_dim, v_at = h * s.v_dim;
  const int64_t delta_at = int64_t{s.k_heads} * s.k_dim + v_at, decay_at = s.matrix_entry() - s.v_heads + h;
  float* base = a.state.base_of(r.seq) + int64_t{h} * s.k_dim * s.v_dim;
  const size_t size = static_cast<size_t>(s.k_dim) * s.v_dim;
  Matrix m{s.k_dim, s.v_dim, std::vector<float>(size)};
  if (!r.fresh()) m.s.assign(base, base + size);
  for (int32_t i = 0; i < r.seq.n_kept; ++i) {
    const float* e = a.state.entry(r.seq, r.seq.kept[i]);
    m.fold(e + k_at, e + delta_at, e[decay_at]);
  }
  std::vector<double> seen;
  std::vector<std::vector<float>> behind(static_cast<size_t>(r.count));  // the state behind each row
  const std::vector<float> committed = m.s;
  for (int32_t i = 0; i < r.count; ++i) {
    const int32_t row = r.first + i, up = r.parent(i);
    m.s = up < 0 ? committed : behind[up];
    const float *k = a.k.row<float>(row) + k_at, *q = a.q.row<float>(row) + k_at,
                *v = a.v.row<float>(row) + v_at;
    const double rate = a.rate.row<float>(0)[h], bias = a.bias.row<float>(0)[h];
    const auto decay = static_cast<float>(std::exp(rate * softplus(a.a.row<float>(row)[h] + bias)));
    m.project(k, decay, seen);
    std::vector<float> delta(static_cast<size_t>(s.v_dim));
    for (int32_t j = 0; j < s.v_dim; ++j)
      delta[j] = static_cast<float>(a.beta.row<float>(row)[h] * (v[j] - seen[j]));
    m.fold(k, delta.data(), decay);
    m.project(q, 1, seen);
    for (int32_t j = 0; j < s.v_dim; ++j) a.y.row<float>(row)[v_at + j] = static_cast<float>(seen[j]);
    behind[i] = m.s;
    if (i < r.settled()) continue;
    float* e = a.state.entry(r.seq, r.entry(i));
    std::memcpy(e + k_at, k, static_cast<size_t>(s.k_dim) * 4);
    std::memcpy(e + delta_at, delta.data(), delta.size() * 4);
    e[decay_at] = decay;
  }
  const std::vector<float>& last = r.settled() ? behind[r.settled() - 1] : committed;
  std::memcpy(base, last.data(), size * 4);
}

}  // namespace

void run(const ConvArgs& a, const Rows& rows) {
  const RecurrentSpec& s = a.state.spec;
  const int32_t past = s.taps - 1;
  each_run(rows, [&](const Run& r) {
    float* base = a.state.base_of(r.seq);
    // Inputs before the step, oldest first.
    std::vector<float> before(static_cast<size_t>(past) * s.channels);
    if (!r.fresh()) before.assign(base, base + before.size());
    for (int32_t i = 0; i < r.seq.n_kept; ++i) {
      const float* e = a.state.entry(r.seq, r.seq.kept[i]);
      before.insert(before.end(), e, e + s.channels);
    }
    before.erase(before.begin(), before.end() - static_cast<ptrdiff_t>(past) * s.channels);
    // The input `back` rows before row i.
    const auto input = [&](int32_t i, int32_t back) -> const float* {
      for (; back > 0 && i >= 0; --back) i = r.parent(i);
      return i >= 0 ? a.x.row<float>(r.first + i)
                    : &before[static_cast<size_t>(past - 1 - back) * s.channels];
    };
    for (int32_t i = 0; i < r.count; ++i)
      for (int32_t c = 0; c < s.channels; ++c) {
        double sum = 0;
        for (int32_t t = 0; t < s.taps; ++t) sum += double{a.weight.row<float>(t)[c]} * input(i, past - t)[c];
        a.y.row<float>(r.first + i)[c] = static_cast<float>(activate(a.act, sum));
      }
    for (int32_t i = r.settled(); i < r.count; ++i)
      std::memcpy(a.state.entry(r.seq, r.entry(i)), a.x.row<float>(r.first + i),
                  static_cast<size_t>(s.channels) * 4);
    for (int32_t t = 0; t < past; ++t)
      std::memcpy(base + int64_t{t} * s.channels, input(r.settled() - 1, past - 1 - t),
                  static_cast<size_t>(s.channels) * 4);
  });
}

void run(const DeltaNetArgs& a, const Rows& rows) {
  each_run(rows, [&](const Run& r) {
    for (int32_t h = 0; h < a.state.spec.v_heads; ++h) run_head(a, r, h);
  });
}

}  // namespace carat::ref
