// The sampler against the reference library's tables, its law, and its independence of the path taken.
#include "engine/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "model/files/safetensors.h"

using namespace carat;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::string sampling_data(const std::string& name) {
  return std::string(CARAT_TEST_DATA) + "/goldens/sampling/" + name;
}

struct Tables {
  std::vector<float> logits, probs;
  std::vector<Token> history;
  nlohmann::json cases;
};

Tables load_tables() {
  Tables t;
  const MappedFile file(sampling_data("goldens.safetensors"));
  for (const SafeTensor& s : parse_safetensors(file.bytes(), "sampling")) {
    const auto fill = [&](auto& to) {
      to.resize(s.bytes / 4);
      std::memcpy(to.data(), s.data, s.bytes);
    };
    if (s.name == "logits") fill(t.logits);
    if (s.name == "probs") fill(t.probs);
    if (s.name == "history") fill(t.history);
  }
  t.cases = nlohmann::json::parse(read_file(sampling_data("cases.json")));
  return t;
}

SampleParams params_of(const nlohmann::json& j) {
  SampleParams p;
  p.temperature = j.value("temperature", 1.0F);
  p.top_k = j.value("top_k", 0);
  p.top_p = j.value("top_p", 1.0F);
  p.min_p = j.value("min_p", 0.0F);
  p.repeat_penalty = j.value("repetition_penalty", 1.0F);
  return p;
}

std::vector<float> random_logits(size_t n, uint32_t seed, float spread = 3) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> out(n);
  for (float& v : out) v = normal(rng);
  return out;
}

// The definition, written out: sort everything.
Token pick_by_definition(const std::vector<float>& p, uint64_t seed, int64_t pos) {
  Token best = -1;
  double best_score = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) continue;
    const double u = uniform_noise(seed, static_cast<uint64_t>(pos), static_cast<uint32_t>(i));
    const double score = std::log(double{p[i]}) - std::log(-std::log(u));
    if (best < 0 || score > best_score) {
      best = static_cast<Token>(i);
      best_score = score;
    }
  }
  return best;
}

// Upper 0.1 % point of chi-square with n degrees of freedom (Wilson and Hilferty's cube).
double chi_square_limit(double n) {
  const double z = 3.0902, a = 2 / (9 * n);
  return n * std::pow(1 - a + z * std::sqrt(a), 3);
}

void check_law(const SampleParams& base, size_t vocab, int draws) {
  const std::vector<float> logits = random_logits(vocab, 7, 1.5F);
  const std::vector<float> p = distribution(logits, base, {});
  std::vector<int> counts(vocab);
  SampleParams params = base;
  for (int i = 0; i < draws; ++i) {
    params.seed = static_cast<uint64_t>(i % 100) * 0x9E3779B97F4A7C15u;
    ++counts[pick(logits, params, {}, i / 100)];
  }
  double chi = 0, rest_expected = 0, rest_seen = 0;
  int cells = 0;
  for (size_t i = 0; i < vocab; ++i) {
    const double expected = double{p[i]} * draws;
    if (p[i] == 0) CHECK(counts[i] == 0);
    if (expected < 10) {
      rest_expected += expected;
      rest_seen += counts[i];
      continue;
    }
    chi += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++cells;
  }
  if (rest_expected >= 10) {
    chi += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    ++cells;
  }
  REQUIRE(cells > 3);
  CAPTURE(cells);
  CHECK(chi < chi_square_limit(cells - 1));
}

}  // namespace

