// The samplers of llama.cpp against small distributions computed by hand from the papers' formulas.
#include "engine/truncate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "engine/dry.h"

using namespace carat;

namespace {

std::vector<float> logits_of(const std::vector<double>& p) {
  std::vector<float> out;
  for (const double v : p) out.push_back(static_cast<float>(std::log(v)));
  return out;
}

// Entropy 1.75 bits; surprises 1, 2, 3 and 3 bits.
const std::vector<double> kFour = {0.5, 0.25, 0.125, 0.125};

void check_law(const SampleParams& p, const std::vector<double>& want, const History& history = {},
               const std::vector<double>& from = kFour) {
  const std::vector<float> got = distribution(logits_of(from), p, history);
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK(double{got[i]} == doctest::Approx(want[i]).epsilon(1e-5));
  }
}

// Draws as often as the law says, with the positions as the only difference.
void check_draws(const SampleParams& p, const std::vector<double>& want) {
  constexpr int kDraws = 20000;
  std::vector<int> seen(want.size());
  const std::vector<float> logits = logits_of(kFour);
  for (int pos = 0; pos < kDraws; ++pos) ++seen[static_cast<size_t>(pick(logits, p, {}, pos))];
  for (size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(static_cast<double>(seen[i]) / kDraws - want[i]) < 0.02);
  }
}

History history_of(const std::vector<Token>& tokens) {
  History h;
  h.add_prompt(tokens);
  return h;
}

}  // namespace

TEST_CASE("top-n-sigma keeps what is n deviations below the best, whatever the temperature") {
  const std::vector<float> logits = {4, 2, 0, -2};  // deviation sqrt(5)
  for (const float t : {0.5F, 1.0F, 3.0F}) {
    SampleParams p;
    p.temperature = t;
    const auto kept = [&](float n) {
      p.top_n_sigma = n;
      const std::vector<float> law = distribution(logits, p, {});
      return std::count_if(law.begin(), law.end(), [](float v) { return v > 0; });
    };
    CHECK(kept(0.5F) == 1);
    CHECK(kept(1) == 2);  // 4 - 2.24
    CHECK(kept(2) == 3);  // 4 - 4.47
    CHECK(kept(3) == 4);
    CHECK(kept(-1) == 4);
    CHECK(kept(0) == 4);
  }
  SampleParams p;  // what is banned is no part of the deviation
  p.top_n_sigma = 1;
  p.logit_bias = {{3, -std::numeric_limits<float>::infinity()}};
  CHECK(distribution(logits, p, {})[1] == 0);  // deviation 1.63: 4 - 1.63 > 2
}

TEST_CASE("typical sampling keeps what surprises as much as the distribution does on average") {
  SampleParams p;  // in order of |surprise - 1.75 bits|: token 1, 0, then 2 and 3
  p.typical_p = 0.2F;
  check_law(p, {0, 1, 0, 0});
  p.typical_p = 0.5F;
  check_law(p, {2 / 3.0, 1 / 3.0, 0, 0});
  p.typical_p = 0.8F;
  check_law(p, {4 / 7.0, 2 / 7.0, 1 / 7.0, 0});
  p.typical_p = 1;
  check_law(p, kFour);
  p.typical_p = 0.8F, p.top_k = 2;  // behind top-k: 2/3 and 1/3 with 0.918 bits; the first is nearer
  check_law(p, {2 / 3.0, 1 / 3.0, 0, 0});
  p.typical_p = 0.6F;
  check_law(p, {1, 0, 0, 0});
}

TEST_CASE("XTC leaves out the top choices but the least of them, as often as its probability says") {
  SampleParams p;
  p.xtc_probability = 1, p.xtc_threshold = 0.2F;
  check_law(p, {0, 0.5, 0.25, 0.25});
  p.xtc_threshold = 0.1F;  // of two that are equally probable the later one stays
  check_law(p, {0, 0, 0, 1});
  p.xtc_threshold = 0.3F;  // one alone is never left out
  check_law(p, kFour);
  p.xtc_threshold = 0.6F;
  check_law(p, kFour);
  p.xtc_threshold = 0.2F, p.xtc_probability = 0.5F;
  check_draws(p, {0.25, 0.375, 0.1875, 0.1875});
  p.xtc_probability = 0;
  check_draws(p, kFour);
}

TEST_CASE("the dynamic temperature goes with the entropy") {
  SampleParams p;
  p.temperature = 1, p.dynatemp_range = 0.5F;
  const auto heated = [](double t) {
    std::vector<double> out;
    for (const double v : kFour) out.push_back(std::pow(v, 1 / t));
    const double sum = std::accumulate(out.begin(), out.end(), 0.0);
    for (double& v : out) v /= sum;
    return out;
  };
  check_law(p, heated(0.5 + 0.875));  // 1.75 of 2 bits
  p.dynatemp_exponent = 2;
  check_law(p, heated(0.5 + 0.765625));
  p.dynatemp_exponent = 1, p.dynatemp_range = 2;  // not below 0
  check_law(p, heated(3 * 0.875));
  p.dynatemp_range = 0.5F, p.top_k = 1;
  check_law(p, {1, 0, 0, 0});
  p.dynatemp_range = 0, p.top_k = 0;
  check_law(p, kFour);
}

