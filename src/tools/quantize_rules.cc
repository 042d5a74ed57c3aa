#include "tools/quantize_rules.h"

#include <algorithm>
#include <cmath>

#include "core/codec.h"
#include "core/kv_codec.h"

namespace carat {
namespace {

// Nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6; ties to the even code.
uint8_t e2m1(float x) {
  const float a = std::fabs(x);
  const uint8_t code = a <= 0.25f   ? 0
                       : a < 0.75f  ? 1
                       : a <= 1.25f ? 2
                       : a < 1.75f  ? 3
                       : a <= 2.5f  ? 4
                       : a < 3.5f   ? 5
                       : a <= 5.0f  ? 6
                                    : 7;
  return static_cast<uint8_t>(code | (std::signbit(x) ? 8 : 0));
}

}  // namespace

float CheckpointFloat::round(float v) const {
  switch (type) {
    case DType::bf16: return bf16_to_f32(f32_to_bf16(v));
    case DType::f16: return f16_to_f32(f32_to_f16(v));
    default: return v;
  }
}
float CheckpointFloat::epsilon() const {
  return type == DType::bf16 ? 0x1p-7f : type == DType::f16 ? 0x1p-10f : 0x1p-23f;
}

float largest(const float* x, int64_t n) {
  float m = 0;
  for (int64_t i = 0; i < n; ++i) m = std::max(m, std::fabs(x[i]));
  return m;
}

float fp8_scale(float amax, const CheckpointFloat& f) {
  const float s = f.round(amax / 448);
  return s > 0 ? s : f.epsilon();
}
void fp8_codes(const float* x, int64_t n, float scale, const CheckpointFloat& f, uint8_t* codes) {
  for (int64_t i = 0; i < n; ++i)
    codes[i] = f32_to_e4m3(std::clamp(f.quotient(x[i], scale), -448.0f, 448.0f));
}

float int4_scale(float amax, const CheckpointFloat& f) {
  const float s = f.round(amax / 7.5f);
  return s > 0 ? s : f.epsilon();
}
void int4_codes(const float* x, int64_t n, float scale, const CheckpointFloat& f, uint8_t* codes) {
  for (int64_t i = 0; i < n; ++i)
    codes[i] = static_cast<uint8_t>(std::nearbyint(std::clamp(f.quotient(x[i], scale), -8.0f, 7.0f)) + 8);
}

// PyTorch divides a number by a tensor as reciprocal times number.
float nvfp4_global(float amax, const CheckpointFloat& f) {
  if (!(amax > 0)) return 1;
  const float g = f.exact ? 2688 / amax : f.round(f.round(1 / amax) * 2688);
  return std::isfinite(g) && g > 0 ? g : 1;
}
uint8_t nvfp4_scale(float amax16, float global, const CheckpointFloat& f) {
  const float local = f.quotient(amax16, 6);
  const uint8_t code = f32_to_e4m3(std::min(global * local, 448.0f));
  return code ? code : 0x20;  // 0.125 for 0
}
void nvfp4_codes(const float* x, float global, uint8_t scale, uint8_t* codes) {
  const float s = e4m3_to_f32(scale) / global;
  for (int i = 0; i < 16; ++i) codes[i] = e2m1(x[i] / s);
}

}  // namespace carat
