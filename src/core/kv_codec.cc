#include "core/kv_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "core/codec.h"

namespace carat {
namespace {

// Sign vectors, one bit an element, lowest first, 1: negative. The first is that of the published TBQ blocks,
// the other two those of TQ3_0: caches in these formats can be exchanged.
constexpr uint8_t kSigns[64] = {0xa7, 0x3b, 0x91, 0xf4, 0x6d, 0xc2, 0x58, 0x0e, 0xb3, 0x7f, 0x24, 0xd6, 0x89,
                                0x45, 0xea, 0x1c, 0x63, 0xaf, 0xd8, 0x52, 0x97, 0x0b, 0xe1, 0x3d, 0x76, 0xc4,
                                0x19, 0xfe, 0x4a, 0x85, 0x2c, 0xdb, 0xd3, 0x4e, 0xa8, 0x17, 0x9c, 0x5b, 0xe6,
                                0x31, 0x72, 0xb9, 0x0d, 0xf5, 0x43, 0x8a, 0x6e, 0xc7, 0x58, 0x2f, 0x94, 0xe1,
                                0xb6, 0x3d, 0x0a, 0x7c, 0xc5, 0x61, 0xd8, 0x4f, 0xa3, 0x97, 0x1e, 0x85};
constexpr uint8_t kSigns1[16] = {0x59, 0x03, 0x6a, 0xe4, 0x49, 0x59, 0xf8, 0x42,
                                 0xbb, 0x3b, 0xc6, 0xa4, 0xa9, 0x50, 0xf2, 0x49};
constexpr uint8_t kSigns2[16] = {0x90, 0xee, 0xac, 0x16, 0xdc, 0x8f, 0x62, 0x3f,
                                 0x7a, 0x35, 0xa5, 0xb7, 0x62, 0x65, 0xa5, 0xbe};
constexpr int32_t kMaxHadamard = 512;

template <size_t N>
constexpr std::array<float, 8 * N> signs(const uint8_t (&bits)[N]) {
  std::array<float, 8 * N> s{};
  for (size_t i = 0; i < s.size(); ++i) s[i] = bits[i / 8] >> i % 8 & 1 ? -1.0f : 1.0f;
  return s;
}
constexpr auto kSign = signs(kSigns);
constexpr auto kSign1 = signs(kSigns1);
constexpr auto kSign2 = signs(kSigns2);

void hadamard(float* x, int32_t n) {
  for (int32_t h = 1; h < n; h *= 2)
    for (int32_t i = 0; i < n; i += 2 * h)
      for (int32_t j = i; j < i + h; ++j) {
        const float a = x[j], b = x[j + h];
        x[j] = a + b;
        x[j + h] = a - b;
      }
  const float s = 1 / std::sqrt(static_cast<float>(n));
  for (int32_t i = 0; i < n; ++i) x[i] *= s;
}
void flip(float* x, const float* sign, int32_t n) {
  for (int32_t i = 0; i < n; ++i) x[i] *= sign[i];
}

int32_t group_of(KvRotation r, int32_t dim) {
  if (r == KvRotation::group128) return dim % 128 == 0 ? 128 : 64;
  return std::min(kMaxHadamard, dim & -dim);  // the largest power of two that divides it
}

void put16(std::byte* p, uint16_t v) { std::memcpy(p, &v, 2); }
uint16_t get16(const std::byte* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}
constexpr uint16_t kNan = 0x7e00;

// The nearest of an ascending grid.
template <class T, size_t N>
int nearest(const T (&grid)[N], float x) {
  int i = 0;
  for (size_t k = 0; k + 1 < N; ++k)
    i += x > 0.5f * (static_cast<float>(grid[k]) + static_cast<float>(grid[k + 1]));
  return i;
}

// n values onto a grid whose unit is 1 / unit standard deviations. Returns what to store beside the codes:
// the norm itself, or (kept) the factor with which codes times factor have the norm of x.
template <class T, size_t N>
uint16_t onto_grid(const T (&grid)[N], double unit, bool kept, const float* x, int64_t n, uint8_t* code) {
  double sum = 0, coded = 0;
  for (int64_t i = 0; i < n; ++i) sum += double{x[i]} * x[i];
  std::fill_n(code, n, uint8_t{0});
  if (!std::isfinite(sum)) return kNan;
  if (sum < 1e-20) return 0;
  const auto scale = static_cast<float>(unit * std::sqrt(static_cast<double>(n) / sum));
  for (int64_t i = 0; i < n; ++i) {
    code[i] = static_cast<uint8_t>(nearest(grid, x[i] * scale));
    coded += static_cast<double>(grid[code[i]]) * grid[code[i]];
  }
  return f32_to_f16(static_cast<float>(kept ? std::sqrt(sum / coded) : std::sqrt(sum)));
}

constexpr int64_t kMaxGroup = 4096;  // values coded together
void check_dim(DType type, int64_t dim) {
  CARAT_CHECK(dim > 0 && dim <= kMaxGroup && dim % info(type).elems == 0, "a head of {} as {}", dim,
              info(type).name);
}

// ---- bit layouts
// ---------------------------------------------------------------------------------------------------------

uint8_t u8(const std::byte* p, int64_t i) { return static_cast<uint8_t>(p[i]); }

// Blocks of 32 values in 16 bytes: byte i holds values i and i + 16.
void pack_nibbles(const uint8_t* code, std::byte* p, int64_t n) {
  for (int64_t b = 0; b < n; b += 32)
    for (int i = 0; i < 16; ++i) p[b / 2 + i] = static_cast<std::byte>(code[b + i] | code[b + i + 16] << 4);
}
uint8_t nibble(const std::byte* p, int64_t i) {
  return u8(p, i / 32 * 16 + i % 16) >> (i % 32 / 16 * 4) & 15;
}

// tq3: both planes.
void pack_tq3(const uint8_t* code, std::byte* p, int64_t n) {
  std::fill_n(p, n / 4 + n / 8, std::byte{0});
  for (int64_t i = 0; i < n; ++i) {
    p[i / 64 * 16 + i % 16] |= static_cast<std::byte>((code[i] & 3) << i % 64 / 16 * 2);
    p[n / 4 + i / 8] |= static_cast<std::byte>(code[i] >> 2 << i % 8);
  }
}
uint8_t tq3_code(const std::byte* p, int64_t n, int64_t i) {
  return static_cast<uint8_t>((u8(p, i / 64 * 16 + i % 16) >> i % 64 / 16 * 2 & 3) |
                              (u8(p, n / 4 + i / 8) >> i % 8 & 1) << 2);
}

// ---- formats
// -------------------------------------------------------------------------------------------------------------

void encode_fp8(const float* x, std::byte* row, int64_t n) {
  float amax = 0;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    amax = std::max(amax, std::fabs(x[i]));
    finite &= std::isfinite(x[i]);
  }
  const uint16_t stored = finite ? f32_to_f16(amax / 448) : kNan;
  const float d = f16_to_f32(stored), inv = d > 0 && std::isfinite(1 / d) ? 1 / d : 0;
  for (int64_t i = 0; i < n; ++i) row[i] = static_cast<std::byte>(finite ? f32_to_e4m3(x[i] * inv) : 0);
  put16(row + n, stored);
}
void decode_fp8(const std::byte* row, float* y, int64_t n) {
  const float d = f16_to_f32(get16(row + n));
  for (int64_t i = 0; i < n; ++i) y[i] = d * e4m3_to_f32(u8(row, i));
}

void encode_kv4(const float* x, std::byte* block) {
  float top = 0;
  bool finite = true;
  for (int k = 0; k < 32; ++k) {
    if (std::fabs(x[k]) > std::fabs(top)) top = x[k];
    finite &= std::isfinite(x[k]);
  }
  const float d = top / -8, inv = d != 0 && std::isfinite(1 / d) ? 1 / d : 0;
  uint8_t code[32];
  for (int k = 0; k < 32; ++k)
    code[k] = finite ? static_cast<uint8_t>(std::clamp(x[k] * inv + 8.5f, 0.0f, 15.0f)) : 8;
  put16(block, finite ? f32_to_f16(d) : kNan);
  pack_nibbles(code, block + 2, 32);
}
void decode_kv4(const std::byte* block, float* y) {
  const float d = f16_to_f32(get16(block));
  for (int k = 0; k < 32; ++k) y[k] = d * static_cast<float>(nibble(block + 2, k) - 8);
}

constexpr double kTq4Unit = 38.16, kTq3Unit = 40.9,
                 kTq30Unit = 0x1.6a09e667f3bcdp-4;  // the last: 1/sqrt(128)

void encode_tq(DType type, const float* x, std::byte* row, int64_t n) {
  uint8_t code[kMaxGroup];
  if (type == DType::tq4) {
    put16(row + n / 2, onto_grid(kTq4Grid, kTq4Unit, true, x, n, code));
    pack_nibbles(code, row, n);
  } else {
    put16(row + n / 4 + n / 8, onto_grid(kTq3Grid, kTq3Unit, true, x, n, code));
    pack_tq3(code, row, n);
  }
}
void decode_tq(DType type, const std::byte* row, float* y, int64_t n) {
  if (type == DType::tq4) {
    const float d = f16_to_f32(get16(row + n / 2));
    for (int64_t i = 0; i < n; ++i) y[i] = d * kTq4Grid[nibble(row, i)];
  } else {
    const float d = f16_to_f32(get16(row + n / 4 + n / 8));
    for (int64_t i = 0; i < n; ++i) y[i] = d * kTq3Grid[tq3_code(row, n, i)];
  }
}

// The norm of a rotation group stands in each of its blocks.
void encode_tq3_0(const float* x, std::byte* row, int64_t n) {
  const int64_t group = n % 128 == 0 ? 128 : 64;
  uint8_t code[128];
  for (int64_t g = 0; g < n; g += group) {
    const uint16_t norm = onto_grid(kTq30Grid, kTq30Unit, true, x + g, group, code);
    for (int64_t b = 0; b < group; b += 32) {
      std::byte* p = row + (g + b) / 32 * 14;
      std::memset(p, 0, 14);
      put16(p, norm);
      for (int j = 0; j < 32; ++j) {
        p[2 + j / 4] |= static_cast<std::byte>((code[b + j] & 3) << 2 * (j % 4));
        p[10 + j / 8] |= static_cast<std::byte>(code[b + j] >> 2 << j % 8);
      }
    }
  }
}
void decode_tq3_0(const std::byte* block, float* y) {
  const float d = f16_to_f32(get16(block));
  for (int j = 0; j < 32; ++j)
    y[j] =
        d * kTq30Grid[(u8(block, 2 + j / 4) >> 2 * (j % 4) & 3) | (u8(block, 10 + j / 8) >> j % 8 & 1) << 2];
}

void encode_tbq(DType type, const float* x, std::byte* row, int64_t n) {
  const int bits = type == DType::tbq4 ? 4 : 3;
  uint8_t code[256];
  for (int64_t g = 0; g < n; g += 256) {
    const int64_t m = std::min<int64_t>(256, n - g);
    put16(row, bits == 4 ? onto_grid(kTbq4Grid, 1, false, x + g, m, code)
                         : onto_grid(kTbq3Grid, 1, false, x + g, m, code));
    row += 2;
    std::memset(row, 0, static_cast<size_t>(m * bits / 8));
    for (int64_t i = 0; i < m; ++i) {
      const int64_t at = i * bits;
      const auto v = static_cast<unsigned>(code[i]) << at % 8;
      row[at / 8] |= static_cast<std::byte>(v & 255);
      if (v >> 8) row[at / 8 + 1] |= static_cast<std::byte>(v >> 8);
    }
    row += m * bits / 8;
  }
}
void decode_tbq(DType type, const std::byte* row, float* y, int64_t n) {
  const int bits = type == DType::tbq4 ? 4 : 3;
  for (int64_t g = 0; g < n; g += 256) {
    const int64_t m = std::min<int64_t>(256, n - g), bytes = m * bits / 8;
    const float d = f16_to_f32(get16(row)) / std::sqrt(static_cast<float>(m));
    row += 2;
    for (int64_t i = 0; i < m; ++i) {
      const int64_t at = i * bits;
      const unsigned v = u8(row, at / 8) | (at / 8 + 1 < bytes ? unsigned{u8(row, at / 8 + 1)} << 8 : 0U);
      const unsigned code = v >> at % 8 & (bits == 4 ? 15 : 7);
      y[g + i] = d * (bits == 4 ? kTbq4Grid[code] : kTbq3Grid[code]);
    }
    row += bytes;
  }
}

constexpr DType kKvFormats[] = {DType::f32, DType::f16, DType::bf16,  DType::q8_0, DType::fp8, DType::kv4,
                                DType::tq4, DType::tq3, DType::tq3_0, DType::tbq4, DType::tbq3};

}  // namespace

