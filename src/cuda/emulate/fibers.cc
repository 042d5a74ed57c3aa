// Threads of a block as fibers: a barrier switches from one straight to the next that can go on.
#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "cuda/emulate/machine.h"
#include "cuda/matmul/table.h"

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

// What a block may have: less where tests play a smaller card.
size_t most_shared() {
  const auto forced = static_cast<size_t>(cuda::forced().shared) << 10;
  return forced > 0 ? std::min(forced, kMaxShared) : kMaxShared;
}

// A multiple of a cache's size would put the upper ends of all stacks, where the work is, in the same few
// sets.
constexpr size_t kStack = (size_t{64} << 10) + 7 * 64, kStacks = kStack * kMaxThreads;

}  // namespace

Machine::Machine() {
  void* p =
      mmap(nullptr, kStacks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CARAT_CHECK(p != MAP_FAILED);
  madvise(p, kStacks, MADV_HUGEPAGE);
  stacks = static_cast<std::byte*>(p);
}
Machine::~Machine() { munmap(stacks, kStacks); }

namespace {

thread_local Machine* current = nullptr;  // without the question whether it is made

int first_of(uint32_t lanes, bool backwards) {
  return backwards ? 31 - std::countl_zero(lanes) : std::countr_zero(lanes);
}

// A warp's lanes go on until all wait; `passing`: those that have not had their turn, then the other warps.
Thread* next_of(Machine& m, bool passing) {
  const auto own = static_cast<int>(block.now->index / 32);
  const auto lane = static_cast<int>(block.now->lane);
  const uint32_t ready = m.ready[own];
  const uint32_t behind = m.backwards ? (1u << lane) - 1 : ~1u << lane;
  const auto thread = [&](int warp, uint32_t lanes) {
    return &m.fibers[static_cast<size_t>(32 * warp + first_of(lanes, m.backwards))];
  };
  if (ready & behind) return thread(own, ready & behind);
  if (ready && !passing) return thread(own, ready);
  const int warps = (m.threads + 31) / 32;
  for (int i = 1, w = own; i <= warps; ++i) {
    w = m.backwards ? (w == 0 ? warps : w) - 1 : (w + 1 == warps ? 0 : w + 1);
    if (m.ready[w]) return thread(w, m.ready[w]);
  }
  return nullptr;
}

// To the next; to run_block() if there is none.
void go_on(Machine& m, bool passing) {
  Thread& from = *block.now;
  Thread* const to = next_of(m, passing);
  if (to == &from) return;
  block.now = to;
  carat_emulate_switch(&from.sp, to ? to->sp : m.scheduler);
}

void stop(Machine& m) { m.ready[block.now->index / 32] &= ~(1u << block.now->lane); }

void release(Machine& m, Barrier& b) {
  b.arrived = 0;
  for (size_t w = 0; w < static_cast<size_t>(m.threads + 31) / 32; ++w)
    m.ready[w] |= std::exchange(b.waiting[w], 0);
}
void release(Machine& m, Warp& w) {
  w.arrived = 0;
  m.ready[&w - m.warps.data()] |= std::exchange(w.waiting, 0);
}

template <class B>
void leave(Machine& m, B& b) {
  if (--b.expected > 0 && b.arrived >= b.expected) release(m, b);
}

void entry() {
  Machine& m = *current;
  (*m.kernel)();
  stop(m);
  --m.left;
  leave(m, m.block);
  leave(m, *block.now->warp);
  go_on(m, false);
}

void start(Machine& m, int thread) {
  std::byte* top = m.stacks + kStack * (static_cast<size_t>(thread) + 1) - 64;
  auto** sp = reinterpret_cast<void**>(top);  // 16-byte aligned: entry() sees what a call would leave
  *sp = reinterpret_cast<void*>(&entry);
  sp -= 6;
  std::fill(sp, sp + 6, nullptr);
  const auto index = static_cast<unsigned>(thread);
  m.fibers[index] = {sp, &m.warps[index / 32], index, index % 32};
}

void run_block(Machine& m) {
  m.block = {0, m.threads, {}};
  m.gates.clear();
  for (Barrier& b : m.named) b = {};
  for (int w = 0; w * 32 < m.threads; ++w) {
    const int lanes = std::min(32, m.threads - 32 * w);
    Warp& warp = m.warps[static_cast<size_t>(w)];
    warp.arrived = 0, warp.expected = lanes, warp.waiting = 0;
    m.ready[w] = ~0u >> (32 - lanes);
  }
  for (int i = 0; i < m.threads; ++i) {
    start(m, i);
    m.copies[static_cast<size_t>(i)].clear();
  }
  m.left = m.threads;
  block.now = &m.fibers[m.backwards ? static_cast<size_t>(m.threads) - 1 : 0];
  carat_emulate_switch(&m.scheduler, block.now->sp);
  CARAT_CHECK(m.left == 0, "the threads of a block wait forever");
}

}  // namespace

Machine& machine() {
  if (!current) {
    static thread_local Machine m;  // devices run in threads of their own at the same time
    current = &m;
  }
  return *current;
}

void pass() { go_on(*current, true); }

void wait(Barrier& b) {
  Machine& m = *current;
  if (++b.arrived >= b.expected) return release(m, b);
  b.waiting[block.now->index / 32] |= 1u << block.now->lane;
  stop(m);
  go_on(m, false);
}
void arrive(Barrier& b) {
  if (++b.arrived >= b.expected) release(*current, b);
}

void block_barrier() { wait(current->block); }
bool last_of_warp() { return block.now->warp->arrived + 1 >= block.now->warp->expected; }
void warp_barrier() {
  Machine& m = *current;
  Warp& w = *block.now->warp;
  if (last_of_warp()) return release(m, w);
  ++w.arrived;
  w.waiting |= 1u << block.now->lane;
  stop(m);
  go_on(m, false);
}

void run(dim3 grid, int threads, size_t shared, bool in_order, const std::function<void()>& kernel) {
  Machine& m = machine();
  CARAT_CHECK(threads > 0 && threads <= kMaxThreads && shared <= most_shared(), "{} threads, {} bytes",
              threads, shared);
  CARAT_CHECK(grid.y < 65536 && grid.z < 65536, "a grid of {} x {}", grid.y, grid.z);
  m.threads = threads, m.kernel = &kernel;
  block.grid = grid, block.threads = static_cast<unsigned>(threads);
  block.shared =
      reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(m.shared.get()) + 1023) / 1024 * 1024);
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  m.backwards = !m.backwards;  // neither blocks nor threads have an order
  for (uint64_t i = 0; i < blocks; ++i) {
    const uint64_t b = m.backwards && !in_order ? blocks - 1 - i : i;
    block.index = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                   static_cast<unsigned>(b / grid.x / grid.y)};
    std::memset(block.shared, 0xff, shared);
    run_block(m);
  }
}

}  // namespace carat::emulate
