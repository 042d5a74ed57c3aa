// Which tensors of a quantized checkpoint belong together, and what its configuration says.
#include "model/files/hf_quant.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "model/files/gguf.h"

namespace carat {
namespace {

using Json = nlohmann::json;

constexpr const char* kElse =
    "use the bf16 checkpoint, one of the readable schemes (FP8, INT8, W4A16, NVFP4, MXFP4, AWQ, GPTQ "
    "without act-order), or a GGUF file";

[[noreturn]] void refuse(std::string_view path, std::string_view scheme, std::string hint = kElse) {
  throw Error(fmt::format("'{}' is quantized as {}, which cannot be read", path, scheme), std::move(hint));
}

// ---- config.json

const Json* find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}
std::string text(const Json& object, const char* key) {
  const Json* v = find(object, key);
  return v && v->is_string() ? v->get<std::string>() : std::string();
}
int64_t integer(const Json& object, const char* key, int64_t otherwise) {
  const Json* v = find(object, key);
  return v && v->is_number_integer() ? v->get<int64_t>() : otherwise;
}
void add_names(std::vector<std::string>& to, const Json* list) {
  if (!list || !list->is_array()) return;
  for (const Json& v : *list)
    if (v.is_string()) to.push_back(v.get<std::string>());
}

void check_method(const QuantConfig& c, const Json& q, std::string_view path) {
  static const std::set<std::string, std::less<>> kKnown = {
      "", "compressed-tensors", "fp8", "modelopt", "modelopt_fp4", "awq", "gptq", "auto-round", "fbgemm_fp8"};
  if (!kKnown.contains(c.method)) refuse(path, fmt::format("'{}'", printable(c.method)));
  if (c.method == "awq") {
    const std::string version = text(q, "version");
    if (!version.empty() && version != "gemm" && version != "GEMM")
      refuse(path, fmt::format("AWQ of version '{}'", printable(version)),
             "the GEMM version of AWQ can be read");
  }
  if (text(q, "checkpoint_format") == "gptq_v2")
    refuse(path, "GPTQ v2 (zero points of another meaning)", "GPTQ files of the first format can be read");
  if (const std::string packing = text(q, "packing_format");
      packing.find("awq") == packing.npos && packing.find("gptq") == packing.npos && !packing.empty())
    refuse(path, fmt::format("packing format '{}'", printable(packing)));
  if (c.format.find("sparse") != c.format.npos || c.format.find("marlin") != c.format.npos)
    refuse(path, fmt::format("format '{}'", printable(c.format)));
}

void read_weights(QuantConfig& c, const Json& weights, std::string_view path) {
  if (integer(weights, "num_bits", 8) == 2)
    refuse(path, "2-bit weights (a mobile checkpoint)",
           "the w4a16-ct checkpoint of the same model can be read");
  c.group = integer(weights, "group_size", c.group);
  const Json* block = find(weights, "block_structure");
  if (block && block->is_array() && block->size() == 2 && (*block)[0].is_number_unsigned() &&
      (*block)[1].is_number_unsigned())
    c.block_rows = (*block)[0].get<int64_t>(), c.block_cols = (*block)[1].get<int64_t>();
}

void read_quantization(QuantConfig& c, const Json& q, std::string_view path) {
  if (const std::string method = text(q, "quant_method"); !method.empty()) c.method = method;
  if (const std::string format = text(q, "format"); !format.empty()) c.format = format;
  if (const std::string algorithm = text(q, "quant_algo"); !algorithm.empty()) c.format = algorithm;
  if (c.format.find("AWQ") != c.format.npos || c.format.find("SVD") != c.format.npos)
    refuse(path,
           fmt::format("ModelOpt's {} (activations are scaled before the product)", printable(c.format)));
  c.group = integer(q, "group_size", c.group);
  add_names(c.ignore, find(q, "ignore"));
  add_names(c.ignore, find(q, "exclude_modules"));
  add_names(c.ignore, find(q, "modules_to_not_convert"));
  if (const Json* groups = find(q, "config_groups"); groups && groups->is_object())
    for (const auto& [name, group] : groups->items())
      if (const Json* weights = find(group, "weights")) read_weights(c, *weights, path);
  if (const Json* block = find(q, "weight_block_size"))
    read_weights(c, Json{{"block_structure", *block}}, path);
  if (c.block_rows < 1 || c.block_cols < 1 || c.group < -1 || c.group > (int64_t{1} << 30))
    throw Error(fmt::format("'{}' has a quantization_config with absurd block or group sizes", path));
  check_method(c, q, path);
}

// ---- names

constexpr std::string_view kParts[] = {"weight_packed",
                                       "weight_scale",
                                       "weight_scale_inv",
                                       "weight_scale_2",
                                       "weight_global_scale",
                                       "weight_zero_point",
                                       "weight_shape",
                                       "weight_g_idx",
                                       "qweight",
                                       "qzeros",
                                       "scales",
                                       "g_idx"};
// Scales of activations and caches.
constexpr std::string_view kPassedOver[] = {"input_global_scale",
                                            "input_scale",
                                            "output_scale",
                                            "input_zero_point",
                                            "k_scale",
                                            "v_scale",
                                            "q_scale",
                                            "kv_scale",
                                            "k_zero_point",
                                            "v_zero_point",
                                            "prob_output_scale",
                                            "input_scale_ub"};
constexpr std::pair<std::string_view, std::string_view> kRefused[] = {
    {"pre_quant_scale", "ModelOpt AWQ (activations are scaled before the product)"},
    {"svdquant_lora_a", "SVDQuant (a low-rank part beside the weights)"},
    {"svdquant_lora_b", "SVDQuant (a low-rank part beside the weights)"},
    {"weight.absmax", "bitsandbytes"},
    {"weight.quant_map", "bitsandbytes"},
    {"SCB", "bitsandbytes (LLM.int8)"},
    {"q_scale_max", "EXL2"},
    {"q_weight", "EXL2"},
    {"trellis", "EXL3"},
    {"codebooks", "AQLM"},
    {"W_q", "HQQ"},
    {"weight_mask_compressed", "a sparse bitmask"},
    {"bitmask", "a sparse bitmask"},
    {"B", "Marlin"},
};

struct Name {
  std::string base, part;
};
// "X.weight_scale" -> X, weight_scale. Stacks: "experts.down_proj_scale_inv" -> experts.down_proj.
Name split_name(const std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos) return {};
  const std::string_view last = std::string_view(name).substr(dot + 1);
  for (const std::string_view part : kParts)
    if (last == part) return {name.substr(0, dot), std::string(part)};
  for (const std::string_view tail : {"_scale_inv", "_scale", "_packed", "_scale_2", "_global_scale"})
    if (last.ends_with(tail) && last.size() > 5 + tail.size() &&
        last.substr(0, last.size() - tail.size()).ends_with("_proj"))
      return {name.substr(0, name.size() - tail.size()), "weight" + std::string(tail)};
  return {};
}
bool ends_with_name(std::string_view name, std::string_view tail) {
  return name.ends_with(tail) && name.size() > tail.size() && name[name.size() - tail.size() - 1] == '.';
}
bool stored_small(const SafeTensor& t) {
  return t.dtype == "F8_E4M3" || t.dtype == "U8" || t.dtype == "I8" || t.dtype == "F8_E5M2" ||
         t.dtype == "F4";
}

}  // namespace

