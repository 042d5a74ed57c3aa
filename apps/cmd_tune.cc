// carat tune: finds the settings that serve a model best on this machine. One variable at a time first, then
// those that depend on one another together; every measurement is a run of carat bench whose record is kept,
// so that a tuning that was stopped goes on where it was.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>

#include "apps/cli_measure.h"
#include "apps/drafter.h"
#include "apps/eval.h"
#include "apps/progress.h"
#include "apps/spec_flags.h"
#include "apps/sweep.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/threads.h"
#include "measure/record.h"
#include "measure/sha256.h"
#include "model/files/source.h"

namespace carat {
namespace {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;

struct TuneOptions {
  std::string model, draft_model, device = "auto", prompts = "share/prompts.json", text, state = "tune",
                                  ini = "carat.ini";
  std::vector<int32_t> contexts{4096};
  std::vector<std::string> kinds{"code", "fiction", "dialogue"}, caches{"f16", "q8_0", "tq4", "tq3"},
      drafters;
  std::vector<int32_t> depths{1, 2, 4, 8};
  double minutes = 10, max_kld = 0.02;
  int32_t tokens = 48, repeats = 3;
};

// Runs carat and keeps what it printed under a name of its arguments.
class Runner {
 public:
  explicit Runner(const TuneOptions& o) : o_(o), hash_(model_hash(o.model)) {
    fs::create_directories(o.state);
    until_ += std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<double>(60 * o.minutes));
  }
  bool out_of_time() const { return std::chrono::steady_clock::now() > until_; }
  int measured() const { return measured_; }
  int reused() const { return reused_; }

  // Records of a run; none if the time is over or the run failed.
  std::vector<Record> run(Args args) {
    std::string name = hash_ + build_commit();
    for (const std::string& a : args) name += "\n" + a;
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

 private:
  const TuneOptions& o_;
  std::string hash_;
  std::chrono::steady_clock::time_point until_ = std::chrono::steady_clock::now();
  int measured_ = 0, reused_ = 0;
};

double value_at(const Record& r, const char* pointer) {
  const Record::json_pointer at(pointer);
  return r.contains(at) && r.at(at).is_number() ? r.at(at).get<double>() : NAN;
}

struct Draft {
  std::string drafter;  // empty: plain
  std::string depth;    // "4", "auto"
  double speedup = 1, joules = NAN, al = NAN;
  std::string text() const { return drafter.empty() ? "no drafter" : fmt::format("{} {}", drafter, depth); }
};

class Tuner {
 public:
  explicit Tuner(const TuneOptions& o) : o_(o), runner_(o), threads_(available_cpus()) {}
  void run();

 private:
  Args common(const std::string& cache) const {
    Args a{"bench", "-m", o_.model, "--device", o_.device, "-r", std::to_string(o_.repeats)};
    const KvFormats f = cache_formats(cache);
    a.insert(a.end(), {"-t", std::to_string(threads_), "--cache-type-k", std::string(info(f.k).name),
                       "--cache-type-v", std::string(info(f.v).name)});
    return a;
  }
  // One variable at a time, against the first value.
  void verdict(const std::string& config, const Record& r, double base, int32_t context,
               const char* speed = "decode_tps") {
    const double v = value_at(r, "/figures/tok_s/median"), ratio = v / base;
    Record t = new_record("tune");
    t["machine"] = r["machine"], t["model"] = r["model"], t["busy"] = r["busy"];
    t["settings"] = {{"config", config}, {"stage", "ovat"}, {"ctx", context}};
    t["figures"] = {{speed, v},
                    {"ratio", ratio},
                    {"verdict", ratio > 1.03   ? "faster"
                                : ratio < 0.97 ? "slower"
                                               : "no difference"}};
    if (const double j = value_at(r, "/figures/decode_j_per_tok"); !std::isnan(j))
      t["figures"]["decode_j_per_tok"] = j;
    fmt::print("| {:>7} | {:<28} | {:>9.1f} | {:>8} | {:<13} |\n", context, config, v,
               v == base ? "" : fmt::format("{:+.1f} %", 100 * (ratio - 1)),
               t["figures"]["verdict"].get<std::string>());
    std::fflush(stdout);
    out_.push_back(std::move(t));
  }
  void threads();
  void batch();
  void quality();
  void caches(int32_t context);
  std::vector<Draft> drafts(const std::string& cache, const std::string& kind);
  void choose();
  void write();

