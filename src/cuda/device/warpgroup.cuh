// What sm_90a has for warpgroups of 128 threads: products with one side in shared memory that run on while
// their threads go on, and registers that pass from warps that load to warps that compute (PTX ISA, wgmma,
// setmaxnreg). The emulation's twins are in emulate.h.
#pragma once
#include "cuda/device/rt.h"

#ifndef CARAT_CUDA_EMULATE
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CARAT_WIDE 1
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#error "architecture 90 lacks wgmma: build for 90a"
#endif

namespace carat::cuda {

// 128 rows x 128 bytes of codes, the 16-byte piece p of row r at 128 r + 16 (p ^ r % 8); p: a multiple of
// 1024, or 32, 64 or 96 bytes behind one for later columns.
CARAT_D uint64_t codes_operand(SharedAddress p) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16 | (p & 0x3ffff) >> 4;
}
// 128 rows x 16 halves: element k of row r at 256 (r / 8) + 128 (k / 8) + 16 (r % 8) + 2 (k % 8).
CARAT_D uint64_t halves_operand(SharedAddress p) {
  return uint64_t{256 >> 4} << 32 | uint64_t{128 >> 4} << 16 | (p & 0x3ffff) >> 4;
}

// So many bytes behind another, a multiple of 16.
CARAT_D uint64_t behind(uint64_t operand, int bytes) { return operand + static_cast<uint64_t>(bytes >> 4); }

#ifdef CARAT_WIDE
#define CARAT_R4(k, c, i) k(c[i]), k(c[i + 1]), k(c[i + 2]), k(c[i + 3])
#define CARAT_R16(k, c, i) \
  CARAT_R4(k, c, i), CARAT_R4(k, c, i + 4), CARAT_R4(k, c, i + 8), CARAT_R4(k, c, i + 12)
#define CARAT_R32(k, c) CARAT_R16(k, c, 0), CARAT_R16(k, c, 16)
#define CARAT_R64(k, c) CARAT_R32(k, c), CARAT_R16(k, c, 32), CARAT_R16(k, c, 48)
#define CARAT_R8(k, c) CARAT_R4(k, c, 0), CARAT_R4(k, c, 4)
#define CARAT_D4 "{%0,%1,%2,%3}"
#define CARAT_D8 "{%0,%1,%2,%3,%4,%5,%6,%7}"
#define CARAT_D16 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
#define CARAT_D32                                                                                       \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
  "%27,%28,%29,%30,%31}"
#define CARAT_D64                                                                                        \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"  \
  "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51," \
  "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
// KIND: shape and types; D, A, B, ADDS: numbers of the operands; MORE: what stands behind them; then the
// registers of c.
#define CARAT_WIDE_PRODUCT(KIND, D, A, B, ADDS, MORE, FIRST, ...)                      \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " ADDS                                   \
               ", 0;\n"                                                                \
               "wgmma.mma_async.sync.aligned." KIND " " D "," A "," B ",p" MORE ";}\n" \
               : __VA_ARGS__                                                           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(FIRST ? 0 : 1))
#define CARAT_WIDE_16(KIND, MORE, FIRST, ...) \
  CARAT_WIDE_PRODUCT("m64n32" KIND, CARAT_D16, "{%16,%17,%18,%19}", "%20", "%21", MORE, FIRST, __VA_ARGS__)
#define CARAT_WIDE_32(KIND, MORE, FIRST, ...) \
  CARAT_WIDE_PRODUCT("m64n64" KIND, CARAT_D32, "{%32,%33,%34,%35}", "%36", "%37", MORE, FIRST, __VA_ARGS__)
#define CARAT_WIDE_64(KIND, MORE, FIRST, ...) \
  CARAT_WIDE_PRODUCT("m64n128" KIND, CARAT_D64, "{%64,%65,%66,%67}", "%68", "%69", MORE, FIRST, __VA_ARGS__)
