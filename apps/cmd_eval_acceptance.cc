// carat eval acceptance: how often drafters are right, by place and kind of text. Speed is not looked at.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/cli.h"
#include "apps/eval.h"
#include "apps/progress.h"
#include "apps/spec_runs.h"
#include "base/error.h"
#include "engine/setup.h"
#include "serve/spec_report.h"

namespace carat {
namespace {

struct AcceptanceOptions {
  OpenOptions open;
  SpecFlags spec;
  SampleParams sample;
  std::string prompts, cache;
  EngineConfig formats;
  std::vector<std::string> only;
  std::vector<int32_t> depths{1, 2, 4, 8, 16};
  int32_t tokens = 128, context = 2048;
  bool ends = false;
  MeasureFlags measure;
};

struct Row {
  std::string set, drafter;
  std::vector<double> lengths;  // tokens a step, by depth
  SpecStats deepest;
};

void print(const std::vector<Row>& rows, const AcceptanceOptions& o) {
  std::string head = "| prompts | drafter |", line = "| --- | --- |";
  for (const int32_t d : o.depths) head += fmt::format(" AL {} |", d), line += " --: |";
  fmt::print(
      "Tokens a step (AL) at fixed depths; shares accepted at depth {}: of all drafts / given the places "
      "before.\n\n{} places 1, 2, ... |\n{} --- |\n",
      o.depths.back(), head, line);
  for (const Row& r : rows) {
    std::string text = fmt::format("| {} | {} |", r.set, r.drafter);
    for (const double al : r.lengths) text += fmt::format(" {:.2f} |", al);
    const auto all = accepted_by_place(r.deepest), given = accepted_given_previous(r.deepest);
    for (size_t i = 0; i < all.size() && i < 8; ++i) text += fmt::format(" {:.2f}/{:.2f}", all[i], given[i]);
    fmt::print("{} |\n", text);
  }
}

Record record_of(const Measurement& m, const Row& r, const AcceptanceOptions& o, const KvFormats& formats) {
  Record record = m.begin(fmt::format("{} {}", r.set, r.drafter));
  record["settings"]["prompts"] = r.set;
  record["settings"]["draft"] = r.drafter;
  record["settings"]["dm"] = o.depths.back();
  record["settings"]["ctx"] = o.context;
  record["settings"]["temperature"] = o.sample.temperature;
  put_cache(record["settings"], formats);
  Record& f = record["figures"];
  for (size_t i = 0; i < o.depths.size(); ++i) f["al_by_depth"][std::to_string(o.depths[i])] = r.lengths[i];
  f["al"] = r.lengths.back();
  if (r.deepest.drafted)
    f["accept_rate"] = static_cast<double>(r.deepest.accepted) / static_cast<double>(r.deepest.drafted);
  f["speculation"] = spec_json(r.deepest, false);
  return record;
}

void eval_acceptance(const AcceptanceOptions& o) {
  Measurement m(o.measure, "acceptance");
  const Opened opened = open_model(o.open);
  m.opened(opened);
  std::vector<PromptSet> sets = read_prompts(o.prompts, o.only, opened);
  if (o.ends && opened.tokenizer)
    for (PromptSet& set : sets) set.ends = opened.tokenizer->data().end_of_generation;
  if (o.spec.types.empty() && o.spec.draft_model.empty())
    throw Error("no drafters",
                "name them with --spec, for example --spec suffix,ngram-mod, or with -md FILE");
  EngineConfig config = o.formats;
  config.context = o.context;
  config.sequences = 1;
  if (const KvFormats cache = o.cache.empty() ? KvFormats{} : cache_formats(o.cache); !o.cache.empty()) {
    config.cache_k = cache.k, config.cache_v = cache.v;
    config.sliding_k = cache.sliding_k, config.sliding_v = cache.sliding_v;
    config.single_copy = cache.single, config.kv_layers = cache.layers, config.kv_protect = cache.protect;
  }
  SpecBed bed(o.spec, opened, config);
  const std::vector<std::string>& names = bed.drafters();
  std::vector<Row> rows(sets.size() * names.size());
  auto bar = std::make_unique<ProgressBar>("decoding", "runs");
  double done = 0;
  for (size_t d = 0; d < names.size(); ++d)
    for (const int32_t depth : o.depths) {
      const SpecSetting setting = bed.setting(names[d], depth);
      for (size_t p = 0; p < sets.size(); ++p) {
        Row& row = rows[p * names.size() + d];
        row.set = sets[p].name;
        row.drafter = names[d];
        row.deepest = bed.run(setting, sets[p].prompts, 0, sets[p].ends, o.sample, o.tokens, 1).stats;
        row.lengths.push_back(row.deepest.accepted_length());
        bar->update(++done, static_cast<double>(rows.size() * o.depths.size()));
      }
    }
  bar.reset();
  if (m.prints_table()) print(rows, o);
  for (const Row& r : rows) m.add(record_of(m, r, o, formats_of(bed.config())));
  m.finish();
}

}  // namespace

void add_eval_acceptance(CLI::App& eval) {
  auto o = std::make_shared<AcceptanceOptions>();
  CLI::App* a = eval.add_subcommand("acceptance", "Acceptance of drafts by position and kind of text");
  add_open_flags(*a, o->open);
  add_spec_flags(*a, o->spec);
  o->sample.temperature = 0;
  a->add_option("--prompts", o->prompts, "JSON file of prompts by kind (share/prompts.json)")->required();
  a->add_option("--only", o->only, "Kinds to take, comma-separated (default: all)")->delimiter(',');
  a->add_option("--depths", o->depths, "Draft lengths, comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(1, kMaxDraft - 1))
      ->capture_default_str();
  a->add_option("-n,--n-gen", o->tokens, "Tokens to generate for each prompt")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  a->add_option("-c,--ctx-size", o->context, "Context in tokens")
      ->check(CLI::Range(16, 1 << 24))
      ->capture_default_str();
  a->add_option("--temp", o->sample.temperature, "Temperature")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  a->add_option("--top-k", o->sample.top_k, "Only the k best tokens (0: all)")->check(CLI::Range(0, 1 << 30));
  a->add_option("--top-p", o->sample.top_p, "The best tokens whose share reaches p")
      ->check(CLI::Range(0.0, 1.0));
  a->add_option("--min-p", o->sample.min_p, "Tokens at least so probable beside the best")
      ->check(CLI::Range(0.0, 1.0));
  a->add_option("-s,--seed", o->sample.seed, "Seed");
  auto* cache = a->add_option("--cache", o->cache, "The model's cache, as in eval kld --caches");
  add_cache_flags(*a, o->formats);
  exclude_cache_flags(*a, *cache);
  a->add_flag("--ends", o->ends, "End answers where the model ends them (default: continue to -n tokens)");
  add_measure_flags(*a, o->measure);
  a->callback([o, a] {
    refuse_without_effect(*a, {"--draft-max", "--spec-policy"}, "eval acceptance, whose --depths are fixed");
    eval_acceptance(*o);
  });
}

}  // namespace carat
