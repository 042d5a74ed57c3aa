// Candidates, chains and trees: against brute force.
#include "engine/speculate/draft_tree.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

using namespace carat;

namespace {

std::vector<std::vector<Candidate>> random_slots(std::mt19937& rng, size_t depth, size_t choices) {
  std::vector<std::vector<Candidate>> slots(depth);
  for (auto& slot : slots) {
    float left = 1;
    for (size_t r = 0; r < choices; ++r) {
      const float p = left * (0.3F + 0.4F * static_cast<float>(rng() % 1000) / 1000);
      slot.push_back({static_cast<int32_t>(100 * (&slot - slots.data()) + static_cast<ptrdiff_t>(r)), p});
      left -= p;
    }
    std::sort(slot.begin(), slot.end(), [](const Candidate& a, const Candidate& b) { return a.p > b.p; });
  }
  return slots;
}

// Products of all paths of ranks, best first.
std::vector<double> all_products(std::span<const std::vector<Candidate>> slots) {
  std::vector<double> out, level = {1};
  for (const auto& slot : slots) {
    std::vector<double> next;
    for (const double above : level)
      for (const Candidate& c : slot) next.push_back(above * c.p);
    out.insert(out.end(), next.begin(), next.end());
    level = std::move(next);
  }
  std::sort(out.begin(), out.end(), std::greater<>());
  return out;
}

std::vector<double> products(const Proposal& p) {
  std::vector<double> out;
  for (int32_t i = 0; i < static_cast<int32_t>(p.token.size()); ++i) {
    REQUIRE(p.parent_of(i) < i);
    const double above = p.parent_of(i) < 0 ? 1.0 : out[static_cast<size_t>(p.parent_of(i))];
    out.push_back(above * static_cast<double>(p.confidence[static_cast<size_t>(i)]));
  }
  return out;
}

}  // namespace

TEST_CASE("candidates are the largest logits with their softmax, ties to the lowest") {
  std::mt19937 rng(3);
  for (const size_t n : {1, 5, 300, 5000}) {
    std::vector<float> logits(n);
    for (float& v : logits) v = static_cast<float>(static_cast<int>(rng() % 400)) / 13 - 20;
    const float top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float v : logits) sum += std::exp(static_cast<double>(v) - static_cast<double>(top));
    std::vector<int32_t> order(n);
    for (size_t i = 0; i < n; ++i) order[i] = static_cast<int32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    const auto got = best_candidates(logits, 7);
    REQUIRE(got.size() == std::min<size_t>(n, 7));
    for (size_t i = 0; i < got.size(); ++i) {
      CHECK(got[i].token == order[i]);
      const double p =
          std::exp(static_cast<double>(logits[static_cast<size_t>(order[i])]) - static_cast<double>(top)) /
          sum;
      CHECK(static_cast<double>(got[i].p) == doctest::Approx(p).epsilon(1e-5));
    }
  }
  const std::vector<float> banned = {-INFINITY, 2, -INFINITY, NAN};
  CHECK(best_candidates(banned, 4).size() == 1);
  CHECK(best_candidates(std::vector<float>{NAN, NAN}, 2).empty());
  CHECK(best_candidates(std::vector<float>{}, 2).empty());
}

TEST_CASE("keyed candidates: first what the sampler picks, then what it picks where that is banned") {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal(0, 3);
  const History nothing;
  for (const float temperature : {0.6F, 1.0F, 1.7F})
    for (int64_t pos = 0; pos < 20; ++pos) {
      std::vector<float> logits(60);
      for (float& v : logits) v = normal(rng);
      SampleParams params;
      params.temperature = temperature, params.seed = 11;
      const auto got = keyed_candidates(logits, 4, params, pos);
      REQUIRE(got.size() == 4);
      for (size_t i = 0; i < got.size(); ++i) {
        CHECK(got[i].token == pick(logits, params, nothing, pos));
        CHECK((i == 0 || got[i].p <= got[i - 1].p));
        params.logit_bias.push_back({got[i].token, -INFINITY});
      }
    }
  SampleParams greedy;
  greedy.temperature = 0;
  CHECK(keyed_candidates(std::vector<float>{1, 3, 2}, 2, greedy, 0)[0].token == 1);
  CHECK(keyed_candidates(std::vector<float>{1, 3, 2}, 2, greedy, 0).size() == 2);
}

TEST_CASE("the best columns of a row give what the row gives") {
  std::mt19937 rng(6);
  std::normal_distribution<float> normal(0, 3);
  SampleParams sample;
  sample.top_k = 64, sample.top_p = 0.95F;
  History history;
  history.add(3);
  for (uint64_t round = 0; round < 20; ++round) {
    std::vector<float> logits(500);
    for (float& v : logits) v = normal(rng);
    const std::vector<Candidate> all = best_candidates(logits, 80);
    std::vector<int32_t> column;
    std::vector<float> value;
    for (const Candidate& c : all) {
      column.push_back(c.token);
      value.push_back(logits[static_cast<size_t>(c.token)]);
    }
    const TopRows::Row top{column, value, all[0].p};
    sample.seed = round;
    const auto same = [](const std::vector<Candidate>& a, const std::vector<Candidate>& b) {
      REQUIRE(a.size() == b.size());
      for (size_t i = 0; i < a.size(); ++i) {
        CHECK(a[i].token == b[i].token);
        CHECK(static_cast<double>(a[i].p) == doctest::Approx(static_cast<double>(b[i].p)).epsilon(1e-4));
      }
    };
    same(best_candidates(top, 8), best_candidates(logits, 8));
    same(keyed_candidates(top, 8, sample, 5), keyed_candidates(logits, 8, sample, 5));
    for (const DraftRule rule : {DraftRule::best, DraftRule::keyed}) {
      DraftAsk ask;
      ask.rule = rule, ask.sample = &sample, ask.history = &history, ask.pos = 5;
      const std::optional<Candidate> next = chain_candidate(top, ask);
      REQUIRE(next);
      REQUIRE(extend_chain(logits, ask));
      same({*next}, {{ask.out.token[0], ask.out.confidence[0]}});
    }
  }
}

