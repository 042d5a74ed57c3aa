// Integer sums over unpacked blocks, and the rounding of activations.
#include "core/int_block.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace carat {

namespace {

// Sum of q * a over one group.
int32_t group_dot(const IntBlock& b, const int8_t* a, int g) {
  int32_t s = 0;
  for (int k = g * b.group; k < (g + 1) * b.group; ++k) s += int32_t{b.q[k]} * a[k];
  return s;
}

int32_t group_sum(const IntBlock& b, const int8_t* a, int g) {
  int32_t s = 0;
  for (int k = g * b.group; k < (g + 1) * b.group; ++k) s += a[k];
  return s;
}

}  // namespace

float block_dot(const IntBlock& b, const int8_t* a) {
  const int groups = b.n / b.group;
  if (b.kind == IntKind::scaled || b.kind == IntKind::scaled_min) {
    int32_t s = 0,
            t = 0;  // |s| <= 256 * 128 * 128 * 127 / 4: no format has both the largest codes and scales
    for (int g = 0; g < groups; ++g) s += b.scale[g] * group_dot(b, a, g);
    const float ds = b.d * static_cast<float>(s);
    if (b.kind == IntKind::scaled) return ds;
    for (int g = 0; g < groups; ++g) t += b.min[g] * group_sum(b, a, g);
    return std::fma(-b.dmin, static_cast<float>(t), ds);
  }
  float t = 0;
  for (int g = 0; g < groups; ++g) {
    t = std::fma(b.group_d[g], static_cast<float>(group_dot(b, a, g)), t);
    if (b.kind == IntKind::grouped_min) t = std::fma(b.group_m[g], static_cast<float>(group_sum(b, a, g)), t);
  }
  return t;
}

void quantize_act(const float* x, int n, int8_t* q, float& d) {
  // Bit patterns of magnitudes order like the values, with infinities and NaNs on top: one maximum finds them
  // all.
  uint32_t top = 0;
  for (int k = 0; k < n; ++k) top = std::max(top, std::bit_cast<uint32_t>(x[k]) & 0x7fffffffu);
  constexpr uint32_t kInf = 0x7f800000u, kTiny = (127u - 100u) << 23;  // 2^-100
  if (top >= kInf || top < kTiny) {
    d = top >= kInf ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    std::fill(q, q + n, int8_t{0});
    return;
  }
  const float amax = std::bit_cast<float>(top);
  d = amax / 127.0f;
  const float inv = 127.0f / amax;
  constexpr float kRound =
      12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, ties to even, in the low bits
  for (int k = 0; k < n; ++k) {
    const int v = std::bit_cast<int32_t>(x[k] * inv + kRound) - std::bit_cast<int32_t>(kRound);
    q[k] = static_cast<int8_t>(std::clamp(v, -127, 127));
  }
}

}  // namespace carat
