// Device code under nvcc. With programmatic dependent launch a grid may start before the one before it has
// ended: every block of every kernel calls wait_inputs() before it touches what steps write, so that what is
// there when one has waited is all that came before, and let_next_start() when the next grid's blocks may
// take their places beside it: begin_kernel() is both.
#pragma once
#include <cuda_runtime.h>

#define CARAT_HD __host__ __device__ __forceinline__
#define CARAT_D __device__ __forceinline__
#define CARAT_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#define CARAT_SHARED_1024(name)                                  \
  extern __shared__ __align__(1024) unsigned char name##_1024[]; \
  unsigned char* name = name##_1024
#define CARAT_STATIC_SHARED __shared__

// What 9.0 and later have: bulk copies, dependent launches. CARAT_CODE_80: a Hopper runs what 8.0 would.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && !defined(CARAT_CODE_80)
#define CARAT_BULK_COPIES 1
#endif

namespace carat::cuda {

CARAT_D void wait_inputs() {
#ifdef CARAT_BULK_COPIES
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
CARAT_D void let_next_start() {
#ifdef CARAT_BULK_COPIES
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
CARAT_D void begin_kernel() {
  let_next_start();
  wait_inputs();
}

// A value that all of a warp's threads have, in a register that a warp has once.
CARAT_D int32_t same_in_warp(int32_t v) {
  return static_cast<int32_t>(__reduce_or_sync(~0u, static_cast<uint32_t>(v)));
}
CARAT_D uint8_t* same_in_warp(uint8_t* shared) {
  const auto at = static_cast<int32_t>(__cvta_generic_to_shared(shared));
  return static_cast<uint8_t*>(__cvta_shared_to_generic(static_cast<size_t>(same_in_warp(at))));
}
// v, as if it had come from memory just now: what is computed from it stays where it is, and takes no
// registers ahead of a loop.
CARAT_D int kept_here(int v) {
  asm volatile("" : "+r"(v));
  return v;
}
CARAT_D float shuffle(float v, int lane) { return __shfl_sync(~0u, v, lane); }
CARAT_D int32_t shuffle(int32_t v, int lane) { return __shfl_sync(~0u, v, lane); }
CARAT_D float shuffle_xor(float v, int mask) { return __shfl_xor_sync(~0u, v, mask); }
CARAT_D int32_t shuffle_xor(int32_t v, int mask) { return __shfl_xor_sync(~0u, v, mask); }
CARAT_D uint32_t shuffle_xor(uint32_t v, int mask) { return __shfl_xor_sync(~0u, v, mask); }
CARAT_D int32_t warp_sum(int32_t v) { return __reduce_add_sync(~0u, v); }
CARAT_D uint32_t ballot(bool v) { return __ballot_sync(~0u, v); }
CARAT_D int bits_set(uint32_t v) { return __popc(v); }
CARAT_D uint32_t warp_max(uint32_t v) { return __reduce_max_sync(~0u, v); }
CARAT_D int32_t dot4(uint32_t a, uint32_t b, int32_t c) {
  return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
}
CARAT_D int32_t dot4_unsigned(uint32_t a, uint32_t b, int32_t c) {  // of a's bytes
  int32_t d;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// Two products of 16 by 8 bits: of b's lower or upper two bytes.
CARAT_D int32_t dot2_low(uint32_t a, uint32_t b, int32_t c) {
  return __dp2a_lo(static_cast<int>(a), static_cast<int>(b), c);
}
CARAT_D int32_t dot2_high(uint32_t a, uint32_t b, int32_t c) {
  return __dp2a_hi(static_cast<int>(a), static_cast<int>(b), c);
}
// Into the second cache.
CARAT_D void fetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
// Into the first, too.
CARAT_D void fetch_near(const void* p) { asm volatile("prefetch.global.L1 [%0];" ::"l"(p)); }
// A policy for what a step reads once (functions that end in _once, and stream_load): it is the first to
// leave the second cache, so that what is small and comes at every step stays there.
CARAT_D uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// Read once, past the first cache.
CARAT_D uint4 stream_load(const uint8_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(evict_first()));
  return v;
}
// Past the first cache: what an operation before has written, when it may be read before the inputs are
// there.
CARAT_D int32_t load_fresh(const int32_t* p) { return __ldcg(p); }
CARAT_D void sync_block() { __syncthreads(); }
// How many came before.
CARAT_D int32_t arrive(int32_t* counter) { return atomicAdd(counter, 1); }
// Words between blocks of one grid (rt.h, Launcher::in_order): read past the first cache.
CARAT_D void put_word(uint32_t* at, uint32_t w) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(at), "r"(w) : "memory");
}
CARAT_D void renew_word(uint32_t* at, uint32_t w) { put_word(at, w); }  // over one that need not be 0
CARAT_D uint32_t peek_word(const uint32_t* at) {
  uint32_t w;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(w) : "l"(at) : "memory");
  return w;
}
CARAT_D void put_words(uint32_t* at, uint2 w) {
  asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1,%2};" ::"l"(at), "r"(w.x), "r"(w.y) : "memory");
}
CARAT_D uint2 peek_words(const uint32_t* at) {
  uint2 w;
  asm volatile("ld.relaxed.gpu.global.v2.b32 {%0,%1}, [%2];" : "=r"(w.x), "=r"(w.y) : "l"(at) : "memory");
  return w;
}
// Words between devices (cuda/links.h): a thread that peeks a flag sees what was written before that flag
// was put.
CARAT_D void put_flag(uint32_t* at, uint32_t w) {
  asm volatile("st.release.sys.global.b32 [%0], %1;" ::"l"(at), "r"(w) : "memory");
}
CARAT_D uint32_t peek_flag(const uint32_t* at) {
  uint32_t w;
  asm volatile("ld.acquire.sys.global.b32 %0, [%1];" : "=r"(w) : "l"(at) : "memory");
  return w;
}
CARAT_D void fence_devices() { __threadfence_system(); }
// What another device has written since this kernel began.
CARAT_D float4 load_foreign(const float4* p) {
  float4 v;
  asm volatile("ld.relaxed.sys.global.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
CARAT_D uint32_t load_foreign(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.b32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
// Two words, each stored in one access with a number: a thread that reads the number has read its word, too.
CARAT_D void put_numbered(uint64_t* at, uint2 w, uint32_t number) {
  const uint64_t n = uint64_t{number} << 32;
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1,%2};" ::"l"(at), "l"(n | w.x), "l"(n | w.y)
               : "memory");
}
CARAT_D bool peek_numbered(const uint64_t* at, uint32_t number, uint2& w) {
  uint64_t a, b;
  asm volatile("ld.relaxed.sys.global.v2.b64 {%0,%1}, [%2];" : "=l"(a), "=l"(b) : "l"(at) : "memory");
  w.x = static_cast<uint32_t>(a), w.y = static_cast<uint32_t>(b);
  return static_cast<uint32_t>(a >> 32) == number && static_cast<uint32_t>(b >> 32) == number;
}
CARAT_D int64_t clock_ns() {
  int64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
CARAT_D void spin_pause() { __nanosleep(20); }
CARAT_D void sync_warp() { __syncwarp(); }
// c[16x8] = a[16x32] b[32x8]^T of bytes: lane = 4 g + t holds of a rows g, g + 8 and columns 4 t, 4 t + 16;
// of b column g; of c rows g, g + 8 and columns 2 t, 2 t + 1 (PTX ISA, mma.m16n8k32). start: added to all.
CARAT_D void mma_s8(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                    uint32_t b1, int32_t start = 0) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%10,%10,%10};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(start));
}
// As mma_s8 with k = 16: of a rows g, g + 8 and columns 4 t; of b column g, rows 4 t.
CARAT_D void mma_s8_half(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0, int32_t start = 0) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%7,%7,%7,%7};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a0), "r"(a1), "r"(b0), "r"(start));
}
// c[16x8] += a[16x16] b[8x16]^T of halves: lane = 4 g + t holds of a rows g, g + 8 and columns 2 t, 2 t + 1,
// then columns 8 further; of b row g and those columns; of c as above (PTX ISA, mma.m16n8k16).
CARAT_D void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same of bf16.
CARAT_D void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
using SharedAddress = uint32_t;
// An address that all of a warp's threads have, in a register that a warp has once.
CARAT_D SharedAddress same_address(SharedAddress p) { return __reduce_or_sync(~0u, p); }
CARAT_D SharedAddress shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
// Matrices of 8 x 8 halves out of shared memory: lane 8 i + r points at row r of matrix i, 16 bytes; lane 4 g
// + t gets elements 2 t and 2 t + 1 of row g of every matrix, of column g if they are turned.
CARAT_D void load_matrices(uint32_t (&m)[2], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1},[%2];"
               : "=r"(m[0]), "=r"(m[1])
               : "r"(row)
               : "memory");
}
CARAT_D void load_matrices(uint32_t (&m)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row)
               : "memory");
}
CARAT_D void load_turned(uint32_t (&m)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row)
               : "memory");
}
// 2^x as exp2f has it, but for results below 2^-126, which are 0.
CARAT_D float exp2_flushed(float x) {
  float v;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
  return v;
}
// Two halves, rounded to nearest even; a in the lower bits.
CARAT_D uint32_t pack_halves(float a, float b) {
  uint32_t v;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(b), "f"(a));
  return v;
}
// Two of bf16, likewise.
CARAT_D uint32_t pack_bf16(float a, float b) {
  uint32_t v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(b), "f"(a));
  return v;
}
// Bytes of a (0 to 3) and b (4 to 7), named by the nibbles of `which`.
CARAT_D uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t which) { return __byte_perm(a, b, which); }
// The same where no nibble is above 7: __byte_perm takes the trouble to mask what it does not know.
CARAT_D uint32_t look_bytes(uint32_t a, uint32_t b, uint32_t which) {
  uint32_t v;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(which));
  return v;
}
// Bits of a where the mask has them, else of b: one instruction, which the compiler does not see by itself.
CARAT_D uint32_t pick_bits(uint32_t mask, uint32_t a, uint32_t b) {
  uint32_t v;
  asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(v) : "r"(mask), "r"(a), "r"(b));
  return v;
}
CARAT_D uint32_t and_or(uint32_t a, uint32_t mask, uint32_t more) {
  uint32_t v;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(a), "r"(mask), "r"(more));
  return v;
}
CARAT_D uint32_t and_xor(uint32_t a, uint32_t mask, uint32_t flip) {
  uint32_t v;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(v) : "r"(a), "r"(mask), "r"(flip));
  return v;
}
// The upper half in both, if it is a finite one: a product, since units that shift are what decoding waits
// for.
CARAT_D uint32_t upper_half(uint32_t v) {
  uint32_t u;
  asm("{.reg .f16 l, h;\n.reg .b32 d;\nmov.b32 {l, h}, %1;\nmov.b32 d, {h, h};\nmul.rn.f16x2 %0, d, %2;}"
      : "=r"(u)
      : "r"(v), "r"(0x3c003c00u));
  return u;
}
// By two halves, rounded to nearest even.
CARAT_D uint32_t sub_halves(uint32_t a, uint32_t b) {
  uint32_t v;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
  return v;
}
CARAT_D uint32_t mul_halves(uint32_t a, uint32_t b) {
  uint32_t v;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
  return v;
}
CARAT_D uint32_t fma_halves(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t v;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c));
  return v;
}
// 16 bytes on their way to shared memory, zeros unless `there`. Copies between two commits are one group;
// wait_copies: but for the last N groups of this thread all have arrived.
CARAT_D void copy16_async(SharedAddress to, const void* from, bool there = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
CARAT_D void copy4_async(SharedAddress to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
CARAT_D void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
CARAT_D void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Gates, barriers of 8 bytes in shared memory (PTX ISA, mbarrier): a turn ends once `count` have arrived and
// all the bytes they said would come by bulk copies (sm_90) have come; then the next begins.
CARAT_D void gate_init(SharedAddress gate, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(gate), "r"(count) : "memory");
#ifdef CARAT_BULK_COPIES
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
CARAT_D void gate_arrive(SharedAddress gate) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(gate) : "memory");
}
// With so many bytes to come.
CARAT_D void gate_arrive(SharedAddress gate, int bytes) {
#ifdef CARAT_BULK_COPIES
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(gate), "r"(bytes) : "memory");
#endif
}
// Once all this thread's copies so far (copy16_async) are there. They are for products only after
// show_to_products().
CARAT_D void arrive_after_copies(SharedAddress gate) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(gate) : "memory");
}
CARAT_D void copy_bulk(SharedAddress to, const void* from, int bytes, SharedAddress gate) {
#ifdef CARAT_BULK_COPIES
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(gate)
      : "memory");
