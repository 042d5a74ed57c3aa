#include "serve/http/workers.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <thread>

using namespace carat;

TEST_CASE("a crowd of short tasks is worked off by few threads") {
  std::atomic<int> now{0}, most{0}, done{0};
  Workers workers(3, 100, 1);
  for (int i = 0; i < 200; ++i)
    workers.add([&] {
      const int at_once = ++now;
      for (int m = most; at_once > m && !most.compare_exchange_weak(m, at_once);) {}
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      --now;
      ++done;
    });
  workers.shutdown();
  CHECK(done == 200);
  CHECK(most <= 3);
}

TEST_CASE("tasks that wait for others keep nobody from working, up to all threads there may be") {
  std::latch came(5), go(1);
  Workers workers(2, 6, 1);
  for (int i = 0; i < 5; ++i)
    workers.add([&] {
      const Workers::Waits waits;
      const Workers::Waits within;  // counts once
      came.count_down();
      go.wait();
    });
  came.wait();  // with two threads it would never end
  workers.add([&] { go.count_down(); });
  workers.shutdown();
  CHECK(go.try_wait());
}

TEST_CASE("tasks that wait without saying so are noticed") {
  std::latch came(4), go(1);
  Workers workers(2, 6, 1);
  for (int i = 0; i < 4; ++i)
    workers.add([&] {
      came.count_down();
      go.wait();
    });
  workers.look(Workers::Clock::now());  // none has waited for long
  workers.look(Workers::Clock::now() + std::chrono::seconds(5));
  came.wait();
  go.count_down();
  workers.shutdown();
}

TEST_CASE("threads that are no workers may wait, too") {
  const Workers::Waits waits;
  CHECK(true);
}
