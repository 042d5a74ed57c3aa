// Threads that come as work does and leave when none comes for a while.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace carat {

class Workers {
 public:
  Workers(size_t most, double rest_seconds) : most_(most), rest_(rest_seconds) {}
  ~Workers() { shutdown(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  void add(std::function<void()> task);  // any thread
  // Every tenth of a second: beyond kAtOnce threads come only when tasks have waited, as then those that are
  // there are blocked; a crowd of short tasks needs none.
  void look();
  void shutdown();  // waits for what was added

 private:
  static constexpr size_t kAtOnce = 48, kAtATime = 32;
  using Clock = std::chrono::steady_clock;
  struct Task {
    std::function<void()> run;
    Clock::time_point since;
  };
  void work();
  void start_thread();
  const size_t most_;
  const std::chrono::duration<double> rest_;
  std::mutex mutex_;
  std::condition_variable wake_, left_;
  std::deque<Task> tasks_;
  size_t idle_ = 0, threads_ = 0;
  bool stop_ = false;
};

}  // namespace carat
