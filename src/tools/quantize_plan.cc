#include "tools/quantize_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <regex>

#include "base/error.h"
#include "model/files/gguf.h"

namespace carat {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<const char*, QuantizeScheme> kSchemes[] = {{"fp8_dynamic", QuantizeScheme::fp8_dynamic},
                                                               {"fp8_block", QuantizeScheme::fp8_block},
                                                               {"nvfp4", QuantizeScheme::nvfp4},
                                                               {"nvfp4a16", QuantizeScheme::nvfp4},
                                                               {"w4a16", QuantizeScheme::w4a16}};

// A wish from the command line, compiled once.
class Pattern {
 public:
  explicit Pattern(const std::string& text) : from_start_(text.starts_with("re:")) {
    try {
      regex_ = std::regex(from_start_ ? text.substr(3) : text);
    } catch (const std::regex_error&) {
      throw Error(fmt::format("'{}' is no regular expression", printable(text)),
                  "--ignore 're:.*vision_tower.*'");
    }
  }
  bool matches(const std::string& name) const {
    return std::regex_search(
        name, regex_,
        from_start_ ? std::regex_constants::match_continuous : std::regex_constants::match_default);
  }

 private:
  bool from_start_;
  std::regex regex_;
};

bool is_float(const InTensor& t) { return t.dtype == "BF16" || t.dtype == "F16" || t.dtype == "F32"; }

size_t whole_bytes(const InTensor& t) {
  const int64_t n = std::accumulate(t.shape.begin(), t.shape.end(), int64_t{1}, std::multiplies<>());
  return is_float(t) ? static_cast<size_t>(n) * (t.dtype == "F32" ? 4 : 2) : t.bytes;
}

// Matrices that are no linear layers, or that choose and not compute.
bool never(const std::string& module) {
  for (const char* part : {"embed_tokens", "router", "conv1d", "norm", "position_embedding", "patch_embed"})
    if (module.find(part) != module.npos) return true;
  return module.ends_with("mlp.gate") || module.ends_with("shared_expert_gate");
}

class Planner {
 public:
  Planner(const QuantizeOptions& o, QuantizeScheme scheme) : o_(o), scheme_(scheme) {
    for (const std::string& p : o.ignore.empty() ? quantize_ignored() : o.ignore) ignored_.emplace_back(p);
  }

  QuantizePlan run(const std::vector<InTensor>& tensors) {
    for (const InTensor& t : tensors) add(t);
    out_.counts.left = out_.ignore.size();
    if (std::find(out_.ignore.begin(), out_.ignore.end(), "lm_head") == out_.ignore.end())
      out_.ignore.insert(out_.ignore.begin(), "lm_head");  // tied heads are not in the file
    name_shards();
    return std::move(out_);
  }

 private:
  void add(const InTensor& t) {
    out_.counts.bytes_in += t.bytes;
    const bool experts = t.shape.size() == 3 && is_float(t) &&
                         (t.name.ends_with("experts.gate_up_proj") || t.name.ends_with("experts.down_proj"));
    if (experts) return stack(t);
    const bool linear = t.shape.size() == 2 && t.name.ends_with(".weight") && is_float(t);
    const std::string module = linear ? t.name.substr(0, t.name.size() - 7) : std::string();
    if (linear && wanted(module) && fits(t.shape[1], module)) return put(quantized(t, module, 0, t.shape[0]));
    if (linear && !module.ends_with("embed_tokens")) out_.ignore.push_back(module);
    OutModule m;
    m.from = &t;
    m.name = t.name;
    m.parts.push_back({t.name, t.dtype, t.shape, whole_bytes(t)});
    put(std::move(m));
  }

  bool wanted(const std::string& module) const {
    return !never(module) && std::none_of(ignored_.begin(), ignored_.end(),
                                          [&](const Pattern& p) { return p.matches(module); });
  }
  bool fits(int64_t cols, const std::string& module) {
    const int64_t group = scheme_ == QuantizeScheme::nvfp4   ? 16
                          : scheme_ == QuantizeScheme::w4a16 ? o_.group
                                                             : 1;
    if (cols % group == 0) return true;
    out_.counts.unfit.push_back(module);
    return false;
  }

