#include "tools/forge_fill.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/codec.h"
#include "core/codec_tables.h"

namespace carat {
namespace {

class Random {  // splitmix64 (Steele, Lea, Flood, OOPSLA 2014)
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  void bytes(std::byte* p, size_t n) {
    for (; n >= 8; p += 8, n -= 8) {
      const uint64_t v = next();
      std::memcpy(p, &v, 8);
    }
    const uint64_t v = next();
    std::memcpy(p, &v, n);
  }
  // Variance 1.
  float uniform() { return (static_cast<float>(next() >> 40) * 0x1p-23F - 1) * 1.7320508F; }

 private:
  uint64_t state_;
};

void put_half(std::byte* p, float f) {
  const uint16_t h = f32_to_f16(f);
  std::memcpy(p, &h, 2);
}

// Standard deviation of codes that are uniform on `levels` consecutive integers.
float code_deviation(int levels) { return std::sqrt(static_cast<float>(levels * levels - 1) / 12); }

// The eight 6-bit scales of Q4_K and Q5_K, from 32 to 63, with equal minimums (docs/formats.md section 4.3).
void put_scales(std::byte* s, uint64_t bits) {
  uint32_t scale[8];
  for (int i = 0; i < 8; ++i) scale[i] = 32 + ((bits >> (5 * i)) & 31);
  for (int i = 0; i < 4; ++i) {
    s[i] = s[i + 4] = static_cast<std::byte>(scale[i] | (scale[i + 4] >> 4) << 6);
    s[i + 8] = static_cast<std::byte>((scale[i + 4] & 15) * 17);
  }
}
constexpr float kScaleRms = 48.4F;  // of 32..63

// With minimums of (levels - 1) / 2 steps the values have mean 0.
void fill_k(std::byte* b, size_t bytes, int levels, float sigma, Random& r) {
  const float d = sigma / (code_deviation(levels) * kScaleRms);
  put_half(b, d);
  put_half(b + 2, d * static_cast<float>(levels - 1) / 2);
  put_scales(b + 4, r.next());
  r.bytes(b + 16, bytes - 16);
}

void fill_q6_k(std::byte* b, float sigma, Random& r) {
  r.bytes(b, 192);
  float squares = 0;
  for (int i = 0; i < 16; ++i) {  // 64..127 of either sign
    const uint64_t bits = r.next();
    const int scale = (64 + static_cast<int>(bits & 63)) * (bits & 64 ? 1 : -1);
    squares += static_cast<float>(scale * scale);
    b[192 + i] = static_cast<std::byte>(static_cast<int8_t>(scale));
  }
  put_half(b + 208, sigma / (code_deviation(64) * std::sqrt(squares / 16)));
}

// One f16 scale, of either sign (the codes' mean is -1/2), and random codes behind it.
void fill_scaled(std::byte* b, size_t bytes, int levels, float sigma, Random& r) {
  const float d = sigma / code_deviation(levels);
  put_half(b, r.next() & 1 ? d : -d);
  r.bytes(b + 2, bytes - 2);
}
void fill_with_minimum(std::byte* b, size_t bytes, int levels, float sigma, Random& r) {
  const float d = sigma / code_deviation(levels);
  put_half(b, d);
  put_half(b + 2, -d * static_cast<float>(levels - 1) / 2);
  r.bytes(b + 4, bytes - 4);
}

// Of codes of E2M1, all as likely.
constexpr float kE2m1Deviation = 2.9261750F;  // the root of 68.5 / 8

// One of two neighbouring scales, so often that their mean square is that of s.
int between(float s, int lower, float low, float high, Random& r) {
  const float part = (s * s - low * low) / (high * high - low * low);
  return lower + (static_cast<float>(r.next() >> 40) * 0x1p-24F < part);
}

void fill_mxfp4(std::byte* b, float sigma, Random& r) {
  const float s = sigma / kE2m1Deviation;
  const int lower = std::clamp(std::ilogb(s) + 127, 0, 253);
  b[0] = static_cast<std::byte>(between(s, lower, e8m0_to_f32(static_cast<uint8_t>(lower)),
                                        e8m0_to_f32(static_cast<uint8_t>(lower + 1)), r));
  r.bytes(b + 1, 16);
}
void fill_nvfp4(std::byte* b, float sigma, Random& r) {
  const float s = sigma / kE2m1Deviation;
  int lower = 0;
  while (lower < 125 && ue4m3_to_f32(static_cast<uint8_t>(lower + 1)) <= s) ++lower;
  for (int i = 0; i < 4; ++i)
    b[i] = static_cast<std::byte>(between(s, lower, ue4m3_to_f32(static_cast<uint8_t>(lower)),
                                          ue4m3_to_f32(static_cast<uint8_t>(lower + 1)), r));
  r.bytes(b + 4, 32);
}

// Root of the mean square of the table of iq4_nl and iq4_xs.
float iq4_rms() {
  float squares = 0;
  for (const int8_t v : kIq4Values) squares += static_cast<float>(v) * v;
  return std::sqrt(squares / 16);
}
void fill_iq4_nl(std::byte* b, float sigma, Random& r) {
  const float d = sigma / iq4_rms();
  put_half(b, r.next() & 1 ? d : -d);  // the values' mean is -6
  r.bytes(b + 2, 16);
}

// N scales of 6 bits, 32 too large: 16 to 31 of either sign. Returns the root of their mean square.
template <size_t N>
float draw_scales(int (&scales)[N], Random& r) {
  float squares = 0;
  for (int& s : scales) {
    const uint64_t bits = r.next();
    const int size = 16 + static_cast<int>(bits & 15);
    squares += static_cast<float>(size * size);
    s = 32 + (bits & 16 ? size : -size);
  }
  return std::sqrt(squares / N);
}
void fill_iq4_xs(std::byte* b, float sigma, Random& r) {
  int scales[8];
  put_half(b, sigma / (iq4_rms() * draw_scales(scales, r)));
  uint32_t low = 0, high = 0;
  for (int g = 0; g < 8; ++g) {
    low |= static_cast<uint32_t>(scales[g] & 15) << 4 * g;
    high |= static_cast<uint32_t>(scales[g] >> 4) << 2 * g;
  }
  std::memcpy(b + 2, &high, 2);
  std::memcpy(b + 4, &low, 4);
  r.bytes(b + 8, 128);
}
void fill_q3_k(std::byte* b, float sigma, Random& r) {
  constexpr float kCodeRms = 2.3452079F;  // of -4..3
  int scales[16];
  r.bytes(b, 96);
  put_half(b + 108, sigma / (kCodeRms * draw_scales(scales, r)));
  std::byte* at = b + 96;
  std::memset(at, 0, 12);
  for (int g = 0; g < 16; ++g) {
    at[g % 8] |= static_cast<std::byte>((scales[g] & 15) << (g < 8 ? 0 : 4));
    at[8 + g % 4] |= static_cast<std::byte>((scales[g] >> 4) << 2 * (g / 4));
  }
}
// Scales from 8 to 15 with equal minimums of 3 / 2 steps: the values have mean 0.
void fill_q2_k(std::byte* b, float sigma, Random& r) {
  constexpr float kRms = 11.726F;  // of 8..15
  for (int i = 0; i < 16; ++i) b[i] = static_cast<std::byte>((8 + static_cast<int>(r.next() & 7)) * 17);
  r.bytes(b + 16, 64);
  const float d = sigma / (code_deviation(4) * kRms);
  put_half(b + 80, d);
  put_half(b + 82, d * 1.5F);
}

// Lattices: entries of a code book with signs and scales, all random.
constexpr std::array kLattices = {DType::iq2_xxs, DType::iq2_xs, DType::iq2_s, DType::iq3_xxs, DType::iq3_s};
// Root of their mean square with a block's scale of 1, looked at once.
float lattice_rms(DType type) {
  constexpr int kBlocks = 256;
  Random r(1);
  std::byte b[256];
  float x[256];
  double squares = 0;
  for (int i = 0; i < kBlocks; ++i) {
    r.bytes(b, info(type).bytes);
    put_half(b, 1);
    decode_row(type, b, x, 256);
    for (const float v : x) squares += double{v} * v;
  }
  return static_cast<float>(std::sqrt(squares / (256.0 * kBlocks)));
}
void fill_lattice(DType type, std::byte* b, float sigma, Random& r) {
  static const auto rms = [] {
    std::array<float, kLattices.size()> all{};
    std::transform(kLattices.begin(), kLattices.end(), all.begin(), lattice_rms);
    return all;
  }();
  const auto which =
      static_cast<size_t>(std::find(kLattices.begin(), kLattices.end(), type) - kLattices.begin());
  r.bytes(b, info(type).bytes);
  put_half(b, sigma / rms[which]);
}

void fill_block(DType type, std::byte* b, float sigma, Random& r) {
  const size_t bytes = info(type).bytes;
  switch (type) {
    case DType::q4_k: return fill_k(b, bytes, 16, sigma, r);
    case DType::q5_k: return fill_k(b, bytes, 32, sigma, r);
    case DType::q6_k: return fill_q6_k(b, sigma, r);
    case DType::q8_0: return fill_scaled(b, bytes, 256, sigma, r);
    case DType::q5_0: return fill_scaled(b, bytes, 32, sigma, r);
    case DType::q4_0: return fill_scaled(b, bytes, 16, sigma, r);
    case DType::q5_1: return fill_with_minimum(b, bytes, 32, sigma, r);
    case DType::q4_1: return fill_with_minimum(b, bytes, 16, sigma, r);
    case DType::iq4_nl: return fill_iq4_nl(b, sigma, r);
    case DType::iq4_xs: return fill_iq4_xs(b, sigma, r);
    case DType::q3_k: return fill_q3_k(b, sigma, r);
    case DType::q2_k: return fill_q2_k(b, sigma, r);
    case DType::mxfp4: return fill_mxfp4(b, sigma, r);
    case DType::nvfp4: return fill_nvfp4(b, sigma, r);
    case DType::iq2_xxs:
    case DType::iq2_xs:
    case DType::iq2_s:
    case DType::iq3_xxs:
    case DType::iq3_s: return fill_lattice(type, b, sigma, r);
    default: break;
  }
  float x[256];  // other types: values, then their quantizer
  const int64_t n = info(type).elems;
  for (int64_t i = 0; i < n; ++i) x[i] = sigma * r.uniform();
  encode_row(type, x, b, n);
}

}  // namespace

void fill_random(DType type, std::byte* out, int64_t n, float sigma, uint64_t seed) {
  Random r(seed);
  const DTypeInfo& f = info(type);
  for (int64_t i = 0; i < n; i += f.elems, out += f.bytes) fill_block(type, out, sigma, r);
}

}  // namespace carat
