// Formats with one scale per group: q4_0, q4_1, q5_0, q5_1, iq4_nl, mxfp4, nvfp4.
#include <bit>
#include <cstring>

#include "core/codec.h"
#include "core/quantize_formats.h"

namespace carat::quant {

namespace {

void put16(std::byte* p, uint16_t v) { std::memcpy(p, &v, 2); }

// Column i and i + 16 share byte i.
void put_nibbles(const uint8_t* c, std::byte* p, int half) {
  for (int i = 0; i < half; ++i) p[i] = static_cast<std::byte>((c[i] & 15) | (c[i + half] & 15) << 4);
}
void put_fifth_bits(const uint8_t* c, std::byte* p) {
  uint32_t high = 0;
  for (int i = 0; i < 32; ++i) high |= static_cast<uint32_t>(c[i] >> 4 & 1) << i;
  std::memcpy(p, &high, 4);
}

// The f16 scale of a group on its own. Every scale tried is judged as it will be read, rounded: groups of few
// distinct values have many perfect scales, and only some of them are near an f16.
template <class Book>
uint16_t best_f16_scale(const Book& book, const Group& g, float step, int steps) {
  uint16_t best = 0, last = 0;
  float best_error = error(book, g, 0);
  const auto try_half = [&](uint16_t h) {
    if (h == last) return;
    last = h;
    const float e = error(book, g, f16_to_f32(h));
    if (e < best_error) best_error = e, best = h;
  };
  const float s = fit_scale(book, g, step, steps, [&](float v) { try_half(f16_around(v)[0]); });
  for (const uint16_t h : f16_around(s)) try_half(h);
  return best;
}

// q4_0 (bits 4) and q5_0 (bits 5): codes -n..n-1 stored plus n.
void encode_symmetric(const Group& g, int bits, std::byte* b) {
  const float n = static_cast<float>(1 << (bits - 1));
  const Uniform book{-n, n - 1};
  const uint16_t d = best_f16_scale(book, g, 0.1f, 10);
  float l[32];
  uint8_t c[32];
  codes(book, g, f16_to_f32(d), 0, l);
  for (int i = 0; i < 32; ++i) c[i] = static_cast<uint8_t>(l[i] + n);
  put16(b, d);
  if (bits == 5) put_fifth_bits(c, b + 2);
  put_nibbles(c, b + (bits == 5 ? 6 : 2), 16);
}

// q4_1 and q5_1: codes 0..2^bits-1 times d, plus m.
void encode_minimum(const Group& g, int bits, std::byte* b) {
  const int top = (1 << bits) - 1;
  const Uniform book{0, static_cast<float>(top)};
  const Affine a = fit_affine(g, top, false);
  uint16_t d = 0, m = 0;
  float best = std::numeric_limits<float>::infinity();
  for (const uint16_t s : f16_around(a.scale))
    for (const uint16_t min : f16_around(fit_min(g, top, f16_to_f32(s), a.min))) {
      const float e = error(book, g, f16_to_f32(s), -f16_to_f32(min));
      if (e < best) best = e, d = s, m = min;
    }
  float l[32];
  uint8_t c[32];
  codes(book, g, f16_to_f32(d), -f16_to_f32(m), l);
  for (int i = 0; i < 32; ++i) c[i] = static_cast<uint8_t>(l[i]);
  put16(b, d);
  put16(b + 2, m);
  if (bits == 5) put_fifth_bits(c, b + 4);
  put_nibbles(c, b + (bits == 5 ? 8 : 4), 16);
}

// The nearest E2M1 code; ties go to the smaller magnitude.
uint8_t e2m1(float v) {
  const float a = std::fabs(v);
  const int c = (a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) + (a > 5);
  return static_cast<uint8_t>(c | (v < 0 && c ? 8 : 0));
}

double e2m1_error(const Group& g, float s) {
  const float inv = s != 0 ? 1 / s : 0;
  double e = 0;
  for (int i = 0; i < g.n; ++i) {
    const double diff = double{g.x[i]} - double{s} * (kE2m1Twice[e2m1(g.x[i] * inv)] * 0.5);
    e += g.w[i] * diff * diff;
  }
  return e;
}

void put_e2m1(const Group& g, float s, std::byte* p) {
  const float inv = s != 0 ? 1 / s : 0;
  uint8_t c[32];
  for (int i = 0; i < g.n; ++i) c[i] = e2m1(g.x[i] * inv);
  put_nibbles(c, p, g.n / 2);
}

// The smallest UE4M3 code whose value is at least v.
int ue4m3_at_least(float v) {
  int lo = 0, hi = 126;
  while (lo < hi) {
    const int mid = (lo + hi) / 2;
    if (ue4m3_to_f32(static_cast<uint8_t>(mid)) >= v)
      hi = mid;
    else
      lo = mid + 1;
  }
  return lo;
}

}  // namespace

std::array<uint16_t, 3> f16_around(float s) {
  const auto h = f32_to_f16(std::clamp(s, -65504.0f, 65504.0f));
  const uint16_t sign = h & 0x8000, m = h & 0x7fff;
  return {h, static_cast<uint16_t>(sign | (m > 0 ? m - 1 : 0)),
          static_cast<uint16_t>(sign | std::min(m + 1, 0x7bff))};
}

void encode_q4_0(const Group& g, std::byte* b) { encode_symmetric(g, 4, b); }
void encode_q5_0(const Group& g, std::byte* b) { encode_symmetric(g, 5, b); }
void encode_q4_1(const Group& g, std::byte* b) { encode_minimum(g, 4, b); }
void encode_q5_1(const Group& g, std::byte* b) { encode_minimum(g, 5, b); }

void encode_iq4_nl(const Group& g, std::byte* b) {
  const Iq4Book book;
  const uint16_t d = best_f16_scale(book, g, 1.0f, 12);
  const float s = f16_to_f32(d), inv = s != 0 ? 1 / s : 0;
  uint8_t c[32];
  for (int i = 0; i < 32; ++i) c[i] = static_cast<uint8_t>(Iq4Book::index(g.x[i] * inv));
  put16(b, d);
  put_nibbles(c, b + 2, 16);
}

// A power of two has few candidates: the largest that does not clip 4, its half, its double and its
// quadruple.
void encode_mxfp4(const Group& g, std::byte* b) {
  const float amax = std::fabs(extreme(g.x, 32));
  const int first = amax > 0 ? std::clamp(std::ilogb(amax) - 2 + 127, 0, 254) : 0;
  int best = first;
  double best_error = e2m1_error(g, e8m0_to_f32(static_cast<uint8_t>(first)));
  for (int e = std::max(first - 1, 0); e <= std::min(first + 2, 254); ++e) {
    const double v = e2m1_error(g, e8m0_to_f32(static_cast<uint8_t>(e)));
    if (v < best_error) best_error = v, best = e;
  }
  b[0] = static_cast<std::byte>(best);
  put_e2m1(g, e8m0_to_f32(static_cast<uint8_t>(best)), b + 1);
}

// Four groups of 16, each with its own small-float scale: the one that takes the largest value to 6, or near
// it.
void encode_nvfp4(const Group& g, std::byte* b) {
  for (int i = 0; i < 4; ++i) {
    const Group part{g.x + 16 * i, g.w + 16 * i, 16};
    const int first = ue4m3_at_least(std::fabs(extreme(part.x, 16)) / 6);
    int best = 0;
    double best_error = std::numeric_limits<double>::infinity();
    for (int c = std::max(first - 4, 0); c <= std::min(first + 5, 126); ++c) {
      const double v = e2m1_error(part, ue4m3_to_f32(static_cast<uint8_t>(c)));
      if (v < best_error) best_error = v, best = c;
    }
    b[i] = static_cast<std::byte>(best);
    put_e2m1(part, ue4m3_to_f32(static_cast<uint8_t>(best)), b + 4 + 8 * i);
  }
}

}  // namespace carat::quant
