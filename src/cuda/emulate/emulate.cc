#include "cuda/emulate/emulate.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "core/codec.h"
#include "cuda/device/rt.h"

#if !defined(__x86_64__)
#error "the emulation switches stacks in x86-64 assembly"
#endif

extern "C" void carat_emulate_switch(void** save, void* to);
asm(R"(
.text
.globl carat_emulate_switch
.type carat_emulate_switch, @function
carat_emulate_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

namespace carat::emulate {
namespace {

constexpr int kMaxThreads = 1024;
constexpr size_t kStack = size_t{64} << 10, kMaxShared = size_t{227} << 10;

struct Barrier {
  int arrived = 0, expected = 0, generation = 0;
  void leave() {
    --expected;
    if (expected > 0 && arrived >= expected) arrived = 0, ++generation;
  }
};

struct Warp {
  Barrier barrier;
  alignas(64) std::byte given[2][32][64];
};

struct Copy {
  void* to;
  const void* from;  // null: zeros
  size_t bytes;
  int group;
};

struct Gate {
  int count = 0, arrived = 0, turns = 0;
  size_t expected = 0, asked = 0;
  std::vector<Copy> copies;

  bool end_turn() {
    if (arrived < count || asked < expected) return false;
    for (const Copy& c : copies) std::memcpy(c.to, c.from, c.bytes);
    copies.clear();
    arrived = 0, expected = asked = 0, ++turns;
    return true;
  }
};

struct Fiber {
  void* sp = nullptr;
  int thread = 0, collectives = 0, group = 0;
  bool done = false;
  const Barrier* waits = nullptr;
  int generation = 0;
};

struct Machine {
  std::byte* stacks = nullptr;
  std::unique_ptr<unsigned char[]> shared{new unsigned char[kMaxShared + 1024]};
  std::vector<Fiber> fibers{kMaxThreads};
  std::vector<Warp> warps{kMaxThreads / 32};
  std::vector<std::vector<Copy>> copies{kMaxThreads};  // on their way, by thread
  std::map<uintptr_t, Gate> gates;                     // by address
  Barrier block, named[16];
  void* scheduler = nullptr;
  Fiber* self = nullptr;
  dim3 grid, index;
  int threads = 0;
  const std::function<void()>* kernel = nullptr;
  bool backwards = false;

  Machine() {
    void* p = mmap(nullptr, kStack * kMaxThreads, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CARAT_CHECK(p != MAP_FAILED);
    stacks = static_cast<std::byte*>(p);
  }
  ~Machine() { munmap(stacks, kStack * kMaxThreads); }
};
// Of this thread: devices run in threads of their own at the same time.
Machine& machine() {
  static thread_local Machine m;
  return m;
}

void yield_to_scheduler() {
  Machine& m = machine();
  carat_emulate_switch(&m.self->sp, m.scheduler);
}

void wait(Barrier& b) {
  Fiber& f = *machine().self;
  const int generation = b.generation;
  if (++b.arrived >= b.expected) {
    b.arrived = 0;
    ++b.generation;
    return;
  }
  f.waits = &b, f.generation = generation;
  while (b.generation == generation) yield_to_scheduler();
  f.waits = nullptr;
}

void entry() {
  Machine& m = machine();
  (*m.kernel)();
  Fiber& f = *m.self;
  f.done = true;
  m.block.leave();
  m.warps[static_cast<size_t>(f.thread) / 32].barrier.leave();
  yield_to_scheduler();
}

void start(Fiber& f, int thread) {
  std::byte* top = machine().stacks + kStack * (static_cast<size_t>(thread) + 1) - 64;
  auto** sp = reinterpret_cast<void**>(top);  // 16-byte aligned: entry() sees what a call would leave
  *sp = reinterpret_cast<void*>(&entry);
  sp -= 6;
  std::fill(sp, sp + 6, nullptr);
  f = {};
  f.sp = sp;
  f.thread = thread;
}

void run_block() {
  Machine& m = machine();
  m.block = {0, m.threads, 0};
  m.gates.clear();
  for (Barrier& b : m.named) b = {};
  for (int w = 0; w * 32 < m.threads; ++w)
    m.warps[static_cast<size_t>(w)].barrier = {0, std::min(32, m.threads - 32 * w), 0};
  for (int i = 0; i < m.threads; ++i) {
    start(m.fibers[static_cast<size_t>(i)], i);
    m.copies[static_cast<size_t>(i)].clear();
  }
  for (bool left = true; left;) {
    left = false;
    bool moved = false;
    for (int i = 0; i < m.threads; ++i) {
      Fiber& f = m.fibers[static_cast<size_t>(m.backwards ? m.threads - 1 - i : i)];
      if (f.done) continue;
      left = true;
      if (f.waits && f.waits->generation == f.generation) continue;
      moved = true;
      m.self = &f;
      carat_emulate_switch(&m.scheduler, f.sp);
    }
    CARAT_CHECK(!left || moved, "the threads of a block wait forever");
  }
}

// Memory of all devices: one reservation, closed to the host between commands.
class Heap {
 public:
  Heap() {
    void* p = mmap(nullptr, kSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CARAT_CHECK(p != MAP_FAILED);
    base_ = static_cast<std::byte*>(p);
  }
  void* alloc(size_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes = std::max<size_t>((bytes + 255) / 256 * 256, 256);
    const auto it = free_.lower_bound(bytes);
    if (it != free_.end() && it->first < 2 * bytes) {
      std::byte* p = it->second;
      used_[p] = it->first;
      free_.erase(it);
      return p;
    }
    if (top_ + bytes > kSize) return nullptr;
    std::byte* p = base_ + top_;
    top_ += bytes;
    used_[p] = bytes;
    if (open_ > 0) protect(PROT_READ | PROT_WRITE);
    return p;
  }
  void free(void* p) {
    const std::lock_guard lock(mutex_);
    const auto it = used_.find(static_cast<std::byte*>(p));
    CARAT_CHECK(it != used_.end());
    free_.emplace(it->second, it->first);
    used_.erase(it);
  }
  void open() {
    const std::lock_guard lock(mutex_);
    if (++open_ == 1) protect(PROT_READ | PROT_WRITE);
  }
  void close() {
    const std::lock_guard lock(mutex_);
    if (--open_ == 0) protect(PROT_NONE);
  }
  static constexpr size_t kSize = size_t{64} << 30;

 private:
  void protect(int how) const {
    const size_t n = (top_ + 4095) / 4096 * 4096;
    CARAT_CHECK(n == 0 || mprotect(base_, n, how) == 0);
  }
  std::mutex mutex_;
  std::byte* base_;
  size_t top_ = 0;
  int open_ = 0;  // commands at work
  std::multimap<size_t, std::byte*> free_;
  std::map<std::byte*, size_t> used_;
};
Heap& heap() {
  static Heap h;
  return h;
}
struct Open {
  Open() { heap().open(); }
  ~Open() { heap().close(); }
};

}  // namespace

dim3 thread_index() { return {static_cast<unsigned>(machine().self->thread)}; }
dim3 block_index() { return machine().index; }
dim3 block_size() { return {static_cast<unsigned>(machine().threads)}; }
dim3 grid_size() { return machine().grid; }
unsigned char* dynamic_shared() {
  auto p = reinterpret_cast<uintptr_t>(machine().shared.get());
  return reinterpret_cast<unsigned char*>((p + 1023) / 1024 * 1024);
}
int lane() { return machine().self->thread % 32; }
void block_barrier() { wait(machine().block); }
void warp_barrier() { wait(machine().warps[static_cast<size_t>(machine().self->thread) / 32].barrier); }
// Two buffers in turn: nobody writes the third value before all have read the first.
void publish(const void* value, size_t bytes) {
  Fiber& f = *machine().self;
  Warp& w = machine().warps[static_cast<size_t>(f.thread) / 32];
  std::memcpy(w.given[++f.collectives & 1][f.thread % 32], value, bytes);
  wait(w.barrier);
}
const void* given_by(int lane) {
  const Fiber& f = *machine().self;
  return machine().warps[static_cast<size_t>(f.thread) / 32].given[f.collectives & 1][lane];
}

namespace {

void run(dim3 grid, int threads, size_t shared, bool in_order, const std::function<void()>& kernel) {
  Machine& m = machine();
  CARAT_CHECK(threads > 0 && threads <= kMaxThreads && shared <= kMaxShared, "{} threads, {} bytes", threads,
              shared);
  CARAT_CHECK(grid.y < 65536 && grid.z < 65536, "a grid of {} x {}", grid.y, grid.z);
  const Open open;
  m.grid = grid, m.threads = threads, m.kernel = &kernel;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  m.backwards = !m.backwards;  // neither blocks nor threads have an order
  for (uint64_t i = 0; i < blocks; ++i) {
    const uint64_t b = m.backwards && !in_order ? blocks - 1 - i : i;
    m.index = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
               static_cast<unsigned>(b / grid.x / grid.y)};
    std::memset(dynamic_shared(), 0xff, shared);
    run_block();
  }
}

using Recording = std::vector<std::function<void()>>;
thread_local Recording* recording = nullptr;

template <class F>
void now_or_recorded(F&& f) {
  if (recording)
    recording->emplace_back(std::forward<F>(f));
  else
    f();
}

}  // namespace

void submit(dim3 grid, int threads, size_t shared, bool in_order, std::function<void()> kernel) {
  now_or_recorded([=, kernel = std::move(kernel)] { run(grid, threads, shared, in_order, kernel); });
}

}  // namespace carat::emulate

namespace carat::cuda {

using emulate::heap;
using emulate::Open;

void mma_s8(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  const uint32_t mine[6] = {a0, a1, a2, a3, b0, b1};
  emulate::publish(mine, sizeof mine);
  const int g = emulate::lane() / 4, t = emulate::lane() % 4;
  const auto word = [](int lane, int i) { return static_cast<const uint32_t*>(emulate::given_by(lane))[i]; };
  for (int i = 0; i < 4; ++i) {
    const int half = i / 2, column = 2 * t + i % 2;
    c[i] = 0;
    for (int s = 0; s < 4; ++s) {  // k = 4 s .. and 16 + 4 s ..
      c[i] = dot4(word(4 * g + s, half), word(4 * column + s, 4), c[i]);
      c[i] = dot4(word(4 * g + s, 2 + half), word(4 * column + s, 5), c[i]);
    }
  }
}
void mma_s8_half(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) { mma_s8(c, a0, a1, 0, 0, b0, 0); }

namespace {

// Every half as a float, so that a product costs a look-up.
const float* half_values() {
  static const std::vector<float> values = [] {
    std::vector<float> v(65536);
    for (uint32_t h = 0; h < v.size(); ++h) v[h] = f16_to_f32(static_cast<uint16_t>(h));
    return v;
  }();
  return values.data();
}

template <int N>
void exchange_matrices(uint32_t (&m)[N], SharedAddress row, bool turned) {
  emulate::publish(&row, sizeof row);
  const int g = emulate::lane() / 4, t = emulate::lane() % 4;
  for (int i = 0; i < N; ++i) {
    const auto half = [&](int r, int c) -> uint32_t {
      SharedAddress p = 0;
      std::memcpy(&p, emulate::given_by(8 * i + r), sizeof p);
      CARAT_CHECK(p % 16 == 0);
      return reinterpret_cast<const uint16_t*>(p)[c];
    };
    m[i] = turned ? half(2 * t, g) | half(2 * t + 1, g) << 16 : half(g, 2 * t) | half(g, 2 * t + 1) << 16;
  }
  emulate::warp_barrier();  // nobody writes there before all have read
}

}  // namespace

// Sixteen products are summed at once, without an order, as tensor cores from sm_90 on do it: here in double,
// where sums of halves' products below 32 are exact.
namespace {
template <class Value>
void mma_of(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Value value) {
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  emulate::publish(mine, sizeof mine);
  const int g = emulate::lane() / 4, t = emulate::lane() % 4;
  const auto words = [](int lane) { return static_cast<const uint32_t*>(emulate::given_by(lane)); };
  double sum[4] = {};
  for (int s = 0; s < 8; ++s) {  // k = 2 s and 2 s + 1
    const uint32_t* x = words(4 * g + s % 4) + s / 4 * 2;
    for (int j = 0; j < 2; ++j) {
      const uint32_t y = words(4 * (2 * t + j) + s % 4)[4 + s / 4];
      const float lower = value(y & 0xffff), upper = value(y >> 16);
      for (int half = 0; half < 2; ++half) {
        sum[2 * half + j] += value(x[half] & 0xffff) * lower;  // exact products
        sum[2 * half + j] += value(x[half] >> 16) * upper;
      }
    }
  }
  for (int i = 0; i < 4; ++i) c[i] = static_cast<float>(c[i] + sum[i]);
}
}  // namespace
void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_of(c, a, b0, b1, [value = half_values()](uint32_t v) { return value[v]; });
}
void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_of(c, a, b0, b1, [](uint32_t v) { return bf16_to_f32(static_cast<uint16_t>(v)); });
}
void load_matrices(uint32_t (&m)[2], SharedAddress row) { exchange_matrices(m, row, false); }
void load_matrices(uint32_t (&m)[4], SharedAddress row) { exchange_matrices(m, row, false); }
void load_turned(uint32_t (&m)[4], SharedAddress row) { exchange_matrices(m, row, true); }
uint32_t pack_halves(float a, float b) { return f32_to_f16(a) | static_cast<uint32_t>(f32_to_f16(b)) << 16; }
uint32_t pack_bf16(float a, float b) { return f32_to_bf16(a) | static_cast<uint32_t>(f32_to_bf16(b)) << 16; }

uint32_t sub_halves(uint32_t a, uint32_t b) {
  const float* value = half_values();
  return pack_halves(value[a & 0xffff] - value[b & 0xffff], value[a >> 16] - value[b >> 16]);
}
uint32_t mul_halves(uint32_t a, uint32_t b) {
  const float* value = half_values();
  return pack_halves(value[a & 0xffff] * value[b & 0xffff], value[a >> 16] * value[b >> 16]);
}
uint32_t fma_halves(uint32_t a, uint32_t b, uint32_t c) {  // products are exact, sums in double too
  const float* value = half_values();
  const auto one = [&](int shift) {
    const auto at = [&](uint32_t x) { return value[x >> shift & 0xffff]; };
    return static_cast<float>(static_cast<double>(at(a) * at(b)) + at(c));
  };
  return pack_halves(one(0), one(16));
}

void wide_mma_codes(int32_t* c, int n, const uint32_t (&a)[4], uint64_t b, bool is_signed, bool first) {
  CARAT_CHECK(b % 32 == 0);
  emulate::publish(a, sizeof a);
  const int g = emulate::lane() / 4, t = emulate::lane() % 4;
  for (int k = 0; k < n; ++k) {
    const int row = k / 4 * 8 + 2 * t + k % 2, half = k % 4 / 2;
    int32_t sum = first ? 0 : c[k];
    for (int i = 0; i < 32; ++i) {
      const uint64_t at = b + 128 * static_cast<uint64_t>(row) + static_cast<uint64_t>(i);
      const int8_t y = *reinterpret_cast<const int8_t*>(at ^ (at >> 7 & 7) << 4);
      const uint32_t word =
          static_cast<const uint32_t*>(emulate::given_by(4 * g + i % 16 / 4))[i / 16 * 2 + half];
      const auto byte = static_cast<uint8_t>(word >> i % 4 * 8);
      sum += (is_signed ? int32_t{static_cast<int8_t>(byte)} : int32_t{byte}) * y;
    }
    c[k] = sum;
  }
}
void wide_mma_f16_of(float* c, int n, const uint32_t (&a)[4], uint64_t b) {
  CARAT_CHECK(b % 16 == 0);
  emulate::publish(a, sizeof a);
  const float* value = half_values();
  const int g = emulate::lane() / 4, t = emulate::lane() % 4;
  for (int k = 0; k < n; ++k) {
    const int row = k / 4 * 8 + 2 * t + k % 2, half = k % 4 / 2;
    c[k] = 0;
    for (int i = 0; i < 16; ++i) {
      const auto y = reinterpret_cast<const uint16_t*>(
          b + static_cast<uint64_t>(256 * (row / 8) + 128 * (i / 8) + 16 * (row % 8)))[i % 8];
      const uint32_t word =
          static_cast<const uint32_t*>(emulate::given_by(4 * g + i % 8 / 2))[i / 8 * 2 + half];
      c[k] += value[word >> i % 2 * 16 & 0xffff] * value[y];
    }
  }
}
void turn_wait(int id, int threads) {
  emulate::Barrier& b = emulate::machine().named[id];
  b.expected = threads;
  emulate::wait(b);
}

void copy16_async(SharedAddress to, const void* from, bool there) {
  emulate::Machine& m = emulate::machine();
  CARAT_CHECK((to | reinterpret_cast<uintptr_t>(from)) % 16 == 0);
  m.copies[static_cast<size_t>(m.self->thread)].push_back(
      {reinterpret_cast<void*>(to), there ? from : nullptr, 16, m.self->group});
}
void copy4_async(SharedAddress to, const void* from) {
  emulate::Machine& m = emulate::machine();
  CARAT_CHECK((to | reinterpret_cast<uintptr_t>(from)) % 4 == 0);
  m.copies[static_cast<size_t>(m.self->thread)].push_back(
      {reinterpret_cast<void*>(to), from, 4, m.self->group});
}
void gate_init(SharedAddress gate, int count) {
  emulate::machine().gates[gate] = {};
  emulate::machine().gates[gate].count = count;
}
void gate_arrive(SharedAddress gate, int bytes) {
  emulate::Gate& g = emulate::machine().gates.at(gate);
  CARAT_CHECK(g.arrived < g.count, "a gate's turn was not waited for");
  ++g.arrived, g.expected += static_cast<size_t>(bytes);
  if (g.expected == 0) g.end_turn();
}
void copy_bulk(SharedAddress to, const void* from, int bytes, SharedAddress gate) {
  CARAT_CHECK((to | reinterpret_cast<uintptr_t>(from) | static_cast<uintptr_t>(bytes)) % 16 == 0);
  emulate::Gate& g = emulate::machine().gates.at(gate);
  g.asked += static_cast<size_t>(bytes);
  g.copies.push_back({reinterpret_cast<void*>(to), from, static_cast<size_t>(bytes), 0});
}
// The first three words: where pages begin, how far apart rows and pages are.
bool make_box_map(BoxMap& m, const void* base, int32_t columns, int64_t pitch, int32_t rows, int64_t page) {
  m = {{reinterpret_cast<uintptr_t>(base), static_cast<uint64_t>(pitch), static_cast<uint64_t>(page),
        static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)}};
  return (m.words[0] | m.words[1] | m.words[2]) % 16 == 0;
}
void copy_box(SharedAddress to, const BoxMap& m, int32_t column, int32_t row, int32_t page,
              SharedAddress gate) {
  CARAT_CHECK(to % 1024 == 0 && static_cast<uint64_t>(column) + 64 <= m.words[3] &&
              static_cast<uint64_t>(row) + 64 <= m.words[4]);
  const auto* from = reinterpret_cast<const uint8_t*>(m.words[0]) + static_cast<uint64_t>(page) * m.words[2] +
                     static_cast<uint64_t>(row) * m.words[1] + 2 * static_cast<uint64_t>(column);
  for (uint64_t r = 0; r < 64; ++r)
    for (uint64_t u = 0; u < 8; ++u)
      copy_bulk(to + 128 * r + 16 * (u ^ r % 8), from + r * m.words[1] + 16 * u, 16, gate);
}
void gate_wait(SharedAddress gate, int parity) {
  emulate::Gate& g = emulate::machine().gates.at(gate);
  for (int tries = 0; g.turns % 2 == parity && !g.end_turn(); ++tries) {
    CARAT_CHECK(tries < 10'000'000, "a gate is waited for forever");
    emulate::yield_to_scheduler();
  }
}
void put_word(uint32_t* at, uint32_t w) {
  CARAT_CHECK(w == 0 || *at == 0, "a word that nobody took is overwritten");
  *at = w;
}
uint32_t peek_word(const uint32_t* at) {
  CARAT_CHECK(*at != 0, "a block waits for one that does not run before it");
  return *at;
}
void put_flag(uint32_t* at, uint32_t w) { std::atomic_ref(*at).store(w, std::memory_order_release); }
uint32_t peek_flag(const uint32_t* at) {
  return std::atomic_ref(*const_cast<uint32_t*>(at)).load(std::memory_order_acquire);
}
int64_t clock_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
void spin_pause() { std::this_thread::yield(); }
void commit_copies() { ++emulate::machine().self->group; }
void wait_copies_but(int groups) {
  emulate::Machine& m = emulate::machine();
  auto& copies = m.copies[static_cast<size_t>(m.self->thread)];
  std::erase_if(copies, [&](const emulate::Copy& c) {
    if (c.group >= m.self->group - groups) return false;
    if (c.from)
      std::memcpy(c.to, c.from, c.bytes);
    else
      std::memset(c.to, 0, c.bytes);
    return true;
  });
}

