#include "apps/tune_runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <sstream>
#include <tuple>

#include "apps/eval.h"
#include "apps/sweep.h"
#include "base/file.h"
#include "base/log.h"
#include "measure/sha256.h"

namespace carat {
namespace {

namespace fs = std::filesystem;
constexpr double kSame = 0.985;  // of the fastest: as fast
constexpr size_t kLeaders = 3;
constexpr double kLeads = 0.9;        // of the fastest's first median, or more
constexpr int32_t kPromptRoom = 128;  // tokens of a prompt behind the text

TuneArgs finals_args(const TuneOptions& o, int32_t context, const std::string& kind, const Finalists& g) {
  TuneArgs a = bench_args(o, g.cache, g.threads);
  const std::string drafters = fmt::format("{}", fmt::join(g.drafters, ","));
  a.insert(a.end(), {"--spec", drafters, "--draft-depths",
                     g.depths.empty() ? "0" : fmt::format("{}", fmt::join(g.depths, ",")), "--prompts",
                     o.prompts, "--only", kind, "-n", std::to_string(o.tokens)});
  if (is_network(drafters)) a.insert(a.end(), {"-md", o.draft_model});
  const int32_t depth = context - o.tokens - kPromptRoom;
  if (!o.text.empty() && depth > 0)
    a.insert(a.end(), {"--before", o.text, "--n-depth", std::to_string(depth)});
  return a;
}

}  // namespace

TuneRunner::TuneRunner(const TuneOptions& o) : o_(o), hash_(model_hash(o.model)) {
  fs::create_directories(o.state);
  until_ = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                  std::chrono::duration<double>(60 * o.minutes));
}

std::vector<Record> TuneRunner::run(TuneArgs args, int round) {
  std::string name = hash_ + build_commit();
  for (const std::string& a : args) name += "\n" + a;
  if (round > 0) name += fmt::format("\nround {}", round);
  const std::string path = fmt::format(
      "{}/{}.json", o_.state, sha256(std::as_bytes(std::span(name.data(), name.size()))).substr(0, 16));
  if (fs::exists(path)) return ++reused_, read_records(path);
  if (out_of_time()) return {};
  args.insert(args.begin(), "carat");
  args.insert(args.end(), {"--log-level", "warn", "--json"});
  const auto [out, rc] = output_of(args);
  const Record records = Record::parse(out, nullptr, false);
  if (rc != 0 || !records.is_array()) {
    args.resize(args.size() - 3);
    log_warn("left out, as it failed: {}", fmt::join(args, " "));
    return {};
  }
  ++measured_;
  AtomicFile file(path);
  file.write(out);
  file.commit();
  return read_records(path);
}

double value_at(const Record& r, const char* pointer) {
  const Record::json_pointer at(pointer);
  return r.contains(at) && r.at(at).is_number() ? r.at(at).get<double>() : NAN;
}

TuneArgs bench_args(const TuneOptions& o, const std::string& cache, int threads) {
  const KvFormats f = cache_formats(cache);
  return {"bench",
          "-m",
          o.model,
          "--device",
          o.device,
          "-r",
          std::to_string(o.repeats),
          "-t",
          std::to_string(threads),
          "--cache-type-k",
          std::string(info(f.k).name),
          "--cache-type-v",
          std::string(info(f.v).name)};
}

bool is_network(const std::string& drafters) {
  for (const char* name : {"mtp", "dflash", "model"})
    if (drafters.find(name) != drafters.npos) return true;
  return false;
}

std::string Setting::text() const {
  return fmt::format("{} caches, {}, {} threads", cache,
                     drafters.empty() ? "no drafter" : fmt::format("{} {}", drafters, depth), threads);
}

