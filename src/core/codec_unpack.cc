// The bytes of every block format, as integers (docs/formats.md section 4).
// Nothing else in the scalar code knows a layout.
#include <array>
#include <bit>

#include "base/error.h"
#include "core/codec.h"
#include "core/codec_tables.h"
#include "core/int_block.h"

namespace carat {

namespace {

using Bytes = const uint8_t*;

uint16_t u16(Bytes p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}
uint32_t u32(Bytes p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}
float f16(Bytes p) { return f16_to_f32(u16(p)); }

// Formats of 32 columns; g is the block's place in the IntBlock. Nibble order: byte i holds columns i and i
// + 16.

void unpack_q4_0(Bytes b, int g, IntBlock& o) {
  o.group_d[g] = f16(b);
  int8_t* q = o.q + 32 * g;
  for (int i = 0; i < 16; ++i) {
    q[i] = static_cast<int8_t>((b[2 + i] & 15) - 8);
    q[i + 16] = static_cast<int8_t>((b[2 + i] >> 4) - 8);
  }
}

void unpack_q4_1(Bytes b, int g, IntBlock& o) {
  o.group_d[g] = f16(b);
  o.group_m[g] = f16(b + 2);
  int8_t* q = o.q + 32 * g;
  for (int i = 0; i < 16; ++i) {
    q[i] = static_cast<int8_t>(b[4 + i] & 15);
    q[i + 16] = static_cast<int8_t>(b[4 + i] >> 4);
  }
}

// q5_0 and q5_1 share the codes: low nibbles, and a fifth bit per column in one word.
void five_bits(uint32_t high, Bytes qs, int offset, int8_t* q) {
  for (int i = 0; i < 16; ++i) {
    q[i] = static_cast<int8_t>(((qs[i] & 15) | (high >> i & 1) << 4) - offset);
    q[i + 16] = static_cast<int8_t>((qs[i] >> 4 | (high >> (i + 16) & 1) << 4) - offset);
  }
}

void unpack_q5_0(Bytes b, int g, IntBlock& o) {
  o.group_d[g] = f16(b);
  five_bits(u32(b + 2), b + 6, 16, o.q + 32 * g);
}

void unpack_q5_1(Bytes b, int g, IntBlock& o) {
  o.group_d[g] = f16(b);
  o.group_m[g] = f16(b + 2);
  five_bits(u32(b + 4), b + 8, 0, o.q + 32 * g);
}

void unpack_q8_0(Bytes b, int g, IntBlock& o) {
  o.group_d[g] = f16(b);
  std::memcpy(o.q + 32 * g, b + 2, 32);
}

void unpack_iq4_nl(Bytes b, int g, IntBlock& o) {
  o.group_d[g] = f16(b);
  int8_t* q = o.q + 32 * g;
  for (int i = 0; i < 16; ++i) {
    q[i] = kIq4Values[b[2 + i] & 15];
    q[i + 16] = kIq4Values[b[2 + i] >> 4];
  }
}

void unpack_mxfp4(Bytes b, int g, IntBlock& o) {
  o.group_d[g] = 0.5f * e8m0_to_f32(b[0]);
  int8_t* q = o.q + 32 * g;
  for (int i = 0; i < 16; ++i) {
    q[i] = kE2m1Twice[b[1 + i] & 15];
    q[i + 16] = kE2m1Twice[b[1 + i] >> 4];
  }
}

// 64 columns in four groups of 16; byte i of a group holds its columns i and i + 8. h: the block's place.
void unpack_nvfp4(Bytes b, int h, IntBlock& o) {
  for (int s = 0; s < 4; ++s) {
    o.group_d[4 * h + s] = 0.5f * ue4m3_to_f32(b[s]);
    int8_t* q = o.q + 64 * h + 16 * s;
    for (int i = 0; i < 8; ++i) {
      q[i] = kE2m1Twice[b[4 + 8 * s + i] & 15];
      q[i + 8] = kE2m1Twice[b[4 + 8 * s + i] >> 4];
    }
  }
}

// Formats of 256 columns. In the two-bit planes of q2_k, q3_k and q6_k column 128 n + 32 j + l stands at bits
// 2j of byte 32 n + l. f(n, j, l) gives one code; fixed loops around it let the compiler work on many columns
// at once.
template <class F>
void two_bit_order(int8_t* q, F f) {
  for (int n = 0; n < 2; ++n)
    for (int j = 0; j < 4; ++j)
      for (int l = 0; l < 32; ++l) q[128 * n + 32 * j + l] = static_cast<int8_t>(f(n, j, l));
}

void unpack_q2_k(Bytes b, int, IntBlock& o) {
  o.d = f16(b + 80);
  o.dmin = f16(b + 82);
  for (int g = 0; g < 16; ++g) {
    o.scale[g] = b[g] & 15;
    o.min[g] = b[g] >> 4;
  }
  two_bit_order(o.q, [b](int n, int j, int l) { return b[16 + 32 * n + l] >> 2 * j & 3; });
}

void unpack_q3_k(Bytes b, int, IntBlock& o) {
  o.d = f16(b + 108);
  Bytes s = b + 96;
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4;
    o.scale[g] = static_cast<int16_t>((low | (s[8 + g % 4] >> 2 * (g / 4) & 3) << 4) - 32);
  }
  two_bit_order(o.q, [b](int n, int j, int l) {
    return (b[32 + 32 * n + l] >> 2 * j & 3) + 4 * (b[l] >> (4 * n + j) & 1) - 4;
  });
}

// Eight 6-bit scales and mins in 12 bytes (q4_k, q5_k).
void scales_and_mins(Bytes s, IntBlock& o) {
  for (int g = 0; g < 4; ++g) {
    o.scale[g] = s[g] & 63;
    o.min[g] = s[g + 4] & 63;
    o.scale[g + 4] = static_cast<int16_t>((s[g + 8] & 15) | (s[g] >> 6) << 4);
    o.min[g + 4] = static_cast<int16_t>(s[g + 8] >> 4 | (s[g + 4] >> 6) << 4);
  }
}

void unpack_q4_k(Bytes b, int, IntBlock& o) {
  o.d = f16(b);
  o.dmin = f16(b + 2);
  scales_and_mins(b + 4, o);
  for (int p = 0; p < 4; ++p)
    for (int i = 0; i < 32; ++i) {
      const uint8_t v = b[16 + 32 * p + i];
      o.q[64 * p + i] = static_cast<int8_t>(v & 15);
      o.q[64 * p + 32 + i] = static_cast<int8_t>(v >> 4);
    }
}

void unpack_q5_k(Bytes b, int, IntBlock& o) {
  o.d = f16(b);
  o.dmin = f16(b + 2);
  scales_and_mins(b + 4, o);
  for (int p = 0; p < 4; ++p)
    for (int i = 0; i < 32; ++i) {
      const uint8_t v = b[48 + 32 * p + i], high = b[16 + i];
      o.q[64 * p + i] = static_cast<int8_t>((v & 15) | (high >> 2 * p & 1) << 4);
      o.q[64 * p + 32 + i] = static_cast<int8_t>(v >> 4 | (high >> (2 * p + 1) & 1) << 4);
    }
}

void unpack_q6_k(Bytes b, int, IntBlock& o) {
  o.d = f16(b + 208);
  for (int g = 0; g < 16; ++g) o.scale[g] = static_cast<int8_t>(b[192 + g]);
  two_bit_order(o.q, [b](int n, int j, int l) {
    const int low = b[64 * n + l + 32 * (j & 1)] >> 4 * (j >> 1) & 15;
    return (low | (b[128 + 32 * n + l] >> 2 * j & 3) << 4) - 32;
  });
}

void unpack_iq4_xs(Bytes b, int, IntBlock& o) {
  o.d = f16(b);
  const uint16_t high = u16(b + 2);
  for (int g = 0; g < 8; ++g) {
    o.scale[g] = static_cast<int16_t>(((b[4 + g / 2] >> 4 * (g & 1) & 15) | (high >> 2 * g & 3) << 4) - 32);
    for (int i = 0; i < 16; ++i) {
      const uint8_t v = b[8 + 16 * g + i];
      o.q[32 * g + i] = kIq4Values[v & 15];
      o.q[32 * g + 16 + i] = kIq4Values[v >> 4];
    }
  }
}

// n magnitudes with the low n bits of `minus` as signs.
void signed_codes(const int8_t* magnitude, unsigned minus, int n, int8_t* q) {
  for (int j = 0; j < n; ++j) q[j] = static_cast<int8_t>(minus >> j & 1 ? -magnitude[j] : magnitude[j]);
}
// Seven stored sign bits; the eighth makes the number of minus signs even.
unsigned even_signs(uint32_t seven) { return seven | (static_cast<unsigned>(std::popcount(seven)) & 1) << 7; }
int16_t odd_scale(unsigned s) { return static_cast<int16_t>(2 * s + 1); }

void unpack_iq2_xxs(Bytes b, int, IntBlock& o) {
  o.d = f16(b) / 8;
  for (int i = 0; i < 8; ++i) {
    Bytes x = b + 2 + 8 * i;
    const uint32_t a = u32(x + 4);
    o.scale[i] = odd_scale(a >> 28);
    for (int l = 0; l < 4; ++l)
      signed_codes(kIq2xxs[x[l]].data(), even_signs(a >> 7 * l & 127), 8, o.q + 32 * i + 8 * l);
  }
}

void unpack_iq2_xs(Bytes b, int, IntBlock& o) {
  o.d = f16(b) / 8;
  for (int g = 0; g < 16; ++g) o.scale[g] = odd_scale(b[66 + g / 2] >> 4 * (g & 1) & 15);
  for (int i = 0; i < 32; ++i) {
    const uint16_t x = u16(b + 2 + 2 * i);
    signed_codes(kIq2xs[x & 511].data(), even_signs(x >> 9), 8, o.q + 8 * i);
  }
}

void unpack_iq2_s(Bytes b, int, IntBlock& o) {
  o.d = f16(b) / 8;
  for (int g = 0; g < 16; ++g) o.scale[g] = odd_scale(b[74 + g / 2] >> 4 * (g & 1) & 15);
  for (int i = 0; i < 32; ++i) {
    const unsigned x = b[2 + i] | (b[66 + i / 4] >> 2 * (i % 4) & 3u) << 8;
    signed_codes(kIq2s[x].data(), b[34 + i], 8, o.q + 8 * i);
  }
}

void unpack_iq3_xxs(Bytes b, int, IntBlock& o) {
  o.d = f16(b) / 4;
  for (int i = 0; i < 8; ++i) {
    const uint32_t a = u32(b + 66 + 4 * i);
    o.scale[i] = odd_scale(a >> 28);
    for (int l = 0; l < 4; ++l) {
      const unsigned minus = even_signs(a >> 7 * l & 127);
      int8_t* q = o.q + 32 * i + 8 * l;
      signed_codes(kIq3xxs[b[2 + 8 * i + 2 * l]].data(), minus, 4, q);
      signed_codes(kIq3xxs[b[2 + 8 * i + 2 * l + 1]].data(), minus >> 4, 4, q + 4);
    }
  }
}

void unpack_iq3_s(Bytes b, int, IntBlock& o) {
  o.d = f16(b);
  for (int g = 0; g < 8; ++g) o.scale[g] = odd_scale(b[106 + g / 2] >> 4 * (g & 1) & 15);
  for (int i = 0; i < 64; ++i) {
    const unsigned x = b[2 + i] | (b[66 + i / 8] >> i % 8 & 1u) << 8;
    signed_codes(kIq3s[x].data(), b[74 + i / 2] >> 4 * (i & 1), 4, o.q + 4 * i);
  }
}

struct Layout {
  IntKind kind = IntKind::scaled;
  uint8_t group = 0;
  void (*unpack)(Bytes block, int index, IntBlock& out) = nullptr;
};

constexpr std::array<Layout, kDTypeCount> layouts() {
  std::array<Layout, kDTypeCount> t{};
  const auto set = [&](DType type, IntKind kind, uint8_t group, void (*f)(Bytes, int, IntBlock&)) {
    t[static_cast<size_t>(type)] = {kind, group, f};
  };
  set(DType::q4_0, IntKind::grouped, 32, unpack_q4_0);
  set(DType::q4_1, IntKind::grouped_min, 32, unpack_q4_1);
  set(DType::q5_0, IntKind::grouped, 32, unpack_q5_0);
  set(DType::q5_1, IntKind::grouped_min, 32, unpack_q5_1);
  set(DType::q8_0, IntKind::grouped, 32, unpack_q8_0);
  set(DType::q2_k, IntKind::scaled_min, 16, unpack_q2_k);
  set(DType::q3_k, IntKind::scaled, 16, unpack_q3_k);
  set(DType::q4_k, IntKind::scaled_min, 32, unpack_q4_k);
  set(DType::q5_k, IntKind::scaled_min, 32, unpack_q5_k);
  set(DType::q6_k, IntKind::scaled, 16, unpack_q6_k);
  set(DType::iq2_xxs, IntKind::scaled, 32, unpack_iq2_xxs);
  set(DType::iq2_xs, IntKind::scaled, 16, unpack_iq2_xs);
  set(DType::iq2_s, IntKind::scaled, 16, unpack_iq2_s);
  set(DType::iq3_xxs, IntKind::scaled, 32, unpack_iq3_xxs);
  set(DType::iq3_s, IntKind::scaled, 32, unpack_iq3_s);
  set(DType::iq4_nl, IntKind::grouped, 32, unpack_iq4_nl);
  set(DType::iq4_xs, IntKind::scaled, 32, unpack_iq4_xs);
  set(DType::mxfp4, IntKind::grouped, 32, unpack_mxfp4);
  set(DType::nvfp4, IntKind::grouped, 16, unpack_nvfp4);
  return t;
}
constexpr std::array<Layout, kDTypeCount> kLayouts = layouts();

const Layout& layout(DType type) {
  const Layout& l = kLayouts[static_cast<size_t>(type)];
  CARAT_CHECK(l.unpack != nullptr, "{} has no blocks", info(type).name);
  return l;
}

}  // namespace

IntKind int_kind(DType type) { return layout(type).kind; }
int int_group(DType type) { return layout(type).group; }

void unpack(DType type, const std::byte* row, int64_t first, int n, IntBlock& out) {
  const Layout& l = layout(type);
  const int elems = info(type).elems;
  CARAT_DCHECK(n > 0 && n <= kIntBlock && n % elems == 0 && first % elems == 0, "first {}, n {}", first, n);
  out.n = n;
  out.group = l.group;
  out.kind = l.kind;
  Bytes b = reinterpret_cast<Bytes>(row + row_bytes(type, first));
  for (int i = 0; i < n / elems; ++i, b += info(type).bytes) l.unpack(b, i, out);
}

}  // namespace carat
