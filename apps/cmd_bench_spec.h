// The part of `carat bench` that runs drafters.
#pragma once
#include "apps/measurement.h"
#include "apps/spec_runs.h"

namespace carat {

struct SpecBenchOptions {
  OpenOptions open;
  SpecFlags spec;
  SampleParams sample;
  std::string prompts;
  std::string before;  // a text that stands before every prompt
  std::vector<std::string> only;
  std::vector<int32_t> depths{2, 4, 8};
  int32_t tokens = 96, repeats = 3, streams = 1, context = 2048, depth = 0;  // depth: its tokens
  EngineConfig cache;                                                        // its formats
  MeasureFlags measure;
};
// --spec and what belongs to it
void add_spec_bench_flags(CLI::App& app, SpecBenchOptions& options);
void bench_spec(const SpecBenchOptions& options);

}  // namespace carat
