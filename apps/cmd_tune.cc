// carat tune: finds the settings that serve a model best on this machine. One variable at a time first, then
// those that depend on one another together; every measurement is a run of carat bench whose record is kept,
// so that a tuning that was stopped goes on where it was.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <map>

#include "apps/cli_measure.h"
#include "apps/drafter.h"
#include "apps/eval.h"
#include "apps/spec_flags.h"
#include "apps/tune_runs.h"
#include "base/error.h"
#include "base/file.h"
#include "base/threads.h"
#include "measure/record.h"
#include "model/files/source.h"

namespace carat {
namespace {

using Args = TuneArgs;

struct Draft {
  std::string drafter;  // empty: plain
  std::string depth;    // "4", "auto"
  double speedup = 1, joules = NAN, al = NAN;
  std::string text() const { return drafter.empty() ? "no drafter" : fmt::format("{} {}", drafter, depth); }
};

// What rounds of one measurement tell: the median, and how far they lie apart (of one alone: its own runs).
struct Seen {
  std::vector<Record> rounds;
  double median() const {
    std::vector<double> v;
    for (const Record& r : rounds) v.push_back(value_at(r, "/figures/tok_s/median"));
    return v.empty() ? NAN : quantile(v, 0.5);
  }
  double noise() const {
    const Record& r = rounds.front();
    if (rounds.size() < 2)
      return 1 - value_at(r, "/figures/tok_s/p10") / value_at(r, "/figures/tok_s/median");
    std::vector<double> v;
    for (const Record& one : rounds) v.push_back(value_at(one, "/figures/tok_s/median"));
    return (quantile(v, 1) - quantile(v, 0)) / median();
  }
};

class Tuner {
 public:
  explicit Tuner(const TuneOptions& o) : o_(o), runner_(o), threads_(available_cpus()) {}
  void run();

 private:
  Args common(const std::string& cache) const { return bench_args(o_, cache, threads_); }
  std::vector<Seen> in_turns(const std::vector<Args>& runs, int rounds);
  void verdict(const std::string& config, const Seen& seen, const Seen& base, int32_t context,
               const char* speed = "decode_tps");
  void threads();
  void batch();
  void quality();
  void caches(int32_t context);
  std::vector<Draft> drafts(const std::string& cache, const std::string& kind);
  const std::vector<Draft>& drafts_of(const std::string& cache, const std::string& kind);
  bool allowed(const std::string& cache) const;
  std::vector<Finalists> finalists(int32_t context, const std::string& kind);
  void finals();
  void regime(int32_t context, const std::string& kind);
  void choose();
  Setting one_for_all() const;
  void write();

