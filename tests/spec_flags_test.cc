// Speculation's flags: names of llama.cpp, and errors that say what to do.
#include "apps/spec_flags.h"

#include <doctest/doctest.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <fstream>

#include "base/error.h"

using namespace carat;

namespace {

EngineConfig configured(const std::vector<std::string>& arguments, int32_t sequences = 1) {
  CLI::App app;
  SpecFlags flags;
  add_spec_flags(app, flags);
  app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  EngineConfig config;
  config.sequences = sequences;
  set_up_speculation(flags, {}, config);
  return config;
}

std::vector<std::string> names(const EngineConfig& c) {
  std::vector<std::string> all;
  for (const auto& d : c.drafters) all.emplace_back(d->name());
  return all;
}
using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("nothing said: plain decoding") {
  CHECK(configured({}).drafters.empty());
  CHECK(configured({"--spec", "none"}).drafters.empty());
}

TEST_CASE("names and aliases") {
  CHECK(names(configured({"--spec", "suffix,ngram-mod"})) == Names{"suffix", "ngram-mod"});
  CHECK(names(configured({"--spec-type", "ngram-map-k4v"})) == Names{"ngram-map-k4v"});
  CHECK(names(configured({"--spec", "auto"})) == Names{"grammar", "suffix"});
  CHECK(spec_types("draft-mtp,ngram") == Names{"mtp", "suffix"});
  const EngineConfig c = configured({"--spec", "suffix", "--spec-draft-n-max", "5", "--draft-min", "2",
                                     "--spec-draft-p-min", "0.5", "--spec-policy", "fixed"});
  CHECK(c.spec.draft_max == 5);
  CHECK(c.spec.draft_min == 2);
  CHECK(c.spec.p_min == 0.5F);
  CHECK(!c.spec.adaptive);
  CHECK(c.spec.rule == DraftRule::keyed);
  CHECK(!c.spec.rejection);
  const EngineConfig other =
      configured({"--spec", "suffix", "--draft-rule", "best", "--spec-sampling", "rejection"});
  CHECK(other.spec.rule == DraftRule::best);
  CHECK(other.spec.rejection);
  CHECK(configured({"--spec", "suffix"}, 4).spec.max_rows == 64);
  CHECK(configured({"--spec", "suffix", "--draft", "40"}).spec.max_rows > 40);
}

TEST_CASE("synthetic acceptance brings its own drafter and bounds the depth") {
  const EngineConfig c = configured({"--spec-synthetic", "0.75,0.6,0.5"});
  CHECK(names(c) == Names{"synthetic"});
  CHECK(c.spec.draft_max == 3);
  CHECK(names(configured({"--spec", "suffix", "--spec-synth-rates", "0.5"})) == Names{"suffix"});
}

TEST_CASE("what cannot be is said, with a hint") {
  const std::pair<Names, const char*> wrong[] = {
      {{"--spec", "ngram-cash"}, "no drafter 'ngram-cash'"},
      {{"--spec", "none,suffix"}, "--spec none,suffix: 'none' stands alone"},
      {{"--spec", "suffix,suffix"}, "--spec suffix,suffix: 'suffix' twice"},
      {{"--spec", "mtp"}, "--spec mtp needs the drafter's file"},
      {{"--spec", "suffix", "--draft-max", "3", "--draft-min", "4"},
       "--draft-min 4 is more than --draft-max 3"},
      {{"--spec-synthetic", "0.5,0.6"}, "--spec-synthetic: 0.6 behind 0.5"},
      {{"--spec", "ngram-mod", "--spec-ngram-mod-n-match", "0"}, "ngram-mod's match is 0"},
  };
  for (const auto& [arguments, what] : wrong) {
    CAPTURE(std::string(what));
    CHECK_THROWS_WITH_AS(configured(arguments), what, Error);
  }
}

namespace {

struct Source : WeightSource {
  explicit Source(std::string path = "model.gguf") { path_ = std::move(path); }
  Metadata& keys() { return meta_; }
};

SampleParams sampled(const WeightSource& source, const std::vector<std::string>& arguments = {}) {
  CLI::App app;
  SampleFlags flags;
  add_sample_flags(app, flags);
  app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  use_model_sampling(source, flags);
  return flags.params;
}

}  // namespace

TEST_CASE("what the publisher recommends is the default, of a GGUF file and of a directory") {
  Source gguf;
  gguf.keys().set("general.sampling.temp", 0.6);
  gguf.keys().set("general.sampling.top_k", int64_t{20});
  gguf.keys().set("general.sampling.top_p", 7.5);  // no probability: left alone
  SampleParams p = sampled(gguf);
  CHECK(p.temperature == 0.6F);
  CHECK(p.top_k == 20);
  CHECK(p.top_p == sampled(Source()).top_p);
  p = sampled(gguf, {"--temp", "0", "--top-k", "5"});
  CHECK(p.temperature == 0);
  CHECK(p.top_k == 5);

  const auto dir = std::filesystem::temp_directory_path() / "carat-sampling-defaults";
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "generation_config.json")
      << R"({"temperature": 1.0, "top_p": 0.95, "top_k": 20, "min_p": 0})";
  p = sampled(Source(dir.string()));
  CHECK(p.temperature == 1);
  CHECK(p.top_p == 0.95F);
  CHECK(p.top_k == 20);
  std::ofstream(dir / "generation_config.json") << "not JSON";
  CHECK(sampled(Source(dir.string())).top_k == sampled(Source()).top_k);
  std::filesystem::remove_all(dir);
}
