// Rows of floats to stored formats.
#include "core/codec.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "core/kv_codec.h"
#include "core/quantize_formats.h"

namespace carat {

namespace {

template <class T, class Convert>
void encode_plain(const float* x, std::byte* row, int64_t n, Convert convert) {
  for (int64_t i = 0; i < n; ++i) {
    const T v = convert(x[i]);
    std::memcpy(row + i * static_cast<int64_t>(sizeof(T)), &v, sizeof(T));
  }
}

// d = amax / 127, codes rounded half away from zero: the one rule every writer of q8_0 agrees on, so the
// bytes do too. Caches are written in this format while the model runs: nothing is refused, a block that is
// not finite decodes to NaN.
void encode_q8_0(const float* x, std::byte* block) {
  float amax = 0;
  bool finite = true;
  for (int k = 0; k < 32; ++k) {
    amax = std::max(amax, std::fabs(x[k]));
    finite &= std::isfinite(x[k]);
  }
  const float d = amax / 127;
  float inv = d != 0 ? 1 / d : 0;
  if (!std::isfinite(inv)) inv = 0;  // d below 2^-128 is 0 as f16 anyway
  const uint16_t stored = finite ? f32_to_f16(d) : uint16_t{0x7e00};
  std::memcpy(block, &stored, 2);
  for (int k = 0; k < 32; ++k) {
    const float v = finite ? std::round(x[k] * inv) : 0;
    block[2 + k] = static_cast<std::byte>(static_cast<int8_t>(std::clamp(v, -127.0f, 127.0f)));
  }
}

// How a block format is written, and the largest magnitude its f16 scale and integers reach.
struct Encoder {
  DType type;
  void (*encode)(const quant::Group&, std::byte* block);
  float limit;
};
constexpr float kF16Max = 65504;
constexpr Encoder kEncoders[] = {
    {DType::q4_0, quant::encode_q4_0, kF16Max * 7},
    {DType::q4_1, quant::encode_q4_1, kF16Max},
    {DType::q5_0, quant::encode_q5_0, kF16Max * 15},
    {DType::q5_1, quant::encode_q5_1, kF16Max},
    {DType::q2_k, quant::encode_q2_k, kF16Max * 15},
    {DType::q3_k, quant::encode_q3_k, kF16Max * 31 * 3},
    {DType::q4_k, quant::encode_q4_k, kF16Max * 63},
    {DType::q5_k, quant::encode_q5_k, kF16Max * 63},
    {DType::q6_k, quant::encode_q6_k, kF16Max * 127 * 31},
    {DType::iq4_nl, quant::encode_iq4_nl, kF16Max * 113},
    {DType::iq4_xs, quant::encode_iq4_xs, kF16Max * 31 * 113},
    {DType::mxfp4, quant::encode_mxfp4, 0x1p120f},
    {DType::nvfp4, quant::encode_nvfp4, 448 * 6},
};

const Encoder* find(DType type) {
  for (const Encoder& e : kEncoders)
    if (e.type == type) return &e;
  return nullptr;
}

void check_input(DType type, const float* x, int64_t n, float limit) {
  int32_t outside = 0;  // counted first: without a way out the loop becomes vectors
  for (int64_t k = 0; k < n; ++k) outside += !(std::fabs(x[k]) <= limit);
  if (outside == 0) return;
  for (int64_t k = 0; k < n; ++k)
    if (!(std::fabs(x[k]) <= limit))
      throw Error(fmt::format("value {} in column {} cannot be written as {}", x[k], k, info(type).name),
                  std::isfinite(x[k]) ? "choose bf16 for this tensor" : "the source weights are damaged");
}

// Column weights with mean 1, none below a millionth: columns never seen active still prefer the nearer code.
std::vector<float> column_weights(std::span<const float> importance, int64_t n) {
  std::vector<float> w(static_cast<size_t>(n), 1.0f);
  double mean = 0;
  for (size_t k = 0; k < importance.size(); ++k) {
    if (!(importance[k] >= 0) || !std::isfinite(importance[k]))
      throw Error(fmt::format("column weight {} is {}", k, importance[k]),
                  "the importance matrix is damaged");
    mean += importance[k];
  }
  mean /= static_cast<double>(n);
  if (mean > 0)
    for (size_t k = 0; k < w.size(); ++k) w[k] = std::max(static_cast<float>(importance[k] / mean), 1e-6f);
  return w;
}

void encode_blocks(const Encoder& e, const float* x, std::byte* row, int64_t n, const std::vector<float>& w) {
  const int elems = info(e.type).elems;
  for (int64_t i = 0; i < n; i += elems, row += info(e.type).bytes)
    e.encode({x + i, w.data() + i, elems}, row);
}

}  // namespace

bool can_encode(DType type) {
  switch (type) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::q8_0: return true;
    default: return find(type) != nullptr;
  }
}

void encode_row(DType type, const float* x, std::byte* row, int64_t n, std::span<const float> importance) {
  CARAT_CHECK(n % info(type).elems == 0, "{} columns as {}", n, info(type).name);
  CARAT_CHECK(importance.empty() || static_cast<int64_t>(importance.size()) == n, "{} weights, {} columns",
              importance.size(), n);
  switch (type) {
    case DType::f32: std::memcpy(row, x, static_cast<size_t>(n) * 4); return;
    case DType::f16: encode_plain<uint16_t>(x, row, n, f32_to_f16); return;
    case DType::bf16: encode_plain<uint16_t>(x, row, n, f32_to_bf16); return;
    case DType::q8_0:
      for (int64_t i = 0; i < n; i += 32) encode_q8_0(x + i, row + row_bytes(type, i));
      return;
    default: break;
  }
  if (info(type).family == Family::cache) return encode_kv(type, x, row, n);
  const Encoder* e = find(type);
  if (!e)
    throw Error(fmt::format("weights cannot be written as {}", info(type).name),
                "formats that can: f32 f16 bf16 q8_0 q6_k q5_k q4_k q3_k q2_k q5_1 q5_0 q4_1 q4_0 iq4_xs "
                "iq4_nl mxfp4 nvfp4");
  check_input(type, x, n, e->limit);
  encode_blocks(*e, x, row, n, column_weights(importance, n));
}

}  // namespace carat
