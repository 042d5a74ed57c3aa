// carat bench --spec: speed and tokens per step of drafters at fixed depths and of the controller's choice,
// over plain decoding, on prompts of several kinds. All settings share one engine and take turns prompt by
// prompt; plain decoding takes part twice, which shows what the clock can tell.
#include "apps/cmd_bench_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/generate.h"
#include "apps/progress.h"
#include "apps/spec_compare.h"
#include "base/error.h"
#include "serve/spec_report.h"

namespace carat {
namespace {

struct Cell {
  SpecStats stats;
  double seconds = 0, tokens = 0, idle = 0;  // idle: with CUDA, the time in which no step ran
  CudaUse used;
  void add(const SpecRun& run) {
    seconds += run.seconds;
    tokens += run.tokens;
    idle += run.seconds - run.used.device;
    used += run.used;
    stats.add(run.stats);
  }
};

// One kind of text with all settings: plain, plain again, the fixed ones, the controller last.
struct Table {
  std::string set;
  Comparison times;
  std::vector<Cell> cells;
};
constexpr size_t kPlain = 0, kAgain = 1;

std::vector<SpecSetting> all_settings(const SpecBenchOptions& o, const SpecBed& bed) {
  std::vector<SpecSetting> settings{bed.setting("", 0), bed.setting("", 0)};
  std::string together;
  for (const std::string& name : bed.drafters()) {
    for (const int32_t depth : o.depths)
      if (depth > 0 && (o.spec.synthetic.empty() || depth <= static_cast<int32_t>(o.spec.synthetic.size())))
        settings.push_back(bed.setting(name, depth));
    together += (together.empty() ? "" : ",") + name;
  }
  settings.push_back(bed.setting(together, 0));
  return settings;
}

std::string name_of(const std::vector<SpecSetting>& settings, size_t s) {
  return s == kAgain ? "plain again" : settings[s].name();
}

// What the controller is measured against.
std::vector<size_t> rivals(const Table& t) {
  std::vector<size_t> all{kPlain};
  for (size_t s = kAgain + 1; s + 1 < t.cells.size(); ++s) all.push_back(s);
  return all;
}

// A round: the prompts with every setting, each time starting with another one.
void run_round(SpecBed& bed, const std::vector<SpecSetting>& settings, const PromptSet& set, int32_t round,
               const SpecBenchOptions& o, Table* table) {
  const size_t at_once = o.streams > 1 ? set.prompts.size() : 1;
  for (size_t p = 0; p < set.prompts.size(); p += at_once) {
    std::vector<double> seconds(settings.size());
    for (size_t i = 0; i < settings.size(); ++i) {
      const size_t s = (i + p + static_cast<size_t>(round)) % settings.size();
      const SpecRun run = bed.run(settings[s], std::span(set.prompts).subspan(p, at_once), p, set.ends,
                                  o.sample, o.tokens, o.streams);
      seconds[s] = run.seconds / run.tokens;
      if (table) table->cells[s].add(run);
    }
    if (table) table->times.add(p / at_once, std::move(seconds));
  }
}

nlohmann::json record(const Table& t, const std::vector<SpecSetting>& settings, size_t s,
                      const SpecBenchOptions& o) {
  const SpecSetting& setting = settings[s];
  nlohmann::json j = spec_json(t.cells[s].stats, !setting.drafters.empty() && !o.spec.synthetic.empty());
  const Comparison::Range range = t.times.range(s, kPlain);
  j["prompts"] = t.set;
  j["drafters"] = setting.drafters;
  j["depth"] = setting.drafters.empty() ? nlohmann::json(0)
               : setting.depth          ? nlohmann::json(setting.depth)
                                        : nlohmann::json("auto");
  j["name"] = name_of(settings, s);
  j["tok_s"] = t.times.tokens_per_second(s);
  j["speedup"] = t.times.ratio(s, kPlain);
  j["speedup_low"] = range.low;
  j["speedup_high"] = range.high;
  j["streams"] = o.streams;
  return j;
}

nlohmann::json verdict(const Table& t, const std::vector<SpecSetting>& settings) {
  const size_t own = settings.size() - 1, best = t.times.best(rivals(t));
  const Comparison::Range range = t.times.range(own, best);
  return {{"prompts", t.set},
          {"rounds", t.times.rounds()},
          {"best", name_of(settings, best)},
          {"auto_over_best", t.times.ratio(own, best)},
          {"auto_over_best_low", range.low},
          {"auto_over_best_high", range.high},
          {"auto_over_best_crossed", t.times.over_best(own, rivals(t))},
          {"plain_over_plain", t.times.ratio(kAgain, kPlain)}};
}

void print(const Table& t, const std::vector<SpecSetting>& settings) {
  for (size_t s = 0; s < settings.size(); ++s) {
    const SpecStats& stats = t.cells[s].stats;
    const double rate =
        stats.drafted ? 100.0 * static_cast<double>(stats.accepted) / static_cast<double>(stats.drafted) : 0;
    const Comparison::Range range = t.times.range(s, kPlain);
    fmt::print("| {:<12} | {:<26} | {:>8.1f} | {:>10.3f} | {:>5.3f} .. {:>5.3f} | {:>13.2f} | {:>6.0f} % |\n",
               t.set, name_of(settings, s), t.times.tokens_per_second(s), t.times.ratio(s, kPlain), range.low,
               range.high, stats.accepted_length(), rate);
  }
}

void print_verdict(const Table& t, const std::vector<SpecSetting>& settings) {
  const nlohmann::json v = verdict(t, settings);
  const auto number = [&](const char* key) { return v[key].get<double>(); };
  fmt::print(
      "{}, {} rounds: auto over the best fixed setting ({}) {:.3f} ({:.3f} .. {:.3f}), picked on one half of "
      "the rounds and compared on the other {:.3f}; plain over itself {:.3f}\n",
      t.set, t.times.rounds(), v["best"].get<std::string>(), number("auto_over_best"),
      number("auto_over_best_low"), number("auto_over_best_high"), number("auto_over_best_crossed"),
      number("plain_over_plain"));
}

void print_cuda(const Table& t, const std::vector<SpecSetting>& settings) {
  for (size_t s = 0; s < settings.size(); ++s) {
    const Cell& c = t.cells[s];
    if (c.used.kernels > 0)
      fmt::print(
          "{} {}: {:.0f} kernels a token, the device waits for the host {:.1f} % (submitting {:.1f} %, "
          "copies {:.1f} %)\n",
          t.set, name_of(settings, s), static_cast<double>(c.used.kernels) / c.tokens,
          100 * c.idle / c.seconds, 100 * c.used.submit / c.seconds, 100 * c.used.copy / c.seconds);
  }
}

void print_json(const std::vector<Table>& tables, const std::vector<SpecSetting>& settings,
                const SpecBenchOptions& o, const nlohmann::json& before, const nlohmann::json& after) {
  nlohmann::json rows = nlohmann::json::array(), verdicts = nlohmann::json::array();
  for (const Table& t : tables) {
    for (size_t s = 0; s < settings.size(); ++s) rows.push_back(record(t, settings, s, o));
    verdicts.push_back(verdict(t, settings));
  }
  fmt::print("{}\n", nlohmann::json{{"machine_before", before},
                                    {"machine_after", after},
                                    {"tokens", o.tokens},
                                    {"temperature", o.sample.temperature},
                                    {"rows", rows},
                                    {"comparisons", verdicts}}
                         .dump(1));
}

}  // namespace

void bench_spec(const SpecBenchOptions& o) {
  const Opened opened = open_model(o.open);
  const std::vector<PromptSet> sets = read_prompts(o.prompts, o.only, opened);
  EngineConfig config;
  config.context = o.context;
  config.sequences = o.streams;
  config.cache_k = o.cache_k;
  config.cache_v = o.cache_v;
  SpecBed bed(o.spec, opened, config);
  const std::vector<SpecSetting> settings = all_settings(o, bed);
  const nlohmann::json before = machine_state(opened);
  std::vector<Table> tables;
  {
    const InterruptFlag stop;  // what was measured by then is told
    ProgressBar bar("decoding", "rounds");
    const double all = static_cast<double>(sets.size()) * (o.repeats + 1);
    for (const PromptSet& set : sets) {
      Table& t = tables.emplace_back(
          Table{set.name, Comparison(o.streams > 1 ? 1 : set.prompts.size()), {settings.size(), Cell{}}});
      for (int32_t i = 0; i <= o.repeats && !(*stop.flag() && i > 2); ++i) {  // the first does not count
        run_round(bed, settings, set, i, o, i > 0 ? &t : nullptr);
        bar.update(static_cast<double>(tables.size() - 1) * (o.repeats + 1) + i + 1, all);
      }
    }
  }
  const nlohmann::json after = machine_state(opened);
  if (o.json) return print_json(tables, settings, o, before, after);
  fmt::print("{} | {} | {} streams | {} tokens a prompt, temperature {} | load {} .. {}{}\n\n",
             opened.model->spec.name, opened.backend->info().name, o.streams, o.tokens, o.sample.temperature,
             before["load_average_1_min"].dump(), after["load_average_1_min"].dump(),
             o.spec.synthetic.empty() ? "" : " | SYNTHETIC acceptance: the text means nothing");
  fmt::print("| {:<12} | {:<26} | {:>8} | {:>10} | {:>14} | {:>13} | {:>8} |\n", "prompts", "drafter, depth",
             "tok/s", "over plain", "90 % range", "tokens a step", "accepted");
  fmt::print("| {:-<12} | {:-<26} | {:->7}: | {:->9}: | {:->13}: | {:->12}: | {:->7}: |\n", "", "", "", "",
             "", "", "");
  for (const Table& t : tables) print(t, settings);
  fmt::print("\n");
  for (const Table& t : tables) print_verdict(t, settings);
  for (const Table& t : tables) print_cuda(t, settings);
}

}  // namespace carat
