// label: plain
// Networks as drafters of the golden models: the tokens of plain decoding, chains and trees, one sequence and
// three, at every way to sample; and the assistants' drafts are accepted about as often as the reference's.
#include <doctest/doctest.h>

#include <map>

#include "engine/speculate/draft_net.h"
#include "engine/speculate/draft_ngram.h"
#include "model/stepper.h"
#include "tests/backends.h"
#include "tests/goldens.h"
#include "tests/lossless.h"

using namespace carat;
using namespace carat::test;

namespace {

struct Target {
  explicit Target(const std::string& golden)
      : name(golden),
        backend(make_cpu_backend(1, "")),
        model(std::make_shared<Model>(load_golden(golden_dir(golden), *backend))) {}
  std::shared_ptr<Drafter> mtp() const {
    const std::string file = name == "gemma4_e" ? "gemma4_assistant_e" : "gemma4_assistant";
    const auto net = std::make_shared<MtpNet>(open(golden_dir(file)), *backend);
    return make_mtp_drafter(net, model->spec);
  }
  std::shared_ptr<Drafter> dflash() const {
    const auto net = std::make_shared<DFlashNet>(open(std::string(CARAT_TEST_DATA) + "/dflash"), *backend);
    return make_dflash_drafter(net, model->spec);
  }
  std::shared_ptr<Drafter> itself() const { return make_model_drafter(model, model->spec); }
  static std::shared_ptr<WeightSource> open(const std::string& path) { return open_source(path); }

  std::string name;
  std::shared_ptr<Backend> backend;
  std::shared_ptr<const Model> model;
};

NamedDrafters fixed(const std::string& name, std::vector<std::shared_ptr<Drafter>> d, int32_t depth,
                    int32_t nodes = 0) {
  NamedDrafters n{name, std::move(d), {}};
  n.config.adaptive = false;
  n.config.draft_max = depth;
  n.config.tree_nodes = nodes;
  n.config.max_rows = 32;
  return n;
}

std::vector<Token> some_prompt(int n, int salt) {
  std::vector<Token> p;
  for (int i = 0; i < n; ++i) p.push_back((i % 13 * 41 + (i / 30) * 7 + salt * 97 + 9) % 512);
  return p;
}

}  // namespace

TEST_CASE("networks draft, chains and trees and mixed, and the tokens stay") {
  for (const char* golden : {"gemma4_dense", "gemma4_e"}) {
    CAPTURE(golden);
    const Target t(golden);
    LosslessPlan plan{
        t.backend, t.model, {some_prompt(70, 1), some_prompt(5, 2), some_prompt(33, 3)}, 20, {1, 3}};
    plan.drafters = [&t] {
      std::vector<NamedDrafters> all = {
          fixed("mtp 4", {t.mtp()}, 4), fixed("mtp tree", {t.mtp()}, 4, 12), fixed("dflash", {t.dflash()}, 7),
          fixed("dflash tree", {t.dflash()}, 7, 14), fixed("model", {t.itself()}, 5)};
      NamedDrafters mixed = fixed("mixed", {t.mtp(), make_ngram("suffix", {}), t.dflash()}, 6);
      mixed.config.adaptive = true;
      all.push_back(mixed);
      return all;
    };
    CHECK(check_lossless(plan) == "");
  }
}

TEST_CASE("DFlash drafts for a hybrid too: dimensions come from the file, features from any layer") {
  const Target t("qwen3_5");
  LosslessPlan plan{t.backend, t.model, {some_prompt(50, 1), some_prompt(9, 2)}, 20, {2}};
  plan.drafters = [&t] {
    return std::vector<NamedDrafters>{fixed("dflash", {t.dflash()}, 7),
                                      fixed("dflash tree", {t.dflash()}, 5, 10)};
  };
  CHECK(check_lossless(plan) == "");
}

TEST_CASE("the assistants are accepted about as often as in the reference's rounds") {
  for (const char* golden : {"gemma4_dense", "gemma4_e"}) {
    CAPTURE(golden);
    const Target t(golden);
    const Goldens g(t.name), assistant(t.name == "gemma4_e" ? "gemma4_assistant_e" : "gemma4_assistant");
    Request r;
    r.prompt = g.get("input_ids").i;
    r.sample.temperature = 0;
    r.max_tokens = 32;
    EngineConfig c;
    c.context = 160, c.sequences = 1, c.cache_k = c.cache_v = DType::f32;
    const NamedDrafters four = fixed("mtp", {t.mtp()}, 4);
    c.drafters = four.drafters, c.spec = four.config;
    Engine engine(t.backend, t.model, c);
    const Outcome got = run_all(engine, {r})[0];
    CHECK(got.tokens == g.get("greedy_ids").i);
    REQUIRE(got.spec);
    // The reference's rounds saw two sliding keys more (its way of counting) and were trained with them.
    const size_t rounds = assistant.get("spec_accepted").i.size();
    MESSAGE(t.name << ": " << got.spec->rounds << " rounds, the reference " << rounds);
    CHECK(got.spec->rounds <= rounds + 4);
  }
}

