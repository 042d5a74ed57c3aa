#include "apps/serve_options.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>

#include "apps/llama_flags.h"
#include "base/error.h"

namespace carat {
namespace {

// A model that is open, with everything that its ServedModel refers to.
struct Held {
  Opened opened;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Eyes> eyes;
  std::unique_ptr<Ears> ears;
};

// The flags that belong to a version of what is served; the others are the server's.
void add_model_flags(CLI::App& app, ServeOptions& o) {
  add_open_flags(app, o.open);
  add_engine_flags(app, o.engine);
  add_capacity_flags(app, o);
  add_sample_flags(app, o.sample);
  add_spec_flags(app, o.spec);
  add_tower_flags(app, o.eyes);
}

}  // namespace

// How much memory and work one model gets.
void add_capacity_flags(CLI::App& app, ServeOptions& o) {
  app.add_option(
         "--parallel", o.engine.sequences,
         "Requests computed at once, each with its own context (-np); 0: as many as half of the free memory "
         "holds, 64 at most, with 2048 tokens each at the least (see --kv-tokens)")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  app.add_option("--ubatch-size", o.ubatch, "Prompt tokens per step, if less than -b (-ub)")
      ->check(CLI::Range(1, 8192));
  app.add_option("--kv-tokens", o.engine.kv_tokens,
                 "KV memory in tokens of all contexts together (0: a whole context for each request)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31))
      ->capture_default_str();
  app.add_option_function<int64_t>(
         "--prefix-cache-mib", [&o](int64_t mib) { o.engine.prefix_cache_bytes = mib < 0 ? -1 : mib << 20; },
         "MiB of memory for the prefix cache: what an earlier prompt began with is not read again (-1: a "
         "quarter of the free memory)")
      ->check(CLI::Range(-1, 1 << 24));
  app.add_flag_callback(
      "--no-prefix-cache", [&o] { o.engine.prefix_cache_bytes = 0; }, "Turn the prefix cache off");
}

std::shared_ptr<LiveModel> open_served(const ServeOptions& o, OpenOptions open, ServeConfig config,
                                       const ModelHost::Report& report) {
  auto held = std::make_shared<Held>();
  held->opened = open_model(open, [&](double share, std::string_view) { report(share); });
  const Opened& opened = held->opened;
  require_text(opened);
  SampleFlags sampling = o.sample;
  use_model_sampling(*opened.model->source, sampling);
  config.sample = sampling.params;
  config.model_path = open.model;
  EngineConfig engine_config = o.engine;
  if (o.ubatch > 0) engine_config.prefill_chunk = std::min(engine_config.prefill_chunk, o.ubatch);
  if (opened.model->spec.blocks)  // which reads a picture in one step
    engine_config.prefill_chunk = std::max(engine_config.prefill_chunk, o.eyes.budget);
  set_up_speculation(o.spec, opened, engine_config);
  held->engine = std::make_unique<Engine>(opened.backend, opened.model, engine_config);
  ServedModel served{*held->engine,
                     *opened.tokenizer,
                     opened.chat.get(),
                     opened.bos,
                     opened.eos,
                     opened.tokenizer->data().chat_template,
                     !opened.backend->host_memory()};
  held->eyes = open_served_eyes(opened, open, o.eyes, held->engine->config().prefill_chunk, served.blind);
  held->ears = open_served_ears(opened, open, o.eyes, served.deaf);
  served.eyes = held->eyes.get(), served.ears = held->ears.get();
  return std::make_shared<LiveModel>(std::move(served), std::move(config), held);
}

std::vector<std::string> given_model_flags(const CLI::App& sub) {
  CLI::App app;
  ServeOptions unused;
  add_model_flags(app, unused);
  std::vector<std::string> out;
  for (const CLI::Option* option : sub.get_options()) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    const std::string name = "--" + option->get_lnames().front();
    if (!app.get_option_no_throw(name)) continue;
    if (option->get_items_expected_max() == 0)
      out.push_back(name);
    else
      for (const std::string& value : option->results()) out.push_back(name + "=" + value);
  }
  return out;
}

namespace {

// A version opened with its own flags, and with nothing of the command line's but where saved texts are and
// which hosts pictures and sounds may come from.
std::shared_ptr<LiveModel> open_version(const ServeOptions& base, const ServeConfig& config,
                                        const std::vector<std::string>& flags, int number,
                                        const ModelHost::Report& report) {
  struct Own {
    ServeOptions options;
    std::shared_ptr<LiveModel> live;
  };
  auto own = std::make_shared<Own>();  // what is open refers to its options
  ServeOptions& o = own->options;
  o.engine.sequences = 0;
  CLI::App app("a version");
  add_model_flags(app, o);
  const auto known = [&](std::string_view name) {
    return app.get_option_no_throw(std::string(name)) != nullptr;
  };
  std::vector<std::string> args = translate_llama_flags(flags, known).args;
  std::reverse(args.begin(), args.end());
  try {
    app.parse(args);
  } catch (const CLI::ParseError& e) {
    throw Error(fmt::format("flags of version {}: {}", number, e.what()),
                "a version has the flags of `carat serve` that say what answers: model, caches, drafters, "
                "sampling");
  }
  o.engine.prefix_cache_dir = base.engine.prefix_cache_dir;
  o.engine.prefix_disk_bytes = base.engine.prefix_disk_bytes;
  o.eyes.hosts = base.eyes.hosts, o.eyes.http = base.eyes.http;
  ServeConfig c = config;
  c.version = number;
  c.seed = o.sample.seed;
  c.max_tokens = o.sample.max_tokens;
  c.dry_breakers = o.sample.dry_breakers;
  own->live = open_served(o, o.open, std::move(c), report);
  return {own, own->live.get()};
}

}  // namespace

std::shared_ptr<Promotion> promotion_of(const ServeOptions& o, const ServeConfig& config) {
  if (o.promotions.empty()) return nullptr;
  if (!o.models_dir.empty())
    throw Error("--promotions keeps versions of one model", "give it with -m FILE instead of --models-dir");
  if (!o.kv_events.endpoint.empty())
    throw Error("--kv-events tells of one version, and --promotions has several", "leave one of them out");
  return std::make_shared<Promotion>(
      o.promotions, o.model_flags,
      [&o, config](const std::vector<std::string>& flags, int number, const ModelHost::Report& report) {
        return open_version(o, config, flags, number, report);
      });
}

}  // namespace carat
