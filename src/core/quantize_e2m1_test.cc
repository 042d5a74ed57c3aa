// The bytes of mxfp4 and nvfp4 are those of the plain rule: every candidate's error in doubles, the first of
// the least.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "core/quantize_formats.h"

using namespace carat;
using namespace carat::quant;

namespace {

uint8_t plain_code(float v) {
  const float a = std::fabs(v);
  const int c = (a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) + (a > 5);
  return static_cast<uint8_t>(c | (v < 0 && c ? 8 : 0));
}

void plain_codes(const Group& g, float s, std::byte* p) {
  const float inv = s != 0 ? 1 / s : 0;
  for (int i = 0; i < g.n / 2; ++i)
    p[i] = static_cast<std::byte>(plain_code(g.x[i] * inv) | plain_code(g.x[i + g.n / 2] * inv) << 4);
}

int plain_at_least(float v) {
  int c = 0;
  while (c < 126 && ue4m3_to_f32(static_cast<uint8_t>(c)) < v) ++c;
  return c;
}

void plain_mxfp4(const Group& g, std::byte* b) {
  const float amax = std::fabs(extreme(g.x, 32));
  const int first = amax > 0 ? std::clamp(std::ilogb(amax) - 2 + 127, 0, 254) : 0;
  int best = first;
  double least = e2m1_error(g, e8m0_to_f32(static_cast<uint8_t>(first)));
  for (int e = std::max(first - 1, 0); e <= std::min(first + 2, 254); ++e)
    if (const double v = e2m1_error(g, e8m0_to_f32(static_cast<uint8_t>(e))); v < least) least = v, best = e;
  b[0] = static_cast<std::byte>(best);
  plain_codes(g, e8m0_to_f32(static_cast<uint8_t>(best)), b + 1);
}

void plain_nvfp4(const Group& g, std::byte* b) {
  for (int i = 0; i < 4; ++i) {
    const Group part{g.x + 16 * i, g.w + 16 * i, 16};
    const int first = plain_at_least(std::fabs(extreme(part.x, 16)) / 6);
    int best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (int c = std::max(first - 4, 0); c <= std::min(first + 5, 126); ++c)
      if (const double v = e2m1_error(part, ue4m3_to_f32(static_cast<uint8_t>(c))); v < least)
        least = v, best = c;
    b[i] = static_cast<std::byte>(best);
    plain_codes(part, ue4m3_to_f32(static_cast<uint8_t>(best)), b + 4 + 8 * i);
  }
}

// 64 columns of one of several kinds: normal values, few distinct ones (many scales are perfect, and many
// quotients are ties), multiples of a scale, zeros, one large value, exponents far apart.
void fill(std::mt19937& r, int kind, float size, float* x) {
  std::normal_distribution<float> normal(0, 1);
  const auto below = [&](uint32_t n) { return static_cast<int>(r() % n); };
  for (int i = 0; i < 64; ++i) {
    const float v = normal(r);
    const float kinds[] = {v,
                           static_cast<float>(below(3) - 1),
                           static_cast<float>(below(49) - 24) * 0.125f,
                           0,
                           i == 5 ? 1 : v * 0x1p-20f,
                           std::ldexp(v, -below(60)),
                           below(4) ? 0 : v,
                           static_cast<float>(below(2)) * 6 - 3};
    x[i] = size * kinds[kind % 8];
  }
}

}  // namespace

TEST_CASE("mxfp4, nvfp4: the bytes of the plain rule") {
  std::mt19937 r(11);
  int blocks = 0;
  for (const float size : {1.0f, 0.02f, 0.0078125f, 400.0f, 1e-3f, 1e-12f, 1e-20f, 1e-30f, 1e-42f})
    for (int kind = 0; kind < 8; ++kind)
      for (int round = 0; round < 120; ++round) {
        float x[64], w[64];
        fill(r, kind, size, x);
        for (float& v : x) v = std::clamp(v, -2688.0f, 2688.0f);
        const int weights = round % 3;  // all 1, within a factor of 4, far apart
        for (float& v : w)
          v = weights == 0   ? 1
              : weights == 1 ? 0.5f + static_cast<float>(r() % 1000) * 0.0015f
                             : std::ldexp(1.0f, -static_cast<int>(r() % 20));
        std::byte want[36], got[36];
        plain_nvfp4({x, w, 64}, want);
        encode_nvfp4({x, w, 64}, got);
        blocks += std::memcmp(want, got, 36) == 0;
        plain_mxfp4({x, w, 32}, want);
        encode_mxfp4({x, w, 32}, got);
        blocks += std::memcmp(want, got, 17) == 0;
      }
  CHECK(blocks == 9 * 8 * 120 * 2);
  float large[32], w[32];
  for (int i = 0; i < 32; ++i) large[i] = std::ldexp(static_cast<float>(i - 16), 115), w[i] = 1;
  std::byte want[17], got[17];
  plain_mxfp4({large, w, 32}, want);
  encode_mxfp4({large, w, 32}, got);
  CHECK(std::memcmp(want, got, 17) == 0);
}

TEST_CASE("ue4m3_at_least: around every code") {
  int right = 0, all = 0;
  for (int c = 0; c <= 126; ++c) {
    const float v = ue4m3_to_f32(static_cast<uint8_t>(c));
    for (const float near : {std::nextafter(v, 0.0f), v, std::nextafter(v, 1e9f), v * 1.03f}) {
      ++all;
      right += ue4m3_at_least(near) == plain_at_least(near);
    }
  }
  CHECK(right == all);
}
