// Inside Gemma 4: what reading the specification and binding the weights share.
#pragma once
#include "model/bind.h"
#include "model/model.h"

namespace carat::gemma4 {

inline constexpr float kStandstill = 1e20f;  // a frequency divided by this or more does not turn

ModelSpec read_spec(const WeightSource& source);
// The same of keys "PREFIX.KEY" for layers that read another model's caches: kv_from stays -1.
ModelSpec read_query_only_spec(const WeightSource& source, std::string_view prefix);
// [rope_pairs] of a layer; the global layers' divisors are applied.
std::vector<float> rope_frequencies(const LayerSpec& layer, const WeightSource& source);
// The divisors of the global layers' frequencies: [dim / 2], all positive.
std::vector<float> rope_factors(const WeightSource& source, int32_t dim);
// The factor of a layer's output; none if the file has one for no layer.
Tensor output_gain(Binder& b, int layer);

}  // namespace carat::gemma4
