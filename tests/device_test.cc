// Which device a flag names, and what is said where there is none.
#include <doctest/doctest.h>

#include "apps/open.h"
#include "base/error.h"
#include "cuda/cuda.h"

using namespace carat;

namespace {

std::string refusal(const std::string& device) {
  OpenOptions o;
  o.device = device;
  try {
    make_backend(o);
  } catch (const Error& e) {
    CHECK(!e.hint().empty());
    return e.what();
  }
  return {};
}

}  // namespace

TEST_CASE("auto is a GPU where there is one, else the CPU") {
  OpenOptions o;
  o.threads = 1;
  const bool gpu = !cuda_devices().empty();
  CHECK(make_backend(o)->host_memory() == !gpu);
  o.isa = "baseline";  // only the CPU has these
  CHECK(make_backend(o)->info().name.starts_with("cpu "));
  o.isa.clear(), o.device = "cpu";
  CHECK(make_backend(o)->info().name.starts_with("cpu "));
}

TEST_CASE("devices that are not there are refused by name") {
  for (const std::string device : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda0", ""})
    CHECK(refusal(device) == fmt::format("unknown device '{}'", device));
  std::string why;
  const std::vector<std::string> devices = cuda_devices(&why);
  if (devices.empty()) {
    CHECK(!why.empty());
    CHECK(refusal("cuda").find(why) != std::string::npos);
    CHECK(refusal("cuda:3") == refusal("cuda"));
  } else {
    CHECK(refusal("cuda:1000") == "there is no CUDA device 1000");
    CHECK(!make_cuda_backend(0)->host_memory());
  }
}