  const TuneOptions& o_;
  TuneRunner runner_;
  int threads_, batch_ = 512;
  std::map<int, double> by_threads_;                                         // tok/s
  std::map<std::string, double> kld_;                                        // by cache, over the floor
  std::map<int32_t, std::map<std::string, Record>> plain_;                   // by context and cache
  std::map<std::string, std::map<std::string, std::vector<Draft>>> drafts_;  // by cache and kind
  std::map<int32_t, std::map<std::string, Finals>> finals_;                  // by context and kind
  std::map<int32_t, std::map<std::string, Finals>> again_;                   // of those that lead
  std::map<int32_t, std::map<std::string, Setting>> chosen_;
  std::vector<Record> out_;
};

// Every round goes through them in turned order, so that what the machine does meanwhile hits all of them.
std::vector<Seen> Tuner::in_turns(const std::vector<Args>& runs, int rounds) {
  std::vector<Seen> seen(runs.size());
  for (int round = 0; round < rounds; ++round)
    for (size_t i = 0; i < runs.size(); ++i) {
      const size_t at = round % 2 ? runs.size() - 1 - i : i;
      for (Record& r : runner_.run(runs[at], round)) seen[at].rounds.push_back(std::move(r));
    }
  return seen;
}

// One variable at a time, against the first value: a difference is one if it is larger than what repeating
// the same makes.
void Tuner::verdict(const std::string& config, const Seen& seen, const Seen& base, int32_t context,
                    const char* speed) {
  const Record& r = seen.rounds.front();
  const double v = seen.median(), ratio = v / base.median();
  const double noise = std::max({0.03, seen.noise(), base.noise()});
  Record t = new_record("tune");
  t["machine"] = r["machine"], t["model"] = r["model"], t["busy"] = r["busy"];
  t["settings"] = {{"config", config}, {"stage", "ovat"}, {"ctx", context}};
  t["figures"] = {{speed, v},
                  {"ratio", ratio},
                  {"noise", noise},
                  {"verdict", ratio > 1 + noise   ? "faster"
                              : ratio < 1 - noise ? "slower"
                                                  : "no difference"}};
  if (const double j = value_at(r, "/figures/decode_j_per_tok"); !std::isnan(j))
    t["figures"]["decode_j_per_tok"] = j;
  fmt::print("| {:>7} | {:<28} | {:>9.1f} | {:>8} | {:<13} |\n", context, config, v,
             &seen == &base ? "" : fmt::format("{:+.1f} %", 100 * (ratio - 1)),
             t["figures"]["verdict"].get<std::string>());
  std::fflush(stdout);
  out_.push_back(std::move(t));
}

// Where a GPU computes, threads are nothing to choose.
void Tuner::threads() {
  std::vector<int> counts{available_cpus()};
  for (int n = 1; n < available_cpus(); n *= 2) counts.insert(counts.begin() + 1, n);
  std::vector<Args> runs;
  for (const int n : counts) {
    threads_ = n;
    Args a = common("f16");
    a.insert(a.end(), {"-p", "0", "-n", std::to_string(o_.tokens)});
    runs.push_back(std::move(a));
  }
  threads_ = counts.front();
  const std::vector<Record> first = runner_.run(runs.front());
  if (!first.empty() && !first[0]["model"].value("device", "").starts_with("cpu")) return;
  const std::vector<Seen> seen = in_turns(runs, 3);
  for (size_t i = 0; i < runs.size(); ++i) {
    if (seen[i].rounds.empty() || seen[0].rounds.empty()) continue;
    verdict(fmt::format("threads {}", counts[i]), seen[i], seen[0], 0);
    by_threads_[counts[i]] = seen[i].median();
    if (seen[i].median() > by_threads_[threads_]) threads_ = counts[i];
  }
}

void Tuner::batch() {
  const std::vector<int> sizes{512, 128, 256, 1024};
  std::vector<Args> runs;
  for (const int n : sizes) {
    Args a = common("f16");
    a.insert(a.end(), {"-p", "1024", "-n", "0", "-b", std::to_string(n)});
    runs.push_back(std::move(a));
  }
  const std::vector<Seen> seen = in_turns(runs, 2);
  if (seen[0].rounds.empty()) return;
  double best = 1.03 * seen[0].median();
  for (size_t i = 0; i < runs.size(); ++i) {
    if (seen[i].rounds.empty()) continue;
    verdict(fmt::format("prompts in steps of {}", sizes[i]), seen[i], seen[0], 1024, "prefill_tps");
    if (i > 0 && seen[i].median() > best) best = seen[i].median(), batch_ = sizes[i];
  }
}

void Tuner::quality() {
  if (o_.text.empty()) return;
  const auto records =
      runner_.run({"eval", "kld", "-m", o_.model, "--device", o_.device, "-f", o_.text, "-c", "256",
                   "--chunks", "4", "--caches", fmt::format("{}", fmt::join(o_.caches, ","))});
  for (size_t i = 0; i < records.size() && i < o_.caches.size(); ++i)
    kld_[o_.caches[i]] = value_at(records[i], "/figures/kld_over_floor");
}

void Tuner::caches(int32_t context) {
  const auto records =
      runner_.run({"bench", "-m", o_.model, "--device", o_.device, "-t", std::to_string(threads_), "-r",
                   std::to_string(2 * o_.repeats), "-p", "0", "-n", std::to_string(o_.tokens), "-d",
                   std::to_string(context - o_.tokens - 1), "--fill", "--caches",
                   fmt::format("{}", fmt::join(o_.caches, ","))});
  if (records.empty()) return;
  const Seen base{{records[0]}};
  for (size_t i = 0; i < records.size() && i < o_.caches.size(); ++i) {
    plain_[context][o_.caches[i]] = records[i];
    const Seen other{{records[i]}};
    verdict("cache " + o_.caches[i], i == 0 ? base : other, base, context);
  }
}

std::vector<Draft> Tuner::drafts(const std::string& cache, const std::string& kind) {
  std::vector<Draft> all{{}};
  for (const std::string& drafter : o_.drafters) {
    Args a = common(cache);
    a.insert(a.end(),
             {"--spec", drafter, "--prompts", o_.prompts, "--only", kind, "-n", std::to_string(o_.tokens),
              "--draft-depths", fmt::format("{}", fmt::join(o_.depths, ","))});
    if (is_network(drafter)) a.insert(a.end(), {"-md", o_.draft_model});
    for (const Record& r : runner_.run(a)) {
      if (r["settings"].value("draft", "") == "none") continue;
      Draft d{drafter, r["settings"]["dm"].is_string() ? "auto" : r["settings"]["dm"].dump(),
              value_at(r, "/figures/speedup/median"), value_at(r, "/figures/decode_j_per_tok"),
              value_at(r, "/figures/al")};
      const double low = value_at(r, "/figures/speedup/low"), high = value_at(r, "/figures/speedup/high");
      fmt::print("| {:>7} | {:<28} | {:>8.3f}x | {:>8} | {:<13} |\n", kind.substr(0, 7),
                 d.text() + ", " + cache, d.speedup, fmt::format("AL {:.2f}", d.al),
                 d.speedup > 1.03 && low > 1    ? "faster"
                 : d.speedup < 0.97 && high < 1 ? "slower"
                                                : "no difference");
      all.push_back(std::move(d));
    }
    std::fflush(stdout);
  }
  return all;
}

const std::vector<Draft>& Tuner::drafts_of(const std::string& cache, const std::string& kind) {
  return drafts_[drafts_.contains(cache) ? cache : o_.caches.front()][kind];
}

// Without a measured cost in quality only caches that lose nothing noticeable are taken.
bool Tuner::allowed(const std::string& cache) const {
  const auto cost = kld_.find(cache);
  return cost != kld_.end() ? !(cost->second > o_.max_kld) : cache == "f16" || cache == "q8_0";
}

// What comes near the best by what was seen of one variable at a time: threads and caches, and in each the
// drafters and depths that do.
std::vector<Finalists> Tuner::finalists(int32_t context, const std::string& kind) {
  constexpr double kNear = 0.8, kNearDraft = 0.85;
  constexpr size_t kMost = 4;
  std::vector<Finalists> all;
  std::map<int, double> counts = by_threads_;
  if (counts.empty()) counts[threads_] = 1;
  for (const auto& [cache, record] : plain_[context]) {
    if (!allowed(cache)) continue;
    const std::vector<Draft>& drafts = drafts_of(cache, kind);
    double best = 0;
    for (const Draft& d : drafts)
      if (!d.drafter.empty()) best = std::max(best, d.speedup);
    Finalists f{0, cache, {}, {}, 0};
    for (const Draft& d : drafts) {
      if (d.drafter.empty() || d.speedup < kNearDraft * best) continue;
      if (std::find(f.drafters.begin(), f.drafters.end(), d.drafter) == f.drafters.end())
        f.drafters.push_back(d.drafter);
      const int32_t depth = std::atoi(d.depth.c_str());
      if (depth > 0 && std::find(f.depths.begin(), f.depths.end(), depth) == f.depths.end())
        f.depths.push_back(depth);
    }
    if (f.drafters.empty()) continue;
    for (const auto& [n, tok_s] : counts) {
      f.threads = n;
      f.estimate = value_at(record, "/figures/tok_s/median") * std::max(1.0, best) * tok_s / counts[threads_];
      all.push_back(f);
    }
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.estimate > b.estimate; });
  while (!all.empty() && (all.size() > kMost || all.back().estimate < kNear * all.front().estimate))
    all.pop_back();
  return all;
}

// Every line of the map gets its first rounds before any gets more. Then the settings that lead a line are
// measured again, until the fastest is told from the others or the time is over.
void Tuner::finals() {
  for (const int32_t c : o_.contexts)
    for (const std::string& kind : o_.kinds)
      finals_[c][kind] = measure_finals(runner_, o_, c, kind, finalists(c, kind));
  for (int round = kFirstRounds; round < kMostRounds; ++round)
    for (const int32_t c : o_.contexts)
      for (const std::string& kind : o_.kinds)
        if (Finals& again = again_[c][kind]; !told_apart(again))
          measure_leaders(runner_, o_, c, kind, finals_[c][kind], round, again);
  for (auto& [context, kinds] : again_)  // one_for_all() goes by the later rounds, too
    for (auto& [kind, again] : kinds)
      for (const auto& [setting, tried] : again) finals_[context][kind][setting] = tried;
}

// A line of the map: of the finals, or where the time was over before, by what single variables were.
void Tuner::regime(int32_t context, const std::string& kind) {
  Setting best{threads_, "", "", "0"};
  double tok_s = 0, joules = NAN;
  const Finals& finals = finals_[context][kind];
  const Finals& again = again_[context][kind];
  if (!finals.empty()) {
    const auto taken = choose_final(again.empty() ? finals : again, o_);
    best = taken->first, tok_s = taken->second.median(), joules = taken->second.joules;
  } else {
    for (const auto& [cache, record] : plain_[context]) {
      if (!allowed(cache)) continue;
      const std::vector<Draft> none{{}};
      const auto& measured = drafts_of(cache, kind).empty() ? none : drafts_of(cache, kind);
      for (const Draft& d : measured) {
        const double v = value_at(record, "/figures/tok_s/median") * d.speedup;
        if (v > 1.01 * tok_s)
          best = {threads_, cache, d.drafter, d.drafter.empty() ? "0" : d.depth}, tok_s = v,
          joules = d.joules;
      }
    }
  }
  if (tok_s == 0) return;
  const Record& from = plain_[context][best.cache];
  Record r = new_record("regime");
  r["machine"] = from["machine"], r["model"] = from["model"], r["busy"] = from["busy"];
  r["settings"] = {
      {"config", best.text()}, {"ctx", context},   {"prompts", kind},         {"draft", best.drafters},
      {"dm", best.depth},      {"kv", best.cache}, {"threads", best.threads}, {"estimated", finals.empty()}};
  r["figures"] = {{"decode_tps", tok_s},
                  {"plain_tps", value_at(from, "/figures/tok_s/median")},
                  {"finalists", finals.size()},
                  {"kv_mib", value_at(from, "/figures/kv_mib")}};
  if (!std::isnan(joules)) r["figures"]["decode_j_per_tok"] = joules;
  if (kld_.contains(best.cache)) r["figures"]["kld_over_floor"] = kld_[best.cache];
  fmt::print("| {:>7} | {:<10} | {:<48} | {:>8.1f} |\n", context, kind,
             best.text() + (finals.empty() ? " (estimated)" : ""), tok_s);
  out_.push_back(std::move(r));
  chosen_[context][kind] = best;
}

void Tuner::choose() {
  if (plain_.empty() && !runner_.out_of_time())
    throw Error("no cache could be measured", "the errors stand above");
  for (const int32_t c : o_.contexts)
    for (const std::string& kind : o_.kinds) regime(c, kind);
}

// One setting for all kinds of text: the best by the geometric mean at the longest context that was measured.
Setting Tuner::one_for_all() const {
  if (chosen_.empty()) return {threads_, "f16", "", "0"};
  const auto& [context, kinds] = *chosen_.rbegin();
  Finals all;
  for (const auto& [setting, tried] : finals_.at(context).begin()->second) {
    double product = 1;
    for (const auto& [kind, finals] : finals_.at(context)) {
      const auto at = finals.find(setting);
      product *= at == finals.end() ? 0 : at->second.median();
    }
    if (product > 0) all[setting].tok_s = {std::pow(product, 1.0 / static_cast<double>(kinds.size()))};
  }
  return all.empty() ? kinds.begin()->second : choose_final(all, o_)->first;
}

void Tuner::write() {
  const Setting s = one_for_all();
  const KvFormats f = cache_formats(s.cache);
  std::string ini = fmt::format(
      "; carat tune, {}, {}\nmodel = {}\nthreads = {}\nctx-size = {}\nbatch-size = {}\ncache-type-k = "
      "{}\ncache-type-v = {}\n",
      utc_now(), build_commit(), o_.model, s.threads, o_.contexts.back(), batch_, info(f.k).name,
      info(f.v).name);
  if (!s.drafters.empty()) {
    ini += fmt::format("spec = {}\n", s.drafters);
    if (is_network(s.drafters)) ini += fmt::format("model-draft = {}\n", o_.draft_model);
    if (s.depth != "auto") ini += fmt::format("draft-max = {}\nspec-policy = fixed\n", s.depth);
  }
  AtomicFile file(o_.ini);
  file.write(ini);
  file.commit();
  AtomicFile map(o_.state + "/regimes.json");
  map.write(Record(out_).dump(1) + "\n");
  map.commit();
}

void Tuner::run() {
  fmt::print(
      "| {:>7} | {:<28} | {:>9} | {:>8} | {:<13} |\n| {:->6}: | {:-<28} | {:->8}: | {:->7}: | {:-<13} |\n",
      "context", "one variable", "tok/s", "", "verdict", "", "", "", "", "");
  threads();
  quality();
  for (const int32_t c : o_.contexts) caches(c);
  // What interacts: a drafter's gain depends on what a step costs, so on the cache.
  for (const std::string& cache : {o_.caches.front(), std::string("q8_0")})
    if (std::find(o_.caches.begin(), o_.caches.end(), cache) != o_.caches.end() && !drafts_.contains(cache))
      for (const std::string& kind : o_.kinds) drafts_[cache][kind] = drafts(cache, kind);
  batch();
  finals();
  fmt::print("\n| {:>7} | {:<10} | {:<48} | {:>8} |\n| {:->6}: | {:-<10} | {:-<48} | {:->7}: |\n", "context",
             "text", "settings", "tok/s", "", "", "", "");
  choose();
  write();
  fmt::print(
      "\n{} runs measured, {} taken from {}; {}. Serve with: carat serve --config {}\n", runner_.measured(),
      runner_.reused(), o_.state,
      runner_.out_of_time() ? "the time was over: the same command goes on" : "nothing is left to measure",
      o_.ini);
}

}  // namespace

