// Rows of floats to stored formats.
#include "core/codec.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

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

}  // namespace

bool can_encode(DType type) {
  switch (type) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::q8_0: return true;
    default: return false;
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
    default:
      throw Error(fmt::format("cannot write weights as {}", info(type).name),
                  "f32, f16, bf16 and q8_0 can be written");
  }
}

}  // namespace carat
