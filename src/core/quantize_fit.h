// Least squares for quantizers: the scale, or scale and minimum, of one group of columns. Private to core's
// quantizers.
//
// One objective everywhere: the sum of w * (x - y)^2 over what will be read back, w the column weights or 1.
// With w the mean square of the activations this is the expected squared error of the product (errors of
// columns uncorrelated).
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/codec_tables.h"

namespace carat::quant {

using Lanes = float __attribute__((vector_size(16)));

inline Lanes all(float v) { return Lanes{v, v, v, v}; }
inline Lanes at(const float* p) { return Lanes{p[0], p[1], p[2], p[3]}; }
inline float sum(Lanes v) { return (v[0] + v[1]) + (v[2] + v[3]); }

// n columns, a multiple of 4, with their weights.
struct Group {
  const float *x, *w;
  int n;
};

// Below this a value is nearer to 0 than to the smallest step an f16 scale allows.
inline constexpr float kTiny = 0x1p-26f;

// Codes lo..hi.
struct Uniform {
  float lo, hi;
  Lanes nearest(Lanes v) const {
    const Lanes round = all(12582912.0f);  // 1.5 * 2^23: to integers, ties to even
    v = v < lo ? all(lo) : v;
    v = v > hi ? all(hi) : v;
    return (v + round) - round;
  }
};

// Midpoints of neighbours in kIq4Values are multiples of 1/2, so the half step above -127 decides the nearest
// value.
inline constexpr int kIq4Steps = 2 * (113 + 127);
constexpr std::array<uint8_t, kIq4Steps + 1> iq4_nearest() {
  std::array<uint8_t, kIq4Steps + 1> t{};
  for (int i = 0; i <= kIq4Steps; ++i) {
    const int v4 = 4 * -127 + 2 * i + 1;  // four times the middle of the half step
    int best = 0;
    for (int k = 1; k < 16; ++k) {
      const int a = v4 - 4 * kIq4Values[k], b = v4 - 4 * kIq4Values[best];
      if ((a < 0 ? -a : a) < (b < 0 ? -b : b)) best = k;
    }
    t[static_cast<size_t>(i)] = static_cast<uint8_t>(best);
  }
  return t;
}
inline constexpr auto kIq4Nearest = iq4_nearest();

constexpr std::array<float, kIq4Steps + 1> iq4_nearest_values() {
  std::array<float, kIq4Steps + 1> t{};
  for (size_t i = 0; i < t.size(); ++i) t[i] = kIq4Values[kIq4Nearest[i]];
  return t;
}
inline constexpr auto kIq4NearestValue = iq4_nearest_values();

// The code book of iq4_nl and iq4_xs.
struct Iq4Book {
  static constexpr float lo = -127, hi = 113;
  static int index(float v) {
    v = std::min(std::max(v, lo), hi);
    return kIq4Nearest[static_cast<size_t>((v + 127) * 2)];
  }
  Lanes nearest(Lanes v) const {
    v = v < lo ? all(lo) : v;
    v = v > hi ? all(hi) : v;
    using Ints = int32_t __attribute__((vector_size(16)));
    const Ints i = __builtin_convertvector((v + 127) * 2, Ints);
    const auto& t = kIq4NearestValue;
    return Lanes{t[static_cast<size_t>(i[0])], t[static_cast<size_t>(i[1])], t[static_cast<size_t>(i[2])],
                 t[static_cast<size_t>(i[3])]};
  }
};

// Sum of w * (x - (s * l - m))^2 with the best codes l. s = 0: all codes 0.
template <class Book>
float error(const Book& book, const Group& g, float s, float m = 0) {
  const float inv = s != 0 ? 1 / s : 0;
  Lanes e{};
  for (int i = 0; i < g.n; i += 4) {
    const Lanes x = at(g.x + i) + m;
    const Lanes diff = x - s * book.nearest(x * inv);
    e += at(g.w + i) * diff * diff;
  }
  return sum(e);
}

// Writes the best codes (values of the book) for scale s and minimum -m.
template <class Book>
void codes(const Book& book, const Group& g, float s, float m, float* l) {
  const float inv = s != 0 ? 1 / s : 0;
  for (int i = 0; i < g.n; i += 4) {
    const Lanes c = book.nearest((at(g.x + i) + m) * inv);
    for (int k = 0; k < 4; ++k) l[i + k] = c[k];
  }
}

// The value of largest magnitude, with its sign.
inline float extreme(const float* x, int n) {
  float m = 0;
  for (int i = 0; i < n; ++i)
    if (std::fabs(x[i]) > std::fabs(m)) m = x[i];
  return m;
}

// The scale s minimizing sum w * (x - s * l)^2: the extreme value is tried near either end of the code range,
// each time with the least-squares scale of the codes it leads to; the best is then polished by turns of
// codes and scale. seen(s) is called with every scale tried.
template <class Book, class Seen>
float fit_scale(const Book& book, const Group& g, float step, int steps, Seen seen) {
  const float top = extreme(g.x, g.n);
  if (std::fabs(top) < kTiny) return 0;
  float best_gain = 0, best = 0;
  const auto try_inverse = [&](float inv) {
    Lanes xl{}, ll{};
    for (int i = 0; i < g.n; i += 4) {
      const Lanes x = at(g.x + i), l = book.nearest(x * inv), wl = at(g.w + i) * l;
      xl += wl * x;
      ll += wl * l;
    }
    const float a = sum(xl), b = sum(ll);
    if (b <= 0) return false;
    seen(a / b);
    if (a * a <= best_gain * b) return false;
    best_gain = a * a / b;
    best = a / b;
    return true;
  };
  for (int k = -steps; k <= steps; ++k) {
    try_inverse((book.lo + step * static_cast<float>(k)) / top);
    try_inverse((book.hi + step * static_cast<float>(k)) / top);
  }
  for (int turn = 0; turn < 4 && best != 0; ++turn)
    if (!try_inverse(1 / best)) break;
  return best;
}
template <class Book>
float fit_scale(const Book& book, const Group& g, float step, int steps) {
  return fit_scale(book, g, step, steps, [](float) {});
}

struct Affine {
  float scale = 0, min = 0;  // x ~ scale * l + min
};

// Scale and minimum for codes 0..top. below_zero: min <= 0, as the formats with an unsigned minimum need.
Affine fit_affine(const Group& g, int top, bool below_zero);

// The best minimum for a scale that is already rounded, with the codes that go with `min`.
float fit_min(const Group& g, int top, float scale, float min);

}  // namespace carat::quant
