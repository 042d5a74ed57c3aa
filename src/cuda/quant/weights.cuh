// Quantized weights in the file's own layout, as integers: what a lane knows of 256 columns of a row. Lane l
// has columns 8 l .. 8 l + 7; the formats are those of core/codec_unpack.cc (docs/formats.md section 4).
#pragma once
#include "core/dtype.h"
#include "cuda/device/step.h"
#include "cuda/quant/bits.cuh"
#include "cuda/quant/packed.h"
#include "cuda/quant/tables.h"

namespace carat::cuda {

enum class Sums : uint8_t { scaled, scaled_min, grouped, grouped_min };  // IntKind

struct Part {
  uint32_t low = 0, high = 0;  // codes of columns 8 l .. 8 l + 3 and 8 l + 4 .. 8 l + 7, a byte each
  int32_t scale = 0, min = 0;  // of the lane's group, scaled kinds
  float d = 0, m = 0;          // scaled: d and dmin of the block; grouped: of the lane's group
};

// Column k of a row of 4 bits.
CARAT_HD float four_bit_weight(DType t, const uint8_t* w, int32_t k) {
  if (t == DType::mxfp4_a8) {
    const uint8_t* block = w + k / 32 * 17;
    return e2m1_float(block[1 + k % 16] >> k % 32 / 16 * 4) * e8m0_float(block[0]);
  }
  const uint8_t* block = w + k / 64 * 36;
  const int32_t part = k % 64 / 16;
  return e2m1_float(block[4 + 8 * part + k % 8] >> k % 16 / 8 * 4) * ue4m3_float(block[part]);
}

// Column k of a row of floats; of fp8 a 256th of it, which is f16 with the exponent as it stands, without the
// factor of the row, which is behind the codes.
CARAT_HD float plain_weight(DType t, const uint8_t* w, int32_t k) {
  if (t == DType::f32) return reinterpret_cast<const float*>(w)[k];
  if (t == DType::fp8) return half_float((w[k] & 0x80u) << 8 | (w[k] & 0x7fu) << 7);  // of a 256th
  if (t == DType::mxfp4_a8 || t == DType::nvfp4_a8) return four_bit_weight(t, w, k);
  const uint32_t h = reinterpret_cast<const uint16_t*>(w)[k];
  return t == DType::f16 ? half_float(h) : bf16_float(h);
}

CARAT_HD float e4m3_factor(const uint8_t* row, int32_t cols) {
  return half_float(row[cols] | uint32_t{row[cols + 1]} << 8) * 256;
}

CARAT_HD uint32_t look4(const int8_t* table, uint32_t nibbles) {  // a nibble in every byte
  return static_cast<uint8_t>(table[nibbles & 15]) |
         static_cast<uint32_t>(static_cast<uint8_t>(table[nibbles >> 8 & 15])) << 8 |
         static_cast<uint32_t>(static_cast<uint8_t>(table[nibbles >> 16 & 15])) << 16 |
         static_cast<uint32_t>(static_cast<uint8_t>(table[nibbles >> 24 & 15])) << 24;
}
CARAT_HD uint32_t even_signs(uint32_t seven) {
  uint32_t p = seven ^ seven >> 4;
  p ^= p >> 2;
  p ^= p >> 1;
  return seven | (p & 1) << 7;
}
// Two words of eight bytes at p, shifted right and masked to nibbles.
template <class Load>
CARAT_HD void nibbles(Part& o, const uint8_t* p, int shift, Load load) {
  o.low = load(p) >> shift & 0x0f0f0f0fu;
  o.high = load(p + 4) >> shift & 0x0f0f0f0fu;
}

CARAT_HD void k_scales(const uint8_t* s, int g, Part& o) {  // eight 6-bit scales and mins in 12 bytes
  if (g < 4) {
    o.scale = s[g] & 63, o.min = s[g + 4] & 63;
  } else {
    o.scale = (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
    o.min = s[g + 4] >> 4 | (s[g] >> 6) << 4;
  }
}

// b: the 256 columns' first block.
template <DType T>
CARAT_HD Part part(const uint8_t* b, int lane, const Tables& tables) {
  Part o;
  [[maybe_unused]] const int h = lane & 3;  // of formats with blocks of 32: which eight columns
  [[maybe_unused]] const auto even = [](const uint8_t* p) { return u32_at_even(p); };
  [[maybe_unused]] const auto any = [](const uint8_t* p) { return u32_at_any(p); };
  [[maybe_unused]] const auto word = [](const uint8_t* p) { return u32_at(p); };
  if constexpr (T == DType::q4_0) {
    b += 18 * (lane >> 2);
    o.d = half_at(b);
    nibbles(o, b + 2 + 8 * (h & 1), 4 * (h >> 1), even);
    o.low = minus4(o.low, 0x08080808u), o.high = minus4(o.high, 0x08080808u);
  } else if constexpr (T == DType::q4_1) {
    b += 20 * (lane >> 2);
    o.d = half_at(b), o.m = half_at(b + 2);
    nibbles(o, b + 4 + 8 * (h & 1), 4 * (h >> 1), word);
  } else if constexpr (T == DType::q5_0 || T == DType::q5_1) {
    constexpr int at = T == DType::q5_0 ? 2 : 4;
    b += (at + 20) * (lane >> 2);
    o.d = half_at(b);
    const uint32_t bits = b[at + h];
    nibbles(o, b + at + 4 + 8 * (h & 1), 4 * (h >> 1), even);
    o.low |= spread4(bits & 15) << 4, o.high |= spread4(bits >> 4) << 4;
    if constexpr (T == DType::q5_0) {
      o.low = minus4(o.low, 0x10101010u), o.high = minus4(o.high, 0x10101010u);
    } else {
      o.m = half_at(b + 2);
    }
  } else if constexpr (T == DType::q8_0) {
    b += 34 * (lane >> 2);
    o.d = half_at(b);
    o.low = u32_at_even(b + 2 + 8 * h), o.high = u32_at_even(b + 6 + 8 * h);
  } else if constexpr (T == DType::iq4_nl) {
    b += 18 * (lane >> 2);
    o.d = half_at(b);
    nibbles(o, b + 2 + 8 * (h & 1), 4 * (h >> 1), even);
    o.low = look4(tables.iq4, o.low), o.high = look4(tables.iq4, o.high);
  } else if constexpr (T == DType::mxfp4) {
    b += 17 * (lane >> 2);
    o.d = 0.5f * e8m0_float(b[0]);
    nibbles(o, b + 1 + 8 * (h & 1), 4 * (h >> 1), any);
    o.low = look4(tables.e2m1, o.low), o.high = look4(tables.e2m1, o.high);
  } else if constexpr (T == DType::nvfp4) {
    b += 36 * (lane >> 3);
    const int s = (lane & 7) >> 1;
    o.d = 0.5f * ue4m3_float(b[s]);
    nibbles(o, b + 4 + 8 * s, 4 * (lane & 1), word);
    o.low = look4(tables.e2m1, o.low), o.high = look4(tables.e2m1, o.high);
  } else if constexpr (T == DType::q2_k) {
    const int n = lane >> 4, j = lane >> 2 & 3;
    o.d = half_at(b + 80), o.m = half_at(b + 82);
    o.scale = b[lane >> 1] & 15, o.min = b[lane >> 1] >> 4;
    const uint8_t* p = b + 16 + 32 * n + 8 * h;
    o.low = u32_at(p) >> 2 * j & 0x03030303u, o.high = u32_at(p + 4) >> 2 * j & 0x03030303u;
  } else if constexpr (T == DType::q3_k) {
    const int n = lane >> 4, j = lane >> 2 & 3, g = lane >> 1;
    const uint8_t *p = b + 32 + 32 * n + 8 * h, *m = b + 8 * h, *s = b + 96;
    o.d = half_at(b + 108);
    const int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4;
    o.scale = (low | (s[8 + g % 4] >> 2 * (g / 4) & 3) << 4) - 32;
    const auto code = [&](int i) {
      return minus4((even(p + i) >> 2 * j & 0x03030303u) | (even(m + i) >> (4 * n + j) & 0x01010101u) << 2,
                    0x04040404u);
    };
    o.low = code(0), o.high = code(4);
  } else if constexpr (T == DType::q4_k) {
    o.d = half_at(b), o.m = half_at(b + 2);
    k_scales(b + 4, lane >> 2, o);
    nibbles(o, b + 16 + 32 * (lane >> 3) + 8 * h, lane & 4, word);
  } else if constexpr (T == DType::q5_k) {
    o.d = half_at(b), o.m = half_at(b + 2);
    k_scales(b + 4, lane >> 2, o);
    nibbles(o, b + 48 + 32 * (lane >> 3) + 8 * h, lane & 4, word);
    const int bit = lane >> 2;
    o.low |= (u32_at(b + 16 + 8 * h) >> bit & 0x01010101u) << 4;
    o.high |= (u32_at(b + 20 + 8 * h) >> bit & 0x01010101u) << 4;
  } else if constexpr (T == DType::q6_k) {
    const int n = lane >> 4, j = lane >> 2 & 3;
    o.d = half_at(b + 208);
    o.scale = static_cast<int8_t>(b[192 + (lane >> 1)]);
    const uint8_t *p = b + 64 * n + 8 * h + 32 * (j & 1), *m = b + 128 + 32 * n + 8 * h;
    nibbles(o, p, 4 * (j >> 1), even);
    o.low = minus4(o.low | (even(m) >> 2 * j & 0x03030303u) << 4, 0x20202020u);
    o.high = minus4(o.high | (even(m + 4) >> 2 * j & 0x03030303u) << 4, 0x20202020u);
  } else if constexpr (T == DType::iq4_xs) {
    const int g = lane >> 2;
    o.d = half_at(b);
    o.scale = static_cast<int>((b[4 + g / 2] >> 4 * (g & 1) & 15) | (u16_at(b + 2) >> 2 * g & 3) << 4) - 32;
    nibbles(o, b + 8 + 16 * g + 8 * (h & 1), 4 * (h >> 1), word);
    o.low = look4(tables.iq4, o.low), o.high = look4(tables.iq4, o.high);
  } else {  // lattices: magnitudes from a code book, signs beside
    uint32_t minus = 0;
    [[maybe_unused]] const auto from = [&](uint64_t eight) {
      o.low = static_cast<uint32_t>(eight), o.high = static_cast<uint32_t>(eight >> 32);
    };
    if constexpr (T == DType::iq2_xxs) {
      const uint8_t* x = b + 2 + 8 * (lane >> 2);
      const uint32_t a = u32_at_even(x + 4);
      o.d = half_at(b) / 8, o.scale = static_cast<int>(2 * (a >> 28) + 1);
      from(tables.iq2xxs[x[h]]);
      minus = even_signs(a >> 7 * h & 127);
    } else if constexpr (T == DType::iq2_xs) {
      const uint32_t x = u16_at(b + 2 + 2 * lane);
      o.d = half_at(b) / 8, o.scale = 2 * (b[66 + lane / 4] >> 4 * (lane >> 1 & 1) & 15) + 1;
      from(tables.iq2xs[x & 511]);
      minus = even_signs(x >> 9);
    } else if constexpr (T == DType::iq2_s) {
      o.d = half_at(b) / 8, o.scale = 2 * (b[74 + lane / 4] >> 4 * (lane >> 1 & 1) & 15) + 1;
      from(tables.iq2s[b[2 + lane] | (b[66 + lane / 4] >> 2 * (lane & 3) & 3) << 8]);
      minus = b[34 + lane];
    } else if constexpr (T == DType::iq3_xxs) {
      const int i = lane >> 2;
      const uint32_t a = u32_at_even(b + 66 + 4 * i);
      o.d = half_at(b) / 4, o.scale = static_cast<int>(2 * (a >> 28) + 1);
      o.low = tables.iq3xxs[b[2 + 8 * i + 2 * h]], o.high = tables.iq3xxs[b[3 + 8 * i + 2 * h]];
      minus = even_signs(a >> 7 * h & 127);
    } else {
      static_assert(T == DType::iq3_s);
      const int g = lane >> 2;
      o.d = half_at(b), o.scale = 2 * (b[106 + g / 2] >> 4 * (g & 1) & 15) + 1;
      const auto index = [&](int k) { return b[2 + k] | (b[66 + k / 8] >> k % 8 & 1) << 8; };
      o.low = tables.iq3s[index(2 * lane)], o.high = tables.iq3s[index(2 * lane + 1)];
      minus = b[74 + lane];
    }
    o.low = negate4(o.low, minus & 15), o.high = negate4(o.high, minus >> 4);
  }
  return o;
}

constexpr Sums sums_of(DType t) {
  switch (t) {
    case DType::q2_k:
    case DType::q4_k:
    case DType::q5_k: return Sums::scaled_min;
    case DType::q4_1:
    case DType::q5_1: return Sums::grouped_min;
    case DType::q4_0:
    case DType::q5_0:
    case DType::q8_0:
    case DType::iq4_nl:
    case DType::mxfp4:
    case DType::nvfp4: return Sums::grouped;
    default: return Sums::scaled;
  }
}
constexpr bool small_groups(DType t) {  // 16 columns
  switch (t) {
    case DType::q2_k:
    case DType::q3_k:
    case DType::q6_k:
    case DType::iq2_xs:
    case DType::iq2_s:
    case DType::nvfp4: return true;
    default: return false;
  }
}
constexpr int lanes_a_group(DType t) { return t == DType::nvfp4 ? 2 : 4; }  // grouped kinds

// Formats with kernels of their own; the others are told apart at run time.
template <DType T>
struct Fixed {
  static constexpr bool kFloat = T == DType::f32 || T == DType::f16 || T == DType::bf16;
  CARAT_HD explicit Fixed(DType) {}
  CARAT_HD DType type() const { return T; }
  CARAT_HD bool floats() const { return kFloat; }
  CARAT_HD Sums sums() const { return sums_of(T); }
  CARAT_HD int group_lanes() const { return lanes_a_group(T); }
  CARAT_HD int bytes() const {
    constexpr int64_t n = row_bytes(T, 256);
    return static_cast<int>(n);
  }
  CARAT_HD Part operator()(const uint8_t* b, int lane, const Tables& tables) const {
    if constexpr (kFloat)
      return {};
    else
      return part<T>(b, lane, tables);
  }
};

// clang-format off
#define CARAT_CUDA_BLOCKS(X)                                                                          \
  X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(q8_0) X(q2_k) X(q3_k) X(q4_k) X(q5_k) X(q6_k) X(iq2_xxs) X(iq2_xs) \
  X(iq2_s) X(iq3_xxs) X(iq3_s) X(iq4_nl) X(iq4_xs) X(mxfp4) X(nvfp4)
// clang-format on

struct AnyFormat {
  DType t;
  CARAT_HD explicit AnyFormat(DType type) : t(type) {}
  CARAT_HD DType type() const { return t; }
  CARAT_HD bool floats() const {
    return t == DType::f32 || t == DType::f16 || t == DType::bf16 || t == DType::fp8 || rounds_to_e4m3(t);
  }
  CARAT_HD Sums sums() const { return sums_of(t); }
  CARAT_HD int group_lanes() const { return lanes_a_group(t); }
  CARAT_HD int bytes() const {
    switch (t) {
#define X(name)                                        \
  case DType::name: {                                  \
    constexpr int64_t n = row_bytes(DType::name, 256); \
    return static_cast<int>(n);                        \
  }
      CARAT_CUDA_BLOCKS(X)
#undef X
      default: return 0;
    }
  }
  CARAT_HD Part operator()(const uint8_t* b, int lane, const Tables& tables) const {
    switch (t) {
#define X(name) \
  case DType::name: return part<DType::name>(b, lane, tables);
      CARAT_CUDA_BLOCKS(X)
#undef X
      default: return {};
    }
  }
};

}  // namespace carat::cuda
