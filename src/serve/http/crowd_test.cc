#include "serve/http/crowd.h"

#include <doctest/doctest.h>

using namespace carat;

TEST_CASE("a crowd has gone when most of it stays away") {
  Crowd crowd;
  Crowd::Clock::time_point now{};
  const auto after = [&](int seconds, size_t clients) {
    now += std::chrono::seconds(seconds);
    return crowd.has_gone(clients, now);
  };
  CHECK_FALSE(after(1, 200));  // no crowd
  CHECK_FALSE(after(9, 0));
  CHECK_FALSE(after(1, 1000));
  CHECK_FALSE(after(1, 100));
  CHECK_FALSE(after(1, 900));  // it is back
  CHECK_FALSE(after(1, 100));
  CHECK_FALSE(after(1, 100));
  CHECK(after(2, 90));
  CHECK_FALSE(after(1, 90));
  CHECK(after(10, 90));  // once more
  CHECK_FALSE(after(10, 90));
  CHECK_FALSE(after(10, 0));  // of those few
}