TEST_CASE("a model that drafts for itself is always right") {
  const Target t("gemma4_dense");
  Request r;
  r.prompt = some_prompt(40, 4);
  r.sample.temperature = 0;
  r.max_tokens = 37;
  EngineConfig c;
  c.context = 160, c.sequences = 1;
  const NamedDrafters five = fixed("model", {t.itself()}, 5);
  c.drafters = five.drafters, c.spec = five.config;
  Engine engine(t.backend, t.model, c);
  const Outcome got = run_all(engine, {r})[0];
  REQUIRE(got.spec);
  CHECK(got.spec->rounds == 6);
  CHECK(got.spec->accepted == 30);
}

TEST_CASE("at a temperature too, with the target's noise") {
  const Target t("gemma4_dense");
  Request r;
  r.prompt = some_prompt(40, 4);
  r.sample = {.temperature = 1, .top_k = 40, .repeat_penalty = 1.1F, .seed = 8};
  r.max_tokens = 37;
  EngineConfig c;
  c.context = 160, c.sequences = 1;
  NamedDrafters five = fixed("model", {t.itself()}, 5);
  five.config.rule = DraftRule::keyed;
  c.drafters = five.drafters, c.spec = five.config;
  Engine engine(t.backend, t.model, c);
  const Outcome got = run_all(engine, {r})[0];
  REQUIRE(got.spec);
  CHECK(got.spec->rounds == 6);
  CHECK(got.spec->accepted == 30);
  REQUIRE(got.spec->shares.size() == 1);
  CHECK(got.spec->shares[0].drafter == "model");
  CHECK(got.spec->shares[0].accepted == 30);
}

TEST_CASE("rejection sampling keeps the law, with a drafter that draws and is wrong about it") {
  const Target t("gemma4_dense"), other("gemma4_moe");
  const std::vector<Token> prompt = some_prompt(12, 8);
  SampleParams params;
  params.top_k = 4;
  params.temperature = 1.5F;
  // The second token's law given the first, from plain steps.
  std::map<std::pair<Token, Token>, double> law, seen;
  Stepper stepper(t.backend, t.model, {64, 1, 16, 16}, DType::f16, DType::f16);
  Sequence s(stepper.pages());
  REQUIRE(s.append(12));
  const Stepper::Part all{&s, prompt};
  stepper.run({&all, 1});
  s.commit(12);
  const std::vector<float> first = distribution(stepper.logits(0), params, {});
  for (Token a = 0; a < 512; ++a) {
    if (first[static_cast<size_t>(a)] == 0) continue;
    REQUIRE(s.append(1));
    const Stepper::Part next{&s, {&a, 1}};
    stepper.run({&next, 1});
    const std::vector<float> second = distribution(stepper.logits(0), params, {});
    for (Token b = 0; b < 512; ++b)
      if (second[static_cast<size_t>(b)] > 0)
        law[{a, b}] = double{first[static_cast<size_t>(a)]} * second[static_cast<size_t>(b)];
    s.commit(0);
  }
  constexpr int kDraws = 1500;
  EngineConfig c;
  c.context = 64, c.sequences = 8, c.max_queue = kDraws;
  NamedDrafters d = fixed("model", {make_model_drafter(other.model, t.model->spec)}, 1);
  d.config.rejection = true;
  c.drafters = d.drafters, c.spec = d.config;
  Engine engine(t.backend, t.model, c);
  std::vector<Request> requests;
  for (int i = 0; i < kDraws; ++i) {
    Request& r = requests.emplace_back();
    r.prompt = prompt, r.sample = params, r.sample.seed = static_cast<uint64_t>(i) * 7919, r.max_tokens = 3;
  }
  for (const Outcome& o : run_all(engine, requests)) ++seen[{o.tokens[0], o.tokens[1]}];
  double chi2 = 0;
  for (const auto& [pair, p] : law) {
    const double expected = p * kDraws, difference = seen[pair] - expected;
    chi2 += difference * difference / expected;
  }
  CHECK(law.size() == 16);
  CHECK(seen.size() == 16);
  CHECK(chi2 < 44.3);  // 15 degrees of freedom, one in ten thousand
  CHECK(engine.stats().spec.drafted > kDraws / 2);
}
