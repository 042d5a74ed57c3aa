// Products of halves by warpgroups with both sides in shared memory: the bits of mma_f16 over the same
// sixteen columns (seen on an H200). Tiles are 64 columns wide, the 16-byte unit u of row r at 128 r + 16 (u
// ^ r % 8), and begin at multiples of 1024.
#pragma once
#include "cuda/device/warpgroup.cuh"
#include "cuda/quant/bits.cuh"

namespace carat::cuda {

#ifdef CARAT_CUDA_EMULATE
// c[64 x 8 N] += a b: element k of row r at a + 128 r + 2 k, b's likewise, or turned; a also in registers.
void wide_mma_tiles(float* c, int columns, uint64_t a, uint64_t b, bool turned);
void wide_mma_tiles(float* c, int columns, const uint32_t (&a)[4], uint64_t b);
inline uint64_t turned_operand(SharedAddress p, int = 0) { return p; }
inline void wide_scores(float (&c)[4][4], uint64_t a, uint64_t b) { wide_mma_tiles(c[0], 32, a, b, false); }
inline void wide_values(float (&c)[8][4], uint64_t a, uint64_t b) { wide_mma_tiles(c[0], 64, a, b, true); }
inline void wide_scores(float (&c)[8][4], uint64_t a, uint64_t b, bool first) {
  if (first) std::memset(c, 0, sizeof c);
  wide_mma_tiles(c[0], 64, a, b, false);
}
inline void wide_values(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b, bool first) {
  if (first) std::memset(c, 0, sizeof c);
  wide_mma_tiles(c[0], 64, a, b);
}
// The other 64 columns stand a tile behind.
inline void wide_values(float (&c)[8][4], float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, bool first) {
  wide_values(c, a, b, first), wide_values(d, a, b + 64 * 128, first);
}
#else
// As codes_operand(), the columns of the product beside each other; the second 64 of 128 `apart` bytes
// behind.
CARAT_D uint64_t turned_operand(SharedAddress p, int apart = 1024) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | static_cast<uint64_t>(apart >> 4) << 16 |
         (p & 0x3ffff) >> 4;
}
#define CARAT_F4(x, j) "+f"(x[j][0]), "+f"(x[j][1]), "+f"(x[j][2]), "+f"(x[j][3])
// c[64 x 32] += a[64 x 16] b[32 x 16]^T.
CARAT_D void wide_scores(float (&c)[4][4], uint64_t a, uint64_t b) {
#ifdef CARAT_WIDE
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,"
      "%15},%16,%17,p,1,1,0,0;}\n"
      : CARAT_F4(c, 0), CARAT_F4(c, 1), CARAT_F4(c, 2), CARAT_F4(c, 3)
      : "l"(a), "l"(b), "n"(1));
#endif
}
// c[64 x 64] += a[64 x 16] b[16 x 64], b turned_operand().
CARAT_D void wide_values(float (&c)[8][4], uint64_t a, uint64_t b) {
#ifdef CARAT_WIDE
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,"
      "%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},%32,%33,p,1,1,0,1;}\n"
      : CARAT_F4(c, 0), CARAT_F4(c, 1), CARAT_F4(c, 2), CARAT_F4(c, 3), CARAT_F4(c, 4), CARAT_F4(c, 5),
        CARAT_F4(c, 6), CARAT_F4(c, 7)
      : "l"(a), "l"(b), "n"(1));
#endif
}
#define CARAT_F32(c)                                                                              \
  CARAT_F4(c, 0), CARAT_F4(c, 1), CARAT_F4(c, 2), CARAT_F4(c, 3), CARAT_F4(c, 4), CARAT_F4(c, 5), \
      CARAT_F4(c, 6), CARAT_F4(c, 7)
#define CARAT_D32                                                                                       \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
  "%27,%28,%29,%30,%31}"
// c[64 x 64] += a[64 x 16] b[64 x 16]^T, or = for the first.
CARAT_D void wide_scores(float (&c)[8][4], uint64_t a, uint64_t b, bool first) {
#ifdef CARAT_WIDE
  asm volatile(
      "{.reg .pred p; setp.eq.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " CARAT_D32 ",%32,%33,p,1,1,0,0;}\n"
      : CARAT_F32(c)
      : "l"(a), "l"(b), "r"(static_cast<int>(first)));
#endif
}
// c[64 x 64] += a[64 x 16] b[16 x 64], or = for the first; a in registers, as of mma_f16, b turned_operand().
CARAT_D void wide_values(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b, bool first) {
#ifdef CARAT_WIDE
  asm volatile(
      "{.reg .pred p; setp.eq.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " CARAT_D32 ",{%32,%33,%34,%35},%36,p,1,1,1;}\n"
      : CARAT_F32(c)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(first)));
#endif
}
#define CARAT_D64                                                                                        \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"  \
  "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51," \
  "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
// The same of 128 columns, 64 in c and 64 in d.
CARAT_D void wide_values(float (&c)[8][4], float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, bool first) {
#ifdef CARAT_WIDE
  asm volatile(
      "{.reg .pred p; setp.eq.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " CARAT_D64 ",{%64,%65,%66,%67},%68,p,1,1,1;}\n"
      : CARAT_F32(c), CARAT_F32(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(first)));
#endif
}
#undef CARAT_D64
#undef CARAT_D32
#undef CARAT_F32
#undef CARAT_F4
#endif

}  // namespace carat::cuda
