#include "apps/other_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace carat {
namespace {

using Args = std::vector<std::string>;

constexpr LlamaFlag kOtherFlags[] = {
    {"--max-model-len,--max-ctx", LlamaUse::renamed, 1, "--ctx-size"},
    {"--served-model-name", LlamaUse::renamed, 1, "--alias"},
    {"--max-num-seqs", LlamaUse::renamed, 1, "--parallel"},
    {"--max-num-batched-tokens", LlamaUse::renamed, 1, "--batch-size"},
    {"--kv-cache-dtype", LlamaUse::renamed, 1, "--cache-type-k and --cache-type-v"},
    {"--speculative-config", LlamaUse::renamed, 1, "--spec, --model-draft and --draft-max"},
    {"--no-enable-prefix-caching", LlamaUse::renamed, 0, "--no-prefix-cache"},
    {"--language-model-only", LlamaUse::renamed, 0, "--no-mmproj"},
    {"--ctk", LlamaUse::renamed, 1, "--cache-type-k"},
    {"--ctv", LlamaUse::renamed, 1, "--cache-type-v"},
    {"--target", LlamaUse::renamed, 1, "--model"},
    {"--budget", LlamaUse::renamed, 1, "--draft-max"},
    {"--lazy-draft", LlamaUse::ignored, 0, "drafters are opened with the model"},
    {"--trust-remote-code", LlamaUse::ignored, 0, "no code of a repository is run"},
    {"--enable-auto-tool-choice", LlamaUse::ignored, 0, "it is so"},
    {"--tool-call-parser", LlamaUse::ignored, 1, "the model's format says how"},
    {"--reasoning-parser", LlamaUse::ignored, 1, "the model's format says how"},
    {"--limit-mm-per-prompt", LlamaUse::ignored, 1, "the context is the limit"},
    {"--enable-prefix-caching", LlamaUse::ignored, 0, "it is so"},
    {"--enable-chunked-prefill", LlamaUse::ignored, 0, "it is so"},
    {"--async-scheduling", LlamaUse::ignored, 0, "it is so"},
    {"--enforce-eager", LlamaUse::renamed, 0, "--cuda-graphs off"},
    {"--dtype", LlamaUse::ignored, 1, "the file says"},
    {"--disable-log-requests", LlamaUse::ignored, 0, "prompts are not logged"},
    {"--tensor-parallel-size,-tp", LlamaUse::refused, 1, "name the GPUs: --device cuda:0,cuda:1 -sm tensor"},
    {"--pipeline-parallel-size", LlamaUse::refused, 1, "name the GPUs: --device cuda:0,cuda:1 -sm layer"},
    {"--quantization,-q", LlamaUse::renamed, 1, "--load-as"},
    {"--pflash", LlamaUse::refused, 0, "prompts are read whole"},
};

const LlamaFlag* find(std::string_view name) {
  for (const LlamaFlag& flag : kOtherFlags)
    for (std::string_view names = flag.names; !names.empty();) {
      const size_t end = std::min(names.find(','), names.size());
      if (names.substr(0, end) == name) return &flag;
      names.remove_prefix(std::min(end + 1, names.size()));
    }
  return nullptr;
}

// {"method": "mtp", "model": "FILE", "num_speculative_tokens": 4}
Args speculation(const std::string& value, const std::string& typed) {
  const auto json = nlohmann::json::parse(value, nullptr, false);
  if (!json.is_object()) refuse_flag(typed, "give a JSON object, or --spec, -md FILE and --draft-max N");
  Args out;
  for (const auto& [key, v] : json.items()) {
    if (key == "num_speculative_tokens" && v.is_number_integer()) {
      out.insert(out.end(), {"--draft-max", std::to_string(v.get<int>())});
    } else if (key == "model" && v.is_string()) {
      out.insert(out.end(), {"--model-draft", v.get<std::string>()});
    } else if (key == "method" && v.is_string()) {
      const std::string method = v.get<std::string>();
      if (method.ends_with("mtp"))
        out.insert(out.end(), {"--spec", "mtp"});
      else if (method == "ngram" || method == "suffix" || method == "dflash")
        out.insert(out.end(), {"--spec", method == "ngram" ? "ngram-simple" : method});
      else if (method != "draft_model")
        refuse_flag(typed, fmt::format("there is no drafter '{}'; --spec names those there are", method));
    } else {
      refuse_flag(typed, fmt::format("'{}' says nothing here; --spec, -md FILE and --draft-max N do", key));
    }
  }
  return out;
}

Args cache_types(const std::string& value) {
  if (value == "auto") return {};
  const std::string type = value == "bfloat16" ? "bf16" : value == "float16" ? "f16" : value;
  return {"--cache-type-k", type, "--cache-type-v", type};
}

// fp8 is made while weights are loaded; every other type is what the file holds.
Args quantization(const std::string& value, const std::string& typed) {
  if (value == "fp8") return {"--load-as", "fp8"};
  refuse_flag(typed, "the file says; `carat convert DIR OUT --type nvfp4` makes another");
}

Args renamed(const LlamaFlag& flag, const std::string& name, const std::string& value,
             const std::string& typed) {
  if (name == "--speculative-config") return speculation(value, typed);
  if (name == "--kv-cache-dtype") return cache_types(value);
  if (name == "--quantization" || name == "-q") return quantization(value, typed);
  if (name == "--enforce-eager") return {"--cuda-graphs", "off"};
  if (flag.values == 0) return {flag.to};
  return {flag.to, value};
}

}  // namespace

Translated translate_other_flags(const Args& args, const std::function<bool(std::string_view)>& own) {
  Translated out;
  for (size_t i = 0; i < args.size(); ++i) {
    const size_t eq = args[i].find('=');
    const std::string name = args[i].substr(0, eq);
    const LlamaFlag* flag = own(name) || find_llama_flag(name) ? nullptr : find(name);
    if (!flag) {
      out.args.push_back(args[i]);
      continue;
    }
    std::string typed = args[i], value = eq == std::string::npos ? "" : args[i].substr(eq + 1);
    if (flag->values == 1 && eq == std::string::npos) {
      if (i + 1 >= args.size()) throw UsageError(fmt::format("{} needs a value", typed));
      value = args[++i];
      typed += " " + value;
    }
    const bool one = flag->use == LlamaUse::refused && name.ends_with("parallel-size") && value == "1";
    if (flag->use == LlamaUse::refused && !one) refuse_flag(typed, flag->to);
    if (flag->use != LlamaUse::renamed) {
      out.ignored.push_back(typed);
      continue;
    }
    const Args ours = renamed(*flag, name, value, typed);
    out.args.insert(out.args.end(), ours.begin(), ours.end());
    out.changed.push_back(ours.empty() ? typed + ": as it is"
                                       : fmt::format("{} as {}", typed, fmt::join(ours, " ")));
  }
  return out;
}

}  // namespace carat
