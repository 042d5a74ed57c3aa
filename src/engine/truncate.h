// Filters that keep no prefix of the order, and need every candidate's probability: typical sampling,
// top-n-sigma, XTC, dynamic temperature, Mirostat. They are off by default and cost more than those of
// select.h. Lists are never left empty.
#pragma once
#include <span>
#include <vector>

#include "engine/sampler.h"
#include "engine/select.h"

namespace carat {

// Whether any of them is asked for.
bool truncates(const SampleParams& params);

// Every value from `bar` on.
void keep_all(std::span<const float> values, float bar, std::vector<Scored>& out);

// best - n * standard deviation of all finite values; n <= 0: the lowest float. It does not depend on the
// temperature.
float sigma_bar(std::span<const float> values, float best, double n);

// The fewest tokens whose surprise is nearest to the entropy, until their probabilities reach p.
void keep_typical(std::vector<Scored>& items, float best, double temperature, double p);

// XTC, whose coin is the noise at (seed, pos).
void exclude_top(std::vector<Scored>& items, const SampleParams& params, int64_t pos);

// temperature - range + 2 range (H / log n) ^ exponent, with the entropy H of the n items at temperature 1.
double dynamic_temperature(std::span<const Scored> items, float best, const SampleParams& params);

// Mirostat: what is not more surprising than history.surprise_bound (2: tokens of at most as many bits; 1:
// the best k, with k from Zipf's exponent of the 100 best).
void keep_unsurprising(std::vector<Scored>& items, float best, const SampleParams& params,
                       const History& history);
// bound -= eta (surprise of the picked token - tau), of the distribution before the filter.
void learn_surprise(std::span<const float> values, float best, const SampleParams& params, History& history,
                    Token picked);

}  // namespace carat