TEST_CASE("distributions equal the reference library's") {
  const Tables t = load_tables();
  const size_t vocab = t.logits.size() / 3;
  REQUIRE(vocab == 256);
  REQUIRE(t.cases.size() == 21);
  History history;
  history.add_prompt(t.history);
  for (size_t c = 0; c < t.cases.size(); ++c)
    for (size_t row = 0; row < 3; ++row) {
      CAPTURE(c);
      CAPTURE(row);
      const std::span<const float> logits(&t.logits[row * vocab], vocab);
      const std::vector<float> got = distribution(logits, params_of(t.cases[c]["params"]), history);
      const float* want = &t.probs[(c * 3 + row) * vocab];
      double worst = 0;
      bool same_set = true;
      int kept = 0;
      for (size_t i = 0; i < vocab; ++i) {
        worst = std::max(worst, std::abs(double{got[i]} - want[i]));
        kept += got[i] > 0;
        same_set = same_set && (got[i] > 1e-30F) == (want[i] > 1e-30F);
      }
      CHECK(worst <= 1e-6);
      CHECK(same_set);
      // Probabilities below float's range are kept by us and zero in the table.
      if (t.cases[c]["params"].value("temperature", 1.0F) > 0.1F) CHECK(kept == t.cases[c]["kept"][row]);
    }
}

