#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

namespace carat {

namespace {

constexpr int32_t kFewRows = 64;  // fewer are not worth a step: weights are read all the same

// What else runs only makes a step longer, and so does the first of its kind: less is believed sooner.
void learn(double& known, double seen) {
  known = known == 0 ? seen : known + (seen < known ? 0.5 : 0.1) * (seen - known);
}

}  // namespace

void StepCost::ran(int32_t prompt_rows, double seconds) {
  if (prompt_rows == 0)
    learn(rest_, seconds);
  else if (prompt_rows >= kFewRows / 2)
    learn(row_, std::max(0.0, seconds - rest_) / prompt_rows);
}

int32_t StepCost::prompt_rows(int32_t chunk, double seconds) const {
  if (seconds <= 0 || row_ <= 0) return chunk;
  const double rows = std::clamp((seconds - rest_) / row_, 0.0, static_cast<double>(chunk));
  return std::min(chunk, std::max(kFewRows, static_cast<int32_t>(rows) / kFewRows * kFewRows));
}

std::vector<int32_t> plan_step(std::span<const Demand> demands, int32_t chunk) {
  std::vector<int32_t> rows(demands.size(), 1), open(demands.size(), 0);
  const auto give = [&](size_t i, int32_t n) {
    n = std::min({n, open[i], chunk});
    rows[i] += n, open[i] -= n, chunk -= n;
  };
  bool first = true;
  for (size_t i = 0; i < demands.size(); ++i) {
    if (demands[i].prompt_left == 0) continue;
    rows[i] = 0;
    open[i] = std::min(demands[i].prompt_left, demands[i].most);
    if (std::exchange(first, false)) give(i, (chunk + 1) / 2);
  }
  for (;;) {
    const auto readers = std::count_if(open.begin(), open.end(), [](int32_t n) { return n > 0; });
    if (readers == 0 || chunk == 0) return rows;
    const int32_t share = std::max(1, chunk / static_cast<int32_t>(readers));
    for (size_t i = 0; i < demands.size(); ++i) give(i, share);
  }
}

}  // namespace carat
