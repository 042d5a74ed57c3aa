// A Hugging Face directory as a WeightSource.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/file_kind.h"
#include "core/codec.h"
#include "model/files/gguf.h"
#include "model/files/hf_dialect.h"
#include "model/files/hf_quant.h"
#include "model/files/hf_stacks.h"
#include "model/files/safetensors.h"
#include "model/files/what_it_is.h"

namespace carat {
namespace {

constexpr size_t kMaxConfig = size_t{16} << 20;

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
  // towers: of the checkpoint's tensors those of its towers, else all others.
  explicit HfSource(const std::string& directory, bool towers = false) {
    path_ = directory;
    format_ = "safetensors";
    const std::string config = file("config.json");
    if (!std::filesystem::exists(config)) {
      refuse_directory(directory);
    }
    const std::string text = read_file(config, kMaxConfig);
    require_json_text(text, config);
    HfModel model;
    if (!towers) {
      model = read_hf_config(text, config);
    } else if (std::optional<HfModel> known = read_hf_towers(text, config)) {
      model = std::move(*known);
    } else {
      return;
    }
    meta_ = std::move(model.meta);
    if (towers) read_preprocessor();
    std::filesystem::path dir(directory);
    if (!dir.has_filename()) dir = dir.parent_path();
    meta_.set("general.name", dir.filename().string());
    read_generation();
    tensor_name_ = model.tensor_name;
    load_tensors(model.tied_head);
    if (!model.rope_divisors.empty()) add_rope_divisors(model.rope_divisors);
    if (model.adapt) {
      HfTensors tensors{tensors_, meta_, [this](size_t n) { return own(n); }};
      model.adapt(tensors);
    }
    index();
  }

 private:
  std::string file(std::string_view name) const { return (std::filesystem::path(path_) / name).string(); }

  // generation_config.json: the publisher's sampling, and tokens that are never said. What is not a number is
  // left out: nothing in it is needed.
  void read_generation() {
    using Json = nlohmann::json;
    if (!std::filesystem::exists(file("generation_config.json"))) return;
    const std::string text = read_file(file("generation_config.json"), kMaxConfig);
    require_json_text(text, file("generation_config.json"));
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_object()) return;
    const std::pair<const char*, const char*> numbers[] = {{"temperature", "temp"},
                                                           {"top_p", "top_p"},
                                                           {"min_p", "min_p"},
                                                           {"repetition_penalty", "penalty_repeat"}};
    for (const auto& [theirs, key] : numbers)
      if (const auto v = json.find(theirs); v != json.end() && v->is_number())
        meta_.set(fmt::format("general.sampling.{}", key), v->get<double>());
    if (const auto v = json.find("top_k"); v != json.end() && v->is_number_integer())
      meta_.set("general.sampling.top_k", v->get<int64_t>());
    std::vector<int64_t> never;
    if (const auto v = json.find("suppress_tokens"); v != json.end() && v->is_array())
      for (const Json& id : *v)
        if (id.is_number_integer() && id.get<int64_t>() >= 0) never.push_back(id.get<int64_t>());
    if (!never.empty()) meta_.set(kSuppressKey, never);
  }

  // preprocessor_config.json: how many pixels pictures have.
  void read_preprocessor() {
    using Json = nlohmann::json;
    if (!std::filesystem::exists(file("preprocessor_config.json"))) return;
    const Json json = Json::parse(read_file(file("preprocessor_config.json"), kMaxConfig), nullptr, false);
    if (!json.is_object()) return;
    const auto size = json.find("size");
    if (size == json.end() || !size->is_object()) return;
    const std::pair<const char*, const char*> edges[] = {{"shortest_edge", "image_min_pixels"},
                                                         {"longest_edge", "image_max_pixels"}};
    for (const auto& [theirs, key] : edges)
      if (const auto v = size->find(theirs);
          v != size->end() && v->is_number_integer() && v->get<int64_t>() > 0)
        meta_.set(fmt::format("clip.vision.{}", key), v->get<int64_t>());
  }

