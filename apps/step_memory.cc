#include "apps/step_memory.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "cpu/planner.h"
#include "model/stepper.h"

namespace carat {

StepMemory plan_steps(const std::string& file, const KvFormats& formats, const KvLimits& limits, int threads,
                      const std::string& isa) {
  CpuMemory counts;
  const std::shared_ptr<Backend> planner = make_cpu_planner(threads, isa, &counts);
  StepMemory plan;
  {
    const auto model = std::make_shared<const Model>(load_model(open_source(file), *planner));
    plan.weights = counts.weights + counts.other;
    Stepper stepper(planner, model, limits, formats);
    const int64_t before = counts.other;
    Sequence sequence(stepper.pages());
    const int32_t chunk = std::min(limits.step_rows, limits.context - 1);
    for (int32_t left = limits.context - 1 - chunk; left > 0;) {
      const int32_t rows = std::min(left, limits.step_rows);
      if (!sequence.append(rows)) break;
      sequence.commit(rows);
      left -= rows;
    }
    const std::vector<int32_t> tokens(static_cast<size_t>(std::max(chunk, 1)));
    for (const int32_t rows : {chunk, 1}) {
      if (rows < 1 || !sequence.append(rows)) continue;
      const Stepper::Part part{&sequence, std::span(tokens).first(static_cast<size_t>(rows))};
      stepper.run({&part, 1});
      sequence.commit(rows);
    }
    plan.steps = counts.other - before;
  }
  return plan;
}

}  // namespace carat
