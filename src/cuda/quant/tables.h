// Code books and sign vectors, once a device.
#pragma once
#include <cstdint>

namespace carat::cuda {

struct Tables {
  uint64_t iq2xxs[256], iq2xs[512], iq2s[1024];  // eight magnitudes each, lowest byte first
  uint32_t iq3xxs[256], iq3s[512];               // four
  int8_t iq4[16], e2m1[16], tq4[16], tq3[8];
  float tq3_0[8], tbq3[8], tbq4[16];
  float sign[512], sign1[128], sign2[128];  // rotations of the caches
};
void fill(Tables& t);

}  // namespace carat::cuda
