// Block-scaled products as the PTX ISA defines them: every product exact, their sum and c rounded once.
#include "cuda/device/scaled.cuh"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "core/codec_tables.h"
#include "core/kv_codec.h"
#include "cuda/emulate/machine.h"

namespace carat::cuda {
namespace {

struct Scaled {
  float* c;
  uint32_t a[4], b[2], scale_a, scale_b;
};

double ue8m0(uint32_t v) {
  return (v & 255) == 255 ? std::numeric_limits<double>::quiet_NaN()
                          : std::ldexp(1.0, static_cast<int>(v & 255) - 127);
}
double e2m1(uint32_t byte) {
  CARAT_CHECK((byte & ~0x3cu) == 0, "a code of e2m1 stands in bits 5 to 2, not in {:x}", byte);
  return 0.5 * kE2m1Twice[byte >> 2];
}

void multiply(const Scaled* given) {
  double a[16][32], b[8][32];
  for (int lane = 0; lane < 32; ++lane)
    for (int k = 0; k < 4; ++k) {
      const int g = lane / 4, column = 4 * (lane % 4) + k;
      const auto byte = [k](uint32_t word) { return word >> 8 * k & 255; };
      for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][column + i / 2 * 16] = e2m1(byte(given[lane].a[i]));
      for (int i = 0; i < 2; ++i)
        b[g][column + 16 * i] = e4m3_to_f32(static_cast<uint8_t>(byte(given[lane].b[i])));
    }
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      const int output = lane / 4 + i / 2 * 8, row = lane % 4 * 2 + i % 2;
      double sum = 0;  // exact
      for (int k = 0; k < 32; ++k) sum += a[output][k] * b[row][k];
      const double scale =
          ue8m0(given[4 * (output % 8) + output / 8].scale_a) * ue8m0(given[4 * row].scale_b);
      given[lane].c[i] = static_cast<float>(given[lane].c[i] + sum * scale);
    }
}

}  // namespace

void mma_scaled_of(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, uint32_t scale_a,
                   uint32_t scale_b) {
  emulate::publish(Scaled{c, {a[0], a[1], a[2], a[3]}, {b0, b1}, scale_a, scale_b}, multiply);
}

}  // namespace carat::cuda
