// carat forge SHAPE OUT.gguf
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <chrono>

#include "apps/cli.h"
#include "apps/progress.h"
#include "tools/forge.h"
#include "tools/forge_tower.h"
#include "tools/type_mix.h"

namespace carat {
namespace {

void run_forge_tower(const ForgeOptions& o) {
  const size_t bytes = forge_tower(o.shape, o.out, o.type, o.seed, o.threads);
  fmt::print("{}: {}; the weights are random\n", o.out, human_bytes(static_cast<double>(bytes)));
}

void print_plan(const ForgeOptions& options) {
  const ForgePlan plan = plan_forge(options);
  fmt::print("{}: {} parameters, {} tensors, {} of weights\n", options.shape, plan.parameters,
             plan.tensors.size(), human_bytes(static_cast<double>(plan.tensor_bytes)));
  for (const auto& [type, count] : plan.histogram)
    fmt::print("  {:8} {:4} tensors\n", info(type).name, count);
}

void run_forge(const ForgeOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  size_t bytes = 0;
  {
    ProgressBar bar("forging", "B");
    bytes = forge(options,
                  [&](double done, double total, std::string_view name) { bar.update(done, total, name); });
  }
  const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{}: {}, {:.1f} s, {}/s; the weights are random\n", options.out,
             human_bytes(static_cast<double>(bytes)), s, human_bytes(static_cast<double>(bytes) / s));
}

}  // namespace

void add_forge(CLI::App& app) {
  auto* sub = app.add_subcommand(
      "forge", "Make a file with random weights in the shape of a published model, for benchmarks");
  auto options = std::make_shared<ForgeOptions>();
  auto dry = std::make_shared<bool>(false);
  sub->add_option("shape", options->shape, "One of: " + shape_names() + " " + tower_shape_names())
      ->required();
  auto* out = sub->add_option("out", options->out, "The file to write");
  sub->add_option("--type", options->type, "Type of the weights: " + all_recipe_names())
      ->capture_default_str();
  sub->add_option("--seed", options->seed, "The same seed gives the same file")->capture_default_str();
  sub->add_option("-t,--threads", options->threads, "Threads; 0: as many as the machine has");
  sub->add_flag("--dry-run", *dry, "Print the size of the file without writing it");
  sub->callback([options, dry, out] {
    if (*dry) return print_plan(*options);
    if (out->empty()) throw CLI::RequiredError("out");
    if (is_tower_shape(options->shape)) return run_forge_tower(*options);
    run_forge(*options);
  });
}

}  // namespace carat
