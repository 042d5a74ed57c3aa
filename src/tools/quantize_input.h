// What a quantized directory is made from: a Hugging Face directory, or a GGUF file in that dialect's words.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/files/safetensors.h"

namespace carat {

// dtype: what the values count as ("BF16"), to which they are rounded; stored: how the bytes at `data` mean
// them.
struct InTensor : SafeTensor {
  DType stored = DType::f32;
};

struct QuantizeInput {
  std::vector<InTensor> tensors;
  std::string identity;  // JSON: files, sizes, times; another text, other work
  HfShards shards;
  std::unique_ptr<WeightSource> gguf;  // null: a directory
};

// Error with a hint: neither a directory nor a GGUF file, or a family whose GGUF files cannot be told back.
QuantizeInput open_quantize_input(const std::string& path);
// config.json and the texts beside it, by their names.
std::map<std::string, std::string> texts_of(const QuantizeInput& in, const std::string& path);

}  // namespace carat
