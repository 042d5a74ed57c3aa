// Comparing settings by their clocks: what is equal must look equal, whatever the machine does meanwhile.
#include <doctest/doctest.h>

#include <cmath>

#include "apps/spec_compare.h"
#include "base/rng.h"

using namespace carat;

namespace {

// Rounds of settings with these speeds over the first; the machine's own speed drifts, single runs are off by
// `noise`, and some are held up.
Comparison measured(const std::vector<double>& speeds, int rounds, double noise) {
  Comparison c(2);
  for (int r = 0; r < rounds; ++r)
    for (size_t p = 0; p < 2; ++p) {
      const double drift = 1 + 0.5 * std::sin(0.1 * r);
      std::vector<double> seconds;
      for (size_t s = 0; s < speeds.size(); ++s) {
        const auto key = static_cast<uint64_t>(r) * 2 + p;
        const double u = uniform_noise(3, key, static_cast<int32_t>(s)) - 0.5;
        const double held_up = uniform_noise(4, key, static_cast<int32_t>(s)) < 0.1 ? 3 : 1;
        seconds.push_back(static_cast<double>(p + 1) * drift * held_up * (1 + noise * u) / speeds[s]);
      }
      c.add(p, std::move(seconds));
    }
  return c;
}

}  // namespace

TEST_CASE("medians of neighbours in time see through drift and hold-ups") {
  const Comparison c = measured({1, 1, 1.25}, 40, 0.02);
  CHECK(c.ratio(1, 0) == doctest::Approx(1).epsilon(0.005));
  CHECK(c.ratio(2, 0) == doctest::Approx(1.25).epsilon(0.005));
  CHECK(c.ratio(0, 2) == doctest::Approx(0.8).epsilon(0.005));
  const Comparison::Range range = c.range(1, 0);
  CHECK(range.low < 1);
  CHECK(range.high > 1);
  CHECK(range.high - range.low < 0.02);
  CHECK(c.best({0, 1, 2}) == 2);
}

TEST_CASE("the best of equal settings, picked with hindsight, looks better than it is") {
  double hindsight = 0, crossed = 0;
  for (const int rounds : {10, 12, 14, 16, 18, 20}) {
    const Comparison c = measured(std::vector<double>(8, 1.0), rounds, 0.3);
    const std::vector<size_t> rivals{0, 1, 2, 3, 4, 5, 6};
    hindsight += c.ratio(7, c.best(rivals)) / 6;
    crossed += c.over_best(7, rivals) / 6;
  }
  CHECK(hindsight < 0.97);
  CHECK(std::abs(crossed - 1) < std::abs(hindsight - 1));
  CHECK(crossed == doctest::Approx(1).epsilon(0.03));
}
