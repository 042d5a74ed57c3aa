// carat bench --spec: speed and tokens per step of drafters at fixed depths and of the controller's choice,
// over plain decoding, on prompts of several kinds; all settings in turn, several times, so that each is
// compared with the plain run beside it.
#include "apps/cmd_bench_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/progress.h"
#include "base/error.h"
#include "serve/spec_report.h"

namespace carat {
namespace {

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v.size() % 2 ? v[v.size() / 2] : 0.5 * (v[v.size() / 2 - 1] + v[v.size() / 2]);
}

struct Cell {
  std::vector<double> tok_s, ratio;  // per repetition; ratio: over the plain run of the same repetition
  SpecStats stats;
  double seconds = 0, tokens = 0;
  std::vector<double> idle;  // with CUDA: per repetition, the share of the time in which no step ran
  CudaUse used;
};

std::vector<SpecSetting> all_settings(const SpecBenchOptions& o, const Opened& opened) {
  EngineConfig config;
  config.context = o.context;
  config.sequences = o.streams;
  config.cache_k = o.cache_k;
  config.cache_v = o.cache_v;
  std::vector<SpecSetting> settings;
  const auto add = [&](const std::string& drafters, int32_t depth) {
    settings.push_back(make_setting(drafters, depth, o.spec, opened, config));
  };
  add("", 0);
  std::vector<std::string> names = spec_types(o.spec.types);
  if (names.empty()) names = {"synthetic"};
  std::string together;
  for (const std::string& name : names) {
    for (const int32_t depth : o.depths)
      if (depth > 0 && (o.spec.synthetic.empty() || depth <= static_cast<int32_t>(o.spec.synthetic.size())))
        add(name, depth);
    together += (together.empty() ? "" : ",") + name;
  }
  add(together, 0);
  return settings;
}

nlohmann::json record(const std::string& set, const SpecSetting& s, const Cell& c,
                      const SpecBenchOptions& o) {
  nlohmann::json j = spec_json(c.stats, !s.drafters.empty() && !o.spec.synthetic.empty());
  j["prompts"] = set;
  j["drafters"] = s.drafters;
  j["depth"] = s.drafters.empty() ? nlohmann::json(0)
               : s.depth          ? nlohmann::json(s.depth)
                                  : nlohmann::json("auto");
  j["tok_s"] = median(c.tok_s);
  j["tok_s_each"] = c.tok_s;
  j["speedup"] = median(c.ratio);
  j["speedup_min"] = *std::min_element(c.ratio.begin(), c.ratio.end());
  j["speedup_max"] = *std::max_element(c.ratio.begin(), c.ratio.end());
  j["streams"] = o.streams;
  return j;
}

}  // namespace

void bench_spec(const SpecBenchOptions& o) {
  const Opened opened = open_model(o.open);
  const std::vector<PromptSet> sets = read_prompts(o.prompts, o.only, opened);
  std::vector<SpecSetting> settings = all_settings(o, opened);
  nlohmann::json before = machine_state(opened);
  std::map<std::pair<size_t, size_t>, Cell> cells;
  {
    ProgressBar bar("decoding", "runs");
    const double all = static_cast<double>(sets.size() * settings.size()) * o.repeats;
    double done = 0;
    for (size_t p = 0; p < sets.size(); ++p)
      for (int32_t i = 0; i < o.repeats; ++i) {
        double plain = 0;
        for (size_t s = 0; s < settings.size(); ++s) {
          const SpecRun run = run_prompts(settings[s], sets[p], o.sample, o.tokens, o.streams);
          Cell& cell = cells[{p, s}];
          cell.seconds += run.seconds;
          cell.idle.push_back(1 - run.used.device / run.seconds);
          cell.used += run.used;
          cell.tokens += run.tokens;
          const double speed = run.tokens / run.seconds;
          if (s == 0) plain = speed;
          cell.tok_s.push_back(speed);
          cell.ratio.push_back(speed / plain);
          cell.stats.add(run.stats);
          bar.update(++done, all);
        }
      }
  }
  if (o.json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const auto& [at, cell] : cells)
      rows.push_back(record(sets[at.first].name, settings[at.second], cell, o));
    fmt::print("{}\n", nlohmann::json{{"machine_before", before},
                                      {"machine_after", machine_state(opened)},
                                      {"tokens", o.tokens},
                                      {"temperature", o.sample.temperature},
                                      {"repetitions", o.repeats},
                                      {"rows", rows}}
                           .dump(1));
    return;
  }
  fmt::print(
      "{} | {} | {} streams | {} tokens a prompt, temperature {} | {} repetitions in turn | load {} .. "
      "{}{}\n\n",
      opened.model->spec.name, opened.backend->info().name, o.streams, o.tokens, o.sample.temperature,
      o.repeats, before["load_average_1_min"].dump(), machine_state(opened)["load_average_1_min"].dump(),
      o.spec.synthetic.empty() ? "" : " | SYNTHETIC acceptance: the text means nothing");
  fmt::print(
      "| prompts      | drafter, depth             |    tok/s | over plain |    min .. max | tokens a step | "
      "accepted |\n");
  fmt::print(
      "| ------------ | -------------------------- | -------: | ---------: | ------------: | ------------: | "
      "-------: |\n");
  for (const auto& [at, c] : cells) {
    const double rate =
        c.stats.drafted ? 100.0 * static_cast<double>(c.stats.accepted) / static_cast<double>(c.stats.drafted)
                        : 0;
    fmt::print("| {:<12} | {:<26} | {:>8.1f} | {:>10.2f} | {:>5.2f} .. {:>4.2f} | {:>13.2f} | {:>6.0f} % |\n",
               sets[at.first].name, settings[at.second].name(), median(c.tok_s), median(c.ratio),
               *std::min_element(c.ratio.begin(), c.ratio.end()),
               *std::max_element(c.ratio.begin(), c.ratio.end()), c.stats.accepted_length(), rate);
  }
  for (const auto& [at, c] : cells)
    if (c.used.kernels > 0)
      fmt::print(
          "{} {}: {:.0f} kernels a token, the device waits for the host {:.1f} % (median; submitting {:.1f} "
          "%, "
          "copies {:.1f} %)\n",
          sets[at.first].name, settings[at.second].name(), static_cast<double>(c.used.kernels) / c.tokens,
          100 * median(c.idle), 100 * c.used.submit / c.seconds, 100 * c.used.copy / c.seconds);
}

}  // namespace carat
