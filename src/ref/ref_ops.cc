#include "ref/ref_ops.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "core/codec.h"
#include "core/exchange.h"
#include "core/int_block.h"

namespace carat::ref {

double activate(Act act, double x) {
  switch (act) {
    case Act::none: return x;
    case Act::silu: return x / (1 + std::exp(-x));
    case Act::gelu_tanh: {  // Hendrycks and Gimpel, "Gaussian error linear units", the tanh form
      const double k = std::sqrt(2 / 3.14159265358979323846);
      return 0.5 * x * (1 + std::tanh(k * (x + 0.044715 * x * x * x)));
    }
    case Act::sigmoid: return 1 / (1 + std::exp(-x));
    case Act::gelu: return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5)));
  }
  return x;
}

void run(const EmbedArgs& a, const Rows& rows) {
  for (int32_t m = 0; m < rows.count(); ++m) {
    const int32_t token = rows.token(m);
    CARAT_CHECK(token >= 0 && token < a.table.rows, "token {} of {}", token, a.table.rows);
    float* y = a.y.row<float>(m);
    if (const float* soft = a.soft && rows.step.soft ? rows.step.soft[rows.step_row(m)] : nullptr) {
      std::copy(soft, soft + a.y.cols, y);
      continue;
    }
    decode_row(a.table.type, a.table.row<std::byte>(token), y, a.y.cols);
    for (int32_t i = 0; i < a.y.cols; ++i) y[i] *= a.scale;
  }
}

void run(const GatherArgs& a, const Rows& rows) {
  for (int32_t i = 0; i < rows.count(); ++i) {
    const float* x = a.x.row<float>(rows.step_row(i));
    std::copy(x, x + a.x.cols, a.y.row<float>(i));
  }
}

void run(const RmsNormArgs& a, const Rows& rows) {
  const int32_t width = a.width ? a.width : a.y.cols;
  for (int32_t m = 0; m < rows.count(); ++m) {
    for (int32_t first = 0; first < a.y.cols; first += width) {
      const float* x = a.x.row<float>(m) + first;
      double sum = 0;
      for (int32_t i = 0; i < width; ++i) sum += double{x[i]} * x[i];
      const double inv = 1 / std::sqrt(sum / width + a.eps);
      float* y = a.y.row<float>(m) + first;
      for (int32_t i = 0; i < width; ++i) {
        double v = x[i] * inv;
        if (a.weight.valid()) v *= a.weight.row<float>(0)[i];
        if (a.residual.valid()) v += a.residual.row<float>(m)[first + i];
        if (a.gain.valid()) v *= a.gain.row<float>(0)[a.gain.cols == 1 ? 0 : first + i];
        v *= a.scale;
        if (a.mul.valid()) v *= activate(a.act, a.mul.row<float>(m)[first + i]);
        y[i] = static_cast<float>(v);
      }
    }
  }
}

void run(const PointwiseArgs& a, const Rows& rows) {
  const auto at = [](const Tensor& t, int32_t m) { return t.row<float>(t.rows == 1 ? 0 : m); };
  for (int32_t m = 0; m < rows.count(); ++m)
    for (int32_t i = 0; i < a.y.cols; ++i) {
      double v = a.x.row<float>(m)[i];
      if (a.add.valid()) v += at(a.add, m)[i];
      v = activate(a.act, std::min(std::max(v, double{a.low}), double{a.high}));
      if (a.mul.valid()) v *= at(a.mul, m)[i];
      a.y.row<float>(m)[i] = static_cast<float>(v);
    }
}

void run(const RefineArgs& a, const Rows& rows) {
  int8_t q[kIntBlock];
  float d = 0;
  for (int32_t m = 0; m < rows.count(); ++m) {
    const float* x = a.x.row<float>(m);
    float *y = a.y.row<float>(2 * m), *left = a.y.row<float>(2 * m + 1);
    for (int32_t first = 0; first < a.x.cols; first += kIntBlock) {
      const int32_t n = std::min(kIntBlock, a.x.cols - first);
      quantize_act(x + first, n, q, d);
      for (int32_t i = 0; i < n; ++i) {
        y[first + i] = x[first + i];
        left[first + i] = std::fma(-d, static_cast<float>(q[i]), x[first + i]);
      }
    }
  }
}

