// Team: the threads that replay a program together. They spin while they wait for one another, because a
// futex costs more than most operations, and sleep when nothing has been asked of them for a while.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "base/cpus.h"

namespace carat {

// CPUs this process may use: its affinity mask, cut to what its control groups grant. At least 1.
int available_cpus();

// Returns once value differs from `seen`. Spins while the answer is likely to come at once, then lets others
// run, then sleeps: on a machine with fewer free cores than workers the awaited thread needs this one's core.
// Who changes the value for good calls notify_all().
uint32_t await_change(const std::atomic<uint32_t>& value, uint32_t seen);

class Team {
 public:
  // n threads; 0: available_cpus(). Pinned to a CPU each only if the team fills all that are allowed: two
  // small teams on one machine must not be pinned to the same CPU. (--numa keeps them on a node: cpus.h.)
  explicit Team(int n, Numa numa = Numa::off);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  int size() const { return static_cast<int>(threads_.size()); }
  // Of every worker; those of a node follow each other.
  const std::vector<Place>& places() const { return places_; }

  // Starts work(worker) on every thread, worker 0 .. size() - 1; wait() returns when all have finished. One
  // region at a time: start() waits for the one before it. `work` must not throw.
  void start(std::function<void(int)> work);
  void wait();

 private:
  void loop(int worker);
  void end();

  std::vector<Place> places_;
  std::vector<std::thread> threads_;
  std::function<void(int)> work_;
  std::atomic<bool> stop_{false};
  // A line each: the spinning readers of one must not slow the writers of another.
  alignas(64) std::atomic<uint32_t> region_{0};  // regions started
  alignas(64) std::atomic<uint32_t> done_{0};    // regions finished
  alignas(64) std::atomic<int> running_{0};      // workers still in the region
};

}  // namespace carat