TEST_CASE("draws follow the distribution") {
  SampleParams p;
  SUBCASE("plain") { check_law(p, 50, 200'000); }
  SUBCASE("cold") {
    p.temperature = 0.5F;
    check_law(p, 50, 200'000);
  }
  SUBCASE("hot, the long path") {
    p.temperature = 1.8F;
    check_law(p, 300, 200'000);
  }
  SUBCASE("top-k") {
    p.top_k = 12;
    check_law(p, 50, 200'000);
  }
  SUBCASE("top-k, top-p, min-p") {
    p = {.temperature = 1.3F, .top_k = 30, .top_p = 0.9F, .min_p = 0.03F};
    check_law(p, 50, 200'000);
  }
  SUBCASE("top-p alone") {
    p.top_p = 0.8F;
    check_law(p, 200, 200'000);
  }
}

TEST_CASE("every path picks what the definition picks") {
  for (const size_t vocab : {5, 64, 1000, 4099})
    for (int kind = 0; kind < 7; ++kind)
      for (uint64_t seed = 0; seed < 20; ++seed) {
        const std::vector<float> logits =
            random_logits(vocab, static_cast<uint32_t>(seed), kind == 6 ? 0.01F : 4);
        SampleParams p;
        p.seed = seed << 33 | seed;
        if (kind == 1) p.top_k = 40;
        if (kind == 2) p.top_p = 0.9F;
        if (kind == 3) p.min_p = 0.02F;
        if (kind == 4) p = {.temperature = 0.7F, .top_k = 20, .top_p = 0.95F, .min_p = 0.05F, .seed = p.seed};
        if (kind == 5) p.temperature = 3;
        const auto pos = static_cast<int64_t>(seed * 977);
        CAPTURE(vocab);
        CAPTURE(kind);
        CHECK(pick(logits, p, {}, pos) == pick_by_definition(distribution(logits, p, {}), p.seed, pos));
      }
}

TEST_CASE("the best tokens alone give the same pick, or none") {
  std::mt19937 rng(11);
  std::normal_distribution<float> normal(0, 3);
  History history;
  history.add(3);
  int32_t told = 0, silent = 0;
  for (int round = 0; round < 400; ++round) {
    std::vector<float> logits(round % 7 ? 700 : 90);
    for (float& v : logits) v = round % 5 ? normal(rng) : std::round(normal(rng));  // ties
    std::vector<int32_t> column(logits.size());
    std::iota(column.begin(), column.end(), 0);
    std::stable_sort(column.begin(), column.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    column.resize(80);
    std::vector<float> value;
    for (const int32_t c : column) value.push_back(logits[static_cast<size_t>(c)]);
    SampleParams p;
    p.temperature = round % 4 ? 0.5F + 0.25F * static_cast<float>(round % 4) : 0;
    p.top_k = round % 3 ? 64 : round % 11;
    p.top_p = round % 2 ? 0.95F : 1;
    p.min_p = round % 6 ? 0 : 0.05F;
    p.seed = static_cast<uint64_t>(round);
    const std::optional<Token> token = pick_among(column, value, p, round);
    ++(token ? told : silent);
    if (token) CHECK(*token == pick(logits, p, history, round));
    p.logit_bias = {{column[0], -kInf}, {column[2], -kInf}};  // what is banned leaves the rest in its order
    if (const auto other = pick_among(column, value, p, round)) {
      CHECK(*other == pick(logits, p, history, round));
      CHECK(*other != column[0]);
    }
    p.logit_bias = {{column[1], 1.0F}};
    CHECK_FALSE(pick_among(column, value, p, round));
    p.logit_bias.clear();
    p.presence_penalty = 0.5F;
    CHECK_FALSE(pick_among(column, value, p, round));
  }
  CHECK(told > 200);
  CHECK(silent > 20);
}

TEST_CASE("filters that filter nothing change nothing") {
  const std::vector<float> logits = random_logits(3000, 1);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Token plain = pick(logits, {.seed = seed}, {}, 9);
    CHECK(plain == pick(logits, {.top_k = 3000, .seed = seed}, {}, 9));
    CHECK(plain == pick(logits, {.top_k = 2999, .seed = seed}, {}, 9));
    CHECK(plain == pick(logits, {.min_p = 1e-30F, .seed = seed}, {}, 9));
  }
}

TEST_CASE("greedy takes the lowest of equal tokens") {
  std::vector<float> logits(500, -1.0F);
  for (const size_t at : {499, 130, 131, 257}) logits[at] = 2;
  CHECK(pick(logits, {.temperature = 0}, {}, 0) == 130);
  CHECK(pick(logits, {.temperature = 0, .top_k = 3, .seed = 5}, {}, 77) == 130);
  CHECK(pick(std::vector<float>(70, 0.0F), {.temperature = 0}, {}, 0) == 0);
}

TEST_CASE("top-k keeps ties, top-p cuts among ties at the lowest ids") {
  const std::vector<float> logits(40, 1.0F);
  const auto kept = [&](const SampleParams& p) {
    const std::vector<float> d = distribution(logits, p, {});
    return std::count_if(d.begin(), d.end(), [](float v) { return v > 0; });
  };
  CHECK(kept({.top_k = 3}) == 40);
  CHECK(kept({.top_p = 0.5F}) == 20);
  CHECK(kept({.top_p = 0}) == 1);
  CHECK(distribution(logits, {.top_p = 0.5F}, {})[19] == doctest::Approx(0.05));
  CHECK(kept({.min_p = 1}) == 40);
}

TEST_CASE("penalties and bias") {
  std::vector<float> logits = {1, 2, 3, -1, 0};
  History h;
  h.add_prompt(std::vector<Token>{2, 3});
  h.add(1);
  h.add(1);
  const auto log_ratio = [&](const SampleParams& p, int a, int b) {
    const auto d = distribution(logits, p, h);
    return std::log(d[a] / d[b]);
  };
  CHECK(log_ratio({}, 2, 0) == doctest::Approx(2));
  CHECK(log_ratio({.repeat_penalty = 2}, 2, 0) == doctest::Approx(0.5));  // 3 / 2 against 1
  CHECK(log_ratio({.repeat_penalty = 2}, 3, 4) == doctest::Approx(-2));   // -1 * 2 against 0
  CHECK(log_ratio({.repeat_penalty = 2, .repeat_last_n = 2}, 2, 0) == doctest::Approx(2));
  CHECK(log_ratio({.repeat_penalty = 2, .repeat_last_n = 0}, 1, 0) == doctest::Approx(1));
  CHECK(log_ratio({.presence_penalty = 0.5F}, 1, 0) == doctest::Approx(0.5));  // generated tokens only
  CHECK(log_ratio({.presence_penalty = 0.5F}, 2, 0) == doctest::Approx(2));
  CHECK(log_ratio({.frequency_penalty = 0.5F}, 1, 0) == doctest::Approx(0));
  CHECK(log_ratio({.logit_bias = {{0, 5.0F}}}, 0, 2) == doctest::Approx(3));
  CHECK(distribution(logits, {.logit_bias = {{2, -kInf}}}, h)[2] == 0);
  CHECK(pick(logits, {.temperature = 0, .logit_bias = {{2, -kInf}}}, h, 0) == 1);
  CHECK(logits[2] == 3);
}

TEST_CASE("a mask bans before everything else") {
  std::vector<float> logits(300);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 7919 % 300) / 40;
  std::vector<uint64_t> allowed(4, 0);  // what lies behind the last word is banned too
  std::vector<float> minus(logits.size(), -std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < 256; i += 5) {
    allowed[i / 64] |= uint64_t{1} << i % 64;
    minus[i] = logits[i];
  }
  History history;
  for (SampleParams p : {SampleParams{.temperature = 0}, SampleParams{}, SampleParams{.top_k = 7},
                         SampleParams{.temperature = 1.5, .top_p = 0.7F}, SampleParams{.min_p = 0.2F}})
    for (int64_t pos = 0; pos < 50; ++pos) {
      const Token t = pick(logits, p, history, pos, allowed);
      REQUIRE(t == pick(minus, p, history, pos));
      REQUIRE(t % 5 == 0);
    }
  allowed.assign(4, 0);
  CHECK_THROWS_AS(pick(logits, {}, history, 0, allowed), Error);
}

TEST_CASE("logits that are no numbers are an error") {
  for (const float bad : {kNan, kInf})
    for (const size_t at : {0, 77, 199}) {
      std::vector<float> logits(200, 0.5F);
      logits[at] = bad;
      CHECK_THROWS_WITH_AS(pick(logits, {.temperature = 0}, {}, 0), doctest::Contains("NaN"), Error);
      CHECK_THROWS_WITH_AS(pick(logits, {.top_k = 5}, {}, 0), doctest::Contains("NaN"), Error);
      CHECK_THROWS_WITH_AS(pick(logits, {}, {}, 0), doctest::Contains("NaN"), Error);
    }
  const std::vector<float> none(30, -kInf);
  CHECK_THROWS_AS(pick(none, {}, {}, 0), Error);
  std::vector<float> one(30, -kInf);
  one[17] = -3;
  for (const SampleParams& p : {SampleParams{}, SampleParams{.top_k = 5}, SampleParams{.top_p = 0.5F}})
    CHECK(pick(one, p, {}, 3) == 17);
}

TEST_CASE("parameters out of range are named") {
  const auto fails = [](const SampleParams& p, const char* name) {
    CHECK_THROWS_WITH_AS(check_params(p), doctest::Contains(name), Error);
  };
  fails({.temperature = -0.1F}, "temperature");
  fails({.temperature = kNan}, "temperature");
  fails({.top_k = -1}, "top_k");
  fails({.top_p = 1.01F}, "top_p");
  fails({.min_p = -1}, "min_p");
  fails({.repeat_penalty = 0}, "repeat_penalty");
  fails({.repeat_last_n = -2}, "repeat_last_n");
  fails({.presence_penalty = 3}, "presence_penalty");
  fails({.frequency_penalty = -3}, "frequency_penalty");
  fails({.logit_bias = {{1, kInf}}}, "logit_bias");
  check_params({.logit_bias = {{1, -kInf}, {2, 100.0F}}});
}

TEST_CASE("log probabilities are those of the raw logits") {
  const std::vector<float> logits = {0, 3, 1, 3, 2};
  const Logprobs l = logprobs(logits, 2, 3);
  const double norm = std::log(1 + std::exp(3.0) * 2 + std::exp(1.0) + std::exp(2.0));
  CHECK(l.chosen == doctest::Approx(1 - norm));
  REQUIRE(l.top.size() == 3);
  CHECK(l.top[0].token == 1);
  CHECK(l.top[1].token == 3);
  CHECK(l.top[2].token == 4);
  CHECK(l.top[2].logprob == doctest::Approx(2 - norm));
  CHECK(logprobs(logits, 0, 99).top.size() == 5);
  CHECK(logprobs(logits, 0, 0).top.empty());
}
