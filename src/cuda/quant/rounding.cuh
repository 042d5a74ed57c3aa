// Rows rounded to int8, by whoever has computed them.
#pragma once
#include "cuda/ops/ops.h"
#include "cuda/quant/bits.cuh"

namespace carat::cuda {

// As quantize_act, of a warp's 256 columns: v are the lane's eight, zeros behind the last column.
struct RoundedEight {
  uint32_t word[2];  // codes
  float d;           // of the block
};
CARAT_D RoundedEight round_eight(const float (&v)[8]) {
  uint32_t top = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t size = as_bits(v[i]) & 0x7fffffffu;
    top = size > top ? size : top;
  }
  top = warp_max(top);
  constexpr uint32_t kInf = 0x7f800000u, kTiny = (127u - 100u) << 23;
  const bool rounds = top < kInf && top >= kTiny;
  const float amax = as_float(top), inv = 127.0f / amax, magic = 12582912.0f;
  RoundedEight r{};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float shifted = v[i] * inv + magic;
    int32_t q = rounds ? static_cast<int32_t>(as_bits(shifted) - as_bits(magic)) : 0;
    q = q < -127 ? -127 : q > 127 ? 127 : q;
    r.word[i / 4] |= static_cast<uint32_t>(q & 255) << 8 * (i & 3);
  }
  r.d = rounds ? amax / 127.0f : top >= kInf ? as_float(0x7fc00000u) : 0.0f;
  return r;
}
CARAT_D void leave_rounded(const RoundedEight& r, const Rounded& out, int64_t at, int lane) {
  *reinterpret_cast<uint2*>(out.q + at * 256 + 8 * lane) = uint2{r.word[0], r.word[1]};
  int32_t sum = dot4(0x01010101u, r.word[1], dot4(0x01010101u, r.word[0], 0));
  sum += shuffle_xor(sum, 1);
  if (lane % 2 == 0) {
    out.sums[at * 16 + lane / 2] = static_cast<int16_t>(sum);
    if (out.half_sums)
      out.half_sums[at * 16 + lane / 2] = static_cast<uint16_t>(pack_halves(static_cast<float>(sum), 0));
  }
  if (lane == 0) out.d[at] = r.d;
}
CARAT_D void round_block(const float (&v)[8], const Rounded& out, int64_t at, int lane) {
  leave_rounded(round_eight(v), out, at, lane);
}

// A lane's eight of n columns, zeros behind the last.
CARAT_D void load_columns(const float* x, int n, float (&v)[8], int lane) {
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const float4 u = 8 * lane < n ? *reinterpret_cast<const float4*>(x + 8 * lane + i) : float4{0, 0, 0, 0};
    v[i] = u.x, v[i + 1] = u.y, v[i + 2] = u.z, v[i + 3] = u.w;
  }
}

}  // namespace carat::cuda
