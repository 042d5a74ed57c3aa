#include "serve/http/workers.h"

#include <malloc.h>

#include <thread>
#include <utility>

#include "base/log.h"

namespace carat {
namespace {

constexpr size_t kAtATime = 8;
constexpr std::chrono::seconds kStuck{1};

thread_local Workers* employer = nullptr;  // of this thread

}  // namespace

Workers::Waits::Waits() : whose_(std::exchange(employer, nullptr)) {
  if (!whose_) return;
  const std::lock_guard lock(whose_->mutex_);
  ++whose_->waiting_;
  whose_->start_if_wanted();
}

Workers::Waits::~Waits() {
  if (!whose_) return;
  employer = whose_;
  const std::lock_guard lock(whose_->mutex_);
  --whose_->waiting_;
}

void Workers::add(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (tasks_.empty()) begun_ = Clock::now();
  tasks_.push_back(std::move(task));
  wake_.notify_one();
  start_if_wanted();
}

void Workers::look(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < kAtATime; ++i)
    if (idle_ < tasks_.size() && now - begun_ > kStuck && threads_ < most_) start_thread();
}

// With the lock, as the next.
void Workers::start_if_wanted() {
  if (idle_ < tasks_.size() && threads_ - waiting_ < busy_ && threads_ < most_) start_thread();
}

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
  employer = this;
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    wake_.wait_for(lock, rest_, [&] { return stop_ || !tasks_.empty(); });
    --idle_;
    if (tasks_.empty()) break;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    begun_ = Clock::now();
    lock.unlock();
    try {
      task();
    } catch (const std::exception& e) {
      log_error("a request's thread failed: {}", e.what());
    }
    task = nullptr;
    lock.lock();
  }
  if (threads_ <= 1 && !stop_) ::malloc_trim(0);  // after a rest: what large requests took is given back
  --threads_;
  left_.notify_all();
}

}  // namespace carat
