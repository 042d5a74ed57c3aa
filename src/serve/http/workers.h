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
  using Clock = std::chrono::steady_clock;

  // busy: threads that work at once; most: threads in all, those that wait for others among them.
  Workers(size_t busy, size_t most, double rest_seconds) : busy_(busy), most_(most), rest_(rest_seconds) {}
  ~Workers() { shutdown(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  void add(std::function<void()> task);  // any thread
  // Now and then. Threads beyond `busy` come where no task has been begun for a second though some wait: then
  // those that are there wait for something and did not say so. A crowd of short tasks needs none.
  void look(Clock::time_point now);
  void shutdown();  // waits for what was added

  // As long as it lives, the thread that made it waits for something else, and another may work in its place.
  // Of no effect in threads that are no workers.
  class Waits {
   public:
    Waits();
    ~Waits();
    Waits(const Waits&) = delete;
    Waits& operator=(const Waits&) = delete;

   private:
    Workers* const whose_;
  };

 private:
  void work();
  void start_thread();
  void start_if_wanted();

  const size_t busy_, most_;
  const std::chrono::duration<double> rest_;
  std::mutex mutex_;
  std::condition_variable wake_, left_;
  std::deque<std::function<void()>> tasks_;
  Clock::time_point begun_{};  // the last task
  size_t idle_ = 0, waiting_ = 0, threads_ = 0;
  bool stop_ = false;
};

}  // namespace carat
