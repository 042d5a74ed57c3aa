#include "engine/scheduler.h"

#include <algorithm>

namespace carat {

std::vector<int32_t> plan_step(std::span<const Demand> demands, int32_t chunk) {
  std::vector<int32_t> rows;
  rows.reserve(demands.size());
  for (const Demand& d : demands) {
    if (d.prompt_left == 0) {
      rows.push_back(1);
      continue;
    }
    rows.push_back(std::min({d.prompt_left, d.most, chunk}));
    chunk -= rows.back();
  }
  return rows;
}

}  // namespace carat