void add_tune(CLI::App& app) {
  auto o = std::make_shared<TuneOptions>();
  CLI::App* sub = app.add_subcommand("tune", "Find the fastest settings for a model on this machine");
  sub->add_option("-m,--model", o->model, "Model file or directory")->required();
  sub->add_option("--model-draft", o->draft_model, "A drafter's file to try beside it (-md)");
  sub->add_option("--device", o->device, "Device, as in carat serve")->capture_default_str();
  sub->add_option("--contexts", o->contexts, "Contexts, comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(128, 1 << 22))
      ->capture_default_str();
  sub->add_option("--kinds", o->kinds, "Kinds of text to measure, from --prompts")
      ->delimiter(',')
      ->capture_default_str();
  sub->add_option("--caches", o->caches, "Cache types to try; the others are compared with the first")
      ->delimiter(',')
      ->capture_default_str();
  sub->add_option("--drafters", o->drafters,
                  "Drafters to try (default: suffix, and the kind of the -md file)")
      ->delimiter(',');
  sub->add_option("--depths", o->depths, "Draft lengths to try")
      ->delimiter(',')
      ->check(CLI::Range(1, 31))
      ->capture_default_str();
  sub->add_option("--prompts", o->prompts, "JSON file of prompts by kind")->capture_default_str();
  sub->add_option(
      "--text", o->text,
      "Text that measures what cache types cost in quality; without it only f16 and q8_0 are chosen");
  sub->add_option("--max-kld", o->max_kld,
                  "With --text: largest KL divergence of a cache type above that of f16, in nats")
      ->capture_default_str();
  sub->add_option("--minutes", o->minutes, "Start no further measurement after this many minutes")
      ->check(CLI::Range(0.1, 1e5))
      ->capture_default_str();
  sub->add_option("-n,--n-gen", o->tokens, "Tokens that each measurement generates")
      ->check(CLI::Range(8, 4096))
      ->capture_default_str();
  sub->add_option("-r,--repetitions", o->repeats, "Repetitions of each measurement")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sub->add_option("--state", o->state, "Folder of the records; the same command continues from them")
      ->capture_default_str();
  sub->add_option("--out", o->ini, "INI file to write, for carat serve --config")->capture_default_str();
  sub->callback([o] {
    if (o->drafters.empty()) {
      o->drafters = {"suffix"};
      if (!o->draft_model.empty()) switch (drafter_kind(*open_source(o->draft_model))) {
          case DrafterKind::dflash: o->drafters.emplace_back("dflash"); break;
          case DrafterKind::mtp:
          case DrafterKind::head: o->drafters.emplace_back("mtp"); break;
          case DrafterKind::none: o->drafters.emplace_back("model"); break;
        }
    }
    std::sort(o->contexts.begin(), o->contexts.end());
    Tuner(*o).run();
  });
}

}  // namespace carat
