// The engine over several devices: tokens, drafts and texts that are found again are those of one device.
#include <doctest/doctest.h>

#include "parts/parts.h"
#include "tests/backends.h"
#include "tests/goldens.h"
#include "tests/lossless.h"

using namespace carat;
using namespace carat::test;

namespace {

std::shared_ptr<Backend> one_device() {
  std::vector<NamedBackend> cpu = cpu_backends(1);
  return cpu.empty() ? make_ref_backend() : std::move(cpu.back().backend);
}
std::shared_ptr<Backend> devices(SplitMode mode, int32_t layers) {
  PartsOptions o;
  o.mode = mode, o.layers = layers, o.first_layer = {0, layers / 2};
  return make_parts({one_device(), one_device()}, o);
}

std::vector<Token> some_prompt(int n, int salt) {
  std::vector<Token> p;
  for (int i = 0; i < n; ++i) p.push_back((i % 17 * 37 + (i / 40) * 5 + salt * 101 + 11) % 512);
  return p;
}

// Turns of two chats: the second ones begin as the first ones ended.
std::vector<Outcome> chats(const std::shared_ptr<Backend>& backend, const std::shared_ptr<const Model>& model,
                           uint64_t& found) {
  EngineConfig c;
  c.context = 400, c.sequences = 2, c.prefill_chunk = 24;
  Engine engine(backend, model, c);
  std::vector<Outcome> all;
  std::vector<Request> turns(2);
  for (int i = 0; i < 2; ++i) {
    turns[size_t(i)].prompt = some_prompt(150, i);
    turns[size_t(i)].sample = {.temperature = 1, .top_k = 50, .seed = 7};
    turns[size_t(i)].max_tokens = 12, turns[size_t(i)].logprobs = 2;
  }
  for (int round = 0; round < 2; ++round) {
    const std::vector<Outcome> out = run_all(engine, turns);
    for (size_t i = 0; i < 2; ++i) {
      all.push_back(out[i]);
      turns[i].prompt.insert(turns[i].prompt.end(), out[i].tokens.begin(), out[i].tokens.end());
      turns[i].prompt.push_back(99);
    }
  }
  found = engine.stats().prefix.hits;
  return all;
}

}  // namespace

TEST_CASE("chats, and what is found of them") {
  for (const char* name : {"gemma4_dense", "qwen3_5_moe"}) {
    CAPTURE(name);
    const auto one = one_device();
    const auto whole = std::make_shared<Model>(load_golden(golden_dir(name), *one));
    const auto layers = static_cast<int32_t>(whole->spec.layers.size());
    uint64_t found = 0;
    const std::vector<Outcome> want = chats(one, whole, found);
    CHECK(found > 100);
    for (const SplitMode mode : {SplitMode::tensor, SplitMode::layer}) {
      const auto backend = devices(mode, layers);
      const auto model = std::make_shared<Model>(load_golden(golden_dir(name), *backend));
      uint64_t also = 0;
      const std::vector<Outcome> got = chats(backend, model, also);
      CHECK(got == want);
      CHECK(also == found);
    }
  }
}

TEST_CASE("every drafter gives the tokens of plain decoding") {
  const std::vector<std::vector<Token>> prompts{some_prompt(40, 1), some_prompt(9, 2)};
  for (const SplitMode mode : {SplitMode::tensor, SplitMode::layer}) {
    const auto backend = devices(mode, 4);
    LosslessPlan plan{backend, std::make_shared<Model>(load_golden(golden_dir("gemma4_e"), *backend)),
                      prompts, 12};
    plan.batches = {2}, plan.every_sampler = false;
    CHECK(check_lossless(plan) == "");
  }
}
