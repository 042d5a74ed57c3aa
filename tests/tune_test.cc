#include <doctest/doctest.h>

#include "apps/tune_runs.h"

using namespace carat;

namespace {
const Setting kPlain{2, "f16", "", "0"}, kSuffix{2, "f16", "suffix", "2"}, kMtp{2, "q8_0", "mtp", "4"};
Tried rounds(std::vector<double> tok_s) { return {std::move(tok_s), NAN, NAN}; }
}  // namespace

TEST_CASE(
    "settings that lead are told apart by their rounds in pairs, whatever the machine did between rounds") {
  CHECK_FALSE(told_apart({}));
  // Rounds of 50 to 100 tok/s; in each the first is 10 % faster.
  CHECK(told_apart({{kSuffix, rounds({110, 55, 88, 77})}, {kMtp, rounds({100, 50, 80, 70})}}));
  CHECK_FALSE(told_apart({{kSuffix, rounds({110, 55, 88})}, {kMtp, rounds({100, 50, 80})}}));
  // As fast as each other, without noise: nothing is left to tell.
  CHECK(told_apart({{kSuffix, rounds({100, 50, 80, 70})}, {kMtp, rounds({100.2, 50, 80, 70})}}));
  // Faster on average, but each won twice.
  CHECK_FALSE(told_apart({{kSuffix, rounds({130, 45, 88, 60})}, {kMtp, rounds({100, 50, 80, 70})}}));
  // Told from one of the others is not told from all.
  CHECK_FALSE(told_apart({{kPlain, rounds({50, 25, 40, 35})},
                          {kSuffix, rounds({110, 45, 88, 65})},
                          {kMtp, rounds({100, 50, 80, 70})}}));
}

TEST_CASE("of settings as fast as the fastest within the noise the simplest is chosen") {
  TuneOptions o;
  o.caches = {"f16", "q8_0"};
  const auto chosen = [&](const Finals& finals) { return choose_final(finals, o)->first; };
  CHECK(chosen({{kPlain, rounds({99})}, {kSuffix, rounds({100})}, {kMtp, rounds({100})}}) == kPlain);
  CHECK(chosen({{kPlain, rounds({90})}, {kSuffix, rounds({99})}, {kMtp, rounds({100})}}) == kSuffix);
  CHECK(chosen({{kPlain, rounds({90})}, {kSuffix, rounds({95})}, {kMtp, rounds({100})}}) == kMtp);
  CHECK(chosen({{kPlain, rounds({90, 200, 91})}, {kMtp, rounds({100, 100, 10})}}) == kMtp);  // medians
}
