#include "apps/measurement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "apps/fill.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "measure/sha256.h"

namespace carat {
namespace {

constexpr auto kLook = std::chrono::milliseconds(1000), kGlance = std::chrono::milliseconds(200);

// Of a file that is not there yet.
std::string free_name(const std::string& folder, const std::string& kind) {
  std::string time = utc_now();
  std::erase(time, ':');
  for (int n = 0;; ++n) {
    const std::string path = fmt::format("{}/{}-{}-{}.json", folder, time, kind, n);
    if (!std::filesystem::exists(path)) return path;
  }
}

}  // namespace

void add_measure_flags(CLI::App& app, MeasureFlags& f) {
  auto* json = app.add_flag("--json", f.json, "Print an array of records (docs/records.md)");
  app.add_flag("--csv", f.csv, "Print each record as a line of CSV")->excludes(json);
  app.add_option("--records", f.folder, "Also keep the records in this folder, which carat report reads");
  auto* sweep = app.add_option(
      "--sweep", "name=a,b,c: run once for each value of a flag, each in its own process (repeatable)");
  app.add_option("--sweep-rounds",
                 "Rounds over the values, in alternating order; values whose ranges overlap count as equal")
      ->needs(sweep);
  app.add_flag("--require-idle", f.require_idle,
               "Refuse to measure while other programs keep this machine busy");
  app.add_option("--wait-idle", f.wait_minutes, "Wait up to N minutes until no other program is busy")
      ->check(CLI::Range(0.0, 1e5));
}

Measurement::Measurement(const MeasureFlags& flags, std::string kind)
    : flags_(flags), kind_(std::move(kind)), nvml_(Nvml::open()), watch_(nvml_) {
  has_energy_ = energy_.any();
  machine_ = machine_json(nvml_.get());
  if (kind_ == "plan") return;  // what else runs changes no sum
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration<double>(60 * flags_.wait_minutes);
  const bool strict = flags_.require_idle || flags_.wait_minutes > 0;
  for (;;) {
    std::this_thread::sleep_for(strict ? kLook : kGlance);
    look(true);
    if (!strict || busy_.empty()) break;
    if (Clock::now() >= until)
      throw Error(
          fmt::format("the machine is busy: {}", fmt::join(busy_, "; ")),
          "stop that, wait for it (--wait-idle MINUTES), or measure without --require-idle: the record "
          "says that it was busy");
  }
}

void Measurement::look(bool before) {
  state_[before ? "before" : "during"] = watch_.state();
  BusyLimits limits;
  if (!before) limits.gpu = 2;  // it is this program that works there
  if (kind_ == "load") {        // or the server: what it does is what is measured
    limits.holders = false;
    if (!before) limits.cores = 2;
  }
  const auto now = busy_with(state_[before ? "before" : "during"], limits);
  if (before) busy_.clear();
  busy_.insert(busy_.end(), now.begin(), now.end());
}

void Measurement::opened(const Opened& o) {
  const WeightSource& source = *o.model->source;
  model_ = {{"name", o.model->spec.name},
            {"arch", o.model->spec.arch},
            {"path", source.path()},
            {"bytes", source.total_bytes()},
            {"hash", model_hash(source.path())},
            {"device", o.backend->info().name}};
  watch_.state();  // loading is not the measurement
}

Record Measurement::begin(const std::string& config) const {
  Record r = new_record(kind_);
  r["machine"] = machine_;
  if (!model_.is_null()) r["model"] = model_;
  r["settings"] = {{"config", config}};
  r["figures"] = Record::object();
  return r;
}

void Measurement::add(Record record) { records_.push_back(std::move(record)); }

void Measurement::finish() {
  if (kind_ != "plan") look(false);
  for (Record& r : records_) {
    if (kind_ == "plan") break;
    r["figures"]["host_peak_bytes"] = resident_bytes();
    if (const auto& now = state_["during"];
        now.contains("gpus") && r["model"].value("device", "").starts_with("cuda"))
      r["figures"]["vram_peak_gb"] = now["gpus"][0]["memory_used_bytes"].get<double>() / 1e9;
    if (has_energy_) r["energy_sources"] = energy_.names();
    r["state"] = state_;
    r["busy"] = busy_;
  }
  if (flags_.json) fmt::print("{}\n", Record(records_).dump(1));
  if (flags_.csv) {
    fmt::print("{}\n", csv_header());
    for (const Record& r : records_) fmt::print("{}\n", csv_line(r));
  }
  if (prints_table() && !busy_.empty()) fmt::print("\nNot a quiet machine: {}.\n", fmt::join(busy_, "; "));
  std::fflush(stdout);
  if (flags_.folder.empty()) return;
  std::filesystem::create_directories(flags_.folder);
  AtomicFile file(free_name(flags_.folder, kind_));
  file.write(Record(records_).dump(1) + "\n");
  file.commit();
}

void refuse_without_effect(const CLI::App& app, const std::vector<std::string>& flags,
                           const std::string& where) {
  for (const std::string& flag : flags)
    if (app.get_option(flag)->count() > 0)
      throw Error(fmt::format("{} has no effect in {}", flag, where), "leave it out");
}

void put_cache(Record& settings, const KvFormats& f) {
  settings["kv_k"] = std::string(info(f.k).name);
  settings["kv_v"] = std::string(info(f.v).name);
  settings["kv"] = f.text();
}

}  // namespace carat
