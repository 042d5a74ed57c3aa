// Which rows run next. Every step carries one row of each sequence that generates, so nobody who generates
// waits for a long prompt, and prompt tokens: half of them the first reader's, the rest in equal shares, so
// that a short prompt does not wait for a long one either, nor a long one for many short ones.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace carat {

struct Demand {
  int32_t prompt_left = 0;  // tokens still to be read; 0: it generates
  int32_t most = 0;         // prompt rows it takes in one step
};

// How many prompt rows a step may have while others generate, learnt from steps that ran.
class StepCost {
 public:
  void ran(int32_t prompt_rows, double seconds);
  // At most `chunk`, and so few (but some) that a step takes about `seconds`; 0: no limit.
  int32_t prompt_rows(int32_t chunk, double seconds) const;

 private:
  double row_ = 0, rest_ = 0;  // seconds of a prompt row, and of a step without any
};

// Rows per sequence: 1 for those that generate, else a share of `chunk`. Demands are in order of precedence.
std::vector<int32_t> plan_step(std::span<const Demand> demands, int32_t chunk);

}  // namespace carat
