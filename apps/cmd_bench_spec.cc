// carat bench --spec: speed and tokens per step of drafters at fixed depths and of the controller's choice,
// over plain decoding, on prompts of several kinds. All settings share one engine and take turns prompt by
// prompt; plain decoding takes part twice, which shows what the clock can tell.
#include "apps/cmd_bench_spec.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/generate.h"
#include "apps/inspect.h"
#include "apps/progress.h"
#include "apps/spec_compare.h"
#include "base/error.h"
#include "engine/setup.h"
#include "serve/spec_report.h"

namespace carat {
namespace {

struct Cell {
  SpecStats stats;
  double seconds = 0, tokens = 0, idle = 0;  // idle: with CUDA, the time in which no step ran
  double prompt_tokens = 0, prompt_seconds = 0;
  std::vector<double> speeds, first_token;  // of every run
  Energy prefill, decode;
  CudaUse used;
  void add(const SpecRun& run) {
    seconds += run.seconds;
    prompt_tokens += run.prompt_tokens;
    prompt_seconds += run.prompt_seconds;
    speeds.push_back(run.tokens / run.seconds);
    first_token.insert(first_token.end(), run.first_token.begin(), run.first_token.end());
    prefill += run.prefill;
    decode += run.decode;
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

int32_t longest(const std::vector<PromptSet>& sets) {
  size_t most = 0;
  for (const PromptSet& set : sets)
    for (const std::vector<Token>& prompt : set.prompts) most = std::max(most, prompt.size());
  return static_cast<int32_t>(most);
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

Record record(const Measurement& m, const Table& t, const std::vector<SpecSetting>& settings, size_t s,
              const SpecBenchOptions& o, const KvFormats& formats, double kv_mib) {
  const SpecSetting& setting = settings[s];
  const Cell& c = t.cells[s];
  Record r = m.begin(fmt::format("{} {}", t.set, name_of(settings, s)));
  Record& set = r["settings"];
  set["prompts"] = t.set;
  set["draft"] = setting.drafters.empty() ? "none" : setting.drafters;
  set["dm"] = setting.drafters.empty() ? Record(0) : setting.depth ? Record(setting.depth) : Record("auto");
  set["ctx"] = o.depth > 0 ? o.depth : o.context;
  set["depth"] = o.depth;
  put_cache(set, formats);
  set["streams"] = o.streams;
  set["tokens"] = o.tokens;
  set["temperature"] = o.sample.temperature;
  set["draft_p_min"] = o.spec.config.p_min;
  set["draft_tree"] = o.spec.config.tree_nodes;
  Record& f = r["figures"];
  const Comparison::Range range = t.times.range(s, kPlain);
  f["tok_s"] = spread(c.speeds);
  f["kv_mib"] = kv_mib;
  f["wall_s"] = c.seconds + c.prompt_seconds;
  if (c.prompt_seconds > 0) {
    f["prefill_ms"] = 1e3 * c.prompt_seconds / static_cast<double>(c.first_token.size());
    f["prefill_tps"] = c.prompt_tokens / c.prompt_seconds;
    f["first_tok_ms"] = 1e3 * quantile(c.first_token, 0.5);
  }
  f["decode_ms"] = 1e3 * c.seconds / static_cast<double>(c.speeds.size());
  f["decode_tps"] = t.times.tokens_per_second(s);
  f["speedup"] = {{"median", t.times.ratio(s, kPlain)}, {"low", range.low}, {"high", range.high}};
  if (!setting.drafters.empty()) {
    f["al"] = c.stats.accepted_length();
    if (c.stats.drafted)
      f["accept_rate"] = static_cast<double>(c.stats.accepted) / static_cast<double>(c.stats.drafted);
    f["n_accept"] = c.stats.accepted;
    f["n_drafted"] = c.stats.drafted;
    f["speculation"] = spec_json(c.stats, !o.spec.synthetic.empty());
  }
  if (m.has_energy()) {
    put_energy(f, o.streams > 1 ? std::nullopt : std::optional(c.prefill), c.decode, c.tokens);
    if (const auto j = c.decode.joules()) f["j_per_tok"] = *j / c.tokens;
  }
  if (s + 1 == settings.size()) f["against_fixed"] = verdict(t, settings);
  return r;
}

void print(const Table& t, const std::vector<SpecSetting>& settings) {
  for (size_t s = 0; s < settings.size(); ++s) {
    const SpecStats& stats = t.cells[s].stats;
    const double rate =
        stats.drafted ? 100.0 * static_cast<double>(stats.accepted) / static_cast<double>(stats.drafted) : 0;
    const Comparison::Range range = t.times.range(s, kPlain);
    const auto joules = t.cells[s].decode.joules();
    fmt::print(
        "| {:<12} | {:<26} | {:>8.1f} | {:>8.1f} | {:>10.3f} | {:>5.3f} .. {:>5.3f} | {:>13.2f} | {:>6.0f} % "
        "| "
        "{:>7} |\n",
        t.set, name_of(settings, s), t.times.tokens_per_second(s), quantile(t.cells[s].speeds, 0.1),
        t.times.ratio(s, kPlain), range.low, range.high, stats.accepted_length(), rate,
        joules ? fmt::format("{:.3f}", *joules / t.cells[s].tokens) : "-");
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

// A drafter that is never right was made for another model, or is broken: nothing else would say so.
void warn_of_drafters(const std::vector<Table>& tables, const std::vector<SpecSetting>& settings) {
  for (size_t s = 0; s < settings.size(); ++s) {
    double drafted = 0, accepted = 0;
    for (const Table& t : tables)
      drafted += static_cast<double>(t.cells[s].stats.drafted),
          accepted += static_cast<double>(t.cells[s].stats.accepted);
    if (drafted >= 64 && accepted < 0.02 * drafted)
      fmt::print("{}: {:.0f} of {:.0f} drafts are right: was this drafter made for this model?\n",
                 name_of(settings, s), accepted, drafted);
  }
}

void print_all(const std::vector<Table>& tables, const std::vector<SpecSetting>& settings,
               const SpecBenchOptions& o, const Opened& opened) {
  fmt::print("{} | {} | {} streams | {} tokens a prompt, temperature {}{}\n\n", opened.model->spec.name,
             opened.backend->info().name, o.streams, o.tokens, o.sample.temperature,
             o.spec.synthetic.empty() ? "" : " | SYNTHETIC acceptance: the text means nothing");
  fmt::print("| {:<12} | {:<26} | {:>8} | {:>8} | {:>10} | {:>14} | {:>13} | {:>8} | {:>7} |\n", "prompts",
             "drafter, depth", "tok/s", "p10", "over plain", "90 % range", "tokens a step", "accepted",
             "J/token");
  fmt::print(
      "| {:-<12} | {:-<26} | {:->7}: | {:->7}: | {:->9}: | {:->13}: | {:->12}: | {:->7}: | {:->6}: |\n", "",
      "", "", "", "", "", "", "", "");
  for (const Table& t : tables) print(t, settings);
  fmt::print("\n");
  for (const Table& t : tables) print_verdict(t, settings);
  for (const Table& t : tables) print_cuda(t, settings);
  warn_of_drafters(tables, settings);
}

}  // namespace

void bench_spec(const SpecBenchOptions& o) {
  Measurement m(o.measure, "bench-spec");
  const Opened opened = open_model(o.open);
  m.opened(opened);
  std::vector<PromptSet> sets = read_prompts(o.prompts, o.only, opened);
  if (o.depth > 0) put_before(sets, o.before, o.depth, opened);
  EngineConfig config = o.cache;
  config.context = std::max(o.context, longest(sets) + o.tokens);
  config.sequences = o.streams;
  SpecBed bed(o.spec, opened, config, o.depth > 0);
  if (m.has_energy()) bed.meter(&m.energy());
  const std::vector<SpecSetting> settings = all_settings(o, bed);
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
  const KvFormats formats = formats_of(bed.config());
  PlanOptions planned;
  planned.engine = bed.config();
  const double kv_mib = static_cast<double>(plan_memory(*opened.model->source, planned).cache) / (1 << 20);
  for (const Table& t : tables)
    for (size_t s = 0; s < settings.size(); ++s) m.add(record(m, t, settings, s, o, formats, kv_mib));
  if (m.prints_table()) print_all(tables, settings, o, opened);
  m.finish();
}

void add_spec_bench_flags(CLI::App& app, SpecBenchOptions& o) {
  add_spec_flags(app, o.spec);
  app.add_option("--draft-depths", o.depths, "With --spec: fixed depths that the controller is compared with")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_option("--prompts", o.prompts, "With --spec: JSON file of prompts by kind (share/prompts.json)");
  app.add_option(
         "--before", o.before,
         "With --spec and --n-depth: file of text to put before every prompt, cut to that many tokens")
      ->type_name("FILE");
  app.add_option("--only", o.only, "With --spec: kinds to take, comma-separated (default: all)")
      ->delimiter(',');
  app.add_option("--parallel", o.streams, "With --spec: prompts at once (-np)")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("-c,--ctx-size", o.context, "With --spec: context in tokens")
      ->check(CLI::Range(16, 1 << 24))
      ->capture_default_str();
  o.sample.temperature = 0;
  app.add_option("--temp", o.sample.temperature, "With --spec: temperature")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--top-k", o.sample.top_k, "With --spec: only the k best tokens (0: all)")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("--top-p", o.sample.top_p, "With --spec: the best tokens whose share reaches p")
      ->check(CLI::Range(0.0, 1.0));
}

}  // namespace carat