  void load_tensors(bool tied_head) {
    shards_ = open_shards(path_);
    const std::string modelopt = file("hf_quant_config.json");
    const QuantConfig config =
        read_quant_config(read_file(file("config.json"), kMaxConfig),
                          std::filesystem::exists(modelopt) ? read_file(modelopt, kMaxConfig) : "", path_);
    const QuantSplit split = split_quantized(shards_.tensors, path_);
    skipped_ += split.passed_over;
    for (const SafeTensor& t : split.plain) add(t, tied_head);
    HfStacks stacks;
    for (const QuantModule& m : split.modules) add_quantized(m, config, stacks, tied_head);
    const std::string summary = stacks.summary();
    stacks.finish(
        tensors_, [this](size_t n) { return own(n); }, tensor_name_ == gguf_tensor_name);
    if (!summary.empty())
      meta_.set("general.quantization", (config.method.empty() ? "" : config.method + ": ") + summary);
  }

  void add_quantized(const QuantModule& m, const QuantConfig& config, HfStacks& stacks, bool tied_head) {
    auto name = tensor_name_(m.base + ".weight");
    if (!name) name = tensor_name_(m.base);  // stacks
    if (!name) {
      throw Error(fmt::format("'{}' holds the quantized matrix '{}', which no known model has", path_,
                              printable(m.base)),
                  "the checkpoint may be of another model");
    }
    if (name->empty() || (tied_head && *name == "output.weight")) {
      skipped_ += name->empty() ? m.parts.size() : 0;
      return;
    }
    std::vector<Repacked> all = repack(m, config, path_);
    if (all.size() == 1) return stacks.add(*name, std::move(all[0]));
    for (size_t e = 0; e < all.size(); ++e) stacks.add(fmt::format("{}#{}", *name, e), std::move(all[e]));
  }

  void add(const SafeTensor& t, bool tied_head) {
    const auto name = tensor_name_(t.name);
    if (!name) {
      throw Error(
          fmt::format("'{}' holds the tensor '{}', which no known model has", path_, printable(t.name)),
          "the checkpoint may be of another model, or quantized in a way that cannot be read");
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

  std::byte* own(size_t bytes) {  // not zeroed: all of it is written
    owned_.emplace_back(new std::byte[bytes]);
    return owned_.back().get();
  }
  std::byte* own(TensorInfo& t, size_t bytes) {
    std::byte* p = own(bytes);
    t.data = p;
    t.bytes = bytes;
    return p;
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
  HfShards shards_;
  std::vector<std::unique_ptr<std::byte[]>> owned_;
};

}  // namespace

std::unique_ptr<WeightSource> open_safetensors(const std::string& directory) {
  return std::make_unique<HfSource>(directory);
}

std::unique_ptr<WeightSource> open_hf_towers(const std::string& directory) {
  auto source = std::make_unique<HfSource>(directory, true);
  if (source->tensors().empty()) return nullptr;
  return source;
}

std::optional<DecodedTensor> decode_checkpoint_tensor(const std::string& directory, std::string_view name) {
  const HfShards shards = open_shards(directory);
  const auto text = [&](const char* file) {
    const std::string path = (std::filesystem::path(directory) / file).string();
    return std::filesystem::exists(path) ? read_file(path, kMaxConfig) : std::string();
  };
  const QuantSplit split = split_quantized(shards.tensors, directory);
  DecodedTensor out;
  for (const SafeTensor& t : split.plain) {
    const auto type = dtype_of_safetensors(t.dtype);
    if (t.name != name || !type) continue;
    out.shape = t.shape, out.stored = t.dtype;
    int64_t n = 1;
    for (const int64_t d : t.shape) n *= d;
    out.values.resize(static_cast<size_t>(n));
    decode_row(*type, t.data, out.values.data(), n);
    return out;
  }
  for (const QuantModule& m : split.modules) {
    if (m.base != name && m.base + ".weight" != name) continue;
    const QuantConfig config =
        read_quant_config(text("config.json"), text("hf_quant_config.json"), directory);
    const std::vector<Repacked> all = repack(m, config, directory);
    out.stored = all[0].scheme;
    out.shape = {all[0].rows, all[0].cols};
    if (all.size() > 1) out.shape.insert(out.shape.begin(), static_cast<int64_t>(all.size()));
    for (const Repacked& one : all) {
      const size_t at = out.values.size();
      out.values.resize(at + static_cast<size_t>(one.rows * one.cols));
      decode(one, out.values.data() + at);
    }
    return out;
  }
  return std::nullopt;
}

}  // namespace carat