QuantConfig read_quant_config(std::string_view config, std::string_view modelopt, std::string_view path) {
  QuantConfig c;
  const auto shallow = [](int depth, Json::parse_event_t, Json&) { return depth <= 32; };
  const Json root = Json::parse(config, shallow, false);
  for (const Json* at : {&root, find(root, "text_config")})
    if (const Json* q = at ? find(*at, "quantization_config") : nullptr) read_quantization(c, *q, path);
  if (modelopt.empty()) return c;
  const Json other = Json::parse(modelopt, shallow, false);
  if (const Json* q = find(other, "quantization")) {
    if (c.method.empty()) c.method = "modelopt";
    read_quantization(c, *q, path);
  }
  return c;
}

QuantSplit split_quantized(std::span<const SafeTensor> tensors, std::string_view path) {
  QuantSplit out;
  std::map<std::string, size_t, std::less<>> at;
  std::vector<const SafeTensor*> rest;
  for (const SafeTensor& t : tensors) {
    for (const auto& [tail, scheme] : kRefused)
      if (ends_with_name(t.name, tail)) refuse(path, scheme);
    if (std::any_of(std::begin(kPassedOver), std::end(kPassedOver),
                    [&](std::string_view tail) { return ends_with_name(t.name, tail); })) {
      ++out.passed_over;
      continue;
    }
    const Name n = split_name(t.name);
    if (n.part.empty()) {
      rest.push_back(&t);
      continue;
    }
    const auto [it, is_new] = at.emplace(n.base, out.modules.size());
    if (is_new) out.modules.push_back({n.base, {}});
    if (!out.modules[it->second].parts.emplace(n.part, t).second)
      throw Error(fmt::format("'{}' has two tensors for '{}' of '{}'", path, n.part, printable(n.base)));
  }
  for (const SafeTensor* t : rest) {
    const bool suffixed = ends_with_name(t->name, "weight");
    const std::string base = suffixed ? t->name.substr(0, t->name.size() - 7) : t->name;
    const auto it = at.find(base);
    if (it != at.end()) {
      out.modules[it->second].parts.emplace("weight", *t);
    } else if (stored_small(*t)) {  // its module says what is missing
      out.modules.push_back({base, {{"weight", *t}}});
    } else {
      out.plain.push_back(*t);
    }
  }
  return out;
}

}  // namespace carat