void run(const FoldArgs& a, const Rows& rows) {
  for (int32_t m = 0; m < rows.count(); ++m)
    for (int32_t i = 0; i < a.y.cols; ++i) {
      const float v = a.x.row<float>(2 * m)[i] + a.x.row<float>(2 * m + 1)[i];
      a.y.row<float>(m)[i] = a.softcap > 0 ? a.softcap * std::tanh(v / a.softcap) : v;
    }
}

void run(const LayerNormArgs& a, const Rows& rows) {
  const int32_t n = a.y.cols;
  for (int32_t m = 0; m < rows.count(); ++m) {
    const float* x = a.x.row<float>(m);
    double sum = 0, squares = 0;
    for (int32_t i = 0; i < n; ++i) sum += x[i];
    const double mean = sum / n;
    for (int32_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
    const double inv = 1 / std::sqrt(squares / n + a.eps);
    for (int32_t i = 0; i < n; ++i) {
      double v = (x[i] - mean) * inv;
      if (a.weight.valid()) v *= a.weight.row<float>(0)[i];
      if (a.bias.valid()) v += a.bias.row<float>(0)[i];
      a.y.row<float>(m)[i] = static_cast<float>(v);
    }
  }
}

void run(const TopArgs& a, const Rows& rows) {
  for (int32_t m = 0; m < rows.count(); ++m) {
    const float* x = a.x.row<float>(m);
    std::vector<int32_t> order;
    if (std::all_of(x, x + a.x.cols, [](float v) { return v < INFINITY; }))
      for (int32_t i = 0; i < a.x.cols; ++i)
        if (x[i] > -INFINITY) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](int32_t i, int32_t j) { return x[i] > x[j]; });
    order.resize(std::max(order.size(), static_cast<size_t>(a.column.cols)), -1);
    for (int32_t k = 0; k < a.column.cols; ++k) {
      a.column.row<int32_t>(m)[k] = order[k];
      if (a.value.valid()) a.value.row<float>(m)[k] = order[k] < 0 ? 0 : x[order[k]];
    }
    if (!a.share.valid()) continue;
    double sum = 0;
    for (int32_t i = 0; i < a.x.cols && order[0] >= 0; ++i) sum += std::exp(double{x[i]} - x[order[0]]);
    *a.share.row<float>(m) = order[0] < 0 ? 0 : static_cast<float>(1 / sum);
  }
}

void run(const ShareArgs& a, const Rows& rows) {
  if (a.parts > 1) a.exchange->share(a, rows.count());  // a failure is told by the part that failed
}

void run(const RouteArgs& a, const Rows& rows) {
  const int32_t n = a.logits.cols;
  for (int32_t m = 0; m < rows.count(); ++m) {
    const float* l = a.logits.row<float>(m);
    int32_t* experts = a.experts.row<int32_t>(m);
    std::vector<char> used(n);
    for (int32_t k = 0; k < a.top_k; ++k) {
      int32_t best = -1;
      for (int32_t e = 0; e < n; ++e)
        if (!used[e] && (best < 0 || l[e] > l[best])) best = e;
      used[best] = 1;
      experts[k] = best;
    }
    double sum = 0;  // softmax over all, renormalized over the chosen = softmax over the chosen
    for (int32_t k = 0; k < a.top_k; ++k) sum += std::exp(double{l[experts[k]]} - l[experts[0]]);
    for (int32_t k = 0; k < a.top_k; ++k) {
      const double w = std::exp(double{l[experts[k]]} - l[experts[0]]) / sum;
      const double scale = a.expert_scale.valid() ? a.expert_scale.row<float>(0)[experts[k]] : 1;
      a.weights.row<float>(m)[k] = static_cast<float>(w * scale);
    }
  }
}

}  // namespace carat::ref
