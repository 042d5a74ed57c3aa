// A device's header on the host, as the emulation has it.
#define CARAT_CUDA_EMULATE
#include "cuda/device/divider.cuh"

#include <doctest/doctest.h>

#include <climits>

namespace carat::cuda {
namespace {

TEST_CASE("a division by a product is exact below 2^31") {
  const auto check = [](int32_t d) {
    const Divider by(d);
    bool right = true;
    const auto at = [&](int64_t n) {
      if (n < 0 || n > INT_MAX) return;
      const auto v = static_cast<int32_t>(n);
      right = right && by.quotient(v) == v / d && by.rest(v) == v % d;
    };
    for (int64_t n = 0; n < 3000; ++n) at(n), at(INT_MAX - n);
    for (int64_t q = 1, step = 1; q * d <= INT_MAX;
         q += step, step += step / 16 + 1)  // where a quotient ends
      for (int64_t n = -1; n <= 1; ++n) at(q * d + n);
    CAPTURE(d);
    CHECK(right);
  };
  for (int32_t d = 1; d <= 4200; ++d) check(d);
  for (int32_t bits = 13; bits < 31; ++bits)
    for (int32_t more = -1; more <= 1; ++more) check((1 << bits) + more);
  check(INT_MAX);
}

}  // namespace
}  // namespace carat::cuda
