#include "engine/depth.h"

#include <algorithm>
#include <cmath>

namespace carat {
namespace {

// Variances of logarithms: a measurement's noise, what the level and a ratio may drift in a step, a first
// guess.
constexpr double kNoise = 0.05 * 0.05, kLevelDrift = 0.02 * 0.02, kRatioDrift = 1e-5, kGuess = 0.3 * 0.3;
constexpr double kFirstNoise = 0.2 * 0.2;  // the first of its kind may have had something to prepare
constexpr double kStale = 0.09 * 0.09;
constexpr double kGentleSlope = 0.05, kLeastSlope = 0.01;  // per row, where nothing is known
constexpr double kFirstPasses = 4;
constexpr double kHope = 0.5;  // standard deviations

constexpr float kKeepRequest = 1 - 1.0F / 128, kKeepGeneral = 1 - 1.0F / 512, kKeepRound = 0.998F;
constexpr float kRecent = 16, kClearly = 3;  // observations; standard deviations
constexpr double kFirstPlace = 0.6;          // acceptance nobody has measured yet

// Many rows are measured in groups: fewer numbers to learn, each from more steps.
int32_t representative(int32_t rows) {
  const int32_t group = rows <= 16 ? 1 : rows <= 32 ? 4 : rows <= 64 ? 8 : 16;
  return std::min((rows + group / 2) / group * group, StepCost::kRows);
}

}  // namespace

bool StepCost::known(int32_t rows) const { return bin(representative(rows)).seen > 1; }

void StepCost::observe(int32_t rows, double seconds) {
  if (rows < 1 || !(seconds > 0)) return;
  rows = std::min(rows, kRows);
  const int32_t kept = representative(rows);
  Bin& b = bins_[static_cast<size_t>(kept)];
  const double y = std::log(seconds) - (any_ ? std::log(ratio(rows) / ratio(kept)) : 0);
  if (!any_) {
    log_level_ = y;
    level_variance_ = kNoise;
    any_ = true;
    b = {0, 0, 1};
    return;
  }
  if (b.seen == 0) b = {std::log(ratio(kept)), kGuess, 0};
  level_variance_ += kLevelDrift;
  for (Bin& other : bins_)
    if (other.seen > 0) other.variance += kRatioDrift;
  const double total = level_variance_ + b.variance + (b.seen == 0 ? kFirstNoise : kNoise);
  const double limit = 3 * std::sqrt(total);
  const double surprise = std::clamp(y - log_level_ - b.log_ratio, -limit, limit);
  const double level_gain = level_variance_ / total, ratio_gain = b.variance / total;
  log_level_ += level_gain * surprise;
  b.log_ratio += ratio_gain * surprise;
  level_variance_ *= 1 - level_gain;
  b.variance *= 1 - ratio_gain;
  ++b.seen;
}

bool StepCost::stale(int32_t rows) const {
  const Bin& b = bin(representative(rows));
  return b.seen < 2 || b.variance > kStale;
}

double StepCost::level() const { return std::exp(log_level_); }

double StepCost::ratio(int32_t rows) const { return estimate(rows, 0); }
double StepCost::hopeful(int32_t rows) const { return estimate(rows, kHope); }

double StepCost::estimate(int32_t rows, double hope) const {
  const auto at = [&](int32_t r) { return std::exp(bin(r).log_ratio - hope * std::sqrt(bin(r).variance)); };
  rows = std::clamp(rows, 1, kRows);
  if (bin(rows).seen > 0) return at(rows);
  int32_t below = rows, above = rows, first = 1;
  while (below > 0 && bin(below).seen == 0) --below;
  while (above <= kRows && bins_[static_cast<size_t>(above)].seen == 0) ++above;
  while (first < below && bin(first).seen == 0) ++first;
  if (below == 0) return above <= kRows ? at(above) : 1;
  if (above <= kRows) {
    const double part = static_cast<double>(rows - below) / (above - below);
    return at(below) + part * (at(above) - at(below));
  }
  const double slope = first < below
                           ? std::max(kLeastSlope * at(first), (at(below) - at(first)) / (below - first))
                           : kGentleSlope * at(below);
  return at(below) + slope * (rows - below);
}

void DraftCost::observe(int32_t depth, double share_now) {
  // The first passes may have had to read a prompt or to prepare; the first without that says what it costs.
  if (weight_ > 0 && weight_ < kFirstPasses && share_now < 0.5 * share(depth)) weight_ = 0;
  const double keep = weight_ > 0 ? 0.97 : 0, d = depth;
  weight_ = keep * weight_ + 1;
  depth_ = keep * depth_ + d;
  share_ = keep * share_ + share_now;
  depth2_ = keep * depth2_ + d * d;
  depth_share_ = keep * depth_share_ + d * share_now;
}

double DraftCost::share(int32_t depth) const {
  if (weight_ <= 0) return 0.03 * depth;
  const double d = depth_ / weight_, s = share_ / weight_;
  const double spread = depth2_ / weight_ - d * d;
  // Before several depths were seen: half of it is per token.
  double slope = 0.5 * s / std::max(1.0, d);
  if (spread > 0.1) slope = std::clamp((depth_share_ / weight_ - d * s) / spread, 0.0, s / std::max(1.0, d));
  return std::max(0.0, s + slope * (depth - d));
}

void Acceptance::Cell::add(bool hit, float keep) {
  constexpr float kKeepRecent = 1 - 1 / kRecent;
  const float y = hit ? 1.0F : 0.0F;
  n = n * keep + 1;
  right = right * keep + y;
  recent_n = recent_n * kKeepRecent + 1;
  recent = recent * kKeepRecent + y;
  if (n < 2 * kRecent || recent_n < kRecent / 2) return;
  const float mean = right / n, now = recent / recent_n;
  const float deviation = std::sqrt((mean * (1 - mean) + 0.01F) / (2 * kRecent));
  if (std::abs(now - mean) > kClearly * deviation) n = recent_n, right = recent;
}

size_t Acceptance::confidence_cell(int32_t place, float confidence) {
  static constexpr float kEdges[kBuckets - 1] = {0.02F, 0.05F, 0.1F, 0.2F,  0.35F, 0.5F,
                                                 0.65F, 0.8F,  0.9F, 0.96F, 0.99F};
  const auto bucket = std::upper_bound(std::begin(kEdges), std::end(kEdges), confidence) - std::begin(kEdges);
  const int32_t kind = place == 0 ? 0 : place < 3 ? 1 : 2;
  return static_cast<size_t>(kind * kBuckets + bucket);
}

void Acceptance::observe(int32_t place, float confidence, bool right) {
  const float keep = general_ ? kKeepRequest : kKeepGeneral;
  places_[static_cast<size_t>(std::min(place, kPlaces - 1))].add(right, keep);
  if (confidence >= 0) confidence_[confidence_cell(place, confidence)].add(right, keep);
}

void Acceptance::fade() {
  const auto less = [](auto& cells) {
    for (Cell& c : cells) c.n *= kKeepRound, c.right *= kKeepRound;
  };
  less(places_);
  less(confidence_);
}

// A place nobody has reached is taken to be like the one before it.
std::vector<double> Acceptance::by_place(int32_t depth) const {
  std::vector<double> p(static_cast<size_t>(depth));
  const std::vector<double> general = general_ ? general_->by_place(depth) : p;
  double before = kFirstPlace;
  for (int32_t i = 0; i < depth; ++i) {
    const Cell& c = places_[static_cast<size_t>(std::min(i, kPlaces - 1))];
    const double g = general[static_cast<size_t>(i)];
    const double guess = !general_ ? before : i == 0 ? g : 0.5 * (g + before);
    const double weight = general_ ? 4 : 2;
    before = p[static_cast<size_t>(i)] = (c.right + weight * guess) / (c.n + weight);
  }
  return p;
}

double Acceptance::of(int32_t place, float confidence) const {
  if (confidence < 0) return by_place(place + 1).back();
  const Cell& c = confidence_[confidence_cell(place, confidence)];
  const double guess = general_ ? general_->of(place, confidence) : std::min(confidence, 0.95F);
  const double weight = general_ ? 6 : 2;
  return (c.right + weight * guess) / (c.n + weight);
}

Worth rows_worth(const StepCost& cost, int32_t plain, int32_t alike, const std::vector<double>& survival,
                 double rate, int32_t most) {
  const double base = cost.ratio(plain);
  double sum = 0;
  Worth best;
  most = std::min(most, static_cast<int32_t>(survival.size()));
  for (int32_t n = 1; n <= most; ++n) {
    sum += survival[static_cast<size_t>(n - 1)];
    const double value = sum - rate * (cost.hopeful(plain + alike * n) - base) / alike;
    if (value > best.value) best = {n, value};
  }
  return best;
}

}  // namespace carat
