// carat inspect FILE
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <map>

#include "apps/cli.h"
#include "apps/inspect.h"
#include "apps/machine.h"
#include "apps/open.h"
#include "apps/progress.h"
#include "base/error.h"

namespace carat {
namespace {

struct InspectOptions {
  std::string file, tensor, out;
  std::string machine;  // one that need not be here
  bool json = false, plan = false;
  PlanOptions memory;
  OpenOptions open;          // its device
  bool tower_within = true;  // what the tower takes is of the memory that the model is in
};

void print_plan(const WeightSource& source, const InspectOptions& o) {
  MemoryPlan plan = plan_memory(source, o.memory);
  plan.tower_within = o.tower_within;
  const int32_t sequences = o.memory.engine.sequences;
  if (o.json) {
    nlohmann::ordered_json out = {{"context", plan.context},
                                  {"sequences", sequences},
                                  {"cache", plan.formats.text()},
                                  {"weights_bytes", plan.weights},
                                  {"host_weights_bytes", plan.host_weights},
                                  {"cache_bytes", plan.cache},
                                  {"step_bytes", plan.steps},
                                  {"state_bytes", plan.states},
                                  {"draft_row_bytes", plan.draft_row},
                                  {"drafter_weights_bytes", plan.drafter_weights},
                                  {"drafter_cache_bytes", plan.drafter_cache},
                                  {"prefix_cache_bytes", plan.prefixes},
                                  {"tower_weights_bytes", plan.tower_weights},
                                  {"tower_work_bytes", plan.tower_work},
                                  {"saved_bytes", plan.saved},
                                  {"total_bytes", plan.total()}};
    for (const auto& e : plan.edges)
      out["protected"].push_back({{"layer", e.layer}, {"ring_tokens", e.ring_tokens}, {"bytes", e.bytes()}});
    for (const auto& l : plan.layers) {
      out["layers"].push_back({{"layer", l.layer}, {"ring_tokens", l.ring_tokens}, {"bytes", l.bytes()}});
    }
    if (!o.machine.empty()) {
      const Machine& m = find_machine(o.machine);
      out["machine"] = {{"name", m.name},
                        {"memory_bytes", m.memory},
                        {"unified", m.unified},
                        {"room_bytes", m.room()},
                        {"fits", plan.total() <= m.room()}};
    }
    for (size_t d = 0; o.open.planned && d < o.open.planned->weights.size(); ++d)
      out["devices"].push_back({{"name", o.open.planned->names[d]},
                                {"weights_bytes", o.open.planned->weights[d]},
                                {"share", o.open.planned->shares[d]}});
    fmt::print("{}\n", out.dump(2));
    return;
  }
  const auto line = [](const char* name, int64_t n) {
    fmt::print("  {:<17}{:>10}", name, human_bytes(static_cast<double>(n)));
  };
  int64_t rings = 0, pages = 0, edges = 0;
  for (const auto& e : plan.edges) edges += e.bytes();
  for (const auto& l : plan.layers) (l.ring_tokens ? rings : pages) += l.bytes();
  fmt::print("context {} x {} sequences, cache {}\n", plan.context, sequences, plan.formats.text());
  line("weights", plan.weights), fmt::print("\n");
  if (plan.host_weights)
    line("  with the CPU", plan.host_weights), fmt::print("   besides: {}\n", plan.host_text);
  line("cache, sliding", rings), fmt::print("\n");
  line("cache, global", pages), fmt::print("\n");
  if (edges) line("protected", edges), fmt::print("   f16 beside the cache\n");
  if (plan.states) {
    line("states", plan.states);
    fmt::print("   and {} for each row of a draft\n", human_bytes(static_cast<double>(plan.draft_row)));
  }
  if (o.open.planned && !o.open.planned->weights.empty()) {
    const SplitPlan& split = *o.open.planned;
    fmt::print("{} devices, {}\n", split.weights.size(), split.text);
    std::vector<std::pair<int32_t, int64_t>> caches;
    for (const auto& l : plan.layers) caches.emplace_back(l.layer, l.bytes());
    for (size_t d = 0; d < split.weights.size(); ++d) {
      line(fmt::format("  device {}", d).c_str(), split.weights[d] + split.cache(d, caches, plan.states));
      fmt::print("   {}: {} of weights\n", split.names[d],
                 human_bytes(static_cast<double>(split.weights[d])));
    }
  }
  if (plan.steps) line("steps", plan.steps), fmt::print("   activations, logits, parts of attention\n");
  if (plan.drafter_weights) line("drafter", plan.drafter_weights), fmt::print("\n");
  if (plan.drafter_cache) line("drafter's cache", plan.drafter_cache), fmt::print("\n");
  if (plan.prefixes) line("prefix cache", plan.prefixes), fmt::print("   for texts that come again\n");
  if (plan.tower_weights) {
    const char* where = plan.tower_within ? "" : ", with the CPU, besides";
    line("tower", plan.tower_weights), fmt::print("   for pictures{}\n", where);
    line("  a picture", plan.tower_work), fmt::print("   of {} tokens{}\n", plan.tower_rows, where);
  }
  line("sum", plan.total()), fmt::print("\n");
  if (!o.machine.empty()) {
    const Machine& m = find_machine(o.machine);
    line("room", m.room());
    fmt::print("   on {}{}: {}\n", m.title, m.unified ? ", whose CPU and GPU share it" : "",
               plan.total() <= m.room() ? "it fits" : "it does not fit");
  }
  if (plan.saved)
    line("a saved text", plan.saved),
        fmt::print("   on the disk, of {} tokens (--save-prompt)\n", plan.context);
  fmt::print("{}", plan.steps ? "The program itself comes on top (some 20 MB).\n"
                              : "Activations and logits of a step come on top (tens to hundreds of MB).\n");
}

void run_inspect(InspectOptions& o) {
  if (!o.tensor.empty()) {
    const TensorValues t = tensor_values(o.file, o.tensor);
    if (o.out.empty())
      fmt::print("{}", tensor_text(t, o.tensor, o.json));
    else
      write_npy(t, o.out);
    return;
  }
  const auto source = open_source(o.file);
  if (o.plan && !o.machine.empty()) {
    const Machine& m = find_machine(o.machine);
    o.memory.device = {std::string(m.title), m.memory, m.room()};
    // Weights that the CPU keeps are in the same memory where that is shared.
    if (!m.unified) o.memory.room = weights_room(o.memory.device);
    o.tower_within = true;
    return print_plan(*source, o);
  }
  if (o.plan) {
    const bool several = o.open.device.find(',') != std::string::npos || !o.open.split.shares.empty() ||
                         o.open.split.mode == "layer" || o.open.split.mode == "tensor";
    if (several) o.open.planned = std::make_shared<SplitPlan>();
    const auto backend = make_backend(o.open, several ? source.get() : nullptr);
    o.memory.device = backend->info();
    const bool on_cpu = backend->host_memory();
    o.tower_within = on_cpu || !several;
    if (!on_cpu) o.memory.room = weights_room(o.memory.device);
    o.memory.allowed = allowed_by(*backend);
    o.memory.cpu_steps = on_cpu && !several;
    o.memory.threads = o.open.threads, o.memory.isa = o.open.isa;
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
  sub->add_flag("--json", o->json, "Print JSON");
  auto* tensor = sub->add_option("--tensor", o->tensor,
                                 "Show this tensor as float32: its name here, or in the checkpoint");
  auto* out = sub->add_option("--out", o->out, "Write --tensor to this .npy file instead");
  out->needs(tensor);
  auto* plan =
      sub->add_flag("--plan", o->plan,
                    "Print the memory that run and serve take with these flags: weights, caches, drafter");
  const auto before = sub->get_options().size();
  o->memory.engine.sequences = 1;
  add_engine_flags(*sub, o->memory.engine);
  sub->add_option("--parallel", o->memory.engine.sequences, "Sequences at once (-np)")
      ->check(CLI::PositiveNumber);
  sub->add_option("--kv-tokens", o->memory.engine.kv_tokens,
                  "KV memory in tokens of all contexts together (0: a whole context for each sequence)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31));
  sub->add_option("--mmproj", o->memory.mmproj, "The projector of pictures, if it is not with the model");
  sub->add_flag("--no-mmproj", o->memory.no_tower, "Leave out the projector");
  add_spec_flags(*sub, o->memory.spec);
  add_offload_flags(*sub, o->memory.offload);
  add_split_flags(*sub, o->open.split);
  auto* machine = sub->add_option("--machine", o->machine,
                                  "Plan for a machine that need not be here: " + machine_names());
  sub->add_option("--device", o->open.device, "Plan for cpu, cuda or cuda:N; auto: what run would take")
      ->capture_default_str()
      ->excludes(machine);
  std::vector<CLI::Option*> options = sub->get_options();
  for (size_t i = before; i < options.size(); ++i) options[i]->needs(plan);
  sub->callback([o] { run_inspect(*o); });
}

}  // namespace carat
