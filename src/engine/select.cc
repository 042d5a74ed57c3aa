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

// The best token weighs 2^44: 2^19 tokens fit into 64 bits.
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
  return std::bit_cast<double>(std::bit_cast<uint64_t>(power) + (static_cast<uint64_t>(n) >> 7 << 52));
}

// Branches and conversions that vectors have no instructions for are avoided: block_masses() runs this on
// many values at once, and both must give the same bits.
struct Mass {
  uint64_t mass;
  int64_t bucket;  // ascending while masses fall; kBuckets: no mass
};
inline Mass mass_of(double distance) {  // <= 0
  constexpr auto kFar = std::bit_cast<int64_t>(-kLeast), kOne = std::bit_cast<int64_t>(1.0);
  constexpr int64_t kMantissa = (int64_t{1} << 52) - 1;
  const auto far = std::bit_cast<int64_t>(0.0 - distance);  // positive doubles order like their bits
  const int64_t counts = far > kFar ? 0 : -1;
  const auto power = std::bit_cast<int64_t>(exp_negative(-std::bit_cast<double>(far & counts)));
  const int64_t bits = power < kOne ? power : kOne;
  // e * 2^44, cut: the significand shifted to its place.
  const uint64_t mass = static_cast<uint64_t>((bits & kMantissa) | (kMantissa + 1)) >>
                        static_cast<uint64_t>(1023 + 52 - 44 - (bits >> 52));
  const int64_t bucket = (kOne >> kShift) - (bits >> kShift);
  return {mass & static_cast<uint64_t>(counts), (bucket & counts) | (kBuckets & ~counts)};
}

constexpr size_t kMassBlock = 64;
struct MassBlock {
  std::array<uint64_t, kMassBlock> mass;
  std::array<int64_t, kMassBlock> bucket;
};
// The thread sanitizer instruments resolvers, which run before it does.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx2", "default")))
#endif
void block_masses(const float* values, double best, double inverse, MassBlock& out) {
  for (size_t l = 0; l < kMassBlock; ++l) {
    const Mass m = mass_of((double{values[l]} - best) * inverse);
    out.mass[l] = m.mass;
    out.bucket[l] = m.bucket;
  }
}

// Where the shortest prefix of `part` whose mass reaches `need` ends, halving until one is left: linear,
// whatever the values.
template <class Distance>
Cut prefix_end(std::vector<Scored>& part, uint64_t need, Distance distance) {
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
uint64_t share_of(uint64_t total, double p) {
  return std::clamp<uint64_t>(static_cast<uint64_t>(std::ceil(p * static_cast<double>(total))), 1, total);
}

}  // namespace

Cut mass_cut(std::span<const Scored> items, float best, double temperature, double p) {
  const double inverse = 1 / temperature;
  const auto distance = [&](const Scored& s) { return (double{s.value} - best) * inverse; };
  uint64_t total = 0;
  for (const Scored& s : items) total += mass_of(distance(s)).mass;
  std::vector<Scored> part(items.begin(), items.end());
  return prefix_end(part, share_of(total, p), distance);
}

Cut mass_cut(std::span<const float> values, float best, double temperature, double p) {
  CARAT_CHECK(values.size() < (size_t{1} << 19), "{}", values.size());
  const double inverse = 1 / temperature;
  // Reused between calls: which bucket a value is in, and what the buckets weigh.
  thread_local std::vector<uint16_t> bucket_of;
  std::array<uint64_t, kBuckets + 1> weight{};
  static_assert(kBuckets < 65536);
  bucket_of.resize((values.size() + kMassBlock - 1) / kMassBlock * kMassBlock);
  MassBlock block;
  uint64_t total = 0;
  for (size_t i = 0; i < values.size(); i += kMassBlock) {
    const size_t n = std::min(kMassBlock, values.size() - i);
    std::array<float, kMassBlock> padded;
    if (n < kMassBlock) {
      padded.fill(-std::numeric_limits<float>::infinity());
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(i), n, padded.begin());
    }
    block_masses(n < kMassBlock ? padded.data() : values.data() + i, best, inverse, block);
    for (size_t l = 0; l < kMassBlock; ++l) {
      bucket_of[i + l] = static_cast<uint16_t>(block.bucket[l]);
      weight[block.bucket[l]] += block.mass[l];
      total += block.mass[l];
    }
  }
  uint64_t need = share_of(total, p);
  uint16_t at = 0;
  while (weight[at] < need) need -= weight[at++];
  std::vector<Scored> part;  // the stretch of the order in which the prefix ends
  for (size_t i = 0; i < values.size(); ++i)
    if (bucket_of[i] == at) part.push_back({values[i], static_cast<Token>(i)});
  return prefix_end(part, need, [&](const Scored& s) { return (double{s.value} - best) * inverse; });
}

bool collect(std::span<const float> values, const Cut& cut, size_t most, std::vector<Scored>& out) {
  out.clear();
  constexpr size_t kLanes = 64;
  for (size_t i = 0; i < values.size(); i += kLanes) {
    const size_t n = std::min(kLanes, values.size() - i);
    uint32_t any = 0;
    for (size_t l = 0; l < n; ++l) any |= values[i + l] >= cut.value ? 1u : 0u;
    if (!any) continue;
    for (size_t l = 0; l < n; ++l) {
      const Scored s{values[i + l], static_cast<Token>(i + l)};
      if (cut.keeps(s)) out.push_back(s);
    }
    if (out.size() > most) return false;
  }
  return true;
}

}  // namespace carat