TEST_CASE("Mirostat 2 cuts at its bound of surprise, and learns") {
  SampleParams p;
  p.mirostat = 2, p.mirostat_tau = 1.01F, p.mirostat_eta = 0.1F;
  p.top_k = 1;  // filters do not count beside it
  History h;
  check_law(p, {2 / 3.0, 1 / 3.0, 0, 0}, h);  // at first 2 tau = 2.02 bits
  learn(logits_of(kFour), p, h, 1);           // 2 bits, 0.99 more than tau
  CHECK(h.surprise_bound.value() == doctest::Approx(1.921));
  check_law(p, {1, 0, 0, 0}, h);
  learn(logits_of(kFour), p, h, 0);  // 1 bit
  CHECK(h.surprise_bound.value() == doctest::Approx(1.922));
  learn(logits_of({1, 1e-9}), p, h, 0);  // 0 bits
  CHECK(h.surprise_bound.value() == doctest::Approx(2.023));
  h.surprise_bound = -1;  // the best always stays
  check_law(p, {1, 0, 0, 0}, h);
  SampleParams off;
  History none;
  learn(logits_of(kFour), off, none, 1);
  CHECK_FALSE(none.surprise_bound.has_value());
}

TEST_CASE("Mirostat 1 keeps the k tokens that Zipf's law allows") {
  std::vector<double> zipf;
  for (int i = 1; i <= 50; ++i) zipf.push_back(1.0 / (i * i));  // exponent 2
  SampleParams p;
  p.mirostat = 1, p.mirostat_tau = 2;
  const std::vector<float> law = distribution(logits_of(zipf), p, {});
  // k = (1 * 2^4 / (1 - 1/50)) ^ (1/2) = 4.04
  CHECK(law[3] > 0);
  CHECK(law[4] == 0);
  CHECK(double{law[0]} == doctest::Approx(1 / (1 + 1 / 4.0 + 1 / 9.0 + 1 / 16.0)).epsilon(1e-4));
}

TEST_CASE("DRY: what goes on with a repeat loses multiplier * base ^ (length - allowed)") {
  SampleParams p;
  p.dry_multiplier = 0.8F, p.dry_base = 2, p.dry_allowed_length = 2;
  const auto losses = [&](const std::vector<Token>& text) {
    std::vector<float> out(8);
    penalize_repeats(out, p, history_of(text));
    for (float& v : out) v = -v;
    return out;
  };
  using Losses = std::vector<float>;
  CHECK(losses({1, 2, 3, 4, 1, 2, 3}) == Losses{0, 0, 0, 0, 1.6F, 0, 0, 0});
  CHECK(losses({1, 2, 3, 4, 2, 3}) == Losses{0, 0, 0, 0, 0.8F, 0, 0, 0});
  CHECK(losses({1, 2, 3, 4, 3}) == Losses(8));
  CHECK(losses({5, 5, 5}) == Losses{0, 0, 0, 0, 0, 0.8F, 0, 0});
  CHECK(losses({1, 2, 6, 1, 2, 7, 1, 2}) == Losses{0, 0, 0, 0, 0, 0, 0.8F, 0.8F});
  CHECK(losses({}) == Losses(8));
  // The longer of two repeats counts.
  CHECK(losses({1, 2, 3, 4, 2, 3, 4, 1, 2, 3}) == Losses{0, 0, 0, 0, 1.6F, 0, 0, 0});
  p.dry_penalty_last_n = 3;
  CHECK(losses({1, 2, 3, 4, 1, 2, 3}) == Losses(8));
  p.dry_penalty_last_n = 0;
  CHECK_FALSE(uses_dry(p));
  p.dry_penalty_last_n = -1;

  SUBCASE("breakers end a repeat, and are never punished") {
    DryBreakers b;
    b.token.resize(3);
    b.token[2] = true;
    p.dry_breakers = std::make_shared<DryBreakers>(b);
    CHECK(losses({1, 2, 3, 4, 1, 2, 3}) == Losses(8));
    CHECK(losses({2, 3, 4, 5, 2, 3, 4}) == Losses{0, 0, 0, 0, 0, 0.8F, 0, 0});
    CHECK(losses({3, 4, 2, 3, 4}) == Losses(8));  // the breaker itself would come
    b.token.clear();
    b.sequences = {{2, 3}};
    p.dry_breakers = std::make_shared<DryBreakers>(b);
    CHECK(losses({1, 2, 3, 4, 1, 2, 3}) == Losses(8));
    CHECK(losses({2, 3, 4, 5, 6, 2, 3, 4, 5}) == Losses{0, 0, 0, 0, 0, 0, 0.8F, 0});
  }
  SUBCASE("a long repeat loses no more than a float can say") {
    std::vector<Token> text;
    for (int i = 0; i < 400; ++i) text.push_back(i % 2);
    std::vector<float> out(2);
    penalize_repeats(out, p, history_of(text));
    CHECK(std::isfinite(out[0]));
    CHECK(out[0] < -1e29F);
  }
  SUBCASE("the pick follows") {
    const std::vector<float> flat(8);
    SampleParams greedy = p;
    greedy.temperature = 0;
    greedy.logit_bias = {{4, 1.0F}};
    CHECK(pick(flat, greedy, history_of({1, 2, 3, 4, 1}), 5) == 4);
    CHECK(pick(flat, greedy, history_of({1, 2, 3, 4, 1, 2, 3}), 7) == 0);
  }
}

TEST_CASE("each sampler's range is named") {
  const auto name_of = [](auto change) {
    SampleParams p;
    change(p);
    try {
      check_params(p);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(name_of([](SampleParams&) {}).empty());
  CHECK(name_of([](SampleParams& p) { p.typical_p = 2; }).find("typical_p") == 0);
  CHECK(name_of([](SampleParams& p) { p.xtc_probability = -1; }).find("xtc_probability") == 0);
  CHECK(name_of([](SampleParams& p) { p.mirostat = 3; }).find("mirostat") == 0);
  CHECK(name_of([](SampleParams& p) { p.dry_base = 0; }).find("dry_base") == 0);
  CHECK(name_of([](SampleParams& p) { p.dynatemp_range = std::nanf(""); }).find("dynatemp_range") == 0);
}
