// What repeated timings of several settings beside each other tell. Every round runs one prompt with all
// settings, one straight after the other, so that what else the machine does hits all of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace carat {

class Comparison {
 public:
  explicit Comparison(size_t prompts) : rounds_(prompts) {}
  // Seconds a token of every setting, on that prompt.
  void add(size_t prompt, std::vector<double> seconds) { rounds_[prompt].push_back(std::move(seconds)); }

  size_t rounds() const { return rounds_.empty() ? 0 : rounds_.front().size(); }

  enum class Part : uint8_t { all, even, odd };  // of the rounds
  // Speed of setting a over that of b, all prompts together: of each prompt the median over the rounds.
  double ratio(size_t a, size_t b, Part part = Part::all) const;
  // Nine of ten such medians lie between, had other rounds been drawn from those that were run.
  struct Range {
    double low = 0, high = 0;
  };
  Range range(size_t a, size_t b) const;
  double tokens_per_second(size_t setting) const;  // medians
  size_t best(const std::vector<size_t>& settings) const { return best(settings, Part::all); }
  // Setting a over the best of some. Picking the best among noisy figures flatters it: so it is picked on one
  // half of the rounds and compared on the other, both ways, and the mean of the two is told.
  double over_best(size_t a, const std::vector<size_t>& settings) const;

 private:
  using Rounds = std::vector<std::vector<size_t>>;  // of every prompt, those to be looked at
  Rounds rounds_of(Part part) const;
  double ratio(size_t a, size_t b, const Rounds& which) const;
  size_t best(const std::vector<size_t>& settings, Part part) const;

  std::vector<std::vector<std::vector<double>>> rounds_;  // [prompt][round][setting]
};

}  // namespace carat
