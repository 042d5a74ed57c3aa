// Scale and minimum of a group by least squares.
#include "core/quantize_fit.h"

namespace carat::quant {

namespace {

struct Sums {
  float w = 0, x = 0, xx = 0, l = 0, ll = 0, xl = 0;  // each weighted
};

// The best scale and minimum for the codes behind the sums. Where one column has nearly all the weight the
// scale is left as it was: the sums say nothing about it.
Affine solve(const Sums& s, float scale, bool below_zero) {
  const float det = s.w * s.ll - s.l * s.l;
  Affine a{scale, 0};
  if (det > 1e-4f * s.w * s.ll) a.scale = (s.w * s.xl - s.x * s.l) / det;
  a.min = (s.x - a.scale * s.l) / s.w;
  if (below_zero && a.min > 0) a = {s.ll > 0 ? s.xl / s.ll : 0, 0};
  return a;
}

// Codes for x ~ (l / inv) + min, then the best scale and minimum for them.
Affine step(const Group& g, const Uniform& book, float inv, float min, Sums s, bool below_zero) {
  Lanes l1{}, ll{}, xl{};
  for (int i = 0; i < g.n; i += 4) {
    const Lanes x = at(g.x + i), l = book.nearest((x - min) * inv), wl = at(g.w + i) * l;
    l1 += wl;
    ll += wl * l;
    xl += wl * x;
  }
  s.l = sum(l1), s.ll = sum(ll), s.xl = sum(xl);
  return solve(s, 1 / inv, below_zero);
}

}  // namespace

float fit_min(const Group& g, int top, float scale, float min) {
  float l[32], w = 0, m = 0;
  codes(Uniform{0, static_cast<float>(top)}, g, scale, -min, l);
  for (int i = 0; i < g.n; ++i) {
    w += g.w[i];
    m += g.w[i] * (g.x[i] - scale * l[i]);
  }
  return m / w;
}

Affine fit_affine(const Group& g, int top, bool below_zero) {
  float lo = g.x[0], hi = g.x[0];
  Sums s;
  for (int i = 0; i < g.n; ++i) {
    lo = std::min(lo, g.x[i]);
    hi = std::max(hi, g.x[i]);
    s.w += g.w[i];
    s.x += g.w[i] * g.x[i];
  }
  if (below_zero) lo = std::min(lo, 0.0f);
  if (std::max(-lo, hi) < kTiny) return {};
  const float range = hi - lo;
  if (range < kTiny) return {0, s.x / s.w};

  const Uniform book{0, static_cast<float>(top)};
  Affine best{range / book.hi, lo};
  float best_error = error(book, g, best.scale, -best.min);
  const auto try_step = [&](float inv, float min) {
    const Affine a = step(g, book, inv, min, s, below_zero);
    if (!(a.scale > 0)) return false;
    const float e = error(book, g, a.scale, -a.min);
    if (!(e < best_error)) return false;
    best = a;
    best_error = e;
    return true;
  };
  // Ranges from a good deal narrower (the ends are clipped) to a little wider than the data.
  for (int k = -10; k <= 10; ++k) {
    const float inv = (book.hi + 0.1f * static_cast<float>(k)) / range;
    try_step(inv, lo);
    try_step(inv, best.min);
  }
  for (int turn = 0; turn < 4; ++turn)
    if (!try_step(1 / best.scale, best.min)) break;
  return best;
}

}  // namespace carat::quant
