#include "core/exchange.h"

#include <cstring>

namespace carat {

void Exchange::begin(int32_t running) {
  const std::lock_guard lock(mutex_);
  ++step_;
  running_ = running, met_ = 0;
  failed_.store(false, std::memory_order_release);
  if (links) links->begin(step_);
}

void Exchange::fail() {
  {
    const std::lock_guard lock(mutex_);
    failed_.store(true, std::memory_order_release);
    if (links) links->fail();
  }
  moved_.notify_all();
}

bool Exchange::meet() {
  std::unique_lock lock(mutex_);
  if (++met_ == running_) moved_.notify_all();
  moved_.wait(lock, [&] { return failed() || met_ >= running_; });
  return !failed();
}

bool Exchange::share(const ShareArgs& a, int32_t rows) {
  const auto takes = [&](int32_t p) { return (a.takes >> p & 1) != 0; };
  const uint64_t number = uint64_t{step_} << 32 | static_cast<uint32_t>(a.number + 1);
  const auto place = [&](int32_t p) -> Place& { return at_[static_cast<size_t>(p)]; };
  std::unique_lock lock(mutex_);
  place(a.part).ready = number;
  moved_.notify_all();
  const auto await = [&](const uint64_t& reached) {
    moved_.wait(lock, [&] { return failed() || reached >= number; });
    return !failed();
  };
  for (int32_t p = 0; p < a.parts && takes(a.part); ++p) {
    const ShareArgs::Run run = a.gives[p];
    if (p == a.part || run.cols == 0) continue;
    if (!await(place(p).ready)) return false;
    lock.unlock();
    Tensor from = a.y;
    from.data = a.at[p];
    from = from.columns(run.first, run.cols);
    const Tensor to = a.y.columns(run.first, run.cols);
    for (int32_t m = 0; m < rows; ++m)
      std::memcpy(to.row<std::byte>(m), from.row<std::byte>(m),
                  static_cast<size_t>(row_bytes(to.type, to.cols)));
    lock.lock();
  }
  place(a.part).taken = number;
  moved_.notify_all();
  for (int32_t p = 0; p < a.parts && a.gives[a.part].cols > 0; ++p)
    if (p != a.part && takes(p) && !await(place(p).taken)) return false;
  return true;
}

}  // namespace carat
