// Full-size model files of published shapes with random weights: for benchmarks and tests where no trained
// file is at hand.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/files/gguf_writer.h"
#include "tools/shapes.h"

namespace carat {

struct ForgeOptions {
  std::string shape = {}, out = {}, type = "q4_k_m";
  uint64_t seed = 1;
  int threads = 0;
};
struct ForgePlan {
  std::vector<ShapeTensor> sources;
  std::vector<GgufTensor> tensors;
  int64_t parameters = 0;
  size_t tensor_bytes = 0;
  std::map<DType, int> histogram;  // number of tensors of a type
};
// Types as in published files of that type; Q4_K_M of E2B and E4B as in the widespread ones, with finer
// per-layer projections and values.
ForgePlan plan_forge(const ForgeOptions& options);
// The same seed gives the same bytes, whatever the number of threads. Returns the size of the file.
size_t forge(const ForgeOptions& options,
             const std::function<void(double, double, std::string_view)>& progress = {});

}  // namespace carat
