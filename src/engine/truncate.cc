#include "engine/truncate.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace carat {
namespace {

constexpr uint32_t kXtcCoin = ~uint32_t{0};  // a stream of noise that no token has

double sum_of_weights(std::span<const Scored> items, float best, double temperature) {
  double sum = 0;
  for (const Scored& s : items) sum += std::exp((double{s.value} - best) / temperature);
  return sum;
}

// In nats, of the softmax of values / temperature.
double entropy(std::span<const Scored> items, float best, double temperature) {
  double sum = 0, weighted = 0;
  for (const Scored& s : items) {
    const double distance = (double{s.value} - best) / temperature;
    const double w = std::exp(distance);
    sum += w;
    if (w > 0) weighted += w * distance;
  }
  return std::log(sum) - weighted / sum;
}

double first_bound(const SampleParams& p) { return 2.0 * p.mirostat_tau; }

// Zipf's exponent by least squares over the best tokens (Mirostat, equation 30).
double zipf_exponent(std::span<const Scored> sorted, double temperature) {
  double tt = 0, tb = 0;
  for (size_t i = 0; i + 1 < std::min<size_t>(sorted.size(), 100); ++i) {
    const double t = std::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
    tb += t * (double{sorted[i].value} - sorted[i + 1].value) / temperature;
    tt += t * t;
  }
  return tt > 0 ? tb / tt : 1;
}

// How many tokens Zipf's law lets have at most `bits` of surprise among n (Mirostat, algorithm 1).
double zipf_count(double s, double bits, double n) {
  const double e = s - 1;
  const double scale = std::abs(e) < 1e-6 ? 1 / std::log(n) : e / (1 - std::pow(n, -e));
  return std::pow(scale * std::exp2(bits), 1 / s);
}

}  // namespace

bool truncates(const SampleParams& p) {
  return p.mirostat != 0 || p.top_n_sigma > 0 || p.typical_p < 1 || p.xtc_probability > 0 ||
         p.dynatemp_range > 0;
}

void keep_all(std::span<const float> values, float bar, std::vector<Scored>& out) {
  out.clear();
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] >= bar) out.push_back({values[i], static_cast<Token>(i)});
}

float sigma_bar(std::span<const float> values, float best, double n) {
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  if (n <= 0) return kLowest;
  double sum = 0, squares = 0, count = 0;
  for (const float v : values) {
    if (v < kLowest) continue;  // banned
    const double d = double{v} - best;
    sum += d, squares += d * d, count += 1;
  }
  const double mean = sum / count;
  const double deviation = std::sqrt(std::max(0.0, squares / count - mean * mean));
  return std::min(best, static_cast<float>(best - n * deviation));
}

void keep_typical(std::vector<Scored>& items, float best, double temperature, double p) {
  struct Place {
    double off, share;  // distance of the surprise from the entropy; probability
    Scored item;
  };
  const double h = entropy(items, best, temperature);
  const double norm = std::log(sum_of_weights(items, best, temperature));
  std::vector<Place> all;
  for (const Scored& s : items) {
    const double logp = (double{s.value} - best) / temperature - norm;
    all.push_back({std::abs(-logp - h), std::exp(logp), s});
  }
  const auto nearer = [](const Place& a, const Place& b) {
    return a.off != b.off ? a.off < b.off : before(a.item, b.item);
  };
  // Halving until the one is left with which the sum is reached: linear.
  auto first = all.begin(), last = all.end();
  double need = p;
  while (last - first > 1) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, nearer);
    double sum = 0;
    for (auto i = first; i != middle; ++i) sum += i->share;
    if (sum >= need) {
      last = middle;
    } else {
      need -= sum;
      first = middle;
    }
  }
  items.clear();
  for (auto i = all.begin(); i != last; ++i) items.push_back(i->item);
}

void exclude_top(std::vector<Scored>& items, const SampleParams& p, int64_t pos) {
  if (uniform_noise(p.seed, static_cast<uint64_t>(pos), kXtcCoin) >= p.xtc_probability) return;
  float best = items.front().value;
  for (const Scored& s : items) best = std::max(best, s.value);
  const double bar = p.xtc_threshold * sum_of_weights(items, best, p.temperature);
  const Scored* least = nullptr;  // of those that reach the threshold
  const auto reaches = [&](const Scored& s) {
    return std::exp((double{s.value} - best) / p.temperature) >= bar;
  };
  for (const Scored& s : items)
    if (reaches(s) && (!least || before(*least, s))) least = &s;
  if (!least) return;
  const Scored stays = *least;
  std::erase_if(items, [&](const Scored& s) { return before(s, stays); });
}

double dynamic_temperature(std::span<const Scored> items, float best, const SampleParams& p) {
  if (p.dynatemp_range <= 0) return p.temperature;
  const double low = std::max(0.0, double{p.temperature} - p.dynatemp_range);
  const double high = double{p.temperature} + p.dynatemp_range;
  constexpr double kLeast = 1e-3;  // as good as greedy
  if (items.size() < 2) return std::max(low, kLeast);
  const double share =
      std::clamp(entropy(items, best, 1) / std::log(static_cast<double>(items.size())), 0.0, 1.0);
  return std::max(kLeast, low + (high - low) * std::pow(share, double{p.dynatemp_exponent}));
}

void keep_unsurprising(std::vector<Scored>& items, float best, const SampleParams& p,
                       const History& history) {
  const double bits = history.surprise_bound.value_or(first_bound(p));
  if (p.mirostat == 2) {
    // -log2 p <= bits, solved for the value.
    const double norm = std::log(sum_of_weights(items, best, p.temperature));
    const double bar = std::min(double{best}, best + p.temperature * (norm - bits * std::log(2.0)));
    std::erase_if(items, [bar](const Scored& s) { return double{s.value} < bar; });
    return;
  }
  const auto n = static_cast<double>(items.size());
  const size_t head = std::min<size_t>(items.size(), 100);
  std::partial_sort(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(head), items.end(), before);
  const double k = std::round(zipf_count(zipf_exponent(items, p.temperature), bits, n));
  if (!(k < n)) return;  // all, also where the exponent is not finite
  const auto most = static_cast<size_t>(std::max(1.0, k));
  if (most > head)
    std::nth_element(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(most), items.end(), before);
  items.resize(most);
}

void learn_surprise(std::span<const float> values, float best, const SampleParams& p, History& history,
                    Token picked) {
  double sum = 0;
  for (const float v : values) sum += std::exp((double{v} - best) / p.temperature);
  const double distance = (double{values[static_cast<size_t>(picked)]} - best) / p.temperature;
  const double surprise = (std::log(sum) - distance) / std::log(2.0);
  const double bound = history.surprise_bound.value_or(first_bound(p));
  if (std::isfinite(surprise)) history.surprise_bound = bound - p.mirostat_eta * (surprise - p.mirostat_tau);
}

}  // namespace carat
