// What each format's bytes mean, in scalar code (docs/formats.md section 4). Every fast path is tested
// against this.
#pragma once
#include <cstdint>
#include <cstring>
#include <span>

#include "core/dtype.h"

namespace carat {

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);  // round to nearest even; overflow to infinity
inline float bf16_to_f32(uint16_t h) {
  const uint32_t u = static_cast<uint32_t>(h) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
uint16_t f32_to_bf16(float f);  // round to nearest even; NaN stays a quiet NaN

// n elements (a multiple of the block) of a row. Integer types widen; i64 and f64 round.
void decode_row(DType type, const std::byte* row, float* y, int64_t n);

// Whether weights can be written as the type.
bool can_encode(DType type);
// Writes n elements (a multiple of the block). Block formats minimize sum importance[k] * (x[k] - y[k])^2
// over what is read back; importance: n weights >= 0, or empty for all 1. Plain, q8_0 and caches ignore
// it and take any value (a q8_0 block that is not finite decodes to NaN); the others throw Error for values
// they cannot hold and for damaged weights.
void encode_row(DType type, const float* x, std::byte* row, int64_t n,
                std::span<const float> importance = {});

}  // namespace carat
