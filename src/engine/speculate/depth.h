// What speculation costs and what it brings, learnt while it runs: arithmetic only, no clock, no tokens. The
// choice made from it: spec_choice.cc.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace carat {

// Seconds of a step by its rows: a level that all steps share (the machine is busy, the context grows) times
// a ratio for every number of rows, that of one row being 1. Their logarithms are followed by a Kalman filter
// with its whole covariance, so that a step that took long says first that the machine is slow, and of its
// own number of rows only what steps beside it do not explain; and what is learnt of 20 rows holds for 18 as
// far as such numbers are alike.
class StepCost {
 public:
  static constexpr int32_t kRows = 64;
  explicit StepCost(int32_t rows = kRows);  // more are taken to be as many
  void observe(int32_t rows, double seconds);
  // Measured so long ago, or so seldom, that it should be looked at again.
  bool stale(int32_t rows) const;
  bool any() const { return any_; }  // was measured at all
  double level() const;              // seconds of a step of one row
  double ratio(int32_t rows) const { return ratio_[state_of(rows)]; }
  double seconds(int32_t rows) const { return level() * ratio(rows); }

 private:
  // 0: the level; r > 1: the ratio of r rows; 1 is not used.
  size_t states() const { return mean_.size(); }
  size_t state_of(int32_t rows) const {
    return std::clamp<size_t>(static_cast<size_t>(std::max(rows, 1)), 1, states() - 1);
  }
  double& covariance(size_t a, size_t b) { return covariance_[a * states() + b]; }
  double covariance(size_t a, size_t b) const { return covariance_[a * states() + b]; }

  std::vector<double> mean_, ratio_;
  std::vector<double> covariance_;  // [states][states]
  std::vector<double> with_;        // of every state with what was measured, for observe()
  std::vector<int32_t> seen_;
  bool any_ = false;
};

// Cost of a drafter's pass by the sequences it drafts for and by the depth asked for, as a share of
// StepCost::level(). Of about as many sequences a line over the depth, fitted with forgetting; of others what
// the nearest line says, growing like the root of their number.
class DraftCost {
 public:
  void observe(int32_t sequences, int32_t depth, double share);
  double share(int32_t sequences, int32_t depth) const;
  bool known() const { return passes_ >= 2; }  // the first one may have had to read a prompt

 private:
  struct Line {
    double weight = 0, depth = 0, share = 0, depth2 = 0, depth_share = 0;
    void add(double d, double s);
    double at(double d) const;
  };
  int64_t passes_ = 0;
  std::array<Line, 7> lines_;  // of 1, 2, 3 to 4, 5 to 8, ... sequences
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
