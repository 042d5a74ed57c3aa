// label: slow
// lossless_test at length, with networks, cancelled requests, and on the trained models with the drafters
// that ship beside them: `lossless_full_test --prompts=50 --tokens=256` is the whole matrix (hours), without
// arguments a part of it that takes minutes. --skip=N: without the first N prompts, to run it in pieces;
// --model=NAME: only that golden, carat-demo or carat-demo-moe (which runs by name only); --cache=f16: no
// other cache formats; --batch=3: no other batches; --networks=1: no guessers and n-grams; --threads=N;
// --device=cuda:0,cuda:1 --split=tensor --peer=host: the trained models on these devices (as -dev, -sm and
// --peer have them); --samplers=1: with those samplers, too, that lossless_test has alone.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "apps/drafter.h"
#include "apps/spec_runs.h"
#include "engine/speculate/draft_net.h"
#include "engine/speculate/draft_nextn.h"
#include "engine/speculate/draft_ngram.h"
#include "tests/backends.h"
#include "tests/goldens.h"
#include "tests/lossless.h"

using namespace carat;
using namespace carat::test;

namespace {

// The value of --name=TEXT on the command line, which doctest leaves alone.
std::string option(const std::string& name) {
  std::ifstream file("/proc/self/cmdline");
  const std::string all((std::istreambuf_iterator<char>(file)), {});
  const size_t at = all.find("--" + name + "=");
  return at == std::string::npos ? "" : std::string(all.c_str() + at + name.size() + 3);
}
int option(const std::string& name, int otherwise) {
  const std::string text = option(name);
  return text.empty() ? otherwise : std::atoi(text.c_str());
}
bool wanted(const std::string& model) {
  const std::string only = option("model");
  return only.empty() || only == model;
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

LosslessPlan plan_of(std::shared_ptr<Backend> backend, std::shared_ptr<const Model> model, int n,
                     int tokens) {
  LosslessPlan plan{std::move(backend), model, prompts(n, model->spec.vocab), tokens};
  plan.prompts.erase(plan.prompts.begin(),
                     plan.prompts.begin() + std::min<int>(n, std::max(0, option("skip", 0))));
  plan.cancels = true;
  plan.every_sampler = option("samplers", 0) != 0;
  if (const int only = option("batch", 0)) plan.batches = {only};
  return plan;
}

std::shared_ptr<Backend> best_backend() {
  std::vector<NamedBackend> all =
      every_backend(option("threads", 1));  // two would spin where another test runs
  return std::move(all.back().backend);
}

NamedDrafters named(const std::string& name, std::vector<std::shared_ptr<Drafter>> d, int32_t depth,
                    int32_t nodes = 0, bool adaptive = false) {
  NamedDrafters n{name, std::move(d), {}};
  n.config.adaptive = adaptive;
  n.config.draft_max = depth;
  n.config.tree_nodes = nodes;
  n.config.max_rows = 32;
  return n;
}

// The networks that draft for this target, and mixes of them.
std::vector<NamedDrafters> networks(const std::string& golden, std::shared_ptr<Backend> backend,
                                    std::shared_ptr<const Model> model) {
  const auto suffix = [] { return std::shared_ptr<Drafter>(make_ngram("suffix", {})); };
  const auto dflash = [&] {
    const std::string dir = std::string(CARAT_TEST_DATA) + "/dflash";
    return std::shared_ptr<Drafter>(
        make_dflash_drafter(std::make_shared<DFlashNet>(open_source(dir), *backend), model->spec));
  };
  std::vector<NamedDrafters> all;
  // A drafter is attached to one engine.
  const auto own = [&] { return std::shared_ptr<Drafter>(make_own_drafter(*model, *backend, {})); };
  if (own()) {
    for (int32_t depth = 1; depth <= 4; ++depth) all.push_back(named("own mtp", {own()}, depth));
    all.push_back(named("own mtp and suffix", {own(), suffix()}, 6, 12, true));
    if (golden == "qwen3_5") all.push_back(named("dflash tree", {dflash()}, 7, 14));
    return all;
  }
  const auto model_drafter = [&] { return std::shared_ptr<Drafter>(make_model_drafter(model, model->spec)); };
  all.push_back(named("itself", {model_drafter()}, 5));
  if (golden != "gemma4_dense" && golden != "gemma4_e") return all;
  const auto mtp = [&] {
    const std::string dir = golden_dir(golden == "gemma4_e" ? "gemma4_assistant_e" : "gemma4_assistant");
    return std::shared_ptr<Drafter>(
        make_mtp_drafter(std::make_shared<MtpNet>(open_source(dir), *backend), model->spec));
  };
  all.push_back(named("mtp", {mtp()}, 4));
  all.push_back(named("mtp tree", {mtp()}, 4, 12));
  all.push_back(named("dflash", {dflash()}, 7));
  all.push_back(named("dflash tree", {dflash()}, 7, 14));
  all.push_back(named("mtp, suffix, dflash", {mtp(), suffix(), dflash()}, 6, 12, true));
  return all;
}

// Guessers and n-grams, then networks.
void check_all(LosslessPlan plan, std::function<std::vector<NamedDrafters>()> networks) {
  LosslessCount count;
  plan.count = &count;
  if (!option("networks", 0)) CHECK(check_lossless(plan) == "");
  plan.drafters = std::move(networks);
  CHECK(check_lossless(plan) == "");
  MESSAGE(fmt::format(
      "{}: {} prompts, {} runs compared with plain decoding, {} tokens, {} of them drafted, {} "
      "runs differ; {:.2f} requests a step in batches of several",
      plan.model->spec.name, plan.prompts.size(), count.runs, count.tokens, count.accepted, count.different,
      count.steps ? static_cast<double>(count.turns) / static_cast<double>(count.steps) : 0.0));
}

std::string shipped(const std::string& name, const std::string& type) {
  return fmt::format("{}/../../models/{}/{}-{}.gguf", CARAT_TEST_DATA, name, name, type);
}

// Texts of the seven kinds in turn.
std::vector<std::vector<Token>> held_out(const Opened& opened, size_t n) {
  const std::vector<PromptSet> sets =
      read_prompts(std::string(CARAT_TEST_DATA) + "/../../models/heldout-prompts.json", {}, opened);
  std::vector<std::vector<Token>> out;
  for (size_t i = 0; out.size() < n; ++i) {
    const size_t before = out.size();
    for (const PromptSet& s : sets)
      if (i < s.prompts.size() && out.size() < n) out.push_back(s.prompts[i]);
    if (out.size() == before) break;
  }
  return out;
}

// What ships beside a trained model: assistant, DFlash, and its sibling as the smaller model.
std::vector<NamedDrafters> shipped_drafters(const Opened& opened, const std::string& name,
                                            const std::string& sibling) {
  const auto suffix = [] { return std::shared_ptr<Drafter>(make_ngram("suffix", {})); };
  const auto open = [&](const std::string& file) {
    return std::shared_ptr<Drafter>(open_drafter({.file = file}, opened));
  };
  const auto mtp = [&] { return open(shipped(name + "-mtp", "q8_0")); };
  const auto dflash = [&] { return open(shipped(name + "-dflash", "q5_k_m")); };
  return {named("mtp", {mtp()}, 8),
          named("mtp tree", {mtp()}, 4, 12),
          named("dflash", {dflash()}, 15),
          named("dflash tree", {dflash()}, 7, 14),
          named("small model", {open(sibling)}, 5),
          named("small model and suffix", {open(sibling), suffix()}, 6, 12, true),
          named("mtp, suffix, dflash", {mtp(), suffix(), dflash()}, 8, 12, true)};
}

}  // namespace

TEST_CASE("the reference's tiny models") {
  for (const std::string golden : {"gemma4_dense", "gemma4_moe", "gemma4_e", "qwen3_5", "qwen3_5_moe"}) {
    if (!wanted(golden)) continue;
    CAPTURE(golden);
    const auto backend = best_backend();
    const auto model = std::make_shared<const Model>(load_golden(golden_dir(golden), *backend));
    check_all(plan_of(backend, model, option("prompts", 3), option("tokens", 48)),
              [&] { return networks(golden, backend, model); });
  }
}

TEST_CASE("the trained models") {
  const std::string dense = shipped("carat-demo", "q5_k_m"), moe = shipped("carat-demo-moe", "q4_k_m");
  for (const std::string name : {"carat-demo", "carat-demo-moe"}) {
    if (!wanted(name) || (name == "carat-demo-moe" && option("model").empty())) continue;
    CAPTURE(name);
    const bool is_dense = name == "carat-demo";
    OpenOptions o;
    o.model = is_dense ? dense : moe;
    o.threads = option("threads", 1);
    if (const std::string device = option("device"); !device.empty()) o.device = device;
    if (const std::string split = option("split"); !split.empty()) o.split.mode = split;
    if (const std::string peer = option("peer"); !peer.empty()) o.split.peer = peer;
    const Opened opened = open_model(o);
    const int n = option("prompts", 2);
    LosslessPlan plan = plan_of(opened.backend, opened.model, n, option("tokens", 32));
    plan.prompts = held_out(opened, static_cast<size_t>(n));
    plan.prompts.erase(plan.prompts.begin(),
                       plan.prompts.begin() + std::min(n, std::max(0, option("skip", 0))));
    check_all(plan, [&] { return shipped_drafters(opened, name, is_dense ? moe : dense); });
    if (option("cache") == "f16") continue;
    plan.cache_k = DType::kv4, plan.cache_v = DType::tq3;
    plan.prompts.resize((plan.prompts.size() + 2) / 3);
    CHECK(check_lossless(plan) == "");
  }
}
