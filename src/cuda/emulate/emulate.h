// Runs kernels on the CPU, for tests: every thread of a block is a fiber; barriers, shuffles and warp
// reductions switch between them. Device memory is out of the host's reach except while kernels and copies
// run, so that a host that reads it directly crashes here too.
#pragma once
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __grid_constant__
#define CARAT_HD inline
#define CARAT_D inline
#define CARAT_SHARED(name) unsigned char* name = ::carat::emulate::dynamic_shared()
#define CARAT_SHARED_1024(name) CARAT_SHARED(name)
#define CARAT_STATIC_SHARED static thread_local  // a device is a thread
#define threadIdx (::carat::emulate::thread_index())
#define blockIdx (::carat::emulate::block_index())
#define blockDim (::carat::emulate::block_size())
#define gridDim (::carat::emulate::grid_size())

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

namespace carat::emulate {

struct Warp;
struct Thread {
  void* sp = nullptr;
  Warp* warp = nullptr;
  unsigned index = 0, lane = 0;
  bool turn = false;  // of Warp::given
  int group = 0;      // of copies
};
// Of the block that runs on this thread of the host.
struct Block {
  Thread* now = nullptr;
  dim3 grid, index;
  unsigned threads = 0;
  unsigned char* shared = nullptr;
};
inline constinit thread_local Block block;

inline dim3 thread_index() { return {block.now->index}; }
inline dim3 block_index() { return block.index; }
inline dim3 block_size() { return {block.threads}; }
inline dim3 grid_size() { return block.grid; }
inline unsigned char* dynamic_shared() { return block.shared; }
inline int lane() { return static_cast<int>(block.now->lane); }

void block_barrier();
void warp_barrier();
bool last_of_warp();  // the next warp_barrier() lets all go on

// What the lanes of a warp have given each other: two buffers in turn, so that nobody writes the third values
// before all have read the first.
struct Warp {
  int arrived = 0, expected = 0;
  uint32_t waiting = 0;  // lanes
  alignas(64) std::byte given[2][32 * 64];
};
template <class T>
const T* given() {
  return reinterpret_cast<const T*>(block.now->warp->given[block.now->turn]);
}
template <class T>
void give(const T& v) {
  Thread& t = *block.now;
  t.turn = !t.turn;
  std::memcpy(t.warp->given[t.turn] + t.lane * sizeof v, &v, sizeof v);
}
// Every lane's value, by lane.
template <class T>
const T* publish(const T& v) {
  static_assert(sizeof v <= 64);
  give(v);
  warp_barrier();
  return given<T>();
}
// The same; the lane that comes last does `all` for the whole warp.
template <class T, class F>
const T* publish(const T& v, F&& all) {
  static_assert(sizeof v <= 64);
  give(v);
  if (last_of_warp()) all(given<T>());
  warp_barrier();
  return given<T>();
}

// in_order: blocks may wait for those before them.
void submit(dim3 grid, int threads, size_t shared, bool in_order, std::function<void()> kernel);

template <class T>
T exchange(T v, int from) {
  return publish(v)[from & 31];
}

}  // namespace carat::emulate

