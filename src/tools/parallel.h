// Loops over independent pieces of work on several threads, for the tools that make files.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/threads.h"

namespace carat {

inline int tool_threads(int wanted) { return wanted > 0 ? wanted : available_cpus(); }

// f(i) for i < n, each once. The first exception ends the loop and is thrown here.
template <class F>
void parallel_for(int threads, int64_t n, F&& f) {
  std::atomic<int64_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  const auto work = [&] {
    try {
      for (int64_t i = next++; i < n; i = next++) f(i);
    } catch (...) {
      next = n;
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::jthread> team;
  for (int64_t i = 1; i < std::min<int64_t>(threads, n); ++i) team.emplace_back(work);
  work();
  team.clear();
  if (error) std::rethrow_exception(error);
}

}  // namespace carat
