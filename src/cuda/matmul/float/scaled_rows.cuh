// What block-scaled products multiply (float/scaled_tiles.cu), 128 columns at a time. Rows in e4m3
// with a power of two for every 32 columns (ue8m0: the exponent of a float): a row's codes, its four scales,
// and room up to the next multiple of 16 bytes. Eight rows' words, and eight outputs', fall into different
// banks.
#pragma once
#include "cuda/ops/ops.h"
#include "cuda/quant/bits.cuh"

namespace carat::cuda {

inline constexpr int kScaledCols = 128, kScaledPitch = kScaledCols + 16;
inline constexpr int kCodesPitch = 80;  // of an output's 68 or 72 bytes

struct ScaledRows {
  const Rounded& x;
  CARAT_HD uint8_t* codes(int32_t step, int32_t row) const {
    return reinterpret_cast<uint8_t*>(x.parts) + (int64_t{row} * 2 * x.blocks + step) * kScaledPitch;
  }
};

// A block of threads' tile of R rows.
template <int R>
struct ScaledShape {
  static constexpr int kThreads = R == 8 ? 64 : 256, kOuts = R == 8 ? 32 : 128;
  static constexpr int kAcross = R == 32 ? 8 : 2;  // warps side by side; the others have further rows
  static constexpr int I = kOuts / 16 / kAcross, J = R == 8 ? 1 : 4;  // a warp's: 16 I outputs, 8 J rows
  static constexpr int kCodes = kOuts * kCodesPitch, kStage = kCodes + R * kScaledPitch;
};
template <DType T>
inline constexpr int kStepWords = row_bytes(T, kScaledCols) / 4;  // of an output

// Nibbles as bytes of e2m1 with the code in bits 5 to 2.
CARAT_D uint32_t low_codes(uint32_t w) { return (w & 0x0f0f0f0fu) << 2; }
CARAT_D uint32_t high_codes(uint32_t w) { return w >> 2 & 0x3c3c3c3cu; }
// A word at any address of shared memory.
CARAT_D uint32_t shared_word(const uint8_t* base, int at) {
  const uint32_t first = u32_at(base + at / 4 * 4);
  if (at % 4 == 0) return first;
  return permute_bytes(first, u32_at(base + at / 4 * 4 + 4),
                       0x3210u + 0x1111u * static_cast<unsigned>(at % 4));
}

}  // namespace carat::cuda
