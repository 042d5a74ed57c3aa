// cuda/device/rt.h, and copies and gates of cuda/device/device.cuh, on the CPU.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "cuda/emulate/faults.h"
#include "cuda/emulate/machine.h"

namespace carat::emulate {
namespace {

// Memory of all devices: one reservation, closed to the host between commands.
class Heap {
 public:
  Heap() {
    void* p = mmap(nullptr, kSize + kLarge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CARAT_CHECK(p != MAP_FAILED);
    base_ = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(p) + kLarge - 1) / kLarge * kLarge);
    madvise(base_, kSize, MADV_HUGEPAGE);
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
  static constexpr size_t kLarge = size_t{2} << 20;  // a large page: quickly opened and closed

 private:
  void protect(int how) const {
    const size_t n = (top_ + kLarge - 1) / kLarge * kLarge;
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

// Kernels that a device still runs; below 0: all.
constexpr int kDevices = 4;
std::atomic<int64_t> kernels_left[kDevices] = {-1, -1, -1, -1};
thread_local int device = 0;  // of this thread

bool lost() { return kernels_left[device].load() == 0; }
bool runs_kernel() {
  const int64_t left = kernels_left[device].load();
  if (left > 0) kernels_left[device].store(left - 1);  // its own thread alone
  return left != 0;
}
void check_device() {
  if (lost())
    throw DeviceError("CUDA: a step failed: unspecified launch failure (cudaErrorLaunchFailure)",
                      "the device's context is lost: restart the program; if it happens again, run it under "
                      "compute-sanitizer and report it");
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
  now_or_recorded([=, kernel = std::move(kernel)] {
    if (!runs_kernel()) return;
    const Open open;
    run(grid, threads, shared, in_order, kernel);
  });
}

}  // namespace carat::emulate

namespace carat::cuda {

using emulate::check_device;
using emulate::heap;
using emulate::Open;

void turn_wait(int id, int threads) {
  emulate::Barrier& b = emulate::machine().named[id];
  b.expected = threads;
  emulate::wait(b);
}
void turn_arrive(int id, int threads) {
  emulate::Barrier& b = emulate::machine().named[id];
  b.expected = threads;
  emulate::arrive(b);
}

void copy16_async(SharedAddress to, const void* from, bool there) {
  emulate::Machine& m = emulate::machine();
  CARAT_CHECK((to | reinterpret_cast<uintptr_t>(from)) % 16 == 0);
  const emulate::Thread& t = *emulate::block.now;
  m.copies[t.index].push_back({reinterpret_cast<void*>(to), there ? from : nullptr, 16, t.group});
}
void copy4_async(SharedAddress to, const void* from) {
  emulate::Machine& m = emulate::machine();
  CARAT_CHECK((to | reinterpret_cast<uintptr_t>(from)) % 4 == 0);
  const emulate::Thread& t = *emulate::block.now;
  m.copies[t.index].push_back({reinterpret_cast<void*>(to), from, 4, t.group});
}
void gate_init(SharedAddress gate, int count) {
  emulate::machine().gates[gate] = {};
  emulate::machine().gates[gate].count = count;
}
void gate_arrive(SharedAddress gate, int bytes) {
  emulate::Gate& g = emulate::machine().gates.at(gate);
  CARAT_CHECK(g.arrived < g.count, "a gate's turn was not waited for");
  ++g.arrived, g.expected += static_cast<size_t>(bytes);
  if (g.copies.empty() && g.expected == 0) g.end_turn();
}
void copy_bulk(SharedAddress to, const void* from, int bytes, SharedAddress gate) {
  CARAT_CHECK((to | reinterpret_cast<uintptr_t>(from) | static_cast<uintptr_t>(bytes)) % 16 == 0);
  emulate::Gate& g = emulate::machine().gates.at(gate);
  g.asked += static_cast<size_t>(bytes);
  g.copies.push_back({reinterpret_cast<void*>(to), from, static_cast<size_t>(bytes), 0});
}
// This thread's copies happen when the gate's turn ends: where one waits for it.
void arrive_after_copies(SharedAddress gate) {
  emulate::Machine& m = emulate::machine();
  emulate::Gate& g = m.gates.at(gate);
  std::vector<emulate::Copy>& mine = m.copies[emulate::block.now->index];
  CARAT_CHECK(g.arrived < g.count, "a gate's turn was not waited for");
  g.copies.insert(g.copies.end(), mine.begin(), mine.end());
  mine.clear();
  ++g.arrived;
}
// The map is the array itself.
bool make_box_map(BoxMap& m, const BoxArray& a) {
  static_assert(sizeof(BoxArray) <= sizeof(BoxMap));
  std::memcpy(&m, &a, sizeof a);
  return (reinterpret_cast<uintptr_t>(a.base) | static_cast<uint64_t>(a.pitch) |
          static_cast<uint64_t>(a.page)) %
             16 ==
         0;
}
void copy_box(SharedAddress to, const BoxMap& m, int32_t column, int32_t row, int32_t page,
              SharedAddress gate) {
  const auto& a = reinterpret_cast<const BoxArray&>(m);
  const int32_t bytes = a.floats ? 4 : 2;
  CARAT_CHECK(to % 1024 == 0 && column + 128 / bytes <= a.columns);
  for (int32_t i = 0; i < a.box_pages * a.box_rows; ++i) {
    const int32_t p = page + i / a.box_rows, r = row + i % a.box_rows;
    const auto* from = static_cast<const uint8_t*>(a.base) + p * a.page + r * a.pitch + column * bytes;
    for (int32_t u = 0; u < 8; ++u)
      copy_bulk(to + static_cast<uint64_t>(128 * i + 16 * (u ^ i % 8)),
                p < a.pages && r < a.rows ? from + 16 * u : nullptr, 16, gate);
  }
}
void gate_wait(SharedAddress gate, int parity) {
  emulate::Gate& g = emulate::machine().gates.at(gate);
  for (int tries = 0; g.turns % 2 == parity && !g.end_turn(); ++tries) {
    CARAT_CHECK(tries < 10'000'000, "a gate is waited for forever");
    emulate::pass();
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
void commit_copies() { ++emulate::block.now->group; }
void wait_copies_but(int groups) {
  const emulate::Thread& t = *emulate::block.now;
  std::erase_if(emulate::machine().copies[t.index], [&](const emulate::Copy& c) {
    if (c.group >= t.group - groups) return false;
    c.run();
    return true;
  });
}

std::vector<DeviceProps> device_list(std::string*) {
  const DeviceProps one{"emulated", 9, 0, 4, static_cast<int64_t>(emulate::Heap::kSize), int64_t{227} << 10};
  return std::vector(emulate::kDevices, one);
}
void lose_device(int index, int64_t kernels) { emulate::kernels_left[index] = kernels; }
void repair_devices() {
  for (auto& left : emulate::kernels_left) left = -1;
}
void use_device(int index) { emulate::device = index; }
bool enable_peer(int, int) { return true; }
void memory_left(int64_t& free, int64_t& total) {
  check_device();
  free = total = static_cast<int64_t>(emulate::Heap::kSize);
}
void* device_alloc(size_t bytes) {
  check_device();
  const Open open;
  return heap().alloc(bytes);
}
void device_free(void* p) { heap().free(p); }
void* pinned_alloc(size_t bytes) {
  check_device();
  return ::operator new (bytes, std::align_val_t{64});
}
void pinned_free(void* p) { ::operator delete (p, std::align_val_t{64}); }
bool pin(void*, size_t) { return true; }
void unpin(void*) {}
Stream make_stream() {
  check_device();
  return nullptr;
}
void destroy_stream(Stream) {}
void copy_async(void* dst, const void* src, size_t bytes, Stream) {
  check_device();
  emulate::now_or_recorded([=] {
    const Open open;
    std::memcpy(dst, src, bytes);
  });
}
void copy_rows_async(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t bytes,
                     size_t rows, Stream) {
  check_device();
  emulate::now_or_recorded([=] {
    const Open open;
    for (size_t r = 0; r < rows; ++r)
      std::memcpy(static_cast<std::byte*>(dst) + r * dst_pitch,
                  static_cast<const std::byte*>(src) + r * src_pitch, bytes);
  });
}
void call_host_async(void (*f)(void*), void* argument, Stream) {
  check_device();
  emulate::now_or_recorded([=] { f(argument); });
}
void zero_async(void* p, size_t bytes, Stream) {
  check_device();
  const Open open;
  std::memset(p, 0, bytes);
}
void sync(Stream) { check_device(); }
bool begin_capture(Stream) {
  check_device();
  emulate::recording = new emulate::Recording();
  return true;
}
Graph end_capture(Stream) { return std::exchange(emulate::recording, nullptr); }
void abandon_capture(Stream) { delete std::exchange(emulate::recording, nullptr); }
void launch_graph(Graph g, Stream) {
  check_device();
  const Open open;
  for (const auto& f : *static_cast<emulate::Recording*>(g)) f();
}
void destroy_graph(Graph g) { delete static_cast<emulate::Recording*>(g); }
Event make_event() { return new std::chrono::steady_clock::time_point(); }
void record_event(Event e, Stream) {
  *static_cast<std::chrono::steady_clock::time_point*>(e) = std::chrono::steady_clock::now();
}
void wait_event(Stream, Event) { check_device(); }
void sleep_until(Event) { check_device(); }
void record_event_in_graph(Event e, Stream s) { record_event(e, s); }
double seconds_between(Event first, Event second) {
  check_device();
  using Time = std::chrono::steady_clock::time_point;
  return std::chrono::duration<double>(*static_cast<Time*>(second) - *static_cast<Time*>(first)).count();
}
void destroy_event(Event e) { delete static_cast<std::chrono::steady_clock::time_point*>(e); }
void check_launch(const char*) { check_device(); }

}  // namespace carat::cuda
