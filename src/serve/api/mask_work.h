// Masks of grammars, worked out beside the engine: on threads of their own that yield to it, so that a
// grammar which takes long keeps its own request waiting and no other.
#pragma once
#include <memory>

#include "engine/mask.h"
#include "text/grammar/matcher.h"

namespace carat {

// One request's walk through a grammar.
std::shared_ptr<TokenMask> make_mask(std::shared_ptr<const TokenGrammar> grammar);
// Whether the grammar itself was too much (a mask of make_mask()).
bool mask_failed(const TokenMask& mask);

}  // namespace carat