void rotate(KvRotation r, float* x, int32_t dim) {
  if (r == KvRotation::none) return;
  const int32_t n = group_of(r, dim);
  for (int32_t g = 0; g < dim; g += n) {
    flip(x + g, r == KvRotation::head ? kSign.data() : kSign1.data(), n);
    hadamard(x + g, n);
    if (r == KvRotation::group128) flip(x + g, kSign2.data(), n);
  }
}
void rotate_back(KvRotation r, float* x, int32_t dim) {
  if (r == KvRotation::none) return;
  const int32_t n = group_of(r, dim);
  for (int32_t g = 0; g < dim; g += n) {
    if (r == KvRotation::group128) flip(x + g, kSign2.data(), n);
    hadamard(x + g, n);
    flip(x + g, r == KvRotation::head ? kSign.data() : kSign1.data(), n);
  }
}

void rotary_part(const float* key, int32_t dim, int32_t pairs, float* part) {
  std::copy_n(key, pairs, part);
  std::copy_n(key + dim / 2, pairs, part + pairs);
}
void split_query(DType k, DType v, const float* gain, const float* q, int32_t dim, int32_t pairs,
                 float* by_value, float* by_key) {
  rotary_part(q, dim, pairs, by_key);
  rotate(rotation_of(k), by_key, 2 * pairs);
  for (int32_t i = 0; i < dim; ++i) by_value[i] = i % (dim / 2) < pairs ? 0.0f : q[i] * gain[i];
  rotate(rotation_of(v), by_value, dim);
}

