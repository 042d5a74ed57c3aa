// carat inspect FILE
#include <fmt/format.h>

#include <map>

#include "apps/cli.h"
#include "apps/inspect.h"
#include "apps/open.h"
#include "apps/progress.h"
#include "base/error.h"

namespace carat {
namespace {

struct InspectOptions {
  std::string file, tensor, out, type_k = "f16", type_v = "f16";
  bool json = false, plan = false;
  PlanOptions memory;
};

void print_plan(const WeightSource& source, const InspectOptions& o) {
  const MemoryPlan plan = plan_memory(source, o.memory);
  if (o.json) {
    nlohmann::ordered_json out = {{"context", plan.context},       {"sequences", o.memory.sequences},
                                  {"weights_bytes", plan.weights}, {"cache_bytes", plan.cache},
                                  {"state_bytes", plan.states},    {"draft_row_bytes", plan.draft_row},
                                  {"total_bytes", plan.total()}};
    for (const auto& l : plan.layers) {
      out["layers"].push_back({{"layer", l.layer}, {"ring_tokens", l.ring_tokens}, {"bytes", l.bytes()}});
    }
    fmt::print("{}\n", out.dump(2));
    return;
  }
  const auto size = [](int64_t n) { return human_bytes(static_cast<double>(n)); };
  int64_t rings = 0, pages = 0;
  for (const auto& l : plan.layers) (l.ring_tokens ? rings : pages) += l.bytes();
  fmt::print("context {} x {} sequences, cache {} / {}\n", plan.context, o.memory.sequences, o.type_k,
             o.type_v);
  fmt::print("  weights         {:>10}\n  cache, sliding  {:>10}\n  cache, global   {:>10}\n",
             size(plan.weights), size(rings), size(pages));
  if (plan.states)
    fmt::print("  states          {:>10}   and {} for each row of a draft\n", size(plan.states),
               size(plan.draft_row));
  fmt::print("  sum             {:>10}\n", size(plan.total()));
  fmt::print("Activations and logits of a step come on top (tens to hundreds of MB).\n");
}

void run_inspect(InspectOptions& o) {
  const auto source = open_source(o.file);
  if (!o.tensor.empty()) {
    write_npy(source->get(o.tensor), o.out);
    return;
  }
  if (o.plan) {
    o.memory.cache_k = cache_type(o.type_k);
    o.memory.cache_v = cache_type(o.type_v);
    return print_plan(*source, o);
  }
  fmt::print("{}", o.json ? inspect_json(*source).dump(2) + "\n" : inspect_text(*source));
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto* sub = app.add_subcommand("inspect", "Show what a model file holds and how much memory it needs");
  auto o = std::make_shared<InspectOptions>();
  sub->add_option("file", o->file, "A .gguf file, or a directory with config.json and *.safetensors")
      ->required();
  sub->add_flag("--json", o->json, "As JSON");
  auto* tensor = sub->add_option("--tensor", o->tensor, "Write this tensor, dequantized to float32");
  auto* out = sub->add_option("--out", o->out, "The .npy file for --tensor");
  tensor->needs(out);
  out->needs(tensor);
  auto* plan = sub->add_flag("--plan", o->plan, "Memory for weights and cache");
  sub->add_option("-c,--ctx-size", o->memory.context, "Context of --plan; 0: the model's own, at most 8192")
      ->needs(plan)
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--parallel", o->memory.sequences, "Sequences at once (-np)")
      ->needs(plan)
      ->check(CLI::PositiveNumber);
  sub->add_option("-b,--batch-size", o->memory.batch, "Rows of the largest step")
      ->needs(plan)
      ->check(CLI::PositiveNumber);
  sub->add_option("--cache-type-k", o->type_k, "Type of cached keys (-ctk)")
      ->needs(plan)
      ->capture_default_str();
  sub->add_option("--cache-type-v", o->type_v, "Type of cached values (-ctv)")
      ->needs(plan)
      ->capture_default_str();
  sub->callback([o] { run_inspect(*o); });
}

}  // namespace carat
