#include "serve/http/workers.h"

#include <malloc.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/log.h"

namespace carat {

void Workers::add(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back({std::move(task), Clock::now()});
  wake_.notify_one();
  if (idle_ < tasks_.size() && threads_ < std::min(most_, kAtOnce)) start_thread();
}

void Workers::look() {
  constexpr std::chrono::milliseconds kBlocked{100};
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < kAtATime && i < tasks_.size() && threads_ < most_; ++i) {
    if (idle_ >= tasks_.size() || Clock::now() - tasks_.front().since < kBlocked) return;
    start_thread();
  }
}

// With the lock.
void Workers::start_thread() {
  try {
    std::thread([this] { work(); }).detach();  // shutdown() waits for it
    ++threads_;
  } catch (const std::exception& e) {  // one of those that are there takes it, or the next one
    log_error("no thread for a request: {}", e.what());
  }
}

void Workers::shutdown() {
  std::unique_lock lock(mutex_);
  stop_ = true;
  wake_.notify_all();
  left_.wait(lock, [&] { return threads_ == 0; });
}

void Workers::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    wake_.wait_for(lock, rest_, [&] { return stop_ || !tasks_.empty(); });
    --idle_;
    if (tasks_.empty()) break;
    std::function<void()> task = std::move(tasks_.front().run);
    tasks_.pop_front();
    lock.unlock();
    try {
      task();
    } catch (const std::exception& e) {
      log_error("a request's thread failed: {}", e.what());
    }
    task = nullptr;
    lock.lock();
  }
  if (threads_ <= 1 && !stop_) ::malloc_trim(0);  // with the last of a crowd its memory is given back
  --threads_;
  left_.notify_all();
}

}  // namespace carat
