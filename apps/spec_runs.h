// Running prompts with and without drafters: what `carat eval acceptance` and `carat bench --spec` stand on.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/spec_flags.h"
#include "cuda/cuda.h"
#include "measure/energy.h"

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

// n tokens of the text of that file before every prompt, from its start again where it is shorter.
void put_before(std::vector<PromptSet>& sets, const std::string& file, int32_t n, const Opened& opened);

// What one column of a table runs.
struct SpecSetting {
  std::string drafters;  // "mtp,suffix"; empty: plain decoding
  int32_t depth = 0;     // fixed; 0: the controller's choice
  std::shared_ptr<Speculator> speculator;
  std::string name() const;
};

struct SpecRun {
  SpecStats stats;
  double tokens = 0,
         seconds = 0;  // generated behind the first token of each; together if several run at once
  CudaUse used;        // in these seconds
  // Until the first tokens, of single streams.
  double prompt_tokens = 0, prompt_seconds = 0;
  std::vector<double> first_token;
  Energy prefill, decode;
};

// One engine that all settings share: the same memory and the same threads, so that they differ in nothing
// but what they draft. Texts are read anew every time: a drafter that reads along is to find what it would
// find in a text that nobody has sent before.
class SpecBed {
 public:
  // keeps: but for the text that stands before all of them, which is read once where no drafter reads along.
  SpecBed(const SpecFlags& flags, const Opened& opened, EngineConfig config, bool keeps = false);
  const std::vector<std::string>& drafters() const { return names_; }  // of the flags, grammars aside
  SpecSetting setting(const std::string& drafters, int32_t depth) const;
  void meter(EnergyMeter* energy) { energy_ = energy; }  // null: none is read
  const EngineConfig& config() const { return engine_->config(); }
  // Prompts of a set, `streams` at a time, n tokens each whatever the model says; at: the place of the first,
  // which its seed goes by.
  SpecRun run(const SpecSetting& setting, std::span<const std::vector<Token>> prompts, size_t at,
              const std::vector<Token>& ends, const SampleParams& sample, int32_t n, int32_t streams);

 private:
  std::shared_ptr<Backend> backend_;
  EngineConfig config_;
  std::vector<std::string> names_;
  std::unique_ptr<Engine> engine_;
  EnergyMeter* energy_ = nullptr;
};

}  // namespace carat
