#include "apps/spec_compare.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace carat {
namespace {

constexpr int kDraws = 200;  // of rounds, for ranges

double median(std::vector<double> v) {
  if (v.empty()) return 0;
  const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), middle, v.end());
  return v.size() % 2 ? *middle : 0.5 * (*middle + *std::max_element(v.begin(), middle));
}

}  // namespace

Comparison::Rounds Comparison::rounds_of(Part part) const {
  Rounds which(rounds_.size());
  for (size_t p = 0; p < rounds_.size(); ++p)
    for (size_t r = 0; r < rounds_[p].size(); ++r)
      if (part == Part::all || (r % 2 == 1) == (part == Part::odd)) which[p].push_back(r);
  return which;
}

double Comparison::ratio(size_t a, size_t b, const Rounds& which) const {
  double time_a = 0, time_b = 0;
  for (size_t p = 0; p < rounds_.size(); ++p) {
    std::vector<double> of_b, quotients;
    for (const size_t r : which[p]) {
      of_b.push_back(rounds_[p][r][b]);
      quotients.push_back(rounds_[p][r][a] / rounds_[p][r][b]);
    }
    const double seconds = median(std::move(of_b));
    time_b += seconds;
    time_a += seconds * median(std::move(quotients));
  }
  return time_a > 0 ? time_b / time_a : 1;
}

double Comparison::ratio(size_t a, size_t b, Part part) const { return ratio(a, b, rounds_of(part)); }

Comparison::Range Comparison::range(size_t a, size_t b) const {
  std::vector<double> ratios;
  Rounds which = rounds_of(Part::all);
  for (int i = 0; i < kDraws; ++i) {
    for (size_t p = 0; p < which.size(); ++p)
      for (size_t r = 0; r < which[p].size(); ++r)
        which[p][r] =
            static_cast<size_t>(uniform_noise(static_cast<uint64_t>(i), p, static_cast<int32_t>(r)) *
                                static_cast<double>(which[p].size()));
    ratios.push_back(ratio(a, b, which));
  }
  std::sort(ratios.begin(), ratios.end());
  return {ratios[kDraws / 20], ratios[kDraws - 1 - kDraws / 20]};
}

double Comparison::tokens_per_second(size_t setting) const {
  double seconds = 0;
  for (const auto& rounds : rounds_) {
    std::vector<double> each;
    for (const auto& round : rounds) each.push_back(round[setting]);
    seconds += median(std::move(each));
  }
  return static_cast<double>(rounds_.size()) / seconds;
}

size_t Comparison::best(const std::vector<size_t>& settings, Part part) const {
  const auto slower = [&](size_t x, size_t y) { return ratio(x, 0, part) < ratio(y, 0, part); };
  return *std::max_element(settings.begin(), settings.end(), slower);
}

double Comparison::over_best(size_t a, const std::vector<size_t>& settings) const {
  return 0.5 *
         (ratio(a, best(settings, Part::even), Part::odd) + ratio(a, best(settings, Part::odd), Part::even));
}

}  // namespace carat