namespace carat::cuda {

inline void begin_kernel() {}
inline void wait_inputs() {}
inline void let_next_start() {}
inline int32_t same_in_warp(int32_t v) { return v; }
inline uint8_t* same_in_warp(uint8_t* shared) { return shared; }
inline int kept_here(int v) { return v; }
inline float shuffle(float v, int lane) { return emulate::exchange(v, lane); }
inline int32_t shuffle(int32_t v, int lane) { return emulate::exchange(v, lane); }
inline float shuffle_xor(float v, int mask) { return emulate::exchange(v, emulate::lane() ^ mask); }
inline int32_t shuffle_xor(int32_t v, int mask) { return emulate::exchange(v, emulate::lane() ^ mask); }
inline uint32_t shuffle_xor(uint32_t v, int mask) { return emulate::exchange(v, emulate::lane() ^ mask); }
inline int32_t warp_sum(int32_t v) {
  const int32_t* given = emulate::publish(v);
  int32_t sum = 0;
  for (int i = 0; i < 32; ++i) sum += given[i];
  return sum;
}
inline uint32_t warp_max(uint32_t v) {
  const uint32_t* given = emulate::publish(v);
  uint32_t top = 0;
  for (int i = 0; i < 32; ++i) top = std::max(top, given[i]);
  return top;
}
inline uint32_t ballot(bool v) {
  const bool* given = emulate::publish(v);
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= uint32_t{given[i]} << i;
  return bits;
}
inline int bits_set(uint32_t v) { return __builtin_popcount(v); }
inline int32_t dot4(uint32_t a, uint32_t b, int32_t c) {
  for (int i = 0; i < 32; i += 8) c += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
  return c;
}
inline int32_t dot4_unsigned(uint32_t a, uint32_t b, int32_t c) {
  for (int i = 0; i < 32; i += 8) c += static_cast<uint8_t>(a >> i) * static_cast<int8_t>(b >> i);
  return c;
}
inline int32_t dot2_low(uint32_t a, uint32_t b, int32_t c) {
  return c + static_cast<int16_t>(a) * static_cast<int8_t>(b) +
         static_cast<int16_t>(a >> 16) * static_cast<int8_t>(b >> 8);
}
inline int32_t dot2_high(uint32_t a, uint32_t b, int32_t c) { return dot2_low(a, b >> 16, c); }
inline void fetch(const void*) {}
inline void fetch_near(const void*) {}
inline uint4 stream_load(const uint8_t* p) { return *reinterpret_cast<const uint4*>(p); }
inline int32_t load_fresh(const int32_t* p) { return *p; }
inline void sync_block() { emulate::block_barrier(); }
inline int32_t arrive(int32_t* counter) { return (*counter)++; }
void put_word(uint32_t* at, uint32_t w);
inline void renew_word(uint32_t* at, uint32_t w) { *at = w; }
uint32_t peek_word(const uint32_t* at);
inline void put_words(uint32_t* at, uint2 w) { put_word(at, w.x), put_word(at + 1, w.y); }
inline uint2 peek_words(const uint32_t* at) { return {peek_word(at), peek_word(at + 1)}; }
// Another device is another thread of the host.
void put_flag(uint32_t* at, uint32_t w);
uint32_t peek_flag(const uint32_t* at);
inline void fence_devices() {}
inline float4 load_foreign(const float4* p) { return *p; }
inline uint32_t load_foreign(const uint32_t* p) { return *p; }
inline void put_numbered(uint64_t* at, uint2 w, uint32_t number) {
  const uint64_t n = uint64_t{number} << 32;
  std::atomic_ref(at[0]).store(n | w.x), std::atomic_ref(at[1]).store(n | w.y);
}
inline bool peek_numbered(const uint64_t* at, uint32_t number, uint2& w) {
  auto* words = const_cast<uint64_t*>(at);
  const uint64_t a = std::atomic_ref(words[0]).load(), b = std::atomic_ref(words[1]).load();
  w = {static_cast<uint32_t>(a), static_cast<uint32_t>(b)};
  return a >> 32 == number && b >> 32 == number;
}
int64_t clock_ns();
void spin_pause();
inline void sync_warp() { emulate::warp_barrier(); }
void mma_s8(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1,
            int32_t start = 0);
void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
using SharedAddress = uintptr_t;
inline SharedAddress same_address(SharedAddress p) { return p; }
inline SharedAddress shared_address(const void* p) { return reinterpret_cast<uintptr_t>(p); }
void load_matrices(uint32_t (&m)[2], SharedAddress row);
void load_matrices(uint32_t (&m)[4], SharedAddress row);
void load_turned(uint32_t (&m)[4], SharedAddress row);
uint32_t pack_halves(float a, float b);
uint32_t pack_bf16(float a, float b);
uint32_t sub_halves(uint32_t a, uint32_t b);
uint32_t mul_halves(uint32_t a, uint32_t b);
uint32_t fma_halves(uint32_t a, uint32_t b, uint32_t c);
inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t which) {
  const uint64_t both = a | static_cast<uint64_t>(b) << 32;
  uint32_t v = 0;
  for (int i = 0; i < 4; ++i) v |= static_cast<uint32_t>(both >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
  return v;
}
inline uint32_t and_or(uint32_t a, uint32_t mask, uint32_t more) { return (a & mask) | more; }
inline uint32_t and_xor(uint32_t a, uint32_t mask, uint32_t flip) { return (a & mask) ^ flip; }
inline uint32_t upper_half(uint32_t v) { return v >> 16 | (v & 0xffff0000u); }
inline float exp2_flushed(float x) { return exp2f(x) < 0x1p-126f ? 0 : exp2f(x); }
inline uint32_t look_bytes(uint32_t a, uint32_t b, uint32_t which) { return permute_bytes(a, b, which); }
inline uint32_t pick_bits(uint32_t mask, uint32_t a, uint32_t b) { return (a & mask) | (b & ~mask); }
void copy16_async(SharedAddress to, const void* from, bool there = true);  // happens when it is waited for
void copy4_async(SharedAddress to, const void* from);
void commit_copies();
void wait_copies_but(int groups);
template <int N>
void wait_copies() {
  wait_copies_but(N);
}
void gate_init(SharedAddress gate, int count);
void gate_arrive(SharedAddress gate, int bytes = 0);
void copy_bulk(SharedAddress to, const void* from, int bytes, SharedAddress gate);  // as copy16_async
inline void copy_bulk_once(SharedAddress to, const void* from, int bytes, SharedAddress gate) {
  copy_bulk(to, from, bytes, gate);
}
struct BoxMap;
void copy_box(SharedAddress to, const BoxMap& map, int32_t column, int32_t row, int32_t page,
              SharedAddress gate);
void gate_wait(SharedAddress gate, int parity);
void arrive_after_copies(SharedAddress gate);
int newest_code();  // 80 where its kernels are forced
inline constexpr bool kNarrowOnly = false;
inline bool bulk_copies() { return newest_code() >= 90; }
inline void copy16_once(SharedAddress to, const void* from) { copy16_async(to, from); }
void mma_s8_half(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0, int32_t start = 0);

template <class... P>
int compiled_for(void (*)(P...)) {
  return newest_code() < 90 ? newest_code() : 90;
}

// cuda/device/warpgroup.cuh. Products are made at once; an operand is its address.
inline uint64_t codes_operand(SharedAddress p) { return p; }
inline uint64_t halves_operand(SharedAddress p) { return p; }
inline uint64_t behind(uint64_t operand, int bytes) { return operand + static_cast<uint64_t>(bytes); }
void wide_mma_codes(int32_t* c, int n, const uint32_t (&a)[4], uint64_t b, bool is_signed, bool first);
template <bool kSigned, bool kFirst, int N>
void wide_mma(int32_t (&c)[N], const uint32_t (&a)[4], uint64_t b) {
  wide_mma_codes(c, N, a, b, kSigned, kFirst);
}
void wide_mma_f16_of(float* c, int n, const uint32_t (&a)[4], uint64_t b);
template <int N>
void wide_mma_f16(float (&c)[N], const uint32_t (&a)[4], uint64_t b) {
  wide_mma_f16_of(c, N, a, b);
}
void wide_mma_parts_of(float* c, int n, const uint32_t (&a)[4], uint64_t b, bool bf16, bool adds);
template <bool kBf16, int N>
void wide_mma_parts(float (&c)[N], const uint32_t (&a)[4], uint64_t b, int adds) {
  wide_mma_parts_of(c, N, a, b, kBf16, adds != 0);
}
void wide_mma_e4m3_of(float* c, int n, uint64_t a, uint64_t b, bool adds);
template <int N>
void wide_mma_e4m3(float (&c)[N], uint64_t a, uint64_t b, int adds) {
  wide_mma_e4m3_of(c, N, a, b, adds != 0);
}
inline void wide_fence() {}
inline void wide_commit() {}
template <int N>
void wide_wait() {}
inline void show_to_products() {}
inline void show_to_boxes() {}
void turn_wait(int id, int threads);
void turn_arrive(int id, int threads);
template <int N>
void hold(float (&)[N][4]) {}
template <int N>
void fewer_registers() {}
template <int N>
void more_registers() {}

// While a graph is recorded nothing runs: arguments are kept, as in a graph's nodes.
template <class L, class... P, class... A>
void launch(const L& l, const char*, void (*kernel)(P...), dim3 grid, int threads, size_t shared,
            A&&... args) {
  emulate::submit(grid, threads, shared, l.in_order,
                  [kernel, kept = std::tuple<P...>(static_cast<P>(args)...)] { std::apply(kernel, kept); });
}

}  // namespace carat::cuda
