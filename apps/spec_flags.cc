#include "apps/spec_flags.h"

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <algorithm>

#include <sstream>

#include "apps/drafter.h"
#include "base/error.h"
#include "base/log.h"

namespace carat {
namespace {

constexpr std::string_view kNgrams[] = {"ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod",
                                        "suffix"};
constexpr std::string_view kNetworks[] = {"mtp", "dflash", "model"}, kGrammar = "grammar";
// Names that llama.cpp's users type.
constexpr std::pair<std::string_view, std::string_view> kOther[] = {{"draft-mtp", "mtp"},
                                                                    {"draft-dflash", "dflash"},
                                                                    {"draft", "model"},
                                                                    {"draft-simple", "model"},
                                                                    {"ngram", "suffix"}};

template <class Names>
bool among(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

void check_synthetic(const std::vector<float>& rates) {
  float before = 1;
  for (const float r : rates) {
    if (!(r >= 0 && r <= before))
      throw Error(fmt::format("--spec-synthetic: {} behind {}", r, before),
                  "give shares of all rounds by place, from 0 to 1 and never rising: 0.75,0.6,0.5,0.4");
    before = r;
  }
  if (rates.size() >= static_cast<size_t>(kMaxDraft))
    throw Error(fmt::format("--spec-synthetic has {} rates", rates.size()),
                fmt::format("at most {}", kMaxDraft - 1));
}

}  // namespace

SpecConfig spec_config(const SpecFlags& f, int32_t sequences) {
  SpecConfig c = f.config;
  c.adaptive = f.policy == "adaptive";
  c.synthetic = f.synthetic;
  c.rejection = f.sampling == "rejection";
  c.rule = f.rule == "best" ? DraftRule::best : DraftRule::keyed;
  check_synthetic(c.synthetic);
  if (!c.synthetic.empty()) c.draft_max = std::min(c.draft_max, static_cast<int32_t>(c.synthetic.size()));
  if (c.draft_min > c.draft_max)
    throw Error(fmt::format("--draft-min {} is more than --draft-max {}", c.draft_min, c.draft_max));
  // Rows of a verifying step: enough for one deep draft or several shallow ones.
  c.max_rows = std::max({std::min(16 * sequences, 64), sequences + c.draft_max, sequences + c.tree_nodes});
  return c;
}

std::vector<std::string> spec_types(const std::string& types) {
  std::vector<std::string> names;
  std::istringstream in(types);
  for (std::string name; std::getline(in, name, ',');) {
    for (const auto& [other, ours] : kOther)
      if (name == other) name = ours;
    if (name == "none" || name == "auto") {
      if (types != name) throw Error(fmt::format("--spec {}: '{}' stands alone", types, name));
    } else if (!among(kNgrams, name) && !among(kNetworks, name) && name != kGrammar) {
      throw Error(fmt::format("no drafter '{}'", name),
                  fmt::format("there are none, auto, {}, {} and {}", fmt::join(kNetworks, ", "),
                              fmt::join(kNgrams, ", "), kGrammar));
    }
    if (among(names, name)) throw Error(fmt::format("--spec {}: '{}' twice", types, name));
    names.push_back(name);
  }
  return names;
}

void set_up_speculation(const SpecFlags& f, const Opened& target, EngineConfig& config) {
  std::vector<std::string> names = spec_types(f.types);
  config.spec = spec_config(f, config.sequences > 0 ? config.sequences : 4);
  config.drafters.clear();
  if (names == std::vector<std::string>{"none"}) return;
  std::shared_ptr<Drafter> network;
  const bool automatic = names == std::vector<std::string>{"auto"};
  if (!f.draft_model.empty()) {
    DrafterOptions o;
    o.file = f.draft_model;
    o.head = f.own_head;
    network = open_drafter(o, target);
  } else if (target.model && (automatic || among(names, "mtp"))) {
    network = make_own_drafter(*target.model, *target.backend, f.own_head);  // null if it has none
  }
  if (automatic || names.empty()) {
    names.clear();
    if (automatic) names.emplace_back(kGrammar);
    if (network) names.emplace_back(network->name());
    if (automatic) names.emplace_back("suffix");
  }
  for (const std::string& name : names) {
    if (name == kGrammar) {
      config.drafters.push_back(make_grammar_drafter());
      continue;
    }
    if (auto ngram = make_ngram(name, f.ngram)) {
      config.drafters.push_back(std::move(ngram));
      continue;
    }
    if (!network)
      throw Error(fmt::format("--spec {} needs the drafter's file", name),
                  "give it with -md FILE: this model has no head of its own that drafts");
    if (network->name() != name)
      throw Error(
          fmt::format("'{}' is a drafter of the kind {}, not {}", f.draft_model, network->name(), name));
    config.drafters.push_back(network);
  }
  if (config.drafters.empty() && !config.spec.synthetic.empty())
    config.drafters.push_back(make_synthetic_drafter());
  if (config.spec.rejection && !config.drafters.empty())
    log_warn("--spec-sampling rejection: other tokens than without drafters, by the same law");
  if (!config.spec.synthetic.empty())
    log_warn("--spec-synthetic: drafts are accepted by dice; the text means nothing, only the speed does");
}

void add_spec_flags(CLI::App& app, SpecFlags& f) {
  SpecConfig& c = f.config;
  app.add_option("--spec,--spec-type", f.types,
                 "Drafters for speculative decoding, comma-separated: auto, none; mtp, dflash or model (the "
                 "kind of the -md file; mtp also the model's own head); ngram-simple, ngram-map-k, "
                 "ngram-map-k4v, ngram-mod, suffix, grammar (default: the kind of the -md file)");
  app.add_option("--model-draft,--spec-draft-model", f.draft_model,
                 "File of a drafter: an assistant (MTP), DFlash, or a smaller model (-md)");
  app.add_option("--draft-max,--draft,--draft-n,--spec-draft-n-max", c.draft_max,
                 "Most tokens drafted in a step")
      ->check(CLI::Range(1, kMaxDraft - 1))
      ->capture_default_str();
  app.add_option("--draft-min,--draft-n-min,--spec-draft-n-min", c.draft_min, "Drop shorter drafts")
      ->check(CLI::Range(0, kMaxDraft - 1))
      ->capture_default_str();
  app.add_option("--draft-p-min,--spec-draft-p-min", c.p_min,
                 "End a draft before a token whose probability (by the drafter) is below this")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--draft-rule", f.rule,
                 "What networks propose at a temperature: keyed, what the sampler's noise makes of their own "
                 "guess; or best, their most probable token")
      ->check(CLI::IsMember({"keyed", "best"}))
      ->capture_default_str();
  app.add_option("--draft-tree", c.tree_nodes,
                 "Draft trees of so many tokens where a drafter can (0: chains)")
      ->check(CLI::Range(0, kMaxDraft - 1))
      ->capture_default_str();
  app.add_option("--draft-head-rows", f.own_head.head_rows,
                 "A model's own MTP head drafts among so many of the first tokens, from a copy of the output "
                 "head's rows (0: all)")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_option("--spec-policy", f.policy,
                 "adaptive: choose drafter and draft length by measured gain; fixed: always --draft-max")
      ->check(CLI::IsMember({"adaptive", "fixed"}))
      ->capture_default_str();
  app.add_option("--spec-sampling", f.sampling,
                 "equality: the tokens of plain decoding; rejection: only their law (to compare acceptance)")
      ->check(CLI::IsMember({"equality", "rejection"}))
      ->capture_default_str();
  app.add_option("--spec-synthetic,--spec-synth-rates", f.synthetic,
                 "Accept drafts at these rates by place, for speed tests on random weights")
      ->delimiter(',');
  const auto number = [&](const char* flag, int32_t& value, const char* help) {
    app.add_option(flag, value, help)->check(CLI::Range(0, 1024))->capture_default_str();
  };
  NgramOptions& n = f.ngram;
  number("--spec-ngram-size-n", n.key, "ngram-simple, -map: tokens that must match");
  number("--spec-ngram-size-m", n.value, "ngram-simple, -map: tokens that may be copied");
  number("--spec-ngram-min-hits", n.min_hits, "ngram-map: times that a key must have occurred");
  number("--spec-ngram-mod-n-match", n.mod_key, "ngram-mod: tokens that must match");
  number("--spec-ngram-mod-n-min", n.mod_min, "ngram-mod: shortest draft (at most --draft-max)");
  number("--spec-ngram-mod-n-max", n.mod_max, "ngram-mod: longest draft");
}

}  // namespace carat