#endif
}
CARAT_D void copy_bulk_once(SharedAddress to, const void* from, int bytes, SharedAddress gate) {
#ifdef CARAT_BULK_COPIES
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], "
      "%4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(gate), "l"(evict_first())
      : "memory");
#endif
}
// A box (BoxArray) from a page's row and column on, zeros behind the array; the 16-byte unit u of its row r
// at 128 r + 16 (u ^ r % 8); to: a multiple of 1024.
struct BoxMap;
CARAT_D void copy_box(SharedAddress to, const BoxMap& map, int32_t column, int32_t row, int32_t page,
                      SharedAddress gate) {
#ifdef CARAT_BULK_COPIES
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
      "%4}], [%5];" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(page), "r"(gate)
      : "memory");
#endif
}
// Until an odd (parity 0) or even number of turns has ended; at once with parity 1 if none has.
CARAT_D void gate_wait(SharedAddress gate, int parity) {
#ifdef CARAT_BULK_COPIES
#define CARAT_GATE_TRY "mbarrier.try_wait"
#else
#define CARAT_GATE_TRY "mbarrier.test_wait"
#endif
  asm volatile("{\n.reg .pred p;\nagain%=: " CARAT_GATE_TRY
               ".parity.shared::cta.b64 p, [%0], %1;\n@!p bra again%=;\n}" ::"r"(gate),
               "r"(parity)
               : "memory");
}

