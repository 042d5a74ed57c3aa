// Rows of a quantized checkpoint in types of ours, bit for bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "core/codec.h"
#include "core/codec_tables.h"
#include "model/files/hf_quant.h"

namespace carat {
namespace {

bool as_f16(float v) { return std::isfinite(v) && f16_to_f32(f32_to_f16(v)) == v; }
bool as_bf16(float v) { return (std::bit_cast<uint32_t>(v) & 0xffff) == 0; }

void put16(std::byte* p, uint16_t v) { std::memcpy(p, &v, 2); }

// 32 codes of 4, 5 or 8 bits behind their scale.
void put_block(DType type, const int16_t* q, float scale, std::byte* b) {
  put16(b, f32_to_f16(scale));
  b += 2;
  if (type == DType::q8_0) {
    for (int i = 0; i < 32; ++i) b[i] = static_cast<std::byte>(q[i] & 0xff);
    return;
  }
  const int zero = type == DType::q4_0 ? 8 : 16;
  if (type == DType::q5_0) {
    uint32_t fifth = 0;
    for (int i = 0; i < 32; ++i) fifth |= static_cast<uint32_t>((q[i] + zero) >> 4 & 1) << i;
    std::memcpy(b, &fifth, 4);
    b += 4;
  }
  for (int i = 0; i < 16; ++i)
    b[i] = static_cast<std::byte>(((q[i] + zero) & 15) | ((q[i + 16] + zero) & 15) << 4);
}

}  // namespace

void decode(const Repacked& m, float* y) {
  const int64_t pitch = row_bytes(m.type, m.cols);
  for (int64_t r = 0; r < m.rows; ++r, y += m.cols) {
    const std::byte* row = m.bytes.data() + r * pitch;
    decode_row(m.type, row, y, m.cols);
    for (int64_t c = 0; c < m.cols; ++c) {
      if (m.type != DType::nvfp4) {
        y[c] *= m.factor;
        continue;
      }
      const float s = ue4m3_to_f32(static_cast<uint8_t>(row[c / 64 * 36 + c / 16 % 4]));
      const float scale = m.divisor > 0 ? s / m.divisor : s * m.factor;
      y[c] = s > 0 ? y[c] / s * scale : 0;  // the division gives the code, exactly
    }
  }
}

Repacked pack_floats(int64_t rows, int64_t cols, const std::function<void(int64_t, float*)>& row) {
  std::vector<float> x(static_cast<size_t>(cols));
  bool half = true, brain = true;
  for (int64_t r = 0; r < rows && (half || brain); ++r) {
    row(r, x.data());
    for (const float v : x) half = half && as_f16(v), brain = brain && as_bf16(v);
  }
  Repacked out;
  out.type = brain ? DType::bf16 : half ? DType::f16 : DType::f32;
  out.rows = rows, out.cols = cols;
  const auto pitch = static_cast<size_t>(row_bytes(out.type, cols));
  out.bytes.resize(pitch * static_cast<size_t>(rows));
  std::byte* to = out.bytes.data();
  for (int64_t r = 0; r < rows; ++r, to += pitch) {
    row(r, x.data());
    encode_row(out.type, x.data(), to, cols);
  }
  return out;
}

Repacked pack_integers(const IntegerMatrix& m) {
  const DType type = m.low >= -8 && m.high <= 7       ? DType::q4_0
                     : m.low >= -16 && m.high <= 15   ? DType::q5_0
                     : m.low >= -128 && m.high <= 127 ? DType::q8_0
                                                      : DType::f32;
  const int64_t groups = (m.cols + m.group - 1) / m.group;
  bool fits = type != DType::f32 && m.cols % 32 == 0 && (m.group % 32 == 0 || groups == 1);
  for (int64_t r = 0; fits && r < m.rows; ++r)
    for (int64_t g = 0; fits && g < groups; ++g) fits = as_f16(m.scale(r, g));
  std::vector<int16_t> q(static_cast<size_t>(m.cols));
  if (!fits)
    return pack_floats(m.rows, m.cols, [&](int64_t r, float* x) {
      m.read(r, q.data());
      for (int64_t c = 0; c < m.cols; ++c)
        x[c] = m.scale(r, c / m.group) * static_cast<float>(q[static_cast<size_t>(c)]);
    });
  Repacked out;
  out.type = type;
  out.rows = m.rows, out.cols = m.cols;
  out.bytes.resize(static_cast<size_t>(row_bytes(type, m.cols) * m.rows));
  std::byte* to = out.bytes.data();
  for (int64_t r = 0; r < m.rows; ++r) {
    m.read(r, q.data());
    for (int64_t c = 0; c < m.cols; c += 32, to += info(type).bytes)
      put_block(type, q.data() + c, m.scale(r, c / m.group), to);
  }
  return out;
}

}  // namespace carat
