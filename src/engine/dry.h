// DRY ("don't repeat yourself", text-generation-webui PR 5677): the longer the repeat that a token would go
// on with, the more it loses. A function of the history alone, so drafts are verified as they are picked.
#pragma once
#include <span>

#include "engine/sampler.h"

namespace carat {

inline bool uses_dry(const SampleParams& p) { return p.dry_multiplier != 0 && p.dry_penalty_last_n != 0; }
void penalize_repeats(std::span<float> logits, const SampleParams& params, const History& history);

}  // namespace carat
