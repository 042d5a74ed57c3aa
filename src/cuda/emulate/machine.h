// What the emulation keeps of the block that runs: fibers, barriers, copies on their way.
#pragma once
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "cuda/device/rt.h"

namespace carat::emulate {

constexpr int kMaxThreads = 1024;
constexpr size_t kMaxShared = size_t{227} << 10;

struct Barrier {
  int arrived = 0, expected = 0;
  std::array<uint32_t, kMaxThreads / 32> waiting{};  // lanes, by warp
};

struct Copy {
  void* to;
  const void* from;  // null: zeros
  size_t bytes;
  int group;

  void run() const {
    if (from)
      std::memcpy(to, from, bytes);
    else
      std::memset(to, 0, bytes);
  }
};

struct Gate {
  int count = 0, arrived = 0, turns = 0;
  size_t expected = 0, asked = 0;
  std::vector<Copy> copies;

  bool end_turn() {
    if (arrived < count || asked < expected) return false;
    for (const Copy& c : copies) c.run();
    copies.clear();
    arrived = 0, expected = asked = 0, ++turns;
    return true;
  }
};

struct Machine {
  std::byte* stacks = nullptr;
  std::unique_ptr<unsigned char[]> shared{new unsigned char[kMaxShared + 1024]};
  std::vector<Thread> fibers{kMaxThreads};
  std::array<Warp, kMaxThreads / 32> warps;
  uint32_t ready[kMaxThreads / 32] = {};               // lanes that can go on, by warp
  std::vector<std::vector<Copy>> copies{kMaxThreads};  // by thread
  std::map<uintptr_t, Gate> gates;                     // by address
  Barrier block, named[16];
  void* scheduler = nullptr;
  int threads = 0, left = 0;
  const std::function<void()>* kernel = nullptr;
  bool backwards = false;

  Machine();
  ~Machine();
};
Machine& machine();

void wait(Barrier& b);
void arrive(Barrier& b);  // others wait
void pass();              // to threads that have waited longer
void run(dim3 grid, int threads, size_t shared, bool in_order, const std::function<void()>& kernel);

}  // namespace carat::emulate
