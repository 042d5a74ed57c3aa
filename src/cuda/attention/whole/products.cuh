// Products of warpgroups for towers' attention: sums of mma_f16 over the same sixteen columns, the left side
// in registers, the right one in shared memory as halves_operand() has it.
#pragma once
#include "cuda/device/warpgroup.cuh"
#include "cuda/quant/bits.cuh"

namespace carat::cuda {

#ifdef CARAT_CUDA_EMULATE
// c[64 x 8 N] += (first: =) a[64 x 16] b[8 N x 16]^T.
template <int N>
void wide_add(float (&c)[N][4], const uint32_t (&a)[4], uint64_t b, bool first) {
  struct Words {
    uint32_t w[4];
  };
  const Words* given = emulate::publish(Words{{a[0], a[1], a[2], a[3]}});
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  float left[2][16];
  for (int half = 0; half < 2; ++half)
    for (int k = 0; k < 16; ++k) {
      const uint32_t word = given[4 * g + k % 8 / 2].w[k / 8 * 2 + half];
      left[half][k] = half_float(word >> k % 2 * 16 & 0xffff);
    }
  for (int j = 0; j < N; ++j)
    for (int e = 0; e < 2; ++e) {
      double sum[2] = {};  // as mma_f16 does
      for (int k = 0; k < 16; ++k) {
        const auto at = b + static_cast<uint64_t>(256 * j + 128 * (k / 8) + 16 * (2 * t + e) + 2 * (k % 8));
        const float right = half_float(*reinterpret_cast<const uint16_t*>(at));
        sum[0] += left[0][k] * right, sum[1] += left[1][k] * right;
      }
      for (int r = 0; r < 2; ++r)
        c[j][2 * r + e] = static_cast<float>((first ? 0 : c[j][2 * r + e]) + sum[r]);
    }
}
#else
#define CARAT_F4(x, j) "+f"(x[j][0]), "+f"(x[j][1]), "+f"(x[j][2]), "+f"(x[j][3])
#define CARAT_F32(x)                                                                              \
  CARAT_F4(x, 0), CARAT_F4(x, 1), CARAT_F4(x, 2), CARAT_F4(x, 3), CARAT_F4(x, 4), CARAT_F4(x, 5), \
      CARAT_F4(x, 6), CARAT_F4(x, 7)
CARAT_D void wide_add(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b, bool first) {
#ifdef CARAT_WIDE
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"
      "%27,%28,%29,%30,%31},{%32,%33,%34,%35},%36,p,1,1,0;}\n"
      : CARAT_F32(c)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(!first)));
#endif
}
CARAT_D void wide_add(float (&c)[9][4], const uint32_t (&a)[4], uint64_t b, bool first) {
#ifdef CARAT_WIDE
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %41, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n72k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"
      "%27,%28,%29,%30,%31,%32,%33,%34,%35},{%36,%37,%38,%39},%40,p,1,1,0;}\n"
      : CARAT_F32(c), CARAT_F4(c, 8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(!first)));
#endif
}
#undef CARAT_F32
#undef CARAT_F4
#endif

}  // namespace carat::cuda
