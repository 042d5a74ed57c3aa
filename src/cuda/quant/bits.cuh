// Numbers out of their bits, and bytes of a word each by itself.
#pragma once
#include "cuda/device/rt.h"

namespace carat::cuda {

CARAT_HD float as_float(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}
CARAT_HD uint32_t as_bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}
CARAT_HD int32_t log2_of(int32_t n) {  // of a power of two, without a loop or a division
  return static_cast<int32_t>(as_bits(static_cast<float>(n)) >> 23) - 127;
}
// A number as a word between blocks of one grid: never 0, so that 0 is none. There is one NaN.
CARAT_HD uint32_t word_of(float v) { return ~(v == v ? as_bits(v) : 0x7fc00000u); }
CARAT_HD float value_of(uint32_t word) { return as_float(~word); }
CARAT_HD float half_float(uint32_t h) {  // as f16_to_f32
#ifdef __CUDA_ARCH__
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(static_cast<uint16_t>(h)));
  return f;
#else
  const uint32_t sign = (h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00)
    return as_float(sign | 0x7f800000u | (magnitude > 0x7c00 ? 0x400000u : 0) | magnitude << 13);
  return as_float(sign | as_bits(as_float(magnitude << 13) * 5.192296858534828e33f));  // 2^112
#endif
}
CARAT_HD float bf16_float(uint32_t h) { return as_float(h << 16); }
CARAT_HD uint32_t u16_at(const uint8_t* p) {
  return *reinterpret_cast<const uint16_t*>(p);
}  // even addresses
CARAT_HD uint32_t u32_at_even(const uint8_t* p) { return u16_at(p) | u16_at(p + 2) << 16; }
CARAT_HD uint32_t u32_at_any(const uint8_t* p) {
  return p[0] | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24;
}
CARAT_HD uint32_t u32_at(const uint8_t* p) {
  return *reinterpret_cast<const uint32_t*>(p);
}  // multiples of 4
CARAT_HD float half_at(const uint8_t* p) { return half_float(u16_at(p)); }

CARAT_HD float e8m0_float(uint32_t b) { return as_float(b == 0 ? 0x00400000u : b << 23); }
CARAT_HD float ue4m3_float(uint32_t b) {
  const uint32_t e = b >> 3 & 15, m = b & 7;
  if ((b & 127) == 127) return 0;
  if (e == 0) return static_cast<float>(m) / 512;
  return as_float((e + 120) << 23 | m << 20);
}
CARAT_HD float e2m1_float(uint32_t nibble) {
  const uint32_t m = nibble & 7, bits = m < 2 ? m * 0x3f000000u : ((m >> 1) + 126) << 23 | (m & 1) << 22;
  return as_float(bits | (nibble & 8) << 28);
}

// Bytes below 128 minus bytes below 129, each by itself, as signed bytes.
CARAT_HD uint32_t minus4(uint32_t w, uint32_t c) { return ((w | 0x80808080u) - c) ^ 0x80808080u; }
// Bit i of a nibble to bit 0 of byte i.
CARAT_HD uint32_t spread4(uint32_t nibble) { return (nibble * 0x00204081u) & 0x01010101u; }
// Negates the bytes whose bit of the nibble is set; magnitudes below 128.
CARAT_HD uint32_t negate4(uint32_t w, uint32_t nibble) {
  const uint32_t ones = spread4(nibble), mask = ones * 255;
  return (((w ^ mask) & 0x7f7f7f7fu) + ones) ^ (mask & 0x80808080u);
}

}  // namespace carat::cuda