  // Experts: a module each, gate before up.
  void stack(const InTensor& t) {
    const bool both = t.name.ends_with("gate_up_proj");
    const std::string base = t.name.substr(0, t.name.rfind('.'));
    const int64_t rows = t.shape[1] / (both ? 2 : 1);
    const auto module = [&](int64_t e, const char* which) { return fmt::format("{}.{}.{}", base, e, which); };
    if (!wanted(module(0, both ? "gate_proj" : "down_proj")) ||
        !fits(t.shape[2], module(0, both ? "gate_proj" : "down_proj"))) {
      OutModule m;
      m.from = &t;
      m.name = t.name;
      m.parts.push_back({t.name, t.dtype, t.shape, whole_bytes(t)});
      out_.ignore.push_back(t.name);
      return put(std::move(m));
    }
    for (int64_t e = 0; e < t.shape[0]; ++e) {
      const int64_t first = e * t.shape[1];
      put(quantized(t, module(e, both ? "gate_proj" : "down_proj"), first, rows));
      if (both) put(quantized(t, module(e, "up_proj"), first + rows, rows));
    }
  }

  static std::string fused_with(const std::string& module) {
    const size_t dot = module.rfind('.');
    const std::string last = module.substr(dot + 1), base = module.substr(0, dot + 1);
    if (last == "q_proj" || last == "k_proj" || last == "v_proj") return base + "qkv";
    if (last == "gate_proj" || last == "up_proj") return base + "gate_up";
    return module;
  }

  OutModule quantized(const InTensor& t, const std::string& module, int64_t first, int64_t rows) {
    const int64_t cols = t.shape.back(), down = (rows + 127) / 128, across = (cols + 127) / 128;
    const size_t size = t.dtype == "F32" ? 4 : 2;
    OutModule m{&t, first, rows, cols, true, module, fused_with(module), {}};
    const auto part = [&](const char* name, const std::string& dtype, std::vector<int64_t> shape,
                          size_t bytes) {
      m.parts.push_back({module + "." + name, dtype, std::move(shape), bytes});
    };
    const auto n = [](int64_t count, size_t bytes) { return static_cast<size_t>(count) * bytes; };
    switch (scheme_) {
      case QuantizeScheme::fp8_dynamic:
        part("weight", "F8_E4M3", {rows, cols}, n(rows * cols, 1));
        part("weight_scale", t.dtype, {rows, 1}, n(rows, size));
        break;
      case QuantizeScheme::fp8_block:
        part("weight", "F8_E4M3", {rows, cols}, n(rows * cols, 1));
        part("weight_scale", t.dtype, {down, across}, n(down * across, size));
        break;
      case QuantizeScheme::nvfp4:
        part("weight_packed", "U8", {rows, cols / 2}, n(rows * cols / 2, 1));
        part("weight_scale", "F8_E4M3", {rows, cols / 16}, n(rows * cols / 16, 1));
        part("weight_global_scale", "F32", {1}, 4);
        break;
      case QuantizeScheme::w4a16:
        part("weight_packed", "I32", {rows, cols / 8}, n(rows * cols / 2, 1));
        part("weight_scale", t.dtype, {rows, cols / o_.group}, n(rows * cols / o_.group, size));
        part("weight_shape", "I64", {2}, 16);
        break;
    }
    ++out_.counts.quantized;
    return m;
  }

  void put(OutModule m) {
    size_t bytes = 0;
    for (const OutTensor& t : m.parts) bytes += t.bytes;
    const auto most = static_cast<size_t>(o_.shard_bytes);
    if (out_.shards.empty() || (out_.shards.back().bytes > 0 && out_.shards.back().bytes + bytes > most))
      out_.shards.emplace_back();
    out_.shards.back().bytes += bytes;
    out_.counts.bytes_out += bytes;
    out_.shards.back().modules.push_back(std::move(m));
  }

  void name_shards() {
    const size_t n = out_.shards.size();
    out_.counts.shards = n;
    for (size_t i = 0; i < n; ++i)
      out_.shards[i].file =
          n == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, n);
    // Wide types first: every tensor is aligned then.
    for (OutShard& s : out_.shards) {
      size_t offset = 0;
      for (const std::initializer_list<const char*> types :
           {std::initializer_list<const char*>{"I64", "F64", "U64"},
            {"F32", "I32", "U32"},
            {"BF16", "F16", "I16", "U16"},
            {}})
        for (OutModule& m : s.modules)
          for (OutTensor& t : m.parts) {
            const bool placed = t.offset != 0;
            const bool of_these =
                types.size() == 0 || std::find(types.begin(), types.end(), t.dtype) != types.end();
            if (placed || !of_these) continue;
            t.offset = offset + 1;  // 0: not yet
            offset += t.bytes;
          }
      for (OutModule& m : s.modules)
        for (OutTensor& t : m.parts) --t.offset;
    }
  }

