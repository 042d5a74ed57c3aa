#include "serve/api/generation.h"

#include <condition_variable>
#include <deque>
#include <mutex>

namespace carat {

// Shared with the sinks, which may outlive the Generation until the engine has seen the cancellation.
struct Generation::Mailbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Item> items;
  std::vector<bool> open;  // per choice
  std::function<void()> wake;
};

Generation::Generation(Engine& engine) : engine_(engine), box_(std::make_shared<Mailbox>()) {}

Generation::~Generation() {
  std::vector<bool> open;
  {
    const std::lock_guard lock(box_->mutex);
    open = box_->open;
  }
  for (size_t i = 0; i < ids_.size(); ++i)
    if (open[i]) engine_.cancel(ids_[i]);
}

void Generation::submit(Request request) {
  const int choice = static_cast<int>(ids_.size());
  {
    const std::lock_guard lock(box_->mutex);
    box_->open.push_back(true);
  }
  request.sink = [box = box_, choice](const Event& e) {
    std::function<void()> wake;
    {
      const std::lock_guard lock(box->mutex);
      box->items.push_back({choice, e, Clock::now()});
      if (e.finish != Finish::none) box->open[static_cast<size_t>(choice)] = false;
      box->changed.notify_one();
      wake = box->wake;
    }
    if (wake) wake();
  };
  ids_.push_back(engine_.submit(std::move(request)));
}

void Generation::on_event(std::function<void()> wake) {
  bool here = false;
  {
    const std::lock_guard lock(box_->mutex);
    box_->wake = wake;
    here = !box_->items.empty();
  }
  if (here) wake();
}

void Generation::cancel(int choice) { engine_.cancel(ids_.at(static_cast<size_t>(choice))); }

bool Generation::next(Item& item, std::chrono::milliseconds patience) {
  std::unique_lock lock(box_->mutex);
  if (!box_->changed.wait_for(lock, patience, [&] { return !box_->items.empty(); })) return false;
  item = std::move(box_->items.front());
  box_->items.pop_front();
  return true;
}

}  // namespace carat
