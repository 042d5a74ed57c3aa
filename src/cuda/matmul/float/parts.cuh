// Float activations as two numbers of the weights' type (f16 for fp8), x = high + low, for products on the
// tensor cores (docs/numerics.md, "Matrix products with float weights").
#pragma once
#include "cuda/matmul/matmul.cuh"

namespace carat::cuda {

// Weights in fp8 are widened to f16 on their way into a product. Four codes that stand together go to a lane,
// so activations come in another order of columns: `kLane` from a lane's to the next one's, `kPair` from its
// first two to its other two.
// fp8_a8: rows come as codes, too.
template <DType T>
struct FloatOf {
  static constexpr DType kParts = T == DType::fp8 ? DType::f16 : T;
  static constexpr bool kCodes = T == DType::fp8_a8;
  static constexpr int kBytes = T == DType::fp8 || kCodes ? 1 : 2;
  static constexpr int kLane = T == DType::fp8 ? 4 : 2, kPair = T == DType::fp8 ? 2 : 8;
};

// x = d (high + low) over a block of 256 columns of a row; scale = 1 / d, a power of two.
struct PartScale {
  float scale = 1, d = 1;
  bool finite = true;  // else d is NaN (or 0, of a block that counts as zeros) and the parts are 0
};
// top: bits of the block's largest magnitude. bf16 has the range of x, f16 has not.
template <DType T>
CARAT_D PartScale part_scale(uint32_t top) {
  if constexpr (T == DType::bf16) return {};
  constexpr uint32_t kInf = 0x7f800000u, kTiny = (127u - 100u) << 23;
  if (top >= kInf) return {0, as_float(0x7fc00000u), false};
  if (top < kTiny) return {0, 0, false};
  const uint32_t exponent = top >> 23;  // the largest becomes at least 2^14 and less than 2^15
  return {as_float((268u - exponent) << 23), as_float((exponent - 14u) << 23), true};
}

// Parts of two columns, the first in the lower halves.
template <DType T>
CARAT_D void split_pair(float a, float b, const PartScale& s, uint32_t& high, uint32_t& low) {
  if constexpr (T == DType::bf16) {
    high = look_bytes(as_bits(a), as_bits(b), 0x7632);
    low = pack_bf16(a - as_float(as_bits(a) & 0xffff0000u), b - as_float(as_bits(b) & 0xffff0000u));
  } else {
    a = s.finite ? a * s.scale : 0, b = s.finite ? b * s.scale : 0;
    high = pack_halves(a, b);
    low = pack_halves(a - half_float(high & 0xffffu), b - half_float(high >> 16));
  }
}

// Where rows lie split as chunks of 64 columns (Rounded::chunks): of every chunk the higher parts of all
// rows, 128 bytes each, the 16-byte unit u of row r at 16 (u ^ r % 8), and behind all chunks the lower ones.
// d by blocks of 256 columns. Of codes: chunks of 128 columns, no lower parts, and one d a row.
struct FloatChunks {
  const Rounded& x;
  int32_t rows;  // of the bucket

  CARAT_HD int32_t padded() const { return (rows + 7) / 8 * 8; }
  CARAT_D uint8_t* high(int32_t chunk, int32_t row) const {
    return reinterpret_cast<uint8_t*>(x.parts) + (int64_t{chunk} * padded() + row) * 128;
  }
  CARAT_D uint8_t* low(int32_t chunk, int32_t row) const { return high(chunk + 4 * x.blocks, row); }
  CARAT_D float* d(int32_t block) const { return x.d + int64_t{block} * padded(); }
};
// The column, of a block's, that stands at a place of the operands of a product.
template <DType T>
CARAT_D constexpr int column_at(int place) {
  const int in = place % 16;
  return T == DType::fp8 ? place - in + in % 8 / 2 * 4 + in / 8 * 2 + in % 2 : place;
}

template <DType T>
CARAT_D void mma_part(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (T == DType::bf16)
    mma_bf16(c, a, b0, b1);
  else
    mma_f16(c, a, b0, b1);
}

// Of four columns 16 s + 2 t, + 1, + 8 and + 9 (fp8: 16 s + 4 t to + 3): high of both pairs, low of both. So
// they stand in memory, [rows][blocks][16 s][4 t], and so lane 4 g + t has them as b of mma_part for row g.
template <DType T>
CARAT_D uint4 split_four(const float (&v)[4], const PartScale& s) {
  uint4 w;
  split_pair<T>(v[0], v[1], s, w.x, w.z);
  split_pair<T>(v[2], v[3], s, w.y, w.w);
  return w;
}
// Four codes of e4m3 as halves of a 256th of their values: 4 exponent bits under the 5 of a half. (NaN, 480
// or NaN, is refused where files are read.) Conversions and a product are half of what bytes moved about are,
// and by other units.
CARAT_D uint2 e4m3_halves(uint32_t four) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890 && !defined(CARAT_CODE_80)
  uint2 v;
  asm("{.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;}"
      : "=r"(v.x), "=r"(v.y)
      : "r"(four));
  return uint2{mul_halves(v.x, 0x1c001c00u), mul_halves(v.y, 0x1c001c00u)};
#else
  const uint32_t a = look_bytes(four, 0, 0x1404), b = look_bytes(four, 0, 0x3424);
  return uint2{(a & 0x80008000u) | (a >> 1 & 0x3f803f80u), (b & 0x80008000u) | (b >> 1 & 0x3f803f80u)};
#endif
}
// Operands of 16 outputs and 16 columns, from what load_matrices gave of 32 columns of codes. second: of the
// later 16.
CARAT_D void widen(const uint32_t (&codes)[4], bool second, uint32_t (&a)[4]) {
  const uint2 upper = e4m3_halves(codes[second ? 2 : 0]), lower = e4m3_halves(codes[second ? 3 : 1]);
  a[0] = upper.x, a[1] = lower.x, a[2] = upper.y, a[3] = lower.y;
}
CARAT_D uint32_t magnitude(float v) { return as_bits(v) & 0x7fffffffu; }

}  // namespace carat::cuda
