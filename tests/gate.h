// Holds the engine's thread inside a step, so that a test need not race with it.
#pragma once
#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace carat::test {

class Gate {
 public:
  // steps: how many pass before one is held.
  explicit Gate(int steps = 0) : left_(steps) {}
  // For HookedBackend::before_step. Gives up in the end: a test that fails must not hang.
  void pass() {
    std::unique_lock lock(mutex_);
    waiting_ = !open_ && left_ == 0;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(60), [&] { return open_ || left_ > 0; });
    waiting_ = false;
    if (left_ > 0) --left_;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  // Lets so many more steps pass.
  void let(int steps) {
    const std::lock_guard lock(mutex_);
    left_ += steps;
    waiting_ = false;
    changed_.notify_all();
  }
  void wait_until_held() {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return waiting_; }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int left_;
  bool open_ = false, waiting_ = false;
};

}  // namespace carat::test
