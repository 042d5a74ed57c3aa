// Inside Gemma 4: what reading the specification and binding the weights share.
#pragma once
#include "model/model.h"

namespace carat::gemma4 {

inline constexpr float kStandstill = 1e20f;  // a frequency divided by this or more does not turn

ModelSpec read_spec(const WeightSource& source);
// The divisors of the global layers' frequencies: [dim / 2], all positive.
std::vector<float> rope_factors(const WeightSource& source, int32_t dim);

}  // namespace carat::gemma4
