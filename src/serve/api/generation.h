// Requests in flight for one HTTP request: hands over what the engine's thread says to the connection's
// thread, and cancels what still runs when nobody listens any more.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/engine.h"

namespace carat {

class Generation {
 public:
  using Clock = std::chrono::steady_clock;
  struct Item {
    int choice = 0;
    Event event;
    Clock::time_point at;
  };

  explicit Generation(Engine& engine);
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;
  ~Generation();

  void submit(Request request);  // its events carry the number of this call, from 0
  void cancel(int choice);
  // Calls this, in the engine's thread, when an event has come or is here already.
  void on_event(std::function<void()> wake);
  // The next event, or nothing after `patience`.
  bool next(Item& item, std::chrono::milliseconds patience);

 private:
  struct Mailbox;
  Engine& engine_;
  std::shared_ptr<Mailbox> box_;
  std::vector<uint64_t> ids_;
};

}  // namespace carat
