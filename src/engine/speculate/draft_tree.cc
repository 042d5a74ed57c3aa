#include "engine/speculate/draft_tree.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <queue>

#include "base/error.h"
#include "base/rng.h"

namespace carat {
namespace {

// exp(x) for x <= 0 to 1e-6, in a form that compilers vectorize: 2^n times a polynomial of 2^f, |f| <= 1/2
// (Taylor).
float exp_negative(float x) {
  const float t = (x > -80.0F ? x : -80.0F) * 1.44269504F;  // NaN counts as far away
  const auto n = static_cast<int32_t>(t - 0.5F);            // nearest, as t <= 0
  const float f = (t - static_cast<float>(n)) * 0.69314718F;
  const float p =
      1 +
      f * (1 + f * (0.5F + f * (0.16666667F + f * (0.041666667F + f * (0.0083333333F + f * 0.0013888889F)))));
  return p * std::bit_cast<float>((n + 127) << 23);
}

bool better(const Candidate& a, const Candidate& b) { return a.p != b.p ? a.p > b.p : a.token < b.token; }

}  // namespace

std::vector<Candidate> best_candidates(std::span<const float> logits, int32_t k) {
  std::vector<Candidate> best;  // p holds the logit for now
  const auto n = static_cast<int32_t>(logits.size());
  const auto most = static_cast<size_t>(std::clamp(k, 0, n));
  if (most == 0) return best;
  float bar = -INFINITY;
  for (int32_t i = 0; i < n; ++i) {
    const float v = logits[static_cast<size_t>(i)];
    if (!(v > bar)) continue;
    const Candidate c{i, v};
    best.insert(std::upper_bound(best.begin(), best.end(), c, better), c);
    if (best.size() > most) best.pop_back();
    if (best.size() == most) bar = best.back().p;
  }
  if (best.empty() || !std::isfinite(best[0].p)) return {};
  const float top = best[0].p;
  double sum = 0;
  for (size_t i = 0; i < logits.size();) {  // blocks: f32 inside, f64 across
    float part = 0;
    for (const size_t end = std::min(logits.size(), i + 1024); i < end; ++i)
      part += exp_negative(logits[i] - top);
    sum += part;
  }
  for (Candidate& c : best) c.p = static_cast<float>(std::exp(double{c.p} - top) / sum);
  return best;
}

std::vector<Candidate> best_candidates(const TopRows::Row& top, int32_t k) {
  std::vector<Candidate> best;
  for (size_t i = 0; i < std::min(top.column.size(), static_cast<size_t>(std::max(k, 0))); ++i)
    best.push_back({top.column[i], top.share * std::exp(top.value[i] - top.value[0])});
  return best;
}

namespace {

// Of a pool, best first, and what the logits of its tokens are.
template <class Logit>
std::vector<Candidate> by_noise(std::vector<Candidate> pool, int32_t k, const SampleParams& params,
                                int64_t pos, Logit&& logit) {
  const auto most = static_cast<size_t>(std::max(k, 0));
  if (params.temperature > 0 && !pool.empty()) {
    const auto noise = [&](Token t) {
      return -std::log(
          -std::log(uniform_noise(params.seed, static_cast<uint64_t>(pos), static_cast<uint32_t>(t))));
    };
    const double top = logit(0);
    for (size_t i = 0; i < pool.size(); ++i)
      pool[i].p = static_cast<float>((logit(i) - top) / double{params.temperature} + noise(pool[i].token));
    std::sort(pool.begin(), pool.end(), better);
    double sum = 0;
    const float best = pool[0].p;
    for (Candidate& c : pool) sum += c.p = std::exp(c.p - best);
    for (Candidate& c : pool) c.p = static_cast<float>(double{c.p} / sum);
  }
  pool.resize(std::min(pool.size(), most));
  return pool;
}

}  // namespace

std::vector<Candidate> keyed_candidates(std::span<const float> logits, int32_t k, const SampleParams& params,
                                        int64_t pos) {
  const std::vector<Candidate> pool = best_candidates(logits, std::max(k, kKeyedPool));
  return by_noise(pool, k, params, pos,
                  [&](size_t i) { return double{logits[static_cast<size_t>(pool[i].token)]}; });
}

std::vector<Candidate> keyed_candidates(const TopRows::Row& top, int32_t k, const SampleParams& params,
                                        int64_t pos) {
  return by_noise(best_candidates(top, std::max(k, kKeyedPool)), k, params, pos,
                  [&](size_t i) { return double{top.value[i]}; });
}

namespace {

// The ask's history with what was drafted behind it, where penalties look at it.
const History& history_with(const DraftAsk& ask, History& longer) {
  const SampleParams& p = *ask.sample;
  const bool looks =
      p.repeat_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0 || p.dry_multiplier != 0;
  if (!looks || ask.out.token.empty()) return *ask.history;
  longer = *ask.history;
  for (const Token t : ask.out.token) longer.add(t);
  return longer;
}

// Where the chain's next token would stand.
int64_t next_position(const DraftAsk& ask) {
  return int64_t{ask.pos} + 1 + static_cast<int64_t>(ask.out.token.size());
}

}  // namespace

std::optional<Candidate> chain_candidate(const TopRows::Row& top, const DraftAsk& ask) {
  if (top.column.empty() || ask.rule == DraftRule::sampled) return {};
  if (ask.rule == DraftRule::best || !ask.sample) return Candidate{top.column[0], top.share};
  const std::optional<Token> token = pick_among(top.column, top.value, *ask.sample, next_position(ask));
  if (!token || top.value.empty()) return {};
  const auto at =
      static_cast<size_t>(std::find(top.column.begin(), top.column.end(), *token) - top.column.begin());
  return Candidate{*token, top.share * std::exp(top.value[at] - top.value[0])};
}

bool extend_chain(const Candidate& next, DraftAsk& ask) {
  if (next.p < ask.p_min) return false;
  ask.out.token.push_back(next.token);
  ask.out.confidence.push_back(next.p);
  return true;
}

bool extend_chain(std::span<const float> logits, DraftAsk& ask) {
  const std::vector<Candidate> best = best_candidates(logits, 1);
  return !best.empty() && extend_chain(logits, best[0], ask);
}

bool extend_chain(std::span<const float> logits, const Candidate& best, DraftAsk& ask) {
  constexpr uint64_t kOwnNoise = 0x5bd1e995;
  Candidate next = best;
  std::vector<float> law;
  if (ask.rule != DraftRule::best && ask.sample) {
    History longer;
    const History& history = history_with(ask, longer);
    const int64_t pos = next_position(ask);
    SampleParams params = *ask.sample;
    if (ask.rule == DraftRule::sampled) params.seed ^= kOwnNoise;
    try {
      next.token = pick(logits, params, history, pos);
      if (ask.rule == DraftRule::sampled) law = distribution(logits, params, history, pos);
    } catch (const Error&) {  // a bias bans all it knows
      return false;
    }
    const auto logit = [&](Token t) { return logits[static_cast<size_t>(t)]; };
    next.p = best.p * std::exp(logit(next.token) - logit(best.token));
  }
  if (!extend_chain(next, ask)) return false;
  if (!law.empty()) ask.out.law.push_back(std::move(law));
  return true;
}

int32_t DraftTree::add(int32_t parent, const Candidate& c) {
  nodes_.push_back({c.token, parent, depth(parent) + 1, c.p, path(parent) * c.p});
  return size() - 1;
}

Proposal DraftTree::best(int32_t most) const {
  std::vector<int32_t> order(nodes_.size());
  std::iota(order.begin(), order.end(), 0);
  // A child is never more probable than its parent and stands behind it: what is kept is closed.
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return path(a) > path(b); });
  order.resize(std::min(order.size(), static_cast<size_t>(std::max(most, 0))));
  std::sort(order.begin(), order.end());
  std::vector<int32_t> place(nodes_.size(), -1);
  Proposal out;
  bool chain = true;
  for (const int32_t i : order) {
    const Node& n = nodes_[static_cast<size_t>(i)];
    const int32_t parent = n.parent < 0 ? -1 : place[static_cast<size_t>(n.parent)];
    const auto at = static_cast<int32_t>(out.token.size());
    chain &= parent == at - 1;
    place[static_cast<size_t>(i)] = at;
    out.token.push_back(n.token);
    out.parent.push_back(parent);
    out.confidence.push_back(n.p);
  }
  if (chain) out.parent.clear();
  return out;
}

