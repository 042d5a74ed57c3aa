// safetensors files (docs/formats.md section 6) and Hugging Face model directories made of them.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/files/source.h"

namespace carat {

// One tensor of a file. The type is kept as written, since files hold types that no weight of ours has (BOOL,
// F8_E4M3, ...).
struct SafeTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;       // outermost first; [] for a scalar
  const std::byte* data = nullptr;  // no alignment is promised
  size_t bytes = 0;
};

// Throws Error on anything inconsistent: header size, JSON, overlaps, holes, sizes. In order of the data.
std::vector<SafeTensor> parse_safetensors(std::span<const std::byte> file, std::string_view name);

// The weight_map of model.safetensors.index.json: tensor name to file name. A file name with a path in it is
// an Error.
std::map<std::string, std::string> parse_shard_index(std::string_view json, std::string_view name);

// A directory with config.json and model.safetensors or model.safetensors.index.json, translated
// (hf_dialect.h).
std::unique_ptr<WeightSource> open_safetensors(const std::string& directory);

}  // namespace carat
