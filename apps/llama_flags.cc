#include "apps/llama_flags.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "apps/llama_flags_table.h"

namespace carat {
namespace {

bool has_name(const LlamaFlag& flag, std::string_view name) {
  std::string_view names = flag.names;
  while (!names.empty()) {
    const size_t end = std::min(names.find(','), names.size());
    if (names.substr(0, end) == name) return true;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

bool among(std::string_view value, std::initializer_list<std::string_view> all) {
  return std::find(all.begin(), all.end(), value) != all.end();
}

using Args = std::vector<std::string>;

// --device CUDA0,CUDA1, none: our --device.
std::optional<Args> device(const std::string& value) {
  if (value == "none") return Args{"--device", "cpu"};
  std::string ours;
  for (size_t at = 0; at <= value.size();) {
    const size_t end = std::min(value.find(',', at), value.size());
    const std::string one = value.substr(at, end - at);
    ours += (at ? "," : "") + (one.starts_with("CUDA") ? "cuda:" + one.substr(4) : one);
    at = end + 1;
  }
  return Args{"--device", ours};
}

std::optional<Args> template_values(const std::string& value, const std::string& typed) {
  const auto json = nlohmann::json::parse(value, nullptr, false);
  if (!json.is_object()) refuse_flag(typed, "give a JSON object: '{\"enable_thinking\": true}'");
  std::optional<Args> result;
  for (const auto& [key, v] : json.items()) {
    if (key != "enable_thinking" || !v.is_boolean())
      refuse_flag(
          typed,
          fmt::format("'{}' cannot be set for all requests: put it into a request's chat_template_kwargs",
                      key));
    result = Args{v.get<bool>() ? "--think" : "--no-think"};
  }
  return result;
}

// A sampler that is off by this value needs no sampler.
bool neutral(const std::string& name, double v) {
  if (among(name, {"--adaptive-target", "--sleep-idle-seconds"})) return v < 0;
  return v == 0;
}

// Flags whose value decides. Null: it changes nothing.
std::optional<Args> by_value(const std::string& name, const std::string& value, const std::string& typed,
                             const LlamaFlag& flag) {
  const std::string_view to = flag.to;
  if (to == "--device") return device(value);
  if (name == "--chat-template-kwargs") return template_values(value, typed);
  if (among(name, {"-rea", "--reasoning"}))
    return value == "auto" ? std::nullopt : std::optional(Args{value == "on" ? "--think" : "--no-think"});
  if (name == "--reasoning-effort") {
    if (value == "default") return std::nullopt;
    return Args{among(value, {"none", "minimal"}) ? "--no-think" : "--think"};
  }
  if (among(name, {"-lv", "--verbosity", "--log-verbosity"})) {
    static constexpr const char* kLevels[] = {"off", "error", "warn", "info", "debug"};
    return Args{"--log-level", kLevels[std::clamp(std::atoi(value.c_str()), 0, 4)]};
  }
  if (name == "--spec-draft-sampling")
    return Args{"--draft-rule", value == "probabilistic" ? "keyed" : "best"};
  return Args{flag.to, value};
}

// What of a refused flag can be taken all the same: the value that asks for nothing.
bool asks_nothing(const std::string& name, const std::string& value) {
  if (name == "--reasoning-format") return among(value, {"auto", "deepseek"});
  char* end = nullptr;
  const double v = std::strtod(value.c_str(), &end);
  static constexpr std::string_view kNumbers[] = {"--adaptive-target", "-ncffn", "--n-cpu-ffn",
                                                  "--sleep-idle-seconds"};
  const bool number = std::find(std::begin(kNumbers), std::end(kNumbers), name) != std::end(kNumbers);
  return number && end != value.c_str() && *end == 0 && neutral(name, v);
}

bool takes_respelled(const std::string& flag) {
  return among(flag, {"--gpu-layers", "--n-gpu-layers", "--parallel", "-t", "--threads"});
}

// Flags of ours whose values llama.cpp spells in another way: the last two of args.
void respell(Args& args) {
  if (args.size() < 2) return;
  std::string& value = args.back();
  const bool layers = args[args.size() - 2].ends_with("gpu-layers");
  if (layers && value == "auto")
    args.resize(args.size() - 2);
  else if (layers && among(value, {"all", "-1"}))
    value = "999";
  else if (!layers && value == "-1")
    value = "0";
}

}  // namespace

void refuse_flag(const std::string& typed, const std::string& instead) {
  throw UsageError(fmt::format("{} cannot work here", typed), instead);
}

const LlamaFlag* find_llama_flag(std::string_view name) {
  const LlamaFlag* preset = nullptr;
  for (const LlamaFlag& flag : kLlamaFlags) {
    if (has_name(flag, name)) return &flag;
    if (flag.names == kPresets) preset = &flag;
  }
  const bool short_for_model =
      name.starts_with("--") &&
      (name.ends_with("-default") || (name.starts_with("--fim-") && name.ends_with("-spec")));
  return short_for_model ? preset : nullptr;
}

namespace {

// The values of args[i], one of flag's names; i comes to stand on the last of them.
Args take_values(const LlamaFlag& flag, const Args& args, size_t& i, std::string& typed) {
  const size_t eq = args[i].starts_with("--") ? args[i].find('=') : std::string::npos;
  Args values;
  if (eq != std::string::npos) values.push_back(args[i].substr(eq + 1));
  int wanted = flag.values;
  if (wanted == kOptional)
    wanted = i + 1 < args.size() &&
             among(args[i + 1], {"on", "off", "auto", "0", "1", "true", "false", "enabled", "disabled"});
  typed = args[i];
  while (static_cast<int>(values.size()) < wanted) {
    if (i + 1 >= args.size()) throw UsageError(fmt::format("{} needs a value", typed));
    values.push_back(args[++i]);
    typed += " " + values.back();
  }
  return values;
}

Args words(std::string_view text) {
  Args all;
  for (size_t end; !text.empty(); text.remove_prefix(std::min(end + 1, text.size()))) {
    end = std::min(text.find(' '), text.size());
    all.emplace_back(text.substr(0, end));
  }
  return all;
}

}  // namespace

Translated translate_llama_flags(const Args& args, const std::function<bool(std::string_view)>& own) {
  Translated t;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--") {
      t.args.insert(t.args.end(), args.begin() + static_cast<std::ptrdiff_t>(i), args.end());
      break;
    }
    const std::string name = args[i].starts_with("--") ? args[i].substr(0, args[i].find('=')) : args[i];
    const LlamaFlag* flag = name.starts_with('-') && !own(name) ? find_llama_flag(name) : nullptr;
    if (!flag) {  // ours, or a value
      t.args.push_back(args[i]);
      if (i + 1 < args.size() && name == args[i] && takes_respelled(name)) t.args.push_back(args[++i]);
      if (takes_respelled(name)) respell(t.args);
      continue;
    }
    std::string typed;
    const Args values = take_values(*flag, args, i, typed);
    const std::string value = values.empty() ? "" : values.front();
    if (flag->use == LlamaUse::ignored || (flag->use == LlamaUse::refused && asks_nothing(name, value))) {
      t.ignored.push_back(typed);
      continue;
    }
    if (flag->use == LlamaUse::refused) refuse_flag(typed, flag->to);
    const std::optional<Args> ours = values.empty() ? words(flag->to) : by_value(name, value, typed, *flag);
    if (!ours) {
      t.ignored.push_back(typed);
      continue;
    }
    if (!own(ours->front())) refuse_flag(typed, "leave it out: this command has no " + ours->front());
    t.args.insert(t.args.end(), ours->begin(), ours->end());
    if (ours->front() == "--device")
      t.changed.push_back(fmt::format("{} as {}", typed, fmt::join(*ours, " ")));
    if (takes_respelled(ours->front())) respell(t.args);
  }
  return t;
}

void refuse_clusters(const Args& args,
                     const std::function<std::optional<bool>(std::string_view)>& has_value) {
  for (size_t i = 0; i < args.size() && args[i] != "--"; ++i) {
    const std::string& arg = args[i];
    if (arg.size() < 2 || arg[0] != '-') continue;
    const bool letters = std::all_of(arg.begin() + 1, arg.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
    });
    if (arg[1] != '-' && arg.size() > 2 && letters && !has_value(arg) && has_value(arg.substr(0, 2)))
      throw UsageError(fmt::format("there is no flag {}", arg),
                       fmt::format("for {} write {} {}", arg.substr(0, 2), arg.substr(0, 2), arg.substr(2)));
    if (has_value(arg).value_or(false)) ++i;  // whatever it is
  }
}

}  // namespace carat
