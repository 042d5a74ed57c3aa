// Queries, keys, values and weights in shared memory: rows of 16-byte units.
#pragma once
#include "cuda/attention/copies.cuh"

namespace carat::cuda {

// Eight rows' units of one number lie in different banks. Rows are multiples of eight units, so that unit u
// of a row is at ^ 16 * (u % 8), + 128 * (u / 8) of its unit 0.
template <int UNITS>
CARAT_D int unit_at(int row, int unit) {
  return (row * UNITS + (unit ^ row % 8)) * 16;
}
CARAT_D SharedAddress unit_from(SharedAddress zero, int unit) {
  return (zero ^ unit % 8 * 16) + unit / 8 * 128;
}
// Eight floats as halves.
CARAT_D uint4 halves_of(const float* from) {
  float x[8];
  if (reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(from);
    *reinterpret_cast<float4*>(x + 4) = *reinterpret_cast<const float4*>(from + 4);
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = from[k];
  }
  return uint4{pack_halves(x[0], x[1]), pack_halves(x[2], x[3]), pack_halves(x[4], x[5]),
               pack_halves(x[6], x[7])};
}

}  // namespace carat::cuda
