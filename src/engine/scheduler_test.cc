#include "engine/scheduler.h"

#include <doctest/doctest.h>

using carat::Demand;
using carat::plan_step;
using Rows = std::vector<int32_t>;

TEST_CASE("a step has as many prompt rows as its time allows, once it is known what they cost") {
  carat::StepCost cost;
  CHECK(cost.prompt_rows(512, 0.1) == 512);  // nothing is known
  for (int i = 0; i < 50; ++i) cost.ran(0, 0.01), cost.ran(512, 0.01 + 512 * 0.001);
  CHECK(cost.prompt_rows(512, 0) == 512);
  CHECK(cost.prompt_rows(512, 0.21) == 192);
  CHECK(cost.prompt_rows(512, 10) == 512);
  CHECK(cost.prompt_rows(512, 0.001) == 64);  // prompts go on all the same
  CHECK(cost.prompt_rows(48, 0.001) == 48);
  cost.ran(512, 30);  // one that is slow does not decide alone
  CHECK(cost.prompt_rows(512, 0.21) >= 64);
  for (int i = 0; i < 50; ++i) cost.ran(512, 0.01 + 512 * 0.001);
  CHECK(cost.prompt_rows(512, 0.21) == 192);
}

TEST_CASE("generating sequences always have their row, the first prompt has half of the chunk") {
  CHECK(plan_step(std::vector<Demand>{{0, 99}, {700, 99999}, {0, 99}, {10, 99999}}, 512) ==
        Rows{1, 502, 1, 10});
  CHECK(plan_step(std::vector<Demand>{{9000, 9999}, {100, 9999}, {9000, 9999}, {9000, 9999}}, 512) ==
        Rows{320, 64, 64, 64});
  CHECK(plan_step(std::vector<Demand>{{100, 9999}, {10, 9999}, {900, 9999}}, 512) == Rows{100, 10, 402});
  CHECK(plan_step(std::vector<Demand>{{100, 32}, {100, 9999}}, 64) == Rows{32, 32});
  CHECK(plan_step(std::vector<Demand>{{5, 9999}}, 1) == Rows{1});
  CHECK(plan_step({}, 8).empty());
}
