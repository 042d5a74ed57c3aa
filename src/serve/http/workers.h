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
  void shutdown();                       // waits for what was added

 private:
  void work();
  const size_t most_;
  const std::chrono::duration<double> rest_;
  std::mutex mutex_;
  std::condition_variable wake_, left_;
  std::deque<std::function<void()>> tasks_;
  size_t idle_ = 0, threads_ = 0;
  bool stop_ = false;
};

}  // namespace carat
