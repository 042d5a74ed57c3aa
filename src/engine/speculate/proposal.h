// Proposals (drafter.h) as they are handled between drafter and verification. Node -1 is the anchor.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/speculate/drafter.h"

namespace carat {

// A drafter is a guest, and nothing it says may do harm: what is left is a tree.
void make_sane(Proposal& p);
bool is_chain(const Proposal& p);
int32_t path_length(const Proposal& p);  // of the longest path
// The nodes that are kept, in their order; parents of kept nodes are kept.
Proposal keep_nodes(const Proposal& p, const std::vector<bool>& keep);
// The child of `node` with this token, or -1.
int32_t child_of(const Proposal& p, int32_t node, Token token);
int32_t first_child(const Proposal& p, int32_t node);

}  // namespace carat
