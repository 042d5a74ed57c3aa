// Formats with one f16 scale per group: q4_0, q4_1, q5_0, q5_1, iq4_nl.
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

}  // namespace carat::quant
