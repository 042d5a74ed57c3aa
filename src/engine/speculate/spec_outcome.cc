// What came of drafts: who was right, for the controller, and the counters.
#include <algorithm>

#include "engine/speculate/proposal.h"
#include "engine/speculate/speculator_impl.h"

namespace carat {

// Compares every open proposal with the text, verified or not: the text is what the target says, so a draft
// that was never run is judged as if it had been.
void Speculator::Impl::resolve(SpecSession::Impl& session, std::span<const Token> history) {
  for (size_t d = 0; d < known.size(); ++d) {
    Guest& guest = session.guests[d];
    const auto finished = [&](Open& o) {
      for (; o.next < history.size(); ++o.next, ++o.depth) {
        int32_t hit = -1;
        for (int32_t i = o.node + 1; i < static_cast<int32_t>(o.draft.token.size()); ++i) {
          if (o.draft.parent_of(i) != o.node) continue;
          const bool right = o.draft.token[static_cast<size_t>(i)] == history[o.next];
          if (right) hit = i;
          const float confidence =
              o.draft.confidence.empty() ? -1 : o.draft.confidence[static_cast<size_t>(i)];
          guest.acceptance.observe(o.depth, confidence, right);
          known[d].acceptance.observe(o.depth, confidence, right);
        }
        if (hit < 0) return true;
        o.node = hit;
      }
      return false;
    };
    std::erase_if(guest.open, finished);
  }
}

void Speculator::Impl::count(const Turn& t, const StepFacts& facts, SpecStats& stats) const {
  stats.verify_seconds += facts.verify_seconds;
  stats.sample_seconds += facts.sample_seconds;
  stats.draft_seconds += draft_seconds;
  if (t.draft.empty()) {
    ++stats.plain;
    return;
  }
  ++stats.rounds;
  stats.drafted += t.draft.token.size();
  const std::string_view name = known[static_cast<size_t>(t.drafter)].drafter->name();
  SpecShare& share = stats.shares.emplace_back(SpecShare{std::string(name), 1, t.draft.token.size(), 0});
  const std::span<const Token> text = t.history->tokens().last(static_cast<size_t>(t.emitted));
  int32_t node = -1;
  size_t depth = 0;
  const auto deepest = static_cast<size_t>(path_length(t.draft));
  for (size_t i = 0; i < deepest && i < kMaxDraft; ++i) ++stats.drafted_at[i];
  for (; depth < text.size(); ++depth) {
    int32_t child = -1;
    bool any = false;
    for (int32_t i = node + 1; i < static_cast<int32_t>(t.draft.token.size()); ++i)
      if (t.draft.parent_of(i) == node) {
        any = true;
        if (t.draft.token[static_cast<size_t>(i)] == text[depth]) child = i;
      }
    if (any && depth < kMaxDraft) ++stats.tried_at[depth];
    if (child < 0) break;
    node = child;
    ++stats.accepted;
    ++share.accepted;
    if (depth < kMaxDraft) ++stats.accepted_at[depth];
  }
}

void SpecStats::add(const SpecStats& o) {
  rounds += o.rounds, plain += o.plain, drafted += o.drafted, accepted += o.accepted;
  for (size_t i = 0; i < drafted_at.size(); ++i)
    drafted_at[i] += o.drafted_at[i], accepted_at[i] += o.accepted_at[i], tried_at[i] += o.tried_at[i];
  draft_seconds += o.draft_seconds, verify_seconds += o.verify_seconds, sample_seconds += o.sample_seconds;
  for (const SpecShare& theirs : o.shares) {
    const auto same = [&](const SpecShare& s) { return s.drafter == theirs.drafter; };
    auto mine = std::find_if(shares.begin(), shares.end(), same);
    if (mine == shares.end()) mine = shares.insert(mine, {theirs.drafter});
    mine->rounds += theirs.rounds, mine->drafted += theirs.drafted, mine->accepted += theirs.accepted;
  }
}

double SpecStats::accepted_length() const {
  const auto steps = static_cast<double>(rounds + plain);
  return steps > 0 ? 1 + static_cast<double>(accepted) / steps : 1;
}

}  // namespace carat