// The same of halves, c = (ADDS: c +) a b, by whether a register is 0.
#define CARAT_WIDE_PARTS(KIND, D, A, B, ADDS, ...)                                   \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " ADDS                                 \
               ", 0;\n"                                                              \
               "wgmma.mma_async.sync.aligned." KIND " " D "," A "," B ",p,1,1,0;}\n" \
               : __VA_ARGS__                                                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds))
#define CARAT_WIDE_PARTS_OF(TYPE)                                                                          \
  if constexpr (N == 4)                                                                                    \
    CARAT_WIDE_PARTS("m64n8k16.f32." TYPE, CARAT_D4, "{%4,%5,%6,%7}", "%8", "%9", CARAT_R4("+f", c, 0));   \
  else if constexpr (N == 8)                                                                               \
    CARAT_WIDE_PARTS("m64n16k16.f32." TYPE, CARAT_D8, "{%8,%9,%10,%11}", "%12", "%13", CARAT_R8("+f", c)); \
  else if constexpr (N == 16)                                                                              \
    CARAT_WIDE_PARTS("m64n32k16.f32." TYPE, CARAT_D16, "{%16,%17,%18,%19}", "%20", "%21",                  \
                     CARAT_R16("+f", c, 0));                                                               \
  else if constexpr (N == 32)                                                                              \
    CARAT_WIDE_PARTS("m64n64k16.f32." TYPE, CARAT_D32, "{%32,%33,%34,%35}", "%36", "%37",                  \
                     CARAT_R32("+f", c));                                                                  \
  else                                                                                                     \
    CARAT_WIDE_PARTS("m64n128k16.f32." TYPE, CARAT_D64, "{%64,%65,%66,%67}", "%68", "%69", CARAT_R64("+f", c))
#define CARAT_SIGNED_BYTES "k32.s32.s8.s8"
#define CARAT_BYTES "k32.s32.u8.s8"
#define CARAT_HALVES "k16.f32.f16.f16"
#endif

