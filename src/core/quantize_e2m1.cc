// Formats of E2M1 codes, whose scales are few: mxfp4, nvfp4. The scale is the one of several candidates whose
// error, summed in doubles in the order of columns, is least; ties go to the first. Nearly always floats
// decide that: quick_error() is within 2^-17 of the error, so only candidates that come within 2^-15 of
// the least are summed in doubles.
#include <bit>
#include <cstring>

#include "core/quantize_formats.h"

namespace carat::quant {

namespace {

using Bits = int32_t __attribute__((vector_size(16)));
template <int N>
struct Vector;
template <>
struct Vector<4> {
  using F = Lanes;
  using I = Bits;
};
template <>
struct Vector<8> {
  using F = float __attribute__((vector_size(32)));
  using I = int32_t __attribute__((vector_size(32)));
};
constexpr int kMostColumns = 32;

// A group's magnitudes, the largest and the least weight.
struct Magnitudes {
  alignas(32) float v[kMostColumns];
  float most, weight;

  explicit Magnitudes(const Group& g) {
    Lanes top{}, low = at(g.w);
    for (int i = 0; i < g.n; i += 4) {
      const Lanes a = std::bit_cast<Lanes>(std::bit_cast<Bits>(at(g.x + i)) & 0x7fffffff), w = at(g.w + i);
      std::memcpy(v + i, &a, sizeof(a));
      top = a > top ? a : top;
      low = w < low ? w : low;
    }
    most = std::max(std::max(top[0], top[1]), std::max(top[2], top[3]));
    weight = std::min(std::min(low[0], low[1]), std::min(low[2], low[3]));
  }
};

struct Candidate {
  int code;
  float s, inv;  // inv: 0 if s is
};
constexpr int kMostCandidates = 10;

// Between these no square of a magnitude, times a weight below 2^24, leaves the range of a float, and what
// falls below it is far below kNothing.
constexpr float kLeast = 0x1p-40f, kMost = 0x1p40f, kNothing = 0x1p-100f;

// gcc makes four instructions of a maximum with a constant, and one with what it does not know.
inline float unknown(float v) {
  asm("" : "+m"(v));
  return v;
}

// The error of scale s = 1 / inv in floats, N columns at a time. Steps between codes are half the power of
// two below the magnitude, at least 1/2: adding 1.5 * 2^23 steps rounds to one. Of two codes that are as near
// as a float tells, it may take the other than e2m1() does; their errors are then equal to 70 units of 2^-24.
template <int N, int COLS>
[[gnu::always_inline]] inline float quick_error(const Group& g, const Magnitudes& m, const Candidate& c,
                                                float least_step, float most_code) {
  using F = typename Vector<N>::F;
  const F low = least_step - F{}, high = most_code - F{};
  F e{};
#pragma GCC unroll 8
  for (int i = 0; i < COLS; i += N) {
    F x, w;
    std::memcpy(&x, m.v + i, sizeof(x));
    std::memcpy(&w, g.w + i, sizeof(w));
    const F a = x * c.inv;
    F power = reinterpret_cast<F>(reinterpret_cast<typename Vector<N>::I>(a) & 0x7f800000);
    power = power > low ? power : low;
    const F round = power * 0x1.8p22f;
    F code = (a + round) - round;
    code = code < high ? code : high;
    const F diff = x - c.s * code;
    e += w * (diff * diff);
  }
  Lanes part = __builtin_shufflevector(e, e, 0, 1, 2, 3);
  if constexpr (N == 8) part += __builtin_shufflevector(e, e, 4, 5, 6, 7);
  return (part[0] + part[1]) + (part[2] + part[3]);
}

// The nearest E2M1 code; ties go to the smaller magnitude.
uint8_t e2m1(float v) {
  const float a = std::fabs(v);
  const int c = (a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) + (a > 5);
  return static_cast<uint8_t>(c | (v < 0 && c ? 8 : 0));
}
Bits e2m1(Lanes v) {
  const Lanes a = std::bit_cast<Lanes>(std::bit_cast<Bits>(v) & 0x7fffffff);
  const Bits c = -((a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) + (a > 5));
  return c | ((v < 0) & (c > 0) & 8);
}

void put_e2m1(const Group& g, float inv, std::byte* p) {
  Bits c[kMostColumns / 4];
  const int vectors = g.n / 4;
  for (int i = 0; i < vectors; ++i) c[i] = e2m1(at(g.x + 4 * i) * inv);
  for (int i = 0; i < vectors / 2; ++i) {  // column i and i + n / 2 share a byte
    const Bits both = c[i] | c[i + vectors / 2] << 4;
    for (int k = 0; k < 4; ++k) p[4 * i + k] = static_cast<std::byte>(both[k]);
  }
}

// Bits of the candidates whose errors in floats are nearly the least.
template <int N, int COLS>
[[gnu::always_inline]] inline uint32_t nearest_by(const Group& g, const Magnitudes& m, const Candidate* list,
                                                  int n) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float least_step = unknown(1), most_code = unknown(6);
  float quick[kMostCandidates], least = kInfinity;
  const auto limit = [&] { return least * (1 + 0x1p-15f) + kNothing; };
  for (int i = n - 1; i >= 0; --i) {  // small scales last: what they clip often says enough
    const float clipped = std::max(m.most - 6 * list[i].s, 0.0f);
    const bool hopeless = m.weight * (clipped * clipped) > limit();
    quick[i] = hopeless ? kInfinity : quick_error<N, COLS>(g, m, list[i], least_step, most_code);
    least = std::min(least, quick[i]);
  }
  uint32_t near = 0;
  for (int i = 0; i < n; ++i) near |= static_cast<uint32_t>(quick[i] <= limit()) << i;
  return near;
}
template <int COLS>
uint32_t nearest_4(const Group& g, const Magnitudes& m, const Candidate* list, int n) {
  return nearest_by<4, COLS>(g, m, list, n);
}
#ifdef __x86_64__
template <int COLS>
__attribute__((target("avx2"))) uint32_t nearest_8(const Group& g, const Magnitudes& m, const Candidate* list,
                                                   int n) {
  return nearest_by<8, COLS>(g, m, list, n);
}
const bool kWide = __builtin_cpu_supports("avx2");
#else
template <int COLS>
constexpr auto nearest_8 = nearest_4<COLS>;
constexpr bool kWide = false;
#endif

// Which of the candidates has the least error, the first of several.
template <int COLS>
const Candidate& best_of(const Group& g, const Magnitudes& m, const Candidate* list, int n) {
  const uint32_t near = m.most < kLeast || m.most > kMost ? (1u << n) - 1
                        : kWide                           ? nearest_8<COLS>(g, m, list, n)
                                                          : nearest_4<COLS>(g, m, list, n);
  int best = std::countr_zero(near);
  if (std::has_single_bit(near)) return list[best];
  double best_error = std::numeric_limits<double>::infinity();
  for (int i = best; i < n; ++i) {
    const double e = near >> i & 1 ? e2m1_error(g, list[i].s) : best_error;
    if (e < best_error) best_error = e, best = i;
  }
  return list[best];
}

}  // namespace

