// Which tensors a quantized directory holds, and in which file.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/quantize.h"
#include "tools/quantize_input.h"

namespace carat {

enum class QuantizeScheme : uint8_t { fp8_dynamic, fp8_block, nvfp4, w4a16 };
std::optional<QuantizeScheme> quantize_scheme(std::string_view type);

struct OutTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  size_t bytes = 0, offset = 0;  // in its file's data
};
// One linear layer (or one tensor that stays), from rows of a tensor of the input.
struct OutModule {
  const InTensor* from = nullptr;
  int64_t first = 0, rows = 0, cols = 0;  // in rows of `from`
  bool quantized = false;
  std::string name;   // of the module; of the tensor if it stays
  std::string fused;  // modules that are read as one share a global scale
  std::vector<OutTensor> parts;
};
struct OutShard {
  std::string file;
  size_t bytes = 0;
  std::vector<OutModule> modules;
};
struct QuantizePlan {
  std::vector<OutShard> shards;
  std::vector<std::string> ignore;  // names of linear layers that stay
  QuantizeResult counts;
};

QuantizePlan plan_quantize(const QuantizeOptions& options, QuantizeScheme scheme,
                           const std::vector<InTensor>& tensors);

// The quantization_config of config.json.
std::string quantization_config(const QuantizeOptions& options, QuantizeScheme scheme,
                                const std::vector<std::string>& ignore);

}  // namespace carat
