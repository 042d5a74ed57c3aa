// Who is asked how far, and what of the proposals is verified (docs/design.md, "How far, and by whom").
#include <algorithm>
#include <functional>
#include <numeric>

#include "engine/speculate/proposal.h"
#include "engine/speculate/speculator_impl.h"

namespace carat {
namespace {

constexpr double kCheap = 0.02;  // share of a plain step below which a drafter is always asked
constexpr double kHopeless =
    10;                        // a drafter that would not pay if all it said were right is asked so much less
constexpr double kLook = 0.3;  // plain steps that a look at plain decoding counts for at the least

std::vector<double> survival_of(const Proposal& p, const Acceptance& acceptance) {
  std::vector<double> s(p.token.size()), by_place;
  std::vector<int32_t> depth(p.token.size());
  if (p.confidence.empty()) by_place = acceptance.by_place(static_cast<int32_t>(s.size()));
  for (size_t i = 0; i < s.size(); ++i) {
    const int32_t parent = p.parent_of(static_cast<int32_t>(i));
    depth[i] = parent < 0 ? 0 : depth[static_cast<size_t>(parent)] + 1;
    const double above = parent < 0 ? 1 : s[static_cast<size_t>(parent)];
    s[i] = above * (p.confidence.empty() ? by_place[static_cast<size_t>(depth[i])]
                                         : acceptance.of(depth[i], p.confidence[i]));
  }
  return s;
}

}  // namespace

double Speculator::Impl::rate(int32_t n) const {
  const double plain = n / cost.ratio(n);
  if (static_cast<size_t>(n) >= rates.size() || rates[static_cast<size_t>(n)].time <= 0) return plain;
  const Rate& r = rates[static_cast<size_t>(n)];
  return std::max(plain, r.tokens / r.time);
}

// What steps without drafts cost is looked at when unknown, and then like a drafter that does not pay.
bool Speculator::Impl::look_at_plain(int32_t n) {
  if (!cost.stale(n) && saved < std::max(kLook, cost.ratio(n) - n / rate(n))) return false;
  saved = 0;
  return true;
}

int32_t Speculator::Impl::room(const Turn& t, int32_t sequences) const {
  int32_t room = std::min({t.room, config.draft_max, config.max_rows - sequences});
  if (synthetic()) room = std::min(room, static_cast<int32_t>(config.synthetic.size()));
  return room;
}

// Too dear even if all it says were right: there is nothing to learn from asking it but what it costs.
bool Speculator::Impl::hopeless(size_t d, int32_t n, int32_t most) const {
  const DraftCost& pass = known[d].cost;
  if (!pass.known()) return false;
  for (int32_t k = std::min(most, known[d].drafter->max_depth()); k > 0; --k)
    if (n * k > rate(n) * (cost.ratio(n * (k + 1)) - cost.ratio(n) + pass.share(n, k))) return false;
  return true;
}

// A drafter that is not expected to pay is asked all the same when the loss is small beside the time that
// went by since: often if it nearly pays, seldom if it is far from that.
bool Speculator::Impl::worth_asking(size_t d, std::span<const Turn> turns, const Plan& plan) {
  Known& k = known[d];
  if (plan.depth.empty()) return false;
  if (plan.gain > 0) return true;
  const auto n = static_cast<int32_t>(turns.size());
  const double loss = -plan.gain / rate(n);
  if (k.saved < loss) return false;
  int32_t most = 0;
  for (const Turn& t : turns) most = std::max(most, room(t, n));
  const bool never = hopeless(d, n, most);
  if (k.saved < loss * (never ? kHopeless : 1)) return false;
  k.saved = 0;
  if (never) k.rest(true);
  return !never || !rehearse(d, 1);
}

// How far to ask a drafter whose pass costs something. All turns together, since they share the pass and the
// rows; what a turn has already is lost where it takes the new draft.
Plan Speculator::Impl::plan(size_t d, std::span<const Turn> turns, std::span<const double> value) const {
  const auto n = static_cast<int32_t>(turns.size());
  const double worth = rate(n), plain = cost.ratio(n);
  struct Node {
    double survival;
    size_t turn;
    int32_t place;
  };
  std::vector<Node> nodes;
  int32_t deepest = 0;
  for (size_t i = 0; i < turns.size(); ++i) {
    int32_t most = std::min(room(turns[i], n), known[d].drafter->max_depth());
    if (!known[d].cost.known()) most = std::min(most, kFirstDepth);
    if (most <= 0) continue;
    double survival = 1;
    int32_t place = 0;
    for (const double p : turns[i].session->impl().guests[d].acceptance.by_place(most))
      nodes.push_back({survival *= p, i, place++});
    deepest = std::max(deepest, most);
  }
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const Node& a, const Node& b) { return a.survival > b.survival; });
  Plan best;
  std::vector<int32_t> reached(turns.size());
  for (int32_t k = 1; k <= deepest; ++k) {
    std::fill(reached.begin(), reached.end(), 0);
    double sum = 0, pass = 0;
    int32_t rows = n, asked = 0;
    for (const Node& node : nodes) {
      if (node.place >= k) continue;
      if (rows == config.max_rows) break;
      sum += node.survival;
      if (node.place == 0) {
        pass = known[d].cost.share(++asked, k);
        sum -= value[node.turn];
      }
      reached[node.turn] = node.place + 1;
      // What is said need not be verified.
      const double gain = std::max(0.0, sum - worth * (cost.ratio(++rows) - plain)) - worth * pass;
      if (gain > best.gain) best.gain = gain, best.depth = reached;
    }
  }
  return best;
}