std::vector<DeviceProps> device_list(std::string*) {
  const DeviceProps one{"emulated", 9, 0, 4, static_cast<int64_t>(emulate::Heap::kSize), int64_t{227} << 10};
  return {one, one, one, one};
}
void use_device(int) {}
bool enable_peer(int, int) { return true; }
void memory_left(int64_t& free, int64_t& total) { free = total = static_cast<int64_t>(emulate::Heap::kSize); }
void* device_alloc(size_t bytes) {
  const Open open;
  return heap().alloc(bytes);
}
void device_free(void* p) { heap().free(p); }
void* pinned_alloc(size_t bytes) { return ::operator new (bytes, std::align_val_t{64}); }
void pinned_free(void* p) { ::operator delete (p, std::align_val_t{64}); }
bool pin(void*, size_t) { return true; }
void unpin(void*) {}
Stream make_stream() { return nullptr; }
void destroy_stream(Stream) {}
void copy_async(void* dst, const void* src, size_t bytes, Stream) {
  emulate::now_or_recorded([=] {
    const Open open;
    std::memcpy(dst, src, bytes);
  });
}
void copy_rows_async(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t bytes,
                     size_t rows, Stream) {
  emulate::now_or_recorded([=] {
    const Open open;
    for (size_t r = 0; r < rows; ++r)
      std::memcpy(static_cast<std::byte*>(dst) + r * dst_pitch,
                  static_cast<const std::byte*>(src) + r * src_pitch, bytes);
  });
}
void call_host_async(void (*f)(void*), void* argument, Stream) {
  emulate::now_or_recorded([=] { f(argument); });
}
void zero_async(void* p, size_t bytes, Stream) {
  const Open open;
  std::memset(p, 0, bytes);
}
void sync(Stream) {}
bool begin_capture(Stream) {
  emulate::recording = new emulate::Recording();
  return true;
}
Graph end_capture(Stream) { return std::exchange(emulate::recording, nullptr); }
void abandon_capture(Stream) { delete std::exchange(emulate::recording, nullptr); }
void launch_graph(Graph g, Stream) {
  for (const auto& f : *static_cast<emulate::Recording*>(g)) f();
}
void destroy_graph(Graph g) { delete static_cast<emulate::Recording*>(g); }
Event make_event() { return new std::chrono::steady_clock::time_point(); }
void record_event(Event e, Stream) {
  *static_cast<std::chrono::steady_clock::time_point*>(e) = std::chrono::steady_clock::now();
}
void wait_event(Stream, Event) {}
void sleep_until(Event) {}
void record_event_in_graph(Event e, Stream s) { record_event(e, s); }
double seconds_between(Event first, Event second) {
  using Time = std::chrono::steady_clock::time_point;
  return std::chrono::duration<double>(*static_cast<Time*>(second) - *static_cast<Time*>(first)).count();
}
void destroy_event(Event e) { delete static_cast<std::chrono::steady_clock::time_point*>(e); }
void check_launch(const char*) {}

}  // namespace carat::cuda
