#include "apps/help.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "apps/llama_flags_table.h"

namespace carat {
namespace {

struct Group {
  const char* title;
  std::vector<const char*> often, seldom;
};

// What stands in no group is a command's own, and shown first.
const std::vector<Group>& groups() {
  static const std::vector<Group> all = {
      {"Model",
       {"--model", "--hf-repo", "--models-dir", "--alias"},
       {"--hf-file", "--hf-token", "--offline", "--models-memory", "--chat-template"}},
      {"Context and cache",
       {"--ctx-size", "--parallel", "--cache-type-k", "--cache-type-v", "--kv-policy"},
       {"--batch-size", "--ubatch-size", "--cont-batching", "--kv-tokens", "--cache-type-k-swa",
        "--cache-type-v-swa", "--kv-layers", "--kv-single", "--kv-sinks", "--kv-recent", "--prefix-cache-mib",
        "--no-prefix-cache", "--prefix-cache-dir", "--prefix-disk-mib", "--slot-save-path"}},
      {"Sampling",
       {"--predict", "--temp", "--top-k", "--top-p", "--min-p", "--seed", "--think"},
       {"--repeat-penalty", "--repeat-last-n", "--presence-penalty", "--frequency-penalty", "--ignore-eos"}},
      {"Speculation",
       {"--spec", "--model-draft", "--hf-repo-draft", "--draft-max"},
       {"--draft-min", "--draft-p-min", "--draft-rule", "--draft-tree", "--draft-head-rows", "--spec-policy",
        "--spec-sampling", "--spec-synthetic", "--spec-ngram-size-n", "--spec-ngram-size-m",
        "--spec-ngram-min-hits", "--spec-ngram-mod-n-match", "--spec-ngram-mod-n-min",
        "--spec-ngram-mod-n-max"}},
      {"Devices",
       {"--threads", "--device", "--n-gpu-layers", "--n-cpu-moe"},
       {"--cpu-moe", "--override-tensor", "--no-op-offload", "--gpu-memory-utilization", "--gpu-memory-limit",
        "--isa", "--backend"}},
      {"Server",
       {"--host", "--port", "--api-key", "--api-key-file"},
       {"--no-api-key", "--tls-cert", "--tls-key", "--allowed-host", "--cors-origin", "--max-queue",
        "--max-body", "--max-connections", "--timeout", "--grace", "--watchdog"}},
      {"Logging", {}, {"--log-json", "--log-level"}},
  };
  return all;
}

CLI::Option* find(const CLI::App& app, const std::string& name) {
  for (const CLI::Option* option : app.get_options([](const CLI::Option*) { return true; }))
    if (option->check_name(name)) return const_cast<CLI::Option*>(option);
  return nullptr;
}

bool grouped(const CLI::Option& option) {
  for (const Group& g : groups())
    for (const auto* names : {&g.often, &g.seldom})
      for (const char* name : *names)
        if (option.check_name(name)) return true;
  return false;
}

// "-hf, -hfr": what llama.cpp calls it besides, where the description does not say so.
std::string synonyms(const CLI::Option& option) {
  std::string all;
  for (const LlamaFlag& flag : kLlamaFlags) {
    if (flag.use != LlamaUse::ours && flag.use != LlamaUse::renamed) continue;
    if (std::string_view(flag.to).find(' ') != std::string_view::npos || !option.check_name(flag.to))
      continue;
    std::string names = flag.names;
    for (size_t at = 0; (at = names.find(',', at)) != std::string::npos; at += 2) names.replace(at, 1, ", ");
    if (option.get_description().find("(" + names) == std::string::npos)
      all += (all.empty() ? "" : ", ") + names;
  }
  return all;
}

// Flags with their choices or default; that each is also a variable is said once, at the end.
class Help : public CLI::Formatter {
 public:
  Help() { column_width(34); }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_items_expected_max() == 0) return {};
    const std::string type = option->get_type_name();  // "TEXT:{f32,f16}", "INT:INT in [0 - 9]"
    const auto open = type.find('{'), close = type.find('}');
    std::string text = " N";
    if (type.rfind("TEXT", 0) == 0) text = " TEXT";
    if (open != std::string::npos && close != std::string::npos) {
      text = " " + type.substr(open + 1, close - open - 1);
      std::replace(text.begin(), text.end(), ',', '|');
    }
    std::string value = option->get_default_str();  // lists come as [512]
    if (value.size() > 1 && value.front() == '[') value = value.substr(1, value.size() - 2);
    if (!value.empty()) text += " (" + value + ")";
    if (option->get_required()) text += " (required)";
    return text;
  }
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    return make_description(app) + make_usage(app, name) + make_positionals(app) + in_groups(app, mode) +
           make_subcommands(app, CLI::AppFormatMode::Normal) + make_footer(app);
  }
  std::string make_footer(const CLI::App* app) const override {
    std::string text = "\n";
    if (app->get_parent() && find(*app, "--model"))
      text += fmt::format("carat {} --help-all lists every flag, and llama.cpp's names of them.\n",
                          app->get_name());
    return text +
           "Every flag --some-flag is also the variable CARAT_SOME_FLAG and a key of the --config file.\n";
  }

 private:
  std::string in_groups(const CLI::App* app, CLI::AppFormatMode mode) const {
    const bool all = mode != CLI::AppFormatMode::Normal || !app->get_parent();
    std::string text;
    std::vector<const CLI::Option*> own;
    for (const CLI::Option* option :
         app->get_options([](const CLI::Option* o) { return o->nonpositional(); }))
      if (!grouped(*option)) own.push_back(option);
    text += section(app->get_parent() ? "This command" : "Flags", own, all);
    for (const Group& g : groups()) {
      std::vector<const CLI::Option*> options;
      for (const char* name : g.often)
        if (const CLI::Option* option = find(*app, name)) options.push_back(option);
      for (const char* name : g.seldom)
        if (const CLI::Option* option = all ? find(*app, name) : nullptr) options.push_back(option);
      text += section(g.title, options, all);
    }
    return text;
  }

  std::string section(const std::string& title, const std::vector<const CLI::Option*>& options,
                      bool all) const {
    std::string text;
    for (const CLI::Option* option : options) {
      text += make_option(option, false);
      const std::string names = all ? synonyms(*option) : "";
      if (!names.empty()) text += std::string(34, ' ') + "llama.cpp: " + names + "\n";
    }
    return text.empty() ? text : "\n" + title + ":\n" + text;
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> make_help() { return std::make_shared<Help>(); }

void add_help_all(CLI::App& app) {
  for (CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    sub->set_help_all_flag("--help-all", "Print every flag and exit");
    add_help_all(*sub);
  }
}

}  // namespace carat