std::span<const DType> kv_formats() { return kKvFormats; }
bool is_kv_format(DType t) {
  return std::find(std::begin(kKvFormats), std::end(kKvFormats), t) != std::end(kKvFormats);
}

float e4m3_to_f32(uint8_t b) {
  // The bits at f32's place read 2^120 too small; the product is exact, subnormals included.
  if ((b & 0x7f) == 0x7f) return std::bit_cast<float>(0x7fc00000u);
  const uint32_t sign = uint32_t{b} >> 7 << 31;
  const float f = std::bit_cast<float>(uint32_t{b & 0x7fu} << 20) * 0x1p120f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(f));
}

namespace {
void round_to_e4m3(const float* x, float* y, int64_t n, bool power_of_two) {
  float amax = 0;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    amax = std::max(amax, std::fabs(x[i]));
    finite &= std::isfinite(x[i]);
  }
  const bool some = finite && amax >= 0x1p-100f;
  float d = amax / 448, inv = some ? 448 / amax : 0;
  if (power_of_two && some) {  // 448 is 1.75 times 2^8
    int exponent;
    const bool above = std::frexp(amax, &exponent) > 0.875f;
    exponent += above ? -8 : -9;
    d = std::ldexp(1.0f, exponent), inv = std::ldexp(1.0f, -exponent);
  }
  const float other = finite ? 0 : std::numeric_limits<float>::quiet_NaN();
  for (int64_t i = 0; i < n; ++i) y[i] = some ? d * e4m3_to_f32(f32_to_e4m3(x[i] * inv)) : other;
}
}  // namespace
void round_to_e4m3(DType w, const float* x, float* y, int64_t n) {
  if (w == DType::fp8_a8) return round_to_e4m3(x, y, n, false);
  for (int64_t i = 0; i < n; i += 32) round_to_e4m3(x + i, y + i, std::min<int64_t>(32, n - i), true);
}