Proposal tree_of_marginals(std::span<const std::vector<Candidate>> slots, int32_t nodes, bool chain_seed) {
  // A node that may be next: the rank-th choice of a depth behind `parent`.
  struct Next {
    double score;  // log of the product
    int32_t parent, depth, rank;
    bool operator<(const Next& o) const { return score != o.score ? score < o.score : depth > o.depth; }
  };
  const auto depth_of = [&](size_t d) -> const std::vector<Candidate>& { return slots[d]; };
  const auto log_p = [&](size_t d, size_t r) { return std::log(std::max(1e-30, double{slots[d][r].p})); };
  Proposal out;
  std::priority_queue<Next> heap;
  const auto offer = [&](double above, int32_t parent, size_t d, size_t rank) {
    if (d < slots.size() && rank < depth_of(d).size())
      heap.push({above + log_p(d, rank), parent, static_cast<int32_t>(d), static_cast<int32_t>(rank)});
  };
  const auto emit = [&](const Next& n) {
    const Candidate& c = slots[static_cast<size_t>(n.depth)][static_cast<size_t>(n.rank)];
    out.token.push_back(c.token);
    out.parent.push_back(n.parent);
    out.confidence.push_back(c.p);
    return static_cast<int32_t>(out.token.size()) - 1;
  };
  const auto full = [&] { return static_cast<int32_t>(out.token.size()) >= nodes; };
  if (chain_seed) {
    double score = 0;
    int32_t parent = -1;
    for (size_t d = 0; d < slots.size() && !full() && !slots[d].empty(); ++d) {
      offer(score, parent, d, 1);
      score += log_p(d, 0);
      parent = emit({score, parent, static_cast<int32_t>(d), 0});
    }
  } else {
    offer(0, -1, 0, 0);
  }
  while (!heap.empty() && !full()) {
    const Next n = heap.top();
    heap.pop();
    const auto d = static_cast<size_t>(n.depth), r = static_cast<size_t>(n.rank);
    offer(n.score - log_p(d, r), n.parent, d, r + 1);
    offer(n.score, emit(n), d + 1, 0);
  }
  bool chain = true;
  for (size_t i = 0; i < out.parent.size(); ++i) chain &= out.parent[i] == static_cast<int32_t>(i) - 1;
  if (chain) out.parent.clear();
  return out;
}

}  // namespace carat
