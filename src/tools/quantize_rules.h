// How the published quantizers of safetensors checkpoints compute, bit by bit (docs/formats.md section 11).
#pragma once
#include <cstdint>

#include "core/dtype.h"

namespace carat {

// The arithmetic of a checkpoint's own float type: results are rounded to it, as PyTorch does. With `exact`
// quotients stay f32, which makes smaller errors and other bytes than compressed-tensors.
struct CheckpointFloat {
  DType type = DType::bf16;  // bf16, f16 or f32
  bool exact = false;
  float round(float v) const;
  float quotient(float a, float b) const { return exact ? a / b : round(a / b); }
  float epsilon() const;  // stands for scales of zero
};

float largest(const float* x, int64_t n);  // of magnitudes

// amax / 448, to which a row's or block's codes refer; codes: e4m3 of x / scale.
float fp8_scale(float amax, const CheckpointFloat& f);
void fp8_codes(const float* x, int64_t n, float scale, const CheckpointFloat& f, uint8_t* codes);

// Four-bit integers -8 ... 7, stored with 8 added; the scale of a group.
float int4_scale(float amax, const CheckpointFloat& f);
void int4_codes(const float* x, int64_t n, float scale, const CheckpointFloat& f, uint8_t* codes);

// The divisor G of a tensor (or of several that are read as one); the e4m3 byte of 16 columns' scale; E2M1
// codes.
float nvfp4_global(float amax, const CheckpointFloat& f);
uint8_t nvfp4_scale(float amax16, float global, const CheckpointFloat& f);
void nvfp4_codes(const float* x, float global, uint8_t scale, uint8_t* codes);  // 16 of each

}  // namespace carat
