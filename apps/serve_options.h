// What `carat serve` was told, and how a model is opened with it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "apps/eyes.h"
#include "apps/open.h"
#include "apps/spec_flags.h"
#include "serve/kv_events.h"
#include "serve/server.h"

namespace carat {

struct ServeOptions {
  OpenOptions open;
  EngineConfig engine;
  SampleFlags sample;
  SpecFlags spec;
  EyesFlags eyes;
  ServeConfig serve;
  std::string alias, api_key, api_key_file, models_dir, promotions;
  std::vector<std::string> model_flags;  // of the command line those that say what answers
  KvEventConfig kv_events;
  double models_memory = 0;  // GB
  int ubatch = 0;
  double grace = 30, drain_delay = 0;
  bool continuous = true, open_to_all = false, allow_pull = false;
};

// --parallel, --ubatch-size, --kv-tokens, --prefix-cache-mib, --no-prefix-cache
void add_capacity_flags(CLI::App& app, ServeOptions& o);
// The model of `open` with everything that answers for it. `o` must outlive it.
std::shared_ptr<LiveModel> open_served(const ServeOptions& o, OpenOptions open, ServeConfig config,
                                       const ModelHost::Report& report);

// Of flags given to `carat serve` those that say what answers, as they could be typed.
std::vector<std::string> given_model_flags(const CLI::App& serve);
// The versions that --promotions keeps; null without it. `o` must outlive them.
std::shared_ptr<Promotion> promotion_of(const ServeOptions& o, const ServeConfig& config);

}  // namespace carat
