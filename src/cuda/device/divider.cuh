// Division by a number that is known before a kernel starts. One of variables takes some thirty instructions,
// in 64 bits a hundred, and most kernels of a single row begin with several.
#pragma once
#include <cstdint>

#include "cuda/device/rt.h"

namespace carat::cuda {

// Quotients of 0 <= n < 2^31: a product with 2^shift / d, rounded up, is exact there if 2^shift is at least
// 2^31 d (Granlund, Montgomery 1994).
struct Divider {
  int32_t by = 1, shift = 31;
  uint32_t factor = 0x80000001u;

  constexpr Divider() = default;
  constexpr explicit Divider(int32_t d) : by(d) {
    while (uint64_t{1} << (shift - 31) < static_cast<uint64_t>(d)) ++shift;
    factor = static_cast<uint32_t>((uint64_t{1} << shift) / static_cast<uint64_t>(d) + 1);
  }
  CARAT_HD int32_t quotient(int32_t n) const {
    return static_cast<int32_t>(static_cast<uint32_t>(n) * uint64_t{factor} >> shift);
  }
  CARAT_HD int32_t rest(int32_t n) const { return n - quotient(n) * by; }
};

}  // namespace carat::cuda