// c[64 x 2 N] = (kFirst) or += a[64 x 32] b[2 N x 32]^T of bytes, a's signed or not, b's signed: warp w of
// the group has rows 16 w .. of a and c as mma_s8 does, 8 columns of c after the other.
template <bool kSigned, bool kFirst, int N>
CARAT_D void wide_mma(int32_t (&c)[N], const uint32_t (&a)[4], uint64_t b) {
  static_assert(N == 16 || N == 32 || N == 64);
#ifdef CARAT_WIDE
  if constexpr (N == 16 && kSigned)
    CARAT_WIDE_16(CARAT_SIGNED_BYTES, "", kFirst, CARAT_R16("+r", c, 0));
  else if constexpr (N == 16)
    CARAT_WIDE_16(CARAT_BYTES, "", kFirst, CARAT_R16("+r", c, 0));
  else if constexpr (N == 32 && kSigned)
    CARAT_WIDE_32(CARAT_SIGNED_BYTES, "", kFirst, CARAT_R32("+r", c));
  else if constexpr (N == 32)
    CARAT_WIDE_32(CARAT_BYTES, "", kFirst, CARAT_R32("+r", c));
  else if constexpr (kSigned)
    CARAT_WIDE_64(CARAT_SIGNED_BYTES, "", kFirst, CARAT_R64("+r", c));
  else
    CARAT_WIDE_64(CARAT_BYTES, "", kFirst, CARAT_R64("+r", c));
#endif
}
// c[64 x 2 N] = a[64 x 16] b[2 N x 16]^T of halves.
template <int N>
CARAT_D void wide_mma_f16(float (&c)[N], const uint32_t (&a)[4], uint64_t b) {
  static_assert(N == 16 || N == 32 || N == 64);
#ifdef CARAT_WIDE
  if constexpr (N == 16)
    CARAT_WIDE_16(CARAT_HALVES, ",1,1,0", true, CARAT_R16("+f", c, 0));
  else if constexpr (N == 32)
    CARAT_WIDE_32(CARAT_HALVES, ",1,1,0", true, CARAT_R32("+f", c));
  else
    CARAT_WIDE_64(CARAT_HALVES, ",1,1,0", true, CARAT_R64("+f", c));
#endif
}
// c[64 x 2 N] = (adds: c +) a[64 x 16] b[2 N x 16]^T of bf16 or of halves, b as codes_operand() has them.
template <bool kBf16, int N>
CARAT_D void wide_mma_parts(float (&c)[N], const uint32_t (&a)[4], uint64_t b, int adds) {
  static_assert(N == 4 || N == 8 || N == 16 || N == 32 || N == 64);
#ifdef CARAT_WIDE
  if constexpr (kBf16) {
    CARAT_WIDE_PARTS_OF("bf16.bf16");
  } else {
    CARAT_WIDE_PARTS_OF("f16.f16");
  }
#endif
}
// The same of e4m3, 32 columns, a as codes_operand(), too: its 64 rows.
template <int N>
CARAT_D void wide_mma_e4m3(float (&c)[N], uint64_t a, uint64_t b, int adds) {
  static_assert(N == 4 || N == 8 || N == 16 || N == 32 || N == 64);
#ifdef CARAT_WIDE
#define CARAT_WIDE_E4M3(SHAPE, D, A, B, ADDS, ...)                                               \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " ADDS ", 0;\nwgmma.mma_async.sync.aligned." SHAPE \
               "k32.f32.e4m3.e4m3 " D "," A "," B ",p,1,1;}\n"                                   \
               : __VA_ARGS__                                                                     \
               : "l"(a), "l"(b), "r"(adds))
  if constexpr (N == 4)
    CARAT_WIDE_E4M3("m64n8", CARAT_D4, "%4", "%5", "%6", CARAT_R4("+f", c, 0));
  else if constexpr (N == 8)
    CARAT_WIDE_E4M3("m64n16", CARAT_D8, "%8", "%9", "%10", CARAT_R8("+f", c));
  else if constexpr (N == 16)
    CARAT_WIDE_E4M3("m64n32", CARAT_D16, "%16", "%17", "%18", CARAT_R16("+f", c, 0));
  else if constexpr (N == 32)
    CARAT_WIDE_E4M3("m64n64", CARAT_D32, "%32", "%33", "%34", CARAT_R32("+f", c));
  else
    CARAT_WIDE_E4M3("m64n128", CARAT_D64, "%64", "%65", "%66", CARAT_R64("+f", c));
#undef CARAT_WIDE_E4M3
#endif
}
// Before the first product and after registers of one were written; then products, then a commit.
CARAT_D void wide_fence() {
#ifdef CARAT_WIDE
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#endif
}
CARAT_D void wide_commit() {
#ifdef CARAT_WIDE
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
#endif
}
template <int N>  // all but the last N commits' products are there
CARAT_D void wide_wait() {
#ifdef CARAT_WIDE
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(N) : "memory");
#endif
}
// What this thread wrote to shared memory is there for products.
CARAT_D void show_to_products() {
#ifdef CARAT_WIDE
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
#endif
}
// What this thread wrote to global memory is there for boxes (copy_box).
CARAT_D void show_to_boxes() {
#ifdef CARAT_WIDE
  asm volatile("fence.proxy.async.global;\n" ::: "memory");
#endif
}

// Named barrier `id`, 1 to 15, of `threads` threads, some of which may only arrive.
CARAT_D void turn_wait(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
CARAT_D void turn_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
// Nothing that is made of c comes before this.
template <int N>
CARAT_D void hold(float (&c)[N][4]) {
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(c[j][e])::"memory");
}

template <int N>
CARAT_D void fewer_registers() {
#ifdef CARAT_WIDE
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(N));
#endif
}
template <int N>
CARAT_D void more_registers() {
#ifdef CARAT_WIDE
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(N));
#endif
}

}  // namespace carat::cuda
#endif
