// What speculation costs and what it brings, learnt while it runs: arithmetic only, no clock, no tokens. The
// choice made from it: speculator.cc.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace carat {

// Seconds of a step by its rows. A level that all steps share (the machine is busy, the context grows) times
// a ratio per number of rows, both followed in logarithms by a Kalman filter with a diagonal covariance: what
// was measured often and lately moves little, what is stale moves to what it is seen to be.
class StepCost {
 public:
  static constexpr int32_t kRows = 512;
  StepCost() : bins_(kRows + 1) {}
  void observe(int32_t rows, double seconds);
  bool known(int32_t rows) const;
  // Measured so long ago, or so seldom, that it should be looked at again.
  bool stale(int32_t rows) const;
  double level() const;  // seconds of a step whose ratio is 1
  // Estimate; between measured numbers of rows on a line, beyond them on the mean slope or a gentle one.
  double ratio(int32_t rows) const;
  // The same, lower where little is known: what is tried first.
  double hopeful(int32_t rows) const;
  double seconds(int32_t rows) const { return level() * ratio(rows); }

 private:
  struct Bin {
    double log_ratio = 0, variance = 0;
    int32_t seen = 0;
  };
  const Bin& bin(int32_t rows) const { return bins_[static_cast<size_t>(rows < kRows ? rows : kRows)]; }
  double estimate(int32_t rows, double hope) const;

  std::vector<Bin> bins_;
  double log_level_ = 0, level_variance_ = 0;
  bool any_ = false;
};

// Cost of a drafter's pass by the depth asked for, as a share of StepCost::level(): a line, fitted with
// forgetting.
class DraftCost {
 public:
  void observe(int32_t depth, double share);
  double share(int32_t depth) const;
  bool known() const { return weight_ > 0; }

 private:
  double weight_ = 0, depth_ = 0, share_ = 0, depth2_ = 0, depth_share_ = 0;
};

// How often a drafted token is right, given that those before it were: by its place on the path, and by the
// drafter's confidence where it tells one. One for a drafter in general, one for each request, which starts
// from what holds in general.
class Acceptance {
 public:
  static constexpr int32_t kPlaces = 32;
  explicit Acceptance(const Acceptance* general = nullptr) : general_(general) {}
  void observe(int32_t place, float confidence, bool right);  // place from 0; confidence < 0: none told
  void fade();                                                // a round went by: what is old counts less
  // Conditional, for the first `depth` places, before anything is drafted.
  std::vector<double> by_place(int32_t depth) const;
  // Of one drafted token.
  double of(int32_t place, float confidence) const;

 private:
  // A mean over many observations, which gives way to one over few where these say clearly otherwise.
  struct Cell {
    float n = 0, right = 0, recent_n = 0, recent = 0;
    void add(bool hit, float keep);
  };
  static constexpr int32_t kClasses = 3, kBuckets = 12;
  static size_t confidence_cell(int32_t place, float confidence);

  const Acceptance* general_;
  std::array<Cell, kPlaces> places_{};
  std::array<Cell, kClasses * kBuckets> confidence_{};
};

// Survival: the probability that a drafted token and all before it are right. Of one sequence's candidates in
// descending order, how many rows are worth verifying when a unit of time is worth `rate` tokens, and what
// they bring above plain decoding. `plain` rows run anyway; `alike` sequences are taken to add as many rows
// each, and each pays its share.
struct Worth {
  int32_t rows = 0;
  double value = 0;
};
Worth rows_worth(const StepCost& cost, int32_t plain, int32_t alike, const std::vector<double>& survival,
                 double rate, int32_t most);

}  // namespace carat
