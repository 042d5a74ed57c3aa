// carat plan SHAPE -c 256K --memory 24G: what a model of a published shape takes and which caches fit, before
// anything is downloaded.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>

#include "apps/cli_measure.h"
#include "apps/eval.h"
#include "apps/machine.h"
#include "apps/measurement.h"
#include "apps/progress.h"
#include "apps/towers.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/setup.h"
#include "model/model.h"
#include "tools/forge.h"
#include "tools/forge_tower.h"
#include "tools/type_mix.h"

namespace carat {
namespace {

struct PlanCommand {
  std::string shape, type = "q4_k_m", memory, machine, drafter;
  std::vector<std::string> contexts{"8K", "128K"};
  std::vector<std::string> caches{"f16", "q8_0", "tq3/tq4", "tq3"};
  int32_t sequences = 1;
  bool single = false;
  bool sees = false;  // its tower for pictures counts
  MeasureFlags measure;
};

constexpr int32_t kMostContext = 1 << 22;  // caches hold no more

// "256K", "1M", "4096"; "24G", "24000M".
double with_suffix(const std::string& text) {
  size_t used = 0;
  double v = 0;
  try {
    v = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  const std::string unit = text.substr(used);
  const double scale = unit.empty()                                   ? 1
                       : unit == "K" || unit == "k"                   ? 1024.0
                       : unit == "M"                                  ? 1048576.0
                       : unit == "G" || unit == "GB" || unit == "GiB" ? 1073741824.0
                                                                      : 0;
  if (used == 0 || scale == 0 || !(v > 0) || v > 1e15)
    throw Error(fmt::format("'{}' is no size", text), "write 4096, 256K, 1M or 24G");
  return v * scale;
}

int32_t context_of(const std::string& text) {
  const double v = with_suffix(text);
  if (v < 1 || v > kMostContext || v != std::floor(v))
    throw Error(fmt::format("'{}' is no context", text), fmt::format("choose 1 to {} tokens", kMostContext));
  return static_cast<int32_t>(v);
}

// A shape's metadata without its weights: enough for the family to say what layers keep.
class ShapeSource : public WeightSource {
 public:
  explicit ShapeSource(const ModelShape& s) {
    path_ = s.name, format_ = "shape";
    meta_ = s.is_hybrid() ? hybrid_shape_metadata(s) : shape_metadata(s);
    for (const ShapeTensor& t : s.is_hybrid() ? hybrid_shape_tensors(s) : shape_tensors(s)) {
      if (t.name == "rope_freqs.weight") continue;  // its values are in the weights; a family knows its own
      TensorInfo i;
      i.name = t.name, i.shape = t.shape;
      tensors_.push_back(std::move(i));
    }
    index();
  }
};

struct Plan {
  std::string cache;
  KvFormats formats;
  int32_t context = 0;
  double kv = 0, f16 = 0;  // bytes
  double saving() const { return 1 - kv / f16; }
};

double kv_bytes(const ModelSpec& spec, const KvFormats& f, int32_t context, int32_t sequences) {
  KvLimits l;
  l.context = context, l.sequences = sequences, l.step_rows = std::min(512, context) + sequences;
  return static_cast<double>(plan_kv(kv_layers(spec, f), l).bytes());
}

constexpr double kMiB = 1 << 20, kGiB = 1 << 30;

// Of the tower in the shape that belongs to a model's: weights in bf16, and the work on the largest picture.
double eyes_bytes(const std::string& shape, bool in_one_step) {
  const std::string name = shape + "-mmproj";
  if (!is_tower_shape(name))
    throw Error(fmt::format("no tower for pictures is known for '{}'", shape),
                "known towers: " + tower_shape_names());
  const auto tower = tower_shape(name, "bf16");
  return static_cast<double>(tower_facts(*tower).bytes +
                             tower_work_bytes(*tower, largest_picture(in_one_step, 512)));
}

void print(const std::vector<Plan>& all, const ModelShape& shape, double weights, double drafter, double eyes,
           double room, const PlanCommand& o) {
  fmt::print("{}: {} of {} weights{}{}, {} sequence{}\n\n", shape.title, human_bytes(weights), o.type,
             drafter > 0 ? fmt::format(" and {} of drafter", human_bytes(drafter)) : "",
             eyes > 0 ? fmt::format(" and {} of tower for pictures", human_bytes(eyes)) : "", o.sequences,
             o.sequences > 1 ? "s" : "");
  fmt::print(
      "| {:>8} | {:<22} | {:>11} | {:>8} | {:>9} | {:<4} |\n| {:->7}: | {:-<22} | {:->10}: | {:->7}: | "
      "{:->8}: | {:-<4} |\n",
      "context", "cache K/V", "KV", "saving", "sum", "fits", "", "", "", "", "", "");
  for (const Plan& p : all) {
    const double sum = p.kv + weights + drafter + eyes;
    fmt::print("| {:>8} | {:<22} | {:>7.1f} MiB | {:>6.1f} % | {:>5.2f} GiB | {:<4} |\n", p.context,
               p.formats.text(), p.kv / kMiB, 100 * p.saving(), sum / kGiB,
               room > 0 ? (sum <= room ? "yes" : "no") : "-");
  }
  if (room <= 0) return;
  int32_t longest = 0;
  for (const Plan& p : all) longest = std::max(longest, p.context);
  for (const Plan& p : all)
    if (p.context == longest && p.kv + weights + drafter + eyes <= room) {
      fmt::print(
          "\nTake {} caches at {}: a {} file of {} ({}), then\n  carat serve -m FILE -c {} --cache-type-k {} "
          "--cache-type-v {}{}\n",
          p.formats.text(), longest, o.type, shape.title, human_bytes(weights), longest,
          info(p.formats.k).name, info(p.formats.v).name, o.single ? " --kv-single" : "");
      return;
    }
  fmt::print("\nNone of these caches fits at {}: choose a shorter context or smaller weights (--type).\n",
             longest);
}

void run_plan(const PlanCommand& o) {
  Measurement m(o.measure, "plan");
  const ModelShape& shape = find_shape(o.shape);
  if (shape.is_drafter())
    throw Error(fmt::format("'{}' is a drafter", o.shape), "plan its model and give it with --drafter");
  const ShapeSource source(shape);
  const ModelSpec spec = find_family(source.meta().get_string("general.architecture")).read_spec(source);
  const auto weights = static_cast<double>(plan_forge({o.shape, "", o.type, 1, 0}).tensor_bytes);
  const double drafter =
      o.drafter.empty() ? 0 : static_cast<double>(plan_forge({o.drafter, "", "q8_0", 1, 0}).tensor_bytes);
  const double eyes = o.sees ? eyes_bytes(o.shape, spec.blocks) : 0;
  // A sixteenth of it is for activations and what else the device holds.
  const double room = !o.machine.empty()  ? static_cast<double>(find_machine(o.machine).room())
                      : !o.memory.empty() ? with_suffix(o.memory) * 15 / 16
                                          : 0;
  std::vector<Plan> all;
  for (const std::string& text : o.contexts) {
    const int32_t context = context_of(text);
    if (context > spec.context) log_warn("{}", beyond_training(context, spec));
    for (const std::string& cache : o.caches) {
      Plan p{cache, cache_formats(cache), context, 0, 0};
      p.formats.single = p.formats.single || o.single;
      p.kv = kv_bytes(spec, p.formats, p.context, o.sequences);
      p.f16 = kv_bytes(spec, KvFormats{}, p.context, o.sequences);
      all.push_back(p);
      Record r = m.begin(p.formats.text());
      r["model"] = {{"name", o.shape}, {"arch", std::string(shape.arch)}, {"type", o.type}};
      put_cache(r["settings"], p.formats);
      r["settings"]["ctx"] = p.context, r["settings"]["sequences"] = o.sequences;
      r["figures"] = {
          {"kv_mib", p.kv / kMiB},         {"kv_saving", p.saving()},
          {"weights_gib", weights / kGiB}, {"drafter_gib", drafter / kGiB},
          {"tower_gib", eyes / kGiB},      {"total_gib", (p.kv + weights + drafter + eyes) / kGiB}};
      if (room > 0) r["figures"]["fits"] = p.kv + weights + drafter + eyes <= room;
      m.add(std::move(r));
    }
  }
  if (m.prints_table()) print(all, shape, weights, drafter, eyes, room, o);
  m.finish();
}

}  // namespace

void add_plan(CLI::App& app) {
  auto o = std::make_shared<PlanCommand>();
  CLI::App* sub =
      app.add_subcommand("plan", "Tell how much memory a published model needs, before it is downloaded");
  sub->add_option("shape", o->shape, "One of: " + shape_names())->required();
  sub->add_option("--type", o->type, "Type of its weights: " + recipe_names())->capture_default_str();
  sub->add_option("-c,--ctx-size", o->contexts, "Contexts, comma-separated: 8K, 128K, 1M")
      ->delimiter(',')
      ->capture_default_str();
  sub->add_option("--caches", o->caches, "Caches to compare, as in eval kld --caches")
      ->delimiter(',')
      ->capture_default_str();
  auto* memory = sub->add_option("--memory", o->memory, "Memory of the device: 24G");
  sub->add_option("--machine", o->machine, "A machine instead of --memory: " + machine_names())
      ->excludes(memory);
  sub->add_option("--drafter", o->drafter, "Shape of a drafter to count, in q8_0");
  sub->add_flag("--mmproj", o->sees,
                "Its tower for pictures in bf16 counts, with the activations of the largest picture");
  sub->add_option("--parallel", o->sequences, "Sequences at once (-np)")
      ->check(CLI::Range(1, kMaxSequences))
      ->capture_default_str();
  sub->add_flag("--kv-single", o->single, "Count one copy where the model computes keys from values (K = V)");
  add_measure_flags(*sub, o->measure);
  sub->callback([o, sub] {
    refuse_without_effect(*sub, {"--require-idle", "--wait-idle"}, "plan, which measures nothing");
    run_plan(*o);
  });
}

}  // namespace carat