  const QuantizeOptions& o_;
  QuantizeScheme scheme_;
  std::vector<Pattern> ignored_;
  QuantizePlan out_;
};

}  // namespace

std::optional<QuantizeScheme> quantize_scheme(std::string_view type) {
  std::string name(type);
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& [known, scheme] : kSchemes)
    if (name == known) return scheme;
  return std::nullopt;
}
bool is_quantize_type(std::string_view type) { return quantize_scheme(type).has_value(); }
std::string quantize_types() { return "fp8_dynamic fp8_block nvfp4 w4a16"; }

const std::vector<std::string>& quantize_ignored() {
  static const std::vector<std::string> kIgnored = {
      "re:.*lm_head",        "re:.*embed.*",       "re:.*router.*",
      "re:.*vision_tower.*", "re:.*audio_tower.*", "re:(model\\.)?visual.*",
      "re:.*multi_modal.*",  "re:.*mlp\\.gate$",   "re:.*shared_expert_gate$",
      "re:.*linear_attn.*",  "re:mtp\\..*"};
  return kIgnored;
}

QuantizePlan plan_quantize(const QuantizeOptions& options, QuantizeScheme scheme,
                           const std::vector<InTensor>& tensors) {
  for (const InTensor& t : tensors)
    if (!is_float(t) && t.shape.size() >= 2)
      throw Error(fmt::format("'{}' holds '{}' of the type {}: it is quantized already", options.in,
                              printable(t.name), t.dtype),
                  "give a bf16, f16 or f32 checkpoint");
  return Planner(options, scheme).run(tensors);
}

std::string quantization_config(const QuantizeOptions& options, QuantizeScheme scheme,
                                const std::vector<std::string>& ignore) {
  const bool fp8 = scheme == QuantizeScheme::fp8_dynamic || scheme == QuantizeScheme::fp8_block;
  const bool block = scheme == QuantizeScheme::fp8_block;
  const char* format = fp8                               ? "float-quantized"
                       : scheme == QuantizeScheme::nvfp4 ? "nvfp4-pack-quantized"
                                                         : "pack-quantized";
  const auto arguments = [](int bits, const char* type, const char* strategy, Json group, bool dynamic) {
    return Json{{"actorder", nullptr},
                {"block_structure", nullptr},
                {"dynamic", dynamic},
                {"group_size", group},
                {"num_bits", bits},
                {"observer", dynamic ? Json() : Json("minmax")},
                {"observer_kwargs", Json::object()},
                {"strategy", strategy},
                {"symmetric", true},
                {"type", type}};
  };
  Json weights, inputs;
  switch (scheme) {
    case QuantizeScheme::fp8_dynamic:
      weights = arguments(8, "float", "channel", nullptr, false);
      inputs = arguments(8, "float", "token", nullptr, true);
      break;
    case QuantizeScheme::fp8_block:
      weights = arguments(8, "float", "block", nullptr, false);
      inputs = arguments(8, "float", "group", 128, true);
      break;
    case QuantizeScheme::nvfp4: weights = arguments(4, "float", "tensor_group", 16, false); break;
    case QuantizeScheme::w4a16: weights = arguments(4, "int", "group", options.group, false); break;
  }
  if (block) weights["block_structure"] = {128, 128};
  const Json group = {{"format", format},
                      {"input_activations", inputs},
                      {"output_activations", nullptr},
                      {"targets", {"Linear"}},
                      {"weights", weights}};
  return Json{{"config_groups", {{"group_0", group}}},
              {"format", format},
              {"global_compression_ratio", nullptr},
              {"ignore", ignore},
              {"kv_cache_scheme", nullptr},
              {"quant_method", "compressed-tensors"},
              {"quantization_status", "compressed"}}
      .dump();
}

}  // namespace carat
