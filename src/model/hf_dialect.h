// Hugging Face's names and config.json, translated to GGUF's (gemma4.md sections 1.1, 3 and 4.4).
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/source.h"

namespace carat {

// What config.json says, in GGUF's keys, and what the loader needs beside them.
struct HfModel {
  Metadata meta;
  bool tied_head = true;             // lm_head.weight, if stored, is a copy
  std::vector<float> rope_divisors;  // of the global layers' frequencies: 1, or 1e30 where nothing rotates
};
// Both styles of config (per_layer_config, or global_head_dim and num_global_key_value_heads). Error with a
// hint on a model that is not known, on a missing or absurd value.
HfModel read_hf_config(std::string_view json, std::string_view name);

// The GGUF name of a tensor. Empty: passed over on purpose (a vision or audio tower, a buffer). nullopt:
// unknown.
std::optional<std::string> gguf_tensor_name(std::string_view hf_name);

}  // namespace carat