uint8_t f32_to_e4m3(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint8_t>(u >> 24 & 0x80);
  const float a = std::fabs(f);
  if (!(a < 464)) return static_cast<uint8_t>(sign | (std::isnan(f) ? 0x7f : 0x7e));
  if (a < 0x1p-6f) {  // subnormals: multiples of 2^-9, by adding a number whose last bit is 2^-9
    const float shifted = a + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0x1p14f)));
  }
  const uint32_t m = std::bit_cast<uint32_t>(a), rounded = m + 0x7ffff + (m >> 20 & 1);
  return static_cast<uint8_t>(sign | ((rounded - (120u << 23)) >> 20));
}

void encode_kv(DType type, const float* x, std::byte* row, int64_t n) {
  check_dim(type, n);
  switch (type) {
    case DType::fp8: return encode_fp8(x, row, n);
    case DType::kv4:
      for (int64_t i = 0; i < n; i += 32) encode_kv4(x + i, row + i / 32 * 18);
      return;
    case DType::tq4:
    case DType::tq3: return encode_tq(type, x, row, n);
    case DType::tq3_0: return encode_tq3_0(x, row, n);
    case DType::tbq4:
    case DType::tbq3: return encode_tbq(type, x, row, n);
    default: CARAT_CHECK(false, "{} is not a cache format", info(type).name);
  }
}

void decode_kv(DType type, const std::byte* row, float* y, int64_t n) {
  check_dim(type, n);
  switch (type) {
    case DType::fp8: return decode_fp8(row, y, n);
    case DType::kv4:
      for (int64_t i = 0; i < n; i += 32) decode_kv4(row + i / 32 * 18, y + i);
      return;
    case DType::tq4:
    case DType::tq3: return decode_tq(type, row, y, n);
    case DType::tq3_0:
      for (int64_t i = 0; i < n; i += 32) decode_tq3_0(row + i / 32 * 14, y + i);
      return;
    case DType::tbq4:
    case DType::tbq3: return decode_tbq(type, row, y, n);
    default: CARAT_CHECK(false, "{} is not a cache format", info(type).name);
  }
}

}  // namespace carat
