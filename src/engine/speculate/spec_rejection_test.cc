// The law of accept_or_draw, exactly as Leviathan et al. state it.
#include "engine/speculate/spec_rejection.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>

#include "base/rng.h"

using namespace carat;

namespace {

constexpr std::array<float, 5> kLaw{0.4F, 0.3F, 0.2F, 0.1F, 0}, kGuess{0.1F, 0.3F, 0, 0.2F, 0.4F};
constexpr int kDraws = 40000;

double noise(int i, uint32_t stream) { return uniform_noise(5, static_cast<uint64_t>(i), stream); }

Token draw(const std::array<float, 5>& law, double u) {
  for (size_t t = 0; t < law.size(); ++t)
    if ((u -= double{law[t]}) < 0) return static_cast<Token>(t);
  return 0;
}

double chi2(const std::array<int, 5>& seen) {
  double sum = 0;
  for (size_t t = 0; t < 4; ++t) {
    const double want = double{kLaw[t]} * kDraws, d = seen[t] - want;
    sum += d * d / want;
  }
  return sum;
}

}  // namespace

TEST_CASE("what comes out has the target's law, whatever was drafted, and is the draft as often as can be") {
  std::array<int, 5> drawn{}, fixed{};
  int kept = 0;
  for (int i = 0; i < kDraws; ++i) {
    const Token drafted = draw(kGuess, noise(i, 1));
    const Token t = accept_or_draw(kLaw, kGuess, drafted, noise(i, 2), noise(i, 3));
    ++drawn[static_cast<size_t>(t)];
    kept += t == drafted;
    ++fixed[static_cast<size_t>(accept_or_draw(kLaw, {}, 2, noise(i, 4), noise(i, 5)))];
  }
  // 3 degrees of freedom, one in ten thousand.
  CHECK(chi2(drawn) < 21.1);
  CHECK(chi2(fixed) < 21.1);
  CHECK(drawn[4] == 0);
  CHECK(fixed[4] == 0);
  double overlap = 0;  // 1 - TV
  for (size_t t = 0; t < 5; ++t) overlap += double{std::min(kLaw[t], kGuess[t])};
  CHECK(kept / double{kDraws} == doctest::Approx(overlap).epsilon(0.02));
  // A drafter that draws as the target does is never refused, one that knows fewer tokens is no harm.
  CHECK(accept_or_draw(kLaw, kLaw, 3, 0.999999, 0.5) == 3);
  CHECK(accept_or_draw(kLaw, std::span(kGuess).first(2), 1, 0.9, 0.5) == 1);
}
