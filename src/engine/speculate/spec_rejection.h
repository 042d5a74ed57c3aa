// Acceptance by rejection sampling (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318), for
// comparison with equality: the law of what comes out is the target's, the tokens are not those of plain
// decoding.
#pragma once
#include <cstdint>
#include <span>

#include "engine/sampler.h"
#include "engine/speculate/drafter.h"

namespace carat {

// `drafted`, drawn from `guess` (empty: it was bound to be drafted), is kept with probability
// min(1, law / guess); else a token is drawn from what `law` has more than `guess`. accept, draw: uniform in
// (0, 1).
Token accept_or_draw(std::span<const float> law, std::span<const float> guess, Token drafted, double accept,
                     double draw);

// The same for row `row` of a chain's verification (0: the anchor's); -1 if nothing was drafted behind it or
// the draft is a tree. A function of the request's seed and `pos`.
Token reject_or_keep(std::span<const float> logits, const SampleParams& params, const History& history,
                     int64_t pos, const Proposal& draft, int32_t row);

}  // namespace carat
