// Block-scaled products of a warp (PTX ISA, mma with block scaling): what 12.0a and 12.1a have. 10.0a knows
// them as tcgen05 alone ("not supported on .target 'sm_100a'").
#pragma once
#include "cuda/device/rt.h"

#ifndef CARAT_CUDA_EMULATE
#if defined(__CUDA_ARCH_FEAT_SM120_ALL) || defined(__CUDA_ARCH_FEAT_SM121_ALL)
#define CARAT_SCALED 1
#endif
#endif

namespace carat::cuda {

// c += (scale_a a) (scale_b b) of 16 outputs by 8 rows and 32 columns. a: e2m1, a byte each, the code in bits
// 5 to 2; b: e4m3; both lie in lanes as mma_s8's do. Scales are bytes of ue8m0: of output g (lane 4 g) and of
// g + 8 (lane 4 g + 1) the lowest of scale_a, of row g (lane 4 g) number BYTE of scale_b.
#ifdef CARAT_CUDA_EMULATE
void mma_scaled_of(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, uint32_t scale_a,
                   uint32_t scale_b);  // by the lowest bytes of both
template <int BYTE>
void mma_scaled(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, uint32_t scale_a,
                uint32_t scale_b) {
  mma_scaled_of(c, a, b0, b1, scale_a, scale_b >> 8 * BYTE);
}
#else
template <int BYTE>
CARAT_D void mma_scaled(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, uint32_t scale_a,
                        uint32_t scale_b) {
#ifdef CARAT_SCALED
  asm volatile(
      "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e2m1.e4m3.f32.ue8m0 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3},{%10},{0,0},{%11},{%12,0};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(scale_a), "r"(scale_b), "n"(BYTE));
#endif
}
#endif

}  // namespace carat::cuda