double e2m1_error(const Group& g, float s) {
  const float inv = s != 0 ? 1 / s : 0;
  double e = 0;
  for (int i = 0; i < g.n; ++i) {
    const double diff = double{g.x[i]} - double{s} * (kE2m1Twice[e2m1(g.x[i] * inv)] * 0.5);
    e += g.w[i] * diff * diff;
  }
  return e;
}

int ue4m3_at_least(float v) {
  if (v <= 0x1p-6f) return static_cast<int>(std::ceil(v * 512));
  const auto up = (std::bit_cast<uint32_t>(v) + 0xfffffu) >> 20;  // 3 bits behind the exponent
  return std::min(static_cast<int>(up) - (120 << 3), 126);
}

// A power of two has few candidates: the largest that does not clip 4, its half, its double and its
// quadruple.
void encode_mxfp4(const Group& g, std::byte* b) {
  const Magnitudes m(g);
  const int first = m.most > 0 ? std::clamp(std::ilogb(m.most) - 2 + 127, 0, 254) : 0;
  std::array<Candidate, 4> list;
  int n = 0;
  for (const int e : {first, first - 1, first + 1, first + 2}) {
    if (e < 0 || e > 254) continue;
    const float s = e8m0_to_f32(static_cast<uint8_t>(e));
    list[static_cast<size_t>(n++)] = {e, s, 1 / s};
  }
  const Candidate& best = best_of<32>(g, m, list.data(), n);
  b[0] = static_cast<std::byte>(best.code);
  put_e2m1(g, best.inv, b + 1);
}

// Four groups of 16, each with its own small-float scale: the one that takes the largest value to 6, or near
// it.
void encode_nvfp4(const Group& g, std::byte* b) {
  constexpr int kBelow = 4, kAbove = 5, kTop = 126;
  static_assert(kBelow + 1 + kAbove <= kMostCandidates);
  static constexpr auto kScales = [] {
    std::array<Candidate, kTop + 1> t{};
    for (int c = 0; c <= kTop; ++c) {
      const float s = ue4m3_to_f32(static_cast<uint8_t>(c));
      t[static_cast<size_t>(c)] = {c, s, c > 0 ? 1 / s : 0};
    }
    return t;
  }();
  for (int i = 0; i < 4; ++i) {
    const Group part{g.x + 16 * i, g.w + 16 * i, 16};
    const Magnitudes m(part);
    const int first = ue4m3_at_least(m.most / 6);
    const int from = std::max(first - kBelow, 0), to = std::min(first + kAbove, kTop);
    const Candidate& best = best_of<16>(part, m, &kScales[static_cast<size_t>(from)], to - from + 1);
    b[i] = static_cast<std::byte>(best.code);
    put_e2m1(part, best.inv, b + 4 + 8 * i);
  }
}

}  // namespace carat::quant
