// Quantized weights as integers: up to 256 columns of a row as small codes times scales, which is how matrix
// products see them (docs/numerics.md, "Matrix products with quantized weights"). One view for every block
// format: what ref/ computes with, what the generic paths fall back on, and what decode_row multiplies out.
#pragma once
#include "core/dtype.h"

namespace carat {

inline constexpr int kIntBlock = 256;  // columns that share one activation scale

// How the codes of a block become values; k is a column, g = k / group.
enum class IntKind : uint8_t {
  scaled,       // d * scale[g] * q[k]
  scaled_min,   // d * scale[g] * q[k] - dmin * min[g]
  grouped,      // group_d[g] * q[k]
  grouped_min,  // group_d[g] * q[k] + group_m[g]
};

struct IntBlock {
  int n = 0;      // columns, <= 256
  int group = 0;  // columns per group: 16 or 32
  IntKind kind = IntKind::scaled;
  float d = 0, dmin = 0;
  int8_t q[kIntBlock];
  int16_t scale[16], min[16];      // scaled kinds
  float group_d[16], group_m[16];  // grouped kinds
};

// What unpack() will say, without data; type must be of Family::block.
IntKind int_kind(DType type);
int int_group(DType type);

// Columns [first, first + n) of a row. first and n are multiples of the format's block, n <= 256.
void unpack(DType type, const std::byte* row, int64_t first, int n, IntBlock& out);

// The value of column k: at most one rounding.
inline float block_value(const IntBlock& b, int k) {
  const int g = k / b.group;
  const float q = b.q[k];
  switch (b.kind) {
    case IntKind::scaled: return b.d * b.scale[g] * q;
    case IntKind::scaled_min: return b.d * b.scale[g] * q - b.dmin * b.min[g];
    case IntKind::grouped: return b.group_d[g] * q;
    case IntKind::grouped_min: return b.group_d[g] * q + b.group_m[g];
  }
  return 0;
}

// The contract's t: integer sums over the block, then scales in float, groups ascending. a: [b.n].
float block_dot(const IntBlock& b, const int8_t* a);

// Rounds n <= 256 activations to int8 with one scale: x ~ d * q. Below 2^-100 a block counts as zero; a block
// with an infinity or a NaN gets q = 0 and d = NaN, so that the products show it.
void quantize_act(const float* x, int n, int8_t* q, float& d);

}  // namespace carat
