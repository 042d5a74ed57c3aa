// Running prompts with and without drafters: what `carat eval acceptance` and `carat bench --spec` stand on.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/spec_flags.h"
#include "cuda/cuda.h"

namespace carat {

// Prompts of one kind of text.
struct PromptSet {
  std::string name;
  std::vector<std::vector<Token>> prompts;
  std::vector<Token> ends = {};  // where an answer ends; empty: nowhere
};
// JSON: {"name": [{"user": "a message"}, {"text": "to be continued"}, {"random": 64}, ...], ...}; the last is
// that many tokens without sense. only: names to take, all if empty. Error naming what is wrong.
std::vector<PromptSet> read_prompts(const std::string& path, const std::vector<std::string>& only,
                                    const Opened& opened);

// An engine and what it is called in tables.
struct SpecSetting {
  std::string drafters;  // "mtp,suffix"; empty: plain decoding
  int32_t depth = 0;     // fixed; 0: the controller's choice
  std::unique_ptr<Engine> engine;
  std::shared_ptr<Backend> backend;
  std::string name() const;
};
SpecSetting make_setting(const std::string& drafters, int32_t depth, const SpecFlags& flags,
                         const Opened& opened, EngineConfig config);

struct SpecRun {
  SpecStats stats;
  double tokens = 0,
         seconds = 0;  // generated behind the first token of each; together if several run at once
  CudaUse used;        // in these seconds
};
// Every prompt of the set, `streams` at a time, n tokens each whatever the model says.
SpecRun run_prompts(SpecSetting& setting, const PromptSet& set, const SampleParams& sample, int32_t n,
                    int32_t streams);

// The machine at this moment, for records: processor, threads, load.
nlohmann::json machine_state(const Opened& opened);

}  // namespace carat
