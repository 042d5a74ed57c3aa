#include "cpu/ceiling.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "base/threads.h"
#include "cpu/isa.h"
#include "cpu/memory.h"

namespace carat {
namespace {

typedef uint64_t Line __attribute__((vector_size(16)));

// Reads n bytes as `streams` runs in turn, prefetching `ahead` bytes into L1 or L2.
template <bool Near>
uint64_t read_streams(const std::byte* p, size_t n, size_t streams, size_t ahead) {
  Line sum[4] = {};
  const size_t part = n / streams / 256 * 256;
  for (size_t i = 0; i < part; i += 256)
    for (size_t s = 0; s < streams; ++s) {
      const std::byte* q = p + s * part + i;
      for (size_t l = 0; l < 4; ++l) {
        if (ahead) __builtin_prefetch(q + l * 64 + ahead, 0, Near ? 3 : 2);
        for (size_t j = 0; j < 4; ++j) {
          Line v;
          std::memcpy(&v, q + l * 64 + j * 16, 16);
          sum[j] ^= v;
        }
      }
    }
  const Line all = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
  return all[0] ^ all[1];
}

}  // namespace

double measure_read_gbps(int threads, size_t bytes, Numa numa) {
  Team team(threads, numa);
  constexpr size_t kMuch = size_t{384} << 20, kLittle = size_t{1} << 20;
  const size_t all = bytes == 0 ? kMuch : std::clamp(bytes, kLittle, kMuch);
  const size_t share = std::max<size_t>(4096, all / team.size() / 4096 * 4096),
               passes = (kMuch + all - 1) / all;
  const Buffer memory = cpu::alloc_pages(share * team.size());
  team.start([&](int w) { std::memset(memory.data() + w * share, w + 1, share); });
  team.wait();
  struct Pattern {
    size_t streams, ahead;
    bool near;
  };
  constexpr Pattern kPatterns[] = {{1, 0, false},    {1, 1024, true},  {1, 4096, false}, {2, 2048, true},
                                   {2, 4096, false}, {4, 2048, false}, {4, 4096, false}};
  double best = 0;
  std::atomic<uint64_t> sink{0};
  for (int round = 0; round < 2; ++round)
    for (const Pattern& pattern : kPatterns) {
      const auto t0 = std::chrono::steady_clock::now();
      team.start([&](int w) {
        const std::byte* p = memory.data() + w * share;
        for (size_t pass = 0; pass < passes; ++pass)
          sink ^= pattern.near ? read_streams<true>(p, share, pattern.streams, pattern.ahead)
                               : read_streams<false>(p, share, pattern.streams, pattern.ahead);
      });
      team.wait();
      const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count();
      best = std::max(best, 1e-9 * static_cast<double>(passes * share * team.size()) / s);
    }
  return best;
}

double measure_dot_gops(int threads, std::string_view isa) {
  const cpu::Kernels kernels = cpu::kernels_of(isa.empty() ? cpu::present_isas().back() : isa);
  Team team(threads);
  const Buffer memory = cpu::alloc_pages(static_cast<size_t>(cpu::kDenseScratch * team.size()));
  constexpr int kTasks = 16;
  double best = 0;
  for (int round = 0; round < 6; ++round) {
    const auto t0 = std::chrono::steady_clock::now();
    team.start([&](int w) {
      cpu::Worker worker{memory.data() + w * cpu::kDenseScratch};
      for (int i = 0; i < kTasks; ++i) kernels.dot_test({}, nullptr, i, worker);
    });
    team.wait();
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count();
    best = std::max(best, 1e-9 * static_cast<double>(kernels.dot_test_ops) * kTasks * team.size() / s);
  }
  return best;
}

}  // namespace carat
