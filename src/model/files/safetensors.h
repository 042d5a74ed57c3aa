// safetensors files (docs/formats.md section 6) and Hugging Face model directories made of them.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
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

// All tensors of a directory: model.safetensors, or the shards of model.safetensors.index.json, which must
// agree.
struct HfShards {
  std::vector<MappedFile> files;
  std::vector<SafeTensor> tensors;
};
HfShards open_shards(const std::string& directory);

// One tensor of a directory by the checkpoint's name, as float32; of quantized matrices NAME.weight (or NAME,
// for stacks without a suffix) is what their parts mean together.
struct DecodedTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
  std::string stored;  // "BF16", "NVFP4"
};
std::optional<DecodedTensor> decode_checkpoint_tensor(const std::string& directory, std::string_view name);

// A directory with config.json and model.safetensors or model.safetensors.index.json, translated
// (hf_dialect.h).
std::unique_ptr<WeightSource> open_safetensors(const std::string& directory);
// Its towers; null: it has none that is known.
std::unique_ptr<WeightSource> open_hf_towers(const std::string& directory);

}  // namespace carat
