// From a network's logits to proposals: candidates with probabilities, chains and trees.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/speculate/drafter.h"
#include "model/top_rows.h"

namespace carat {

// One token that may follow, by the drafter's softmax.
struct Candidate {
  int32_t token = 0;  // or the column of a row of logits
  float p = 0;
};

// The k most probable columns of a row, best first (ties: the lowest column). Of TopRows::Row here and below:
// the same from the row's best columns, which must be enough.
std::vector<Candidate> best_candidates(std::span<const float> logits, int32_t k);
std::vector<Candidate> best_candidates(const TopRows::Row& top, int32_t k);

// The k tokens that the target is likeliest to pick at `pos`, if its logits are about these: its noise there
// is known before it has run (DraftRule::keyed). Ranked by logit / temperature + noise among the most
// probable; p: the softmax of that. For columns that are tokens.
std::vector<Candidate> keyed_candidates(std::span<const float> logits, int32_t k, const SampleParams& params,
                                        int64_t pos);
std::vector<Candidate> keyed_candidates(const TopRows::Row& top, int32_t k, const SampleParams& params,
                                        int64_t pos);
inline constexpr int32_t kKeyedPool =
    64;  // so many are ranked, if k is not more: noise lifts few from further down

// Adds to ask.out, a chain, the token that its rule makes of `logits`, of the whole vocabulary or its first
// tokens; `best` is the most probable of them. False and no token if that is less probable to the drafter
// than p_min, or the logits are no numbers.
bool extend_chain(std::span<const float> logits, const Candidate& best, DraftAsk& ask);
bool extend_chain(std::span<const float> logits, DraftAsk& ask);
// The same with the candidate itself, and that candidate by the ask's rule: nothing if the best columns do
// not tell.
bool extend_chain(const Candidate& next, DraftAsk& ask);
std::optional<Candidate> chain_candidate(const TopRows::Row& top, const DraftAsk& ask);

// Nodes that grew level by level from the anchor, and the best of them as a proposal.
class DraftTree {
 public:
  static constexpr int32_t kAnchor = -1;
  // A child of `parent`; returns its index.
  int32_t add(int32_t parent, const Candidate& c);
  int32_t size() const { return static_cast<int32_t>(nodes_.size()); }
  int32_t depth(int32_t node) const { return node < 0 ? 0 : nodes_[static_cast<size_t>(node)].depth; }
  // Probability of the path from the anchor.
  float path(int32_t node) const { return node < 0 ? 1.0F : nodes_[static_cast<size_t>(node)].path; }
  // The `most` nodes of highest path probability, parents before children. A chain if there is no branch.
  Proposal best(int32_t most) const;

 private:
  struct Node {
    int32_t token, parent, depth;
    float p, path;
  };
  std::vector<Node> nodes_;
};

// Trees from marginals that do not depend on the path (DDTree, arXiv 2604.12989): the `nodes` nodes of
// highest product. slots[i]: candidates of depth i + 1, best first. chain_seed: the chain of first choices is
// in whatever its product.
Proposal tree_of_marginals(std::span<const std::vector<Candidate>> slots, int32_t nodes, bool chain_seed);

}  // namespace carat
