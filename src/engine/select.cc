#include "engine/select.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace carat {

Maximum find_maximum(std::span<const float> values) {
  constexpr size_t kLanes = 32;
  constexpr float kHighest = std::numeric_limits<float>::max();
  std::array<float, kLanes> best;
  std::array<uint32_t, kLanes> bad{};
  best.fill(-std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes)
    for (size_t l = 0; l < kLanes; ++l) {
      const float x = values[i + l];
      best[l] = x > best[l] ? x : best[l];
      bad[l] |= x <= kHighest ? 0u : 1u;
    }
  for (; i < values.size(); ++i) {
    best[0] = values[i] > best[0] ? values[i] : best[0];
    bad[0] |= values[i] <= kHighest ? 0u : 1u;
  }
  Maximum m;
  for (size_t l = 0; l < kLanes; ++l) {
    m.value = std::max(m.value, best[l]);
    m.finite = m.finite && bad[l] == 0;
  }
  return m;
}

Token first_of(std::span<const float> values, float value) {
  constexpr size_t kLanes = 64;
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    uint32_t any = 0;
    for (size_t l = 0; l < kLanes; ++l) any |= values[i + l] == value ? 1u : 0u;
    if (any) break;
  }
  const auto at = std::find(values.begin() + static_cast<std::ptrdiff_t>(i), values.end(), value);
  CARAT_CHECK(at != values.end());
  return static_cast<Token>(at - values.begin());
}

void select_top(std::span<const float> values, size_t k, std::vector<Scored>& out) {
  out.clear();
  float bar = std::numeric_limits<float>::lowest();  // what a value must reach
  const size_t spare = std::max<size_t>(k, 256);
  size_t limit = k + spare;
  // Keeps the k best and their ties; raises the bar.
  const auto compact = [&] {
    if (out.size() <= k) return;
    const auto kth = out.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(out.begin(), kth, out.end(), before);
    bar = kth->value;
    std::erase_if(out, [bar](const Scored& s) { return s.value < bar; });
    limit = out.size() + spare;
  };
  constexpr size_t kLanes = 32;
  for (size_t i = 0; i < values.size(); i += kLanes) {
    const size_t n = std::min(kLanes, values.size() - i);
    uint32_t any = 0;
    if (n == kLanes)
      for (size_t l = 0; l < kLanes; ++l) any |= values[i + l] >= bar ? 1u : 0u;
    if (n == kLanes && !any) continue;
    for (size_t l = 0; l < n; ++l)
      if (values[i + l] >= bar) out.push_back({values[i + l], static_cast<Token>(i + l)});
    if (out.size() >= limit) compact();
  }
  compact();
}

namespace {

constexpr double kUnit = 0x1p44;            // the best token's mass; 2^19 tokens fit into 64 bits
constexpr double kLeast = -45 * 0.6931472;  // below: no mass
constexpr int kFine = 8, kShift = 52 - kFine, kBuckets = (46 << kFine) + 1;

// exp(x) for -700 < x <= 0 to 1e-15, inline: the library's costs more than all the rest of a top-p over the
// vocabulary. x = (n / 128) ln 2 + r; 2^(n / 128) from a table, exp(r) from its series.
constexpr double kLn2 = 0x1.62e42fefa39efp-1;
constexpr std::array<double, 128> kPowers = [] {
  std::array<double, 128> t{};
  for (int j = 0; j < 128; ++j) {
    double term = 1;
    for (int k = 1; k < 24; ++k) {
      t[j] += term;
      term *= kLn2 * j / 128 / k;
    }
  }
  return t;
}();
inline double exp_negative(double x) {
  constexpr double kRound = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
  const double shifted = x * (128 / kLn2) + kRound;
  const auto n = static_cast<int64_t>(std::bit_cast<uint64_t>(shifted) - std::bit_cast<uint64_t>(kRound));
  const double r = x - (shifted - kRound) * (kLn2 / 128);
  const double series = 1 + r * (1 + r * (1.0 / 2 + r * (1.0 / 6 + r * (1.0 / 24))));
  const double power = kPowers[n & 127] * series;
  return std::bit_cast<double>(std::bit_cast<uint64_t>(power) + (static_cast<uint64_t>(n >> 7) << 52));
}

struct Mass {
  uint64_t mass;
  int bucket;  // ascending while masses fall
};
Mass mass_of(double distance) {
  if (distance < kLeast) return {0, -1};
  const double e = std::min(1.0, exp_negative(distance));
  const int bucket =
      static_cast<int>((std::bit_cast<uint64_t>(1.0) >> kShift) - (std::bit_cast<uint64_t>(e) >> kShift));
  return {static_cast<uint64_t>(e * kUnit), std::min(bucket, kBuckets - 1)};
}

}  // namespace

Cut mass_cut(std::span<const Scored> items, float best, double temperature, double p) {
  CARAT_CHECK(items.size() < (size_t{1} << 19), "{}", items.size());
  const double inverse = 1 / temperature;
  const auto distance = [&](const Scored& s) { return (double{s.value} - best) * inverse; };
  uint64_t total = 0;
  std::vector<Scored> part;  // a stretch of the order in which the prefix ends
  uint64_t need = 0;
  const auto share = [&] {
    return std::clamp<uint64_t>(static_cast<uint64_t>(std::ceil(p * static_cast<double>(total))), 1, total);
  };
  if (items.size() <= 4096) {
    for (const Scored& s : items) total += mass_of(distance(s)).mass;
    part.assign(items.begin(), items.end());
    need = share();
  } else {
    struct Bucket {
      uint64_t mass = 0;
      float low = std::numeric_limits<float>::max(), high = std::numeric_limits<float>::lowest();
    };
    std::vector<Bucket> buckets(kBuckets);
    for (const Scored& s : items) {
      const Mass m = mass_of(distance(s));
      if (m.bucket < 0) continue;
      Bucket& b = buckets[m.bucket];
      b.mass += m.mass;
      b.low = std::min(b.low, s.value);
      b.high = std::max(b.high, s.value);
      total += m.mass;
    }
    need = share();
    size_t at = 0;
    while (buckets[at].mass < need) need -= buckets[at++].mass;
    for (const Scored& s : items)
      if (s.value >= buckets[at].low && s.value <= buckets[at].high) part.push_back(s);
  }
  // Halve until one is left: linear, whatever the values.
  auto first = part.begin(), last = part.end();
  while (last - first > 1) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, before);
    uint64_t mass = 0;
    for (auto s = first; s != middle; ++s) mass += mass_of(distance(*s)).mass;
    if (mass >= need) {
      last = middle;
    } else {
      need -= mass;
      first = middle;
    }
  }
  return {first->value, first->id};
}

}  // namespace carat
