// A Hugging Face directory into one whose linear layers are quantized as compressed-tensors writes them.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace carat {

struct QuantizeOptions {
  std::string in, out, type = "fp8_dynamic";
  // Modules that stay as they are: "re:X" must match a name from its start, X anywhere in it. Empty:
  // quantize_ignored().
  std::vector<std::string> ignore = {};
  bool exact = false;  // f32 quotients (CheckpointFloat)
  int64_t group = 32;  // w4a16
  int64_t shard_bytes = int64_t{5} << 30;
  int threads = 0;
};
struct QuantizeResult {
  size_t quantized = 0, left = 0, shards = 0, resumed = 0;  // modules; shards that an earlier run had written
  size_t bytes_in = 0, bytes_out = 0;
  std::vector<std::string> unfit;  // modules whose rows are not whole groups
};

bool is_quantize_type(std::string_view type);
std::string quantize_types();
const std::vector<std::string>& quantize_ignored();

// OUT appears when it is whole. What is done stands in OUT.partial until then, and the same command goes on
// there.
QuantizeResult quantize(const QuantizeOptions& options,
                        const std::function<void(double, double, std::string_view)>& progress = {});

}  // namespace carat
