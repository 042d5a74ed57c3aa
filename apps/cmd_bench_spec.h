// The part of `carat bench` that runs drafters.
#pragma once
#include "apps/spec_runs.h"

namespace carat {

struct SpecBenchOptions {
  OpenOptions open;
  SpecFlags spec;
  SampleParams sample;
  std::string prompts;
  std::vector<std::string> only;
  std::vector<int32_t> depths{2, 4, 8};
  int32_t tokens = 96, repeats = 3, streams = 1, context = 2048;
  DType cache_k = DType::f16, cache_v = DType::f16;
  bool json = false;
};
void bench_spec(const SpecBenchOptions& options);

}  // namespace carat
