#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

namespace carat {

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