  const TuneOptions& o_;
  Runner runner_;
  int threads_, batch_ = 512;
  std::map<std::string, double> kld_;                                        // by cache, over the floor
  std::map<int32_t, std::map<std::string, Record>> plain_;                   // by context and cache
  std::map<std::string, std::map<std::string, std::vector<Draft>>> drafts_;  // by cache and kind
  std::vector<Record> out_;
  struct Best {
    std::string cache;
    Draft draft;
    double tok_s = 0;
  };
  Best serve_;  // for all kinds at the longest context
};

void Tuner::threads() {
  std::vector<int> counts;
  for (int n = 1; n < available_cpus(); n *= 2) counts.push_back(n);
  counts.push_back(available_cpus());
  double best = 0, base = 0;
  int taken = threads_;
  for (auto n = counts.rbegin(); n != counts.rend(); ++n) {
    threads_ = *n;
    Args a = common("f16");
    a.insert(a.end(), {"-p", "0", "-n", std::to_string(o_.tokens)});
    for (const Record& r : runner_.run(a)) {
      const double v = value_at(r, "/figures/tok_s/median");
      if (base == 0) base = v;
      verdict(fmt::format("threads {}", *n), r, base, 0);
      if (v > 1.03 * best) best = v, taken = *n;
    }
  }
  threads_ = taken;
}

void Tuner::batch() {
  double best = 0, base = 0;
  int taken = batch_;
  for (const int n : {512, 128, 256, 1024}) {
    Args a = common("f16");
    a.insert(a.end(), {"-p", "1024", "-n", "0", "-b", std::to_string(n)});
    for (const Record& r : runner_.run(a)) {
      const double v = value_at(r, "/figures/tok_s/median");
      if (base == 0) base = v;
      verdict(fmt::format("prompts in steps of {}", n), r, base, 1024, "prefill_tps");
      if (v > 1.03 * best) best = v, taken = n;
    }
  }
  batch_ = taken;
}

void Tuner::quality() {
  if (o_.text.empty()) return;
  std::string all;
  for (const std::string& c : o_.caches) all += (all.empty() ? "" : ",") + c;
  const auto records = runner_.run({"eval", "kld", "-m", o_.model, "--device", o_.device, "-f", o_.text, "-c",
                                    "256", "--chunks", "4", "--caches", all});
  for (size_t i = 0; i < records.size() && i < o_.caches.size(); ++i)
    kld_[o_.caches[i]] = value_at(records[i], "/figures/kld_over_floor");
}

void Tuner::caches(int32_t context) {
  std::string all;
  for (const std::string& c : o_.caches) all += (all.empty() ? "" : ",") + c;
  Args a{"bench",
         "-m",
         o_.model,
         "--device",
         o_.device,
         "-t",
         std::to_string(threads_),
         "-r",
         std::to_string(2 * o_.repeats),
         "-p",
         "0",
         "-n",
         std::to_string(o_.tokens),
         "-d",
         std::to_string(context - o_.tokens - 1),
         "--fill",
         "--caches",
         all};
  const auto records = runner_.run(a);
  for (size_t i = 0; i < records.size() && i < o_.caches.size(); ++i) {
    plain_[context][o_.caches[i]] = records[i];
    verdict("cache " + o_.caches[i], records[i], value_at(records[0], "/figures/tok_s/median"), context);
  }
}

std::vector<Draft> Tuner::drafts(const std::string& cache, const std::string& kind) {
  std::vector<Draft> all{{}};
  for (const std::string& drafter : o_.drafters) {
    Args a = common(cache);
    std::string depths;
    for (const int32_t d : o_.depths) depths += (depths.empty() ? "" : ",") + std::to_string(d);
    a.insert(a.end(), {"--spec", drafter, "--prompts", o_.prompts, "--only", kind, "-n",
                       std::to_string(o_.tokens), "--draft-depths", depths});
    if (drafter == "mtp" || drafter == "dflash" || drafter == "model")
      a.insert(a.end(), {"-md", o_.draft_model});
    for (const Record& r : runner_.run(a)) {
      if (r["settings"].value("draft", "") == "none") continue;
      Draft d{drafter, r["settings"]["dm"].is_string() ? "auto" : r["settings"]["dm"].dump(),
              value_at(r, "/figures/speedup/median"), value_at(r, "/figures/decode_j_per_tok"),
              value_at(r, "/figures/al")};
      fmt::print("| {:>7} | {:<28} | {:>8.3f}x | {:>8} | {:<13} |\n", kind.substr(0, 7),
                 d.text() + ", " + cache, d.speedup, fmt::format("AL {:.2f}", d.al),
                 d.speedup > 1.03   ? "faster"
                 : d.speedup < 0.97 ? "slower"
                                    : "no difference");
      all.push_back(std::move(d));
    }
    std::fflush(stdout);
  }
  return all;
}

void Tuner::choose() {
  if (plain_.empty() && !runner_.out_of_time())
    throw Error("no cache could be measured", "the errors stand above");
  for (const auto& [context, caches] : plain_) {
    for (const std::string& kind : o_.kinds) {
      Best best;
      Record from;
      for (const auto& [cache, record] : caches) {
        if (kld_.contains(cache) && kld_[cache] > o_.max_kld) continue;
        // Without a measured cost in quality only caches that lose nothing noticeable are taken.
        if (!kld_.contains(cache) && cache != "f16" && cache != "q8_0") continue;
        const auto& measured =
            drafts_.contains(cache) ? drafts_[cache][kind] : drafts_[o_.caches.front()][kind];
        for (const Draft& d : measured.empty() ? std::vector<Draft>{{}} : measured) {
          const double v = value_at(record, "/figures/tok_s/median") * d.speedup;
          if (v > 1.01 * best.tok_s) best = {cache, d, v}, from = record;
        }
      }
      if (best.tok_s == 0) continue;
      Record r = new_record("regime");
      r["machine"] = from["machine"], r["model"] = from["model"], r["busy"] = from["busy"];
      r["settings"] = {
          {"config", fmt::format("{} caches, {}, {} threads", best.cache, best.draft.text(), threads_)},
          {"ctx", context},
          {"prompts", kind},
          {"draft", best.draft.drafter},
          {"dm", best.draft.depth},
          {"kv", best.cache}};
      r["figures"] = {{"decode_tps", best.tok_s},
                      {"plain_tps", value_at(from, "/figures/tok_s/median")},
                      {"speedup_of_drafts", best.draft.speedup},
                      {"kv_mib", value_at(from, "/figures/kv_mib")}};
      if (!std::isnan(best.draft.joules)) r["figures"]["decode_j_per_tok"] = best.draft.joules;
      if (kld_.contains(best.cache)) r["figures"]["kld_over_floor"] = kld_[best.cache];
      fmt::print("| {:>7} | {:<10} | {:<48} | {:>8.1f} |\n", context, kind,
                 r["settings"]["config"].get<std::string>(), best.tok_s);
      out_.push_back(std::move(r));
      if (serve_.cache.empty() || context >= o_.contexts.back()) serve_.cache = best.cache;
    }
  }
  // One setting for all kinds of text: the best by the geometric mean.
  const auto& by_kind = drafts_[drafts_.contains(serve_.cache) ? serve_.cache : o_.caches.front()];
  if (by_kind.empty()) return;
  double best = 0;
  for (size_t i = 0; i < by_kind.begin()->second.size(); ++i) {
    double product = 1;
    for (const auto& [kind, all] : by_kind) product *= i < all.size() ? all[i].speedup : 1;
    if (product > 1.01 * best) best = product, serve_.draft = by_kind.begin()->second[i];
  }
}

void Tuner::write() {
  const KvFormats f = cache_formats(serve_.cache.empty() ? "f16" : serve_.cache);
  std::string ini = fmt::format(
      "; carat tune, {}, {}\nmodel = {}\nthreads = {}\nctx-size = {}\nbatch-size = {}\ncache-type-k = "
      "{}\ncache-type-v = {}\n",
      utc_now(), build_commit(), o_.model, threads_, o_.contexts.back(), batch_, info(f.k).name,
      info(f.v).name);
  if (!serve_.draft.drafter.empty()) {
    ini += fmt::format("spec = {}\n", serve_.draft.drafter);
    if (serve_.draft.drafter == "mtp" || serve_.draft.drafter == "dflash" || serve_.draft.drafter == "model")
      ini += fmt::format("model-draft = {}\n", o_.draft_model);
    if (serve_.draft.depth != "auto")
      ini += fmt::format("draft-max = {}\nspec-policy = fixed\n", serve_.draft.depth);
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
  sub->add_option("-m,--model", o->model, "The model")->required();
  sub->add_option("--model-draft", o->draft_model, "A drafter's file to try beside it (-md)");
  sub->add_option("--device", o->device, "As in serve")->capture_default_str();
  sub->add_option("--contexts", o->contexts, "Contexts, comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(128, 1 << 22))
      ->capture_default_str();
  sub->add_option("--kinds", o->kinds, "Kinds of text, of --prompts")->delimiter(',')->capture_default_str();
  sub->add_option("--caches", o->caches, "Caches to try; the first is the one that others are compared with")
      ->delimiter(',')
      ->capture_default_str();
  sub->add_option("--drafters", o->drafters, "Drafters to try (default: suffix, and what -md is)")
      ->delimiter(',');
  sub->add_option("--depths", o->depths, "Their depths")
      ->delimiter(',')
      ->check(CLI::Range(1, 31))
      ->capture_default_str();
  sub->add_option("--prompts", o->prompts, "Prompts by kind")->capture_default_str();
  sub->add_option("--text", o->text,
                  "A text that tells what caches cost in quality; without, only f16 and q8_0 are chosen");
  sub->add_option("--max-kld", o->max_kld, "With --text: what a cache may cost, nats over the floor")
      ->capture_default_str();
  sub->add_option("--minutes", o->minutes, "Begin no measurement after so many")
      ->check(CLI::Range(0.1, 1e5))
      ->capture_default_str();
  sub->add_option("-n,--n-gen", o->tokens, "Tokens of a measurement")
      ->check(CLI::Range(8, 4096))
      ->capture_default_str();
  sub->add_option("-r,--repetitions", o->repeats, "Repetitions of one")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sub->add_option("--state", o->state, "Folder of its records: the same command goes on there")
      ->capture_default_str();
  sub->add_option("--out", o->ini, "The settings, for carat serve --config")->capture_default_str();
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
