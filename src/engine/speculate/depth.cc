#include "engine/speculate/depth.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace carat {
namespace {

// Variances of logarithms: a measurement's noise, what the level and a ratio may drift in a step.
constexpr double kNoise = 0.05 * 0.05, kLevelDrift = 0.03 * 0.03, kRatioDrift = 0.5e-5;
constexpr double kJump = 9, kMostJump = 1;  // squared: from which surprise on in deviations, and at the most
constexpr double kDoubt = 0.02, kNothingKnown = 100;
constexpr double kFirstNoise = 0.1 * 0.1;  // the first of its kind may have had something to prepare
constexpr double kStale = 0.1 * 0.1;       // of the time of a step
constexpr double kGentleSlope = 0.05;      // per row, where nothing is known
// What ratios may differ from that slope by: as powers of the rows; from a number of rows to the next one,
// more so where kernels begin a new block of rows.
constexpr double kPower = 0.25 * 0.25, kWander = 0.01, kEach = 0.0005, kBlockOf4 = 0.006, kBlockOf8 = 0.01;
constexpr double kFirstPasses = 4, kUnknownCost = 0.03;  // of a token drafted, in plain steps

constexpr float kKeepRequest = 1 - 1.0F / 128, kKeepGeneral = 1 - 1.0F / 512, kKeepRound = 0.998F;
constexpr float kRecent = 16, kClearly = 3;  // observations; standard deviations
constexpr double kFirstPlace = 0.6;          // acceptance nobody has measured yet
// Observations that a first guess counts for, and what other requests have shown.
constexpr double kGuess = 2, kOthers = 16;

double step_variance(int32_t rows) {  // from that many rows to one more
  return kWander * std::log((rows + 1.0) / rows) + kEach + (rows % 4 == 0 ? kBlockOf4 : 0) +
         (rows % 8 == 0 ? kBlockOf8 : 0);
}

}  // namespace

StepCost::StepCost(int32_t rows) {
  const auto n = static_cast<size_t>(std::max(rows, 1)) + 1;
  mean_.assign(n, 0.0), ratio_.assign(n, 1.0), with_.assign(n, 0.0), seen_.assign(n, 0);
  covariance_.assign(n * n, 0.0);
  std::vector<double> walked(n);
  for (size_t r = 2; r < n; ++r) {
    mean_[r] = std::log(1 + kGentleSlope * static_cast<double>(r - 1));
    ratio_[r] = std::exp(mean_[r]);
    walked[r] = walked[r - 1] + step_variance(static_cast<int32_t>(r - 1));
  }
  for (size_t a = 2; a < n; ++a)
    for (size_t b = 2; b < n; ++b)
      covariance(a, b) = kPower * std::log(static_cast<double>(a)) * std::log(static_cast<double>(b)) +
                         walked[std::min(a, b)];
  covariance(0, 0) = kNothingKnown;
}

void StepCost::observe(int32_t rows, double seconds) {
  const size_t n = states(), r = state_of(rows);
  if (rows < 1 || static_cast<size_t>(rows) >= n || !(seconds > 0)) return;
  covariance(0, 0) += kLevelDrift;
  for (size_t i = 2; i < n; ++i) covariance(i, i) += kRatioDrift;
  for (size_t i = 0; i < n; ++i) with_[i] = covariance(i, 0) + (r > 1 ? covariance(i, r) : 0);
  double total = with_[0] + (r > 1 ? with_[r] : 0) + (seen_[r] == 0 ? kFirstNoise : kNoise);
  const double surprise = std::log(seconds) - mean_[0] - mean_[r];
  // What nobody expected is the machine's doing, until a step of other rows says otherwise.
  if (any_ && surprise * surprise > kJump * total) {
    const double more = std::max(0.0, std::min(surprise * surprise, kMostJump) - total);
    covariance(0, 0) += more, with_[0] += more, total += more;
    // Or, a little, that of what was believed of so many rows: else a wrong belief would never be given up.
    if (r > 1) covariance(r, r) += kDoubt * more, with_[r] += kDoubt * more, total += kDoubt * more;
  }
  for (size_t i = 0; i < n; ++i) {
    const double gain = with_[i] / total;
    mean_[i] += gain * surprise;
    ratio_[i] = std::exp(mean_[i]);
    for (size_t j = 0; j < n; ++j) covariance(i, j) -= gain * with_[j];
  }
  any_ = true;
  ++seen_[r];
}

bool StepCost::stale(int32_t rows) const {
  const size_t r = state_of(rows);
  if (seen_[r] < 2) return true;
  return covariance(0, 0) + (r > 1 ? 2 * covariance(0, r) + covariance(r, r) : 0) > kStale;
}

double StepCost::level() const { return ratio_[0]; }

void DraftCost::Line::add(double d, double s) {
  // The first passes may have had to read a prompt or to prepare; the first without that says what it costs.
  if (weight > 0 && weight < kFirstPasses && s < 0.5 * at(d)) weight = 0;
  const double keep = weight > 0 ? 0.97 : 0;
  weight = keep * weight + 1;
  depth = keep * depth + d;
  share = keep * share + s;
  depth2 = keep * depth2 + d * d;
  depth_share = keep * depth_share + d * s;
}

double DraftCost::Line::at(double asked) const {
  const double d = depth / weight, s = share / weight;
  const double spread = depth2 / weight - d * d;
  // Before several depths were seen: half of it is per token.
  double slope = 0.5 * s / std::max(1.0, d);
  if (spread > 0.1) slope = std::clamp((depth_share / weight - d * s) / spread, 0.0, s / std::max(1.0, d));
  return std::max(0.0, s + slope * (asked - d));
}

namespace {
int32_t line_of(int32_t sequences) {
  return std::min<int32_t>(6, std::bit_width(static_cast<uint32_t>(std::max(1, sequences) - 1)));
}
}  // namespace

void DraftCost::observe(int32_t sequences, int32_t depth, double share) {
  lines_[static_cast<size_t>(line_of(sequences))].add(depth, share);
  ++passes_;
}

double DraftCost::share(int32_t sequences, int32_t depth) const {
  if (!known()) return kUnknownCost * depth;
  const int32_t wanted = line_of(sequences), all = static_cast<int32_t>(lines_.size());
  for (int32_t away = 0; away < all; ++away)
    for (const int32_t at : {wanted - away, wanted + away}) {
      if (at < 0 || at >= all || lines_[static_cast<size_t>(at)].weight <= 0) continue;
      return lines_[static_cast<size_t>(at)].at(depth) * std::exp2(0.5 * (wanted - at));
    }
  return 0;
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
    const double weight = general_ ? kOthers : kGuess;
    before = p[static_cast<size_t>(i)] = (c.right + weight * guess) / (c.n + weight);
  }
  return p;
}

double Acceptance::of(int32_t place, float confidence) const {
  if (confidence < 0) return by_place(place + 1).back();
  const Cell& c = confidence_[confidence_cell(place, confidence)];
  const double guess = general_ ? general_->of(place, confidence) : std::min(confidence, 0.95F);
  const double weight = general_ ? kOthers : kGuess;
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
    const double value = sum - rate * (cost.ratio(plain + alike * n) - base) / alike;
    if (value > best.value) best = {n, value};
  }
  return best;
}

}  // namespace carat
