#include "tools/quantize_input.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "core/codec.h"
#include "model/files/gguf.h"
#include "model/files/hf_dialect.h"
#include "model/files/hf_quant.h"
#include "tools/hf_texts.h"

namespace carat {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json file_identity(const std::string& path) {
  return {path, fs::file_size(path), fs::last_write_time(path).time_since_epoch().count()};
}

QuantizeInput input_of_directory(const std::string& path) {
  QuantizeInput in;
  in.shards = open_shards(path);
  split_quantized(in.shards.tensors, path);
  Json files = Json::array();
  for (const MappedFile& f : in.shards.files) files.push_back(file_identity(f.path()));
  in.identity = files.dump();
  for (const SafeTensor& t : in.shards.tensors)
    in.tensors.push_back({t, t.dtype == "BF16" ? DType::bf16 : t.dtype == "F16" ? DType::f16 : DType::f32});
  return in;
}

// GGUF files hold norms and routers as f32, whatever the checkpoint had.
bool is_bf16(const TensorInfo& t) {
  for (size_t i = 0; i < t.bytes; i += 4) {
    uint32_t bits = 0;
    std::memcpy(&bits, t.data + i, 4);
    if (bits & 0xffff) return false;
  }
  return true;
}

const char* counts_as(const TensorInfo& t) {
  if (t.type == DType::f16) return "F16";
  return t.type == DType::f32 && !is_bf16(t) ? "F32" : "BF16";
}

QuantizeInput input_of_gguf(const std::string& path) {
  QuantizeInput in;
  in.gguf = open_source(path);
  const std::string arch = in.gguf->meta().get_string_or("general.architecture", "");
  if (arch != "gemma4")
    throw Error(
        fmt::format("'{}' is a GGUF file of the architecture '{}': quantized directories are made from "
                    "those of gemma4 alone",
                    path, printable(arch)),
        "give the model's Hugging Face directory");
  size_t rounded = 0;
  for (const TensorInfo& t : in.gguf->tensors()) {
    if (t.name == "rope_freqs.weight") continue;  // told by config.json
    const std::string name = hf_tensor_name(t.name);
    if (name.empty())
      throw Error(fmt::format("'{}' holds '{}', which has no name in Hugging Face's checkpoints", path,
                              printable(t.name)),
                  "give the model's Hugging Face directory");
    rounded += info(t.type).elems > 1;
    in.tensors.push_back({{"model." + name, counts_as(t), t.shape, t.data, t.bytes}, t.type});
    if (name.starts_with("lm_head.")) in.tensors.back().name = name;
  }
  if (rounded)
    log_warn("{} matrices of '{}' are quantized already: what this adds comes on top of it", rounded, path);
  in.identity = Json::array({file_identity(path), in.gguf->total_bytes()}).dump();
  return in;
}

}  // namespace

QuantizeInput open_quantize_input(const std::string& path) {
  if (fs::is_directory(path)) return input_of_directory(path);
  if (fs::is_regular_file(path) && path.ends_with(".gguf")) return input_of_gguf(path);
  throw Error(
      fmt::format("'{}' is neither a directory nor a .gguf file", path),
      "quantized directories are made from Hugging Face directories with config.json and *.safetensors, "
      "and from GGUF files of Gemma 4");
}

std::map<std::string, std::string> texts_of(const QuantizeInput& in, const std::string& path) {
  if (in.gguf) return hf_texts(*in.gguf);
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string(), ext = entry.path().extension().string();
    const bool text = ext == ".json" || ext == ".jinja" || ext == ".txt" || ext == ".model";
    if (text && !name.ends_with(".index.json") && fs::is_regular_file(entry.path()))
      out[name] = read_file(entry.path().string());
  }
  return out;
}

}  // namespace carat
