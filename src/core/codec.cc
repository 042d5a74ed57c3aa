// Half precision, and rows of any format to floats.
#include "core/codec.h"

#include <bit>

#include "core/int_block.h"
#include "core/kv_codec.h"

namespace carat {

float f16_to_f32(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00) {  // infinity, or a NaN made quiet as the hardware does
    const uint32_t quiet = magnitude > 0x7c00 ? 0x400000u : 0;
    return std::bit_cast<float>(sign | 0x7f800000u | quiet | magnitude << 13);
  }
  // The bits at f32's place read 2^112 too small; the product is exact, subnormals included.
  const float f = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(f));
}

uint16_t f32_to_f16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f), magnitude = u & 0x7fffffffu;
  const auto sign = static_cast<uint16_t>(u >> 16 & 0x8000);
  const auto with_sign = [&](uint32_t m) { return static_cast<uint16_t>(sign | m); };
  if (magnitude > 0x7f800000u) return with_sign(0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x47800000u) return with_sign(0x7c00);  // 65536 and more
  if (magnitude <
      0x38800000u) {  // below 2^-14: adding 1/2 leaves units of 2^-24 in the low bits, rounded to even
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return with_sign(std::bit_cast<uint32_t>(shifted) - 0x3f000000u);
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return with_sign((rounded - 0x38000000u) >> 13);  // a carry out of 65504 ends as infinity
}

uint16_t f32_to_bf16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(u >> 16 | 0x40);
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

namespace {

// Rows may start at any byte, so elements are copied out one by one.
template <class T, class Convert>
void decode_plain(const std::byte* row, float* y, int64_t n, Convert convert) {
  for (int64_t i = 0; i < n; ++i) {
    T v;
    std::memcpy(&v, row + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    y[i] = convert(v);
  }
}
constexpr auto kToFloat = [](auto v) { return static_cast<float>(v); };

// block_value() group by group.
void decode_block(const IntBlock& b, float* y) {
  const bool scaled = b.kind == IntKind::scaled || b.kind == IntKind::scaled_min;
  for (int g = 0; g < b.n / b.group; ++g, y += b.group) {
    const int8_t* q = b.q + g * b.group;
    const float s = scaled ? b.d * b.scale[g] : b.group_d[g];
    if (b.kind == IntKind::scaled || b.kind == IntKind::grouped) {
      for (int k = 0; k < b.group; ++k) y[k] = s * q[k];
    } else {
      const float m = scaled ? -(b.dmin * b.min[g]) : b.group_m[g];
      for (int k = 0; k < b.group; ++k) y[k] = s * q[k] + m;
    }
  }
}

void decode_blocks(DType type, const std::byte* row, float* y, int64_t n) {
  IntBlock b;
  for (int64_t first = 0; first < n; first += kIntBlock) {
    unpack(type, row, first, static_cast<int>(n - first < kIntBlock ? n - first : kIntBlock), b);
    decode_block(b, y + first);
  }
}

}  // namespace

void decode_row(DType type, const std::byte* row, float* y, int64_t n) {
  type = stored_as(type);
  switch (type) {
    case DType::f32: std::memcpy(y, row, static_cast<size_t>(n) * 4); return;
    case DType::f16: decode_plain<uint16_t>(row, y, n, f16_to_f32); return;
    case DType::bf16: decode_plain<uint16_t>(row, y, n, bf16_to_f32); return;
    case DType::f64: decode_plain<double>(row, y, n, kToFloat); return;
    case DType::i8: decode_plain<int8_t>(row, y, n, kToFloat); return;
    case DType::i16: decode_plain<int16_t>(row, y, n, kToFloat); return;
    case DType::i32: decode_plain<int32_t>(row, y, n, kToFloat); return;
    case DType::i64: decode_plain<int64_t>(row, y, n, kToFloat); return;
    default: break;
  }
  if (info(type).family == Family::cache)
    decode_kv(type, row, y, n);
  else
    decode_blocks(type, row, y, n);
}

}  // namespace carat
