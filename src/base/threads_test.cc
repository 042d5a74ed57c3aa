#include "base/threads.h"

#include <doctest/doctest.h>

#include <chrono>

using namespace carat;

TEST_CASE("a team runs every worker once a region, and regions order their writes") {
  for (const int n : {1, 2, 3, 5}) {
    Team team(n);
    REQUIRE(team.size() == n);
    std::vector<int> a(n), b(n);
    for (int round = 1; round <= 200; ++round) {
      team.start([&](int w) { a[w] = round * 100 + w; });
      team.start([&](int w) {
        b[w] = a[(w + 1) % n];  // another worker's value, written in the region before
      });
      team.wait();
      for (int w = 0; w < n; ++w) {
        CHECK(a[w] == round * 100 + w);
        CHECK(b[w] == round * 100 + (w + 1) % n);
      }
    }
  }
}

TEST_CASE("a team that has fallen asleep wakes for the next region") {
  Team team(2);
  std::atomic<int> runs{0};
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    team.start([&](int) { ++runs; });
  }
  team.wait();
  CHECK(runs == 6);
}

TEST_CASE("the default team fits the machine") {
  CHECK(available_cpus() >= 1);
  CHECK(Team(0).size() == available_cpus());
}
