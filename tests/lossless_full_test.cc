// label: slow
// lossless_test at length, and on the trained model: `lossless_full_test --prompts=50 --tokens=256` is the
// whole matrix (hours), without arguments a part of it that takes minutes.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/backends.h"
#include "tests/goldens.h"
#include "tests/lossless.h"

using namespace carat;
using namespace carat::test;

namespace {

// The value of --name=N on the command line, which doctest leaves alone.
int option(const std::string& name, int otherwise) {
  std::ifstream file("/proc/self/cmdline");
  const std::string all((std::istreambuf_iterator<char>(file)), {});
  const size_t at = all.find("--" + name + "=");
  return at == std::string::npos ? otherwise : std::atoi(all.c_str() + at + name.size() + 3);
}

// Texts of a few tokens that come again, and of tokens that do not.
std::vector<std::vector<Token>> prompts(int n, int32_t vocab) {
  std::vector<std::vector<Token>> out;
  uint32_t state = 1;
  const auto next = [&] { return state = state * 1664525 + 1013904223, state >> 8; };
  for (int i = 0; i < n; ++i) {
    std::vector<Token>& p = out.emplace_back();
    const uint32_t kinds = i % 2 ? 7 : static_cast<uint32_t>(vocab) - 10;
    for (int k = 0; k < 4 + i * 13 % 90; ++k)
      p.push_back(static_cast<Token>(10 + (next() % kinds) * (i % 2 ? 31 : 1)));
  }
  return out;
}

LosslessPlan plan_of(std::shared_ptr<Backend> backend, Model m, int n, int tokens) {
  const auto model = std::make_shared<const Model>(std::move(m));
  return {backend, model, prompts(n, model->spec.vocab), tokens};
}

std::shared_ptr<Backend> best_backend() {
  std::vector<NamedBackend> all = all_backends(2);
  return std::move(all.back().backend);
}

}  // namespace

TEST_CASE("the reference's tiny models") {
  for (const std::string golden : {"gemma4_dense", "gemma4_moe", "gemma4_e", "qwen3_5", "qwen3_5_moe"}) {
    CAPTURE(golden);
    const auto backend = best_backend();
    CHECK(check_lossless(plan_of(backend, load_golden(golden_dir(golden), *backend), option("prompts", 5),
                                 option("tokens", 64))) == "");
  }
}

TEST_CASE("the trained model") {
  const std::string path = std::string(CARAT_TEST_DATA) + "/../../models/carat-demo/carat-demo-q5_k_m.gguf";
  if (!std::filesystem::exists(path)) return;
  const auto backend = best_backend();
  LosslessPlan plan =
      plan_of(backend, load_model(open_source(path), *backend), option("prompts", 3), option("tokens", 32));
  CHECK(check_lossless(plan) == "");
  plan.cache_k = DType::kv4, plan.cache_v = DType::tq3;
  plan.prompts.resize((plan.prompts.size() + 2) / 3);
  CHECK(check_lossless(plan) == "");
}
