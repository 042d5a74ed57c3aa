// A Hugging Face directory as a WeightSource.
#include <cstdint>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "core/codec.h"
#include "model/files/gguf.h"
#include "model/files/hf_dialect.h"
#include "model/files/safetensors.h"

namespace carat {
namespace {

constexpr size_t kMaxConfig = size_t{16} << 20, kMaxIndex = size_t{64} << 20;

std::optional<DType> dtype_of_safetensors(std::string_view s) {
  if (s == "F32") return DType::f32;
  if (s == "F16") return DType::f16;
  if (s == "BF16") return DType::bf16;
  if (s == "I32") return DType::i32;
  if (s == "I64") return DType::i64;
  return std::nullopt;
}

class HfSource : public WeightSource {
 public:
  explicit HfSource(const std::string& directory) {
    path_ = directory;
    format_ = "safetensors";
    const std::string config = file("config.json");
    if (!std::filesystem::exists(config)) {
      throw Error(fmt::format("'{}' holds no config.json", directory),
                  "a model is a .gguf file or a directory with config.json and *.safetensors");
    }
    HfModel model = read_hf_config(read_file(config, kMaxConfig), config);
    meta_ = std::move(model.meta);
    std::filesystem::path dir(directory);
    if (!dir.has_filename()) dir = dir.parent_path();
    meta_.set("general.name", dir.filename().string());
    tensor_name_ = model.tensor_name;
    load_shards(model.tied_head);
    if (!model.rope_divisors.empty()) add_rope_divisors(model.rope_divisors);
    if (model.adapt) {
      HfTensors tensors{tensors_, meta_, [this](size_t n) {
                          owned_.push_back(std::make_unique<std::byte[]>(n));
                          return owned_.back().get();
                        }};
      model.adapt(tensors);
    }
    index();
  }

 private:
  std::string file(std::string_view name) const { return (std::filesystem::path(path_) / name).string(); }

  void load_shards(bool tied_head) {
    const std::string index_path = file("model.safetensors.index.json"), single = file("model.safetensors");
    if (!std::filesystem::exists(index_path)) {
      if (!std::filesystem::exists(single)) {
        throw Error(
            fmt::format("'{}' holds neither model.safetensors nor model.safetensors.index.json", path_),
            "download the checkpoint's *.safetensors files into it");
      }
      for (const SafeTensor& t : load(single)) add(t, tied_head);
      return;
    }
    const auto map = parse_shard_index(read_file(index_path, kMaxIndex), index_path);
    std::map<std::string, size_t> shards;
    for (const auto& [tensor, shard] : map) ++shards[shard];
    for (const auto& [shard, count] : shards) {
      const std::vector<SafeTensor> tensors = load(file(shard));
      for (const SafeTensor& t : tensors) {
        const auto it = map.find(t.name);
        if (it == map.end() || it->second != shard) {
          throw Error(fmt::format("'{}' holds the tensor '{}', which the index does not place there",
                                  file(shard), printable(t.name)),
                      "index and shards are of different checkpoints; download them again");
        }
        add(t, tied_head);
      }
      if (tensors.size() != count) {
        throw Error(fmt::format("'{}' holds {} tensors, the index places {} there", file(shard),
                                tensors.size(), count),
                    "index and shards are of different checkpoints; download them again");
      }
    }
  }

  std::vector<SafeTensor> load(const std::string& path) {
    files_.emplace_back(path);
    return parse_safetensors(files_.back().bytes(), path);
  }

  void add(const SafeTensor& t, bool tied_head) {
    const auto name = tensor_name_(t.name);
    if (!name) {
      throw Error(
          fmt::format("'{}' holds the tensor '{}', which no known model has", path_, printable(t.name)),
          "the checkpoint may be quantized or of another model");
    }
    if (name->empty() || (tied_head && *name == "output.weight")) {
      skipped_ += name->empty();
      return;
    }
    const auto type = dtype_of_safetensors(t.dtype);
    if (!type) {
      throw Error(fmt::format("'{}': tensor '{}' is of type {}", path_, printable(t.name), t.dtype),
                  "BF16, F16 and F32 checkpoints can be read");
    }
    if (t.bytes == 0) throw Error(fmt::format("'{}': tensor '{}' is empty", path_, printable(t.name)));
    TensorInfo& out = tensors_.emplace_back();
    out.name = *name;
    out.shape = t.shape;
    out.type = *type;
    out.data = t.data;
    out.bytes = t.bytes;
    if (t.shape.size() <= 1 && (*type == DType::bf16 || *type == DType::f16)) {
      widen(out);
    } else if (*type == DType::i64) {
      narrow(out);
    } else if (reinterpret_cast<uintptr_t>(t.data) % info(*type).bytes != 0) {
      std::memcpy(own(out, t.bytes), t.data, t.bytes);
    }
  }

  std::byte* own(TensorInfo& t, size_t bytes) {
    owned_.push_back(std::make_unique<std::byte[]>(bytes));
    t.data = owned_.back().get();
    t.bytes = bytes;
    return owned_.back().get();
  }
  void widen(TensorInfo& t) {
    const std::byte* from = t.data;
    const DType type = t.type;
    const int64_t n = t.elements();
    auto* y = reinterpret_cast<float*>(own(t, static_cast<size_t>(n) * 4));
    for (int64_t i = 0; i < n; ++i) {
      uint16_t h = 0;
      std::memcpy(&h, from + 2 * i, 2);
      y[i] = type == DType::bf16 ? bf16_to_f32(h) : f16_to_f32(h);
    }
    t.type = DType::f32;
  }
  void narrow(TensorInfo& t) {
    const std::byte* from = t.data;
    const auto n = static_cast<size_t>(t.elements());
    auto* y = reinterpret_cast<int32_t*>(own(t, n * 4));
    for (size_t i = 0; i < n; ++i) {
      int64_t v = 0;
      std::memcpy(&v, from + i * 8, 8);
      if (v != static_cast<int32_t>(v))
        throw Error(fmt::format("'{}': '{}' holds the number {}", path_, t.name, v));
      y[i] = static_cast<int32_t>(v);
    }
    t.type = DType::i32;
  }

  void add_rope_divisors(const std::vector<float>& divisors) {
    TensorInfo& t = tensors_.emplace_back();
    t.name = "rope_freqs.weight";
    t.shape = {static_cast<int64_t>(divisors.size())};
    std::memcpy(own(t, divisors.size() * 4), divisors.data(), divisors.size() * 4);
  }

  std::optional<std::string> (*tensor_name_)(std::string_view) = nullptr;
  std::vector<MappedFile> files_;
  std::vector<std::unique_ptr<std::byte[]>> owned_;
};

}  // namespace

std::unique_ptr<WeightSource> open_safetensors(const std::string& directory) {
  return std::make_unique<HfSource>(directory);
}

}  // namespace carat
