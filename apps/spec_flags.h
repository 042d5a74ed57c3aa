// Speculation from the command line: names as in llama.cpp, and what they mean for the engine.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "apps/open.h"
#include "engine/engine.h"
#include "engine/speculate/draft_nextn.h"
#include "engine/speculate/draft_ngram.h"

namespace CLI {
class App;
}

namespace carat {

struct SpecFlags {
  std::string types;        // as typed; empty: what the drafter's file is, or none
  std::string draft_model;  // -md
  std::vector<float> synthetic;
  std::string policy = "adaptive", sampling = "equality", rule = "keyed";
  SpecConfig config;
  NgramOptions ngram;
  NextnOptions own_head;
};
// --spec, -md, --draft-max, --draft-min, --draft-p-min, --draft-rule, --draft-tree, --spec-ngram-*,
// --spec-sampling,
// --spec-synthetic and
// llama.cpp's other names of them
void add_spec_flags(CLI::App& app, SpecFlags& flags);

// "mtp,suffix" to names; "draft-mtp" and other names of llama.cpp to ours. Error for unknown ones.
std::vector<std::string> spec_types(const std::string& types);

// What the flags make of the engine's speculation, for so many sequences at once.
SpecConfig spec_config(const SpecFlags& flags, int32_t sequences);

// Opens the drafters and sets config.drafters and config.spec. Error with a hint if something does not fit.
void set_up_speculation(const SpecFlags& flags, const Opened& target, EngineConfig& config);

}  // namespace carat