TEST_CASE("a tree of marginals has the most probable paths of all") {
  std::mt19937 rng(5);
  for (int trial = 0; trial < 40; ++trial) {
    const auto slots = random_slots(rng, 1 + rng() % 5, 1 + rng() % 4);
    const std::vector<double> all = all_products(slots);
    const auto nodes = static_cast<int32_t>(1 + rng() % 20);
    const Proposal p = tree_of_marginals(slots, nodes, false);
    std::vector<double> got = products(p);
    REQUIRE(got.size() == std::min<size_t>(all.size(), static_cast<size_t>(nodes)));
    std::sort(got.begin(), got.end(), std::greater<>());
    for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(all[i]).epsilon(1e-4));
    // No child twice.
    std::set<std::pair<int32_t, Token>> seen;
    for (int32_t i = 0; i < static_cast<int32_t>(p.token.size()); ++i)
      CHECK(seen.insert({p.parent_of(i), p.token[static_cast<size_t>(i)]}).second);
  }
}

TEST_CASE("a seeded tree starts with the chain of first choices") {
  std::mt19937 rng(6);
  for (int trial = 0; trial < 20; ++trial) {
    const auto slots = random_slots(rng, 6, 3);
    const Proposal p = tree_of_marginals(slots, 14, true);
    REQUIRE(p.token.size() == 14);
    for (int32_t i = 0; i < 6; ++i) {
      CHECK(p.token[static_cast<size_t>(i)] == slots[static_cast<size_t>(i)][0].token);
      CHECK(p.parent_of(i) == i - 1);
    }
    std::set<std::pair<int32_t, Token>> seen;
    for (int32_t i = 0; i < 14; ++i)
      CHECK(seen.insert({p.parent_of(i), p.token[static_cast<size_t>(i)]}).second);
  }
  const auto slots = random_slots(rng, 6, 3);
  CHECK(tree_of_marginals(slots, 4, true).parent.empty());  // a chain
  CHECK(tree_of_marginals(slots, 0, true).empty());
}

TEST_CASE("the best nodes of a grown tree are closed and in order") {
  DraftTree t;
  const int32_t a = t.add(DraftTree::kAnchor, {10, 0.6F}), b = t.add(DraftTree::kAnchor, {11, 0.4F});
  const int32_t aa = t.add(a, {12, 0.5F});
  t.add(b, {13, 0.9F});
  t.add(aa, {14, 1.0F});
  CHECK(t.depth(aa) == 2);
  CHECK(static_cast<double>(t.path(aa)) == doctest::Approx(0.3));
  Proposal p = t.best(3);
  CHECK(p.token == std::vector<Token>{10, 11, 13});
  CHECK(p.parent == std::vector<int32_t>{-1, -1, 1});
  p = t.best(5);
  CHECK(p.token == std::vector<Token>{10, 11, 12, 13, 14});
  CHECK(p.parent == std::vector<int32_t>{-1, -1, 0, 1, 2});
  CHECK(t.best(0).empty());
}

TEST_CASE("chains follow their rule: the best token, the target's noise, or a draw of their own") {
  std::mt19937 rng(4);
  History history;
  history.add(3);
  SampleParams sample;
  sample.top_k = 5, sample.seed = 77, sample.repeat_penalty = 1.3F;
  std::vector<std::vector<float>> rows(6, std::vector<float>(50));
  for (auto& row : rows)
    for (float& v : row) v = static_cast<float>(rng() % 1000) / 250;
  DraftAsk ask;
  ask.history = &history, ask.anchor = 3, ask.pos = 0, ask.max_depth = 6, ask.sample = &sample;
  for (const DraftRule rule : {DraftRule::best, DraftRule::keyed, DraftRule::sampled}) {
    ask.rule = rule, ask.out = {}, ask.p_min = 0;
    History seen = history;
    for (size_t i = 0; i < rows.size(); ++i) {
      REQUIRE(extend_chain(rows[i], ask));
      const Token t = ask.out.token.back();
      if (rule == DraftRule::best)
        CHECK(t == std::max_element(rows[i].begin(), rows[i].end()) - rows[i].begin());
      if (rule == DraftRule::keyed) CHECK(t == pick(rows[i], sample, seen, static_cast<int64_t>(i) + 1));
      if (rule == DraftRule::sampled) CHECK(ask.out.law[i] == distribution(rows[i], sample, seen));
      seen.add(t);
      const std::vector<Candidate> all = best_candidates(rows[i], 50);
      const auto it = std::find_if(all.begin(), all.end(), [&](const Candidate& c) { return c.token == t; });
      CHECK(static_cast<double>(ask.out.confidence.back()) == doctest::Approx(it->p).epsilon(1e-4));
    }
    CHECK(ask.out.law.size() == (rule == DraftRule::sampled ? 6 : 0));
    ask.p_min = 0.99F;
    CHECK(!extend_chain(rows[0], ask));
    CHECK(ask.out.token.size() == 6);
  }
}