// Whether a warp's lane 0 brings what its warp asks for by bulk copies, or all lanes 16 bytes each at a time.
CARAT_HD constexpr bool bulk_copies() {
#ifdef CARAT_BULK_COPIES
  return true;
#else
  return false;
#endif
}
// Whether the device has a narrow device's shared memory (matmul/rings.h), whatever its kind.
#if defined(__CUDA_ARCH__) && !defined(CARAT_BULK_COPIES)
inline constexpr bool kNarrowOnly = true;
#else
inline constexpr bool kNarrowOnly = false;
#endif
// Past the first cache, the first to leave the second.
CARAT_D void copy16_once(SharedAddress to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "l"(evict_first())
               : "memory");
}

struct Launcher;
void check_launch(const char* what);

// The generation whose code of the kernel runs here: 90 for sm_90. Virtual code of an older one counts as
// that, and no code is newer than newest_code() (matmul/table.h, Forced::generation).
int newest_code();
template <class... P>
int compiled_for(void (*kernel)(P...)) {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)) == cudaSuccess
             ? (attributes.ptxVersion < newest_code() ? attributes.ptxVersion : newest_code())
             : 0;
}

// Parameters of the kernel, not of the call, decide the types that are passed.
template <class L, class... P, class... A>
void launch(const L& l, const char* what, void (*kernel)(P...), dim3 grid, int threads, size_t shared,
            A&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = static_cast<cudaStream_t>(l.stream);
  cudaLaunchAttribute attributes[2] = {};
  unsigned n = 0;
  if (l.overlap) {
    attributes[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[n++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (l.most_shared) {
    attributes[n].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attributes[n++].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  }
  config.attrs = attributes;
  config.numAttrs = n;
  if (shared > 48 * 1024)
    cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shared));
  cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
  check_launch(what);
}

}  // namespace carat::cuda
