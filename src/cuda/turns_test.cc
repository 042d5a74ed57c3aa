#include "cuda/turns.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

using carat::cuda::Turns;

namespace {
void work(std::chrono::microseconds time) {
  for (const auto end = Turns::Clock::now() + time; Turns::Clock::now() < end;) {}
}
}  // namespace

TEST_CASE("a guest gets its turns beside a model that always asks again, and no two in a row") {
  const auto turns = std::make_shared<Turns>(std::chrono::hours(1));
  std::vector<char> order;  // a thread adds its letter while it has the turn
  std::atomic<bool> done = false;
  { const Turns::Turn turn(turns, false); }  // before its first turn the model has asked for nothing
  std::thread guest([&] {
    for (int i = 0; i < 20; ++i) {
      const Turns::Turn turn(turns, true);
      order.push_back('g');
      work(std::chrono::microseconds(300));
    }
    done = true;
  });
  while (!done) {
    const Turns::Turn turn(turns, false);
    order.push_back('m');
    work(std::chrono::microseconds(100));
  }
  guest.join();
  int32_t guests = 0, since = 2;
  for (const char c : order) {
    if (c == 'g') CHECK((guests++ == 0 || since >= 1));
    since = c == 'g' ? 0 : since + 1;
  }
  CHECK(guests == 20);
}

TEST_CASE("a guest goes on alone where the model asks for nothing") {
  const auto turns = std::make_shared<Turns>(std::chrono::milliseconds(1));
  { const Turns::Turn turn(turns, false); }
  for (int i = 0; i < 5; ++i) {
    const Turns::Turn turn(turns, true);
    work(std::chrono::microseconds(50));
  }
  Turns::Turn held(turns, false);
  held = {};
  const Turns::Turn again(turns, false);  // it was given back
}