// Takes what is worth more than what a turn has.
void Speculator::Impl::offer(size_t d, std::span<Turn> turns, std::vector<Proposal>& asked,
                             std::vector<double>& value) {
  const auto n = static_cast<int32_t>(turns.size());
  const double worth = rate(n);
  for (size_t i = 0; i < turns.size(); ++i) {
    if (asked[i].empty()) continue;
    std::vector<double> s = survival_of(asked[i], turns[i].session->impl().guests[d].acceptance);
    std::sort(s.begin(), s.end(), std::greater<>());
    // As if all turns drafted so; if they do not, cut() knows better.
    const Worth alike = rows_worth(cost, n, n, s, worth, (config.max_rows - n) / n);
    const Worth alone = rows_worth(cost, n, 1, s, worth, config.max_rows - n);
    const double gain = std::max(alike.value, alone.value);
    if (gain <= value[i]) continue;
    value[i] = gain;
    turns[i].draft = std::move(asked[i]);
    turns[i].drafter = static_cast<int32_t>(d);
  }
}

// Cheap drafters first: what they say is known before a dear one is paid for.
void Speculator::Impl::choose(std::span<Turn> turns) {
  const auto n = static_cast<int32_t>(turns.size());
  looking = look_at_plain(n);
  std::vector<double> value(turns.size(), 0);
  std::vector<Proposal> out;
  const auto cheap = [&](size_t d) {
    return known[d].cost.known() && known[d].cost.share(n, kFirstDepth) < kCheap;
  };
  std::vector<bool> done(known.size(), false);
  for (const bool dear : {false, true}) {
    for (size_t d = 0; d < known.size(); ++d) {
      if (done[d] || (cheap(d) && dear) || (!cheap(d) && (!dear || looking))) continue;
      done[d] = true;
      std::vector<int32_t> depth;
      if (dear) {
        Plan asked = plan(d, turns, value);
        if (!worth_asking(d, turns, asked)) continue;
        depth = std::move(asked.depth);
      } else {
        for (const Turn& t : turns) depth.push_back(room(t, n));
      }
      ask(d, turns, depth, out);
      offer(d, turns, out, value);
    }
  }
  if (looking)
    for (Turn& t : turns) t.draft = {}, t.drafter = -1;
  cut(turns);
}

// Rows are shared: over all sequences the most probable tokens are kept, as many as pay for themselves.
void Speculator::Impl::cut(std::span<Turn> turns) {
  struct Node {
    double survival;
    size_t turn, node;
  };
  const auto n = static_cast<int32_t>(turns.size());
  std::vector<Node> nodes;
  std::vector<std::vector<bool>> keep(turns.size());
  for (size_t i = 0; i < turns.size(); ++i) {
    const Turn& t = turns[i];
    keep[i].resize(t.draft.token.size());
    if (t.draft.empty()) continue;
    const Acceptance& a = t.session->impl().guests[static_cast<size_t>(t.drafter)].acceptance;
    const std::vector<double> s = survival_of(t.draft, a);
    for (size_t j = 0; j < s.size(); ++j) nodes.push_back({s[j], i, j});
  }
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const Node& a, const Node& b) { return a.survival > b.survival; });
  std::vector<double> s;
  for (const Node& node : nodes) s.push_back(node.survival);
  const int32_t rows = rows_worth(cost, n, 1, s, rate(n), config.max_rows - n).rows;
  expected = std::accumulate(s.begin(), s.begin() + rows, 0.0);
  for (int32_t i = 0; i < rows; ++i)
    keep[nodes[static_cast<size_t>(i)].turn][nodes[static_cast<size_t>(i)].node] = true;
  for (size_t i = 0; i < turns.size(); ++i)
    if (!turns[i].draft.empty()) turns[i].draft = keep_nodes(turns[i].draft, keep[i]);
}

}  // namespace carat
