// Several devices by flags: what is split how, and what is said where it cannot be.
#include "apps/devices.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "tests/errors.h"
#include "tests/tiny_model.h"

using namespace carat;
using namespace carat::test;

namespace {

SplitModel model_of(int layers, int64_t bytes) {
  SplitModel m;
  m.layers.assign(static_cast<size_t>(layers), bytes);
  m.table = m.head = 2 * bytes;
  return m;
}
std::vector<DeviceRoom> cards(std::initializer_list<int64_t> free) {
  std::vector<DeviceRoom> all;
  for (const int64_t f : free) all.push_back({"card", f, f});
  return all;
}
}  // namespace

TEST_CASE("devices by name") {
  CHECK(device_numbers("auto").empty());
  CHECK(device_numbers("cuda") == std::vector<int>{0});
  CHECK(device_numbers("cuda:1,cuda:0") == std::vector<int>{1, 0});
  CHECK(device_numbers("cpu,cpu") == std::vector<int>{-1, -1});
  CHECK(error_of([] { device_numbers("cuda:0,cuda:0"); }) == "'cuda:0,cuda:0' names cuda:0 twice");
  CHECK(error_of([] { device_numbers("cuda:0,cpu"); }) == "'cuda:0,cpu' names GPUs and the CPU");
  CHECK(error_of([] { device_numbers("cuda:x"); }) == "unknown device 'cuda:x'");
}

TEST_CASE("the mode that auto takes: by links, cards and model") {
  const SplitModel dense = model_of(10, 100);
  SplitModel moe = dense;
  moe.experts = true;
  const auto mode = [](const SplitModel& m, const std::vector<DeviceRoom>& d, bool direct) {
    return plan_split(m, d, {}, direct).mode;
  };
  CHECK(mode(dense, cards({4000, 4000}), true) == SplitMode::tensor);
  CHECK(mode(dense, cards({4000, 4000}), false) == SplitMode::layer);
  CHECK(mode(dense, cards({4000, 2000}), true) == SplitMode::layer);
  CHECK(mode(moe, cards({4000, 4000}), true) == SplitMode::layer);
  SplitFlags tensor;
  tensor.mode = "tensor";
  CHECK(plan_split(moe, cards({4000, 2000}), tensor, false).mode == SplitMode::tensor);
  SplitModel small = dense;
  small.small = true;
  CHECK(mode(small, cards({4000, 4000}), true) == SplitMode::layer);
  CHECK(error_of([&] {
          plan_split(small, cards({4000, 4000}), tensor, true);
        }).find("E2B") != std::string::npos);
}

TEST_CASE("parts by shares and by what is free, and what has no room") {
  const SplitModel m = model_of(10, 100);  // 1000, and tables of 200 at both ends
  const SplitPlan even = plan_split(m, cards({4000, 4000}), {}, false);
  CHECK(even.first_layer == std::vector<int32_t>{0, 5});
  CHECK(even.weights == std::vector<int64_t>{700, 700});
  CHECK(even.text == "layer: 5 and 5 of 10 layers");
  CHECK(even.cache(0, {{0, 30}, {4, 30}, {5, 10}}, 0) == 60);
  const SplitPlan uneven = plan_split(m, cards({6000, 2000}), {}, false);
  CHECK(uneven.first_layer == std::vector<int32_t>{0, 8});
  SplitFlags f;
  f.mode = "tensor", f.shares = {3, 1};
  const SplitPlan tensor = plan_split(m, cards({4000, 4000}), f, true);
  CHECK(tensor.weights == std::vector<int64_t>{1100, 500});
  CHECK(tensor.text == "tensor: 75 % and 25 % of every product");
  CHECK(tensor.cache(1, {{0, 40}}, 7) == 17);
  CHECK(error_of([&] {
          plan_split(m, cards({1000, 4000}), f, true);
        }).starts_with("the part of card takes 1.1 "));
  f.shares = {1};
  CHECK(error_of([&] { plan_split(m, cards({4000, 4000}), f, true); }) == "1 shares for 2 devices");
}

TEST_CASE("what a file says about its parts") {
  const auto dense = open_source(tiny_model("tiny"));
  const SplitModel m = split_model(*dense);
  CHECK(!m.experts);
  CHECK(!m.small);
  CHECK(m.head > 0);
  CHECK(split_model(*open_source(tiny_model("tiny-moe"))).experts);
  CHECK(split_model(*open_source(tiny_model("tiny-e"))).small);
}
