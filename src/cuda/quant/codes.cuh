// Codes of 4 bits that name an entry of a table (coded()), looked up in registers.
#pragma once
#include "core/codec_tables.h"
#include "cuda/quant/weights.cuh"

namespace carat::cuda {

// Entries 4 i .. 4 i + 3 of the format's table, a byte each.
template <DType T>
constexpr uint32_t table_word(int i) {
  uint32_t word = 0;
  for (int k = 0; k < 4; ++k) {
    const int8_t v = T == DType::mxfp4 || T == DType::nvfp4 ? kE2m1Twice[4 * i + k] : kIq4Values[4 * i + k];
    word |= uint32_t{static_cast<uint8_t>(v)} << 8 * k;
  }
  return word;
}

// What eight codes stand for: x of the lower half word's, y of the upper's, a byte each.
template <DType T>
CARAT_D uint2 look_codes(uint32_t codes) {
  constexpr uint32_t w0 = table_word<T>(0), w1 = table_word<T>(1), w2 = table_word<T>(2),
                     w3 = table_word<T>(3);
  const uint32_t at = codes & 0x77777777u, half = (codes >> 1 & 0x44444444u) | 0x32103210u;
  const auto four = [&](int shift) {
    const uint32_t which = at >> shift;  // the instruction reads its lower half
    return look_bytes(look_bytes(w0, w1, which), look_bytes(w2, w3, which), half >> shift);
  };
  return {four(0), four(16)};
}

// Half of a scale of nvfp4 in a tile (below 127): its bits are a half's, of a 256th.
CARAT_HD float half_ue4m3(uint32_t scale) { return half_float(scale << 7) * 128; }
// Scales 4 k .. 4 k + 3 of a block of iq4_xs, less 32, a byte each.
CARAT_HD uint32_t signed_scales(uint32_t low, uint32_t high, int k) {
  low = low >> 16 * k & 0xffffu, high = high >> 8 * k & 0xffu;
  low = (low | low << 8) & 0x00ff00ffu, high = (high | high << 12) & 0x000f000fu;
  low = (low | low << 4) & 0x0f0f0f0fu, high = (high | high << 6) & 0x03030303u;
  return minus4(low | high << 4, 0x20202020u);
}

}  // namespace carat::cuda