namespace {
// Every setting that the records tell of, one round.
void add_round(const std::vector<Record>& records, const Finalists& g, Finals& all) {
  for (const Record& r : records) {
    const std::string draft = r["settings"].value("draft", "none");
    const Record& dm = r["settings"]["dm"];
    const bool plain = draft == "none";
    Tried& t = all[{g.threads, g.cache, plain ? "" : draft,
                    plain            ? "0"
                    : dm.is_string() ? dm.get<std::string>()
                                     : dm.dump()}];
    t.tok_s.push_back(value_at(r, "/figures/decode_tps"));
    t.joules = value_at(r, "/figures/decode_j_per_tok"), t.al = value_at(r, "/figures/al");
  }
}

template <class T>
void add_new(std::vector<T>& to, const T& v) {
  if (std::find(to.begin(), to.end(), v) == to.end()) to.push_back(v);
}

// Those with one engine in one process.
std::vector<Finalists> groups_of(const std::vector<Setting>& settings, const TuneOptions& o) {
  std::vector<Finalists> groups;
  for (const Setting& s : settings) {
    auto g = std::find_if(groups.begin(), groups.end(),
                          [&](const Finalists& f) { return f.threads == s.threads && f.cache == s.cache; });
    if (g == groups.end()) g = groups.insert(g, {s.threads, s.cache, {}, {}, 0});
    std::stringstream names(s.drafters.empty() ? o.drafters.front() : s.drafters);
    for (std::string name; std::getline(names, name, ',');) add_new(g->drafters, name);
    if (const int32_t depth = std::atoi(s.depth.c_str()); depth > 0) add_new(g->depths, depth);
  }
  return groups;
}
}  // namespace

Finals measure_finals(TuneRunner& runner, const TuneOptions& o, int32_t context, const std::string& kind,
                      const std::vector<Finalists>& groups) {
  Finals all;
  for (int round = 0; round < kFirstRounds; ++round)
    for (size_t i = 0; i < groups.size(); ++i) {
      const Finalists& g = groups[round % 2 ? groups.size() - 1 - i : i];
      add_round(runner.run(finals_args(o, context, kind, g), round), g, all);
    }
  return all;
}

void measure_leaders(TuneRunner& runner, const TuneOptions& o, int32_t context, const std::string& kind,
                     const Finals& finals, int round, Finals& again) {
  std::vector<std::pair<double, Setting>> order;
  for (const auto& [setting, tried] : finals) order.emplace_back(-tried.median(), setting);
  std::sort(order.begin(), order.end());
  std::vector<Setting> leaders;
  for (const auto& [speed, setting] : order)
    if (leaders.size() < kLeaders && speed < kLeads * order.front().first) leaders.push_back(setting);
  if (leaders.size() < 2) return;
  std::vector<Finalists> groups = groups_of(leaders, o);
  if (round % 2) std::reverse(groups.begin(), groups.end());
  Finals seen;
  for (const Finalists& g : groups) add_round(runner.run(finals_args(o, context, kind, g), round), g, seen);
  // A round that the time was over in is left out: rounds are compared in pairs.
  for (const Setting& s : leaders)
    if (!seen.contains(s)) return;
  for (const Setting& s : leaders) {
    again[s].tok_s.push_back(seen[s].tok_s.front());
    again[s].joules = seen[s].joules, again[s].al = seen[s].al;
  }
}

bool told_apart(const Finals& again) {
  constexpr size_t kFew = 4;
  if (again.empty()) return false;
  const Tried* best = &again.begin()->second;
  for (const auto& [setting, tried] : again)
    if (tried.median() > best->median()) best = &tried;
  const size_t n = best->tok_s.size();
  if (n < kFew) return false;
  for (const auto& [setting, tried] : again) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; ++i) {
      const double log = std::log(best->tok_s[i] / tried.tok_s[i]);
      sum += log, squares += log * log;
    }
    const double mean = sum / n, error = std::sqrt(std::max(0.0, squares - n * mean * mean) / (n - 1) / n);
    if (mean - 2 * error < std::log(kSame)) return false;
  }
  return true;
}

Finals::const_iterator choose_final(const Finals& finals, const TuneOptions& o) {
  auto best = finals.end();
  for (auto i = finals.begin(); i != finals.end(); ++i)
    if (best == finals.end() || i->second.median() > best->second.median()) best = i;
  const auto rank = [&](const Setting& s) {
    const auto place = std::find(o.caches.begin(), o.caches.end(), s.cache) - o.caches.begin();
    return std::tuple(s.drafters.empty()       ? 0
                      : is_network(s.drafters) ? 2
                                               : 1,
                      place, s.threads, s.depth == "auto" ? std::string() : s.depth);
  };
  auto taken = best;
  for (auto i = finals.begin(); i != finals.end(); ++i)
    if (i->second.median() >= kSame * best->second.median() && rank(i->first) < rank(taken->first)) taken = i;
  return taken;
}

}  // namespace carat
