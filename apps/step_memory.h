// What the CPU's memory holds beside caches once a model runs: a plan of it, from the file alone.
#pragma once
#include <cstdint>
#include <string>

#include "model/kv_policy.h"
#include "state/layout.h"

namespace carat {

struct StepMemory {
  int64_t weights = 0;  // as they are read: repacked copies, norms, and tables in the mapped file
  int64_t steps =
      0;  // activations, logits and lists of the largest step and of one row, at the end of the context
};
// file: a model. threads, isa: as make_cpu_backend takes them.
StepMemory plan_steps(const std::string& file, const KvFormats& formats, const KvLimits& limits, int threads,
                      const std::string& isa);

}  // namespace carat
