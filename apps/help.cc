#include "apps/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
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
       {"--hf-file", "--hf-token", "--mmproj", "--no-mmproj", "--no-mmproj-offload", "--image-tokens",
        "--image-resize", "--offline", "--mlock", "--load-as", "--activations", "--models-memory",
        "--chat-template", "--allow-pull", "--promotions", "--audio-max-seconds", "--media-hosts",
        "--media-http"}},
      {"Context and cache",
       {"--ctx-size", "--parallel", "--cache-type-k", "--cache-type-v", "--kv-policy"},
       {"--batch-size",      "--ubatch-size",      "--step-ms",          "--cont-batching",
        "--kv-tokens",       "--cache-type-k-swa", "--cache-type-v-swa", "--kv-layers",
        "--kv-single",       "--kv-sinks",         "--kv-recent",        "--prefix-cache-mib",
        "--no-prefix-cache", "--prefix-cache-dir", "--prefix-disk-mib",  "--slot-save-path",
        "--rope-scaling",    "--rope-scale",       "--rope-freq-scale",  "--rope-freq-base",
        "--yarn-orig-ctx",   "--yarn-ext-factor",  "--yarn-attn-factor", "--yarn-beta-slow",
        "--yarn-beta-fast"}},
      {"Sampling",
       {"--predict", "--temp", "--top-k", "--top-p", "--min-p", "--seed", "--think"},
       {"--repeat-penalty",
        "--repeat-last-n",
        "--presence-penalty",
        "--frequency-penalty",
        "--ignore-eos",
        "--top-nsigma",
        "--typical",
        "--xtc-probability",
        "--xtc-threshold",
        "--dynatemp-range",
        "--dynatemp-exp",
        "--mirostat",
        "--mirostat-ent",
        "--mirostat-lr",
        "--dry-multiplier",
        "--dry-base",
        "--dry-allowed-length",
        "--dry-penalty-last-n",
        "--dry-sequence-breaker",
        "--reasoning-budget",
        "--reasoning-budget-message"}},
      {"Speculation",
       {"--spec", "--model-draft", "--hf-repo-draft", "--draft-max"},
       {"--draft-min", "--draft-p-min", "--draft-rule", "--draft-tree", "--draft-head-rows", "--spec-policy",
        "--spec-sampling", "--spec-synthetic", "--spec-ngram-size-n", "--spec-ngram-size-m",
        "--spec-ngram-min-hits", "--spec-ngram-mod-n-match", "--spec-ngram-mod-n-min",
        "--spec-ngram-mod-n-max"}},
      {"Devices",
       {"--threads", "--device", "--split-mode", "--n-gpu-layers", "--n-cpu-moe"},
       {"--tensor-split", "--main-gpu", "--peer", "--cpu-moe", "--override-tensor", "--no-op-offload",
        "--gpu-memory-utilization", "--gpu-memory-limit", "--cuda-graphs", "--isa", "--backend"}},
      {"Server",
       {"--host", "--port", "--api-key", "--api-key-file"},
       {"--api-keys",        "--rate-limit",        "--prefix-salt",     "--no-api-key",
        "--no-ui",           "--tls-cert",          "--tls-key",         "--allowed-host",
        "--cors-origin",     "--page-origin",       "--max-queue",       "--max-body",
        "--max-connections", "--timeout",           "--grace",           "--drain-delay",
        "--watchdog",        "--metrics-no-key",    "--kv-events",       "--kv-events-replay",
        "--kv-events-topic", "--kv-events-connect", "--kv-events-format"}},
      {"Logging", {}, {"--log-json", "--log-level", "--audit-log"}},
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

// What a flag's text is, where it is not just any.
std::string_view kind_of(const CLI::Option& flag) {
  static const std::vector<std::pair<const char*, std::vector<const char*>>> kinds = {
      {"FILE",
       {"--model",       "--file",           "--image",        "--audio",     "--mmproj",    "--imatrix",
        "--config",      "--api-key-file",   "--api-keys",     "--audit-log", "--tls-cert",  "--tls-key",
        "--model-draft", "--prompts",        "--tokens",       "--out",       "--html",      "--save-state",
        "--load-state",  "--save-prompt",    "--prompt-cache", "--base",      "--reference", "--messages",
        "--template",    "--save-reference", "--chat-template"}},
      {"DIR", {"--models-dir", "--prefix-cache-dir", "--slot-save-path", "--records", "--against"}},
      {"OWNER/REPO[:QUANT]", {"--hf-repo", "--hf-repo-draft"}},
      {"NAME=A,B,C", {"--sweep"}},
  };
  for (const auto& [kind, names] : kinds)
    for (const char* name : names)
      if (flag.check_name(name)) return kind;
  return {};
}

constexpr size_t kColumn = 34;  // where descriptions begin

// On a terminal descriptions break between words; elsewhere a line stays a line.
std::string wrapped(const std::string& text) {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < kColumn + 30) return text;
  const size_t width = size.ws_col - kColumn;
  std::string lines;
  size_t begin = 0;
  while (text.size() - begin > width) {
    size_t end = text.rfind(' ', begin + width);
    if (end == std::string::npos || end <= begin) end = text.find(' ', begin);
    if (end == std::string::npos) break;
    lines += text.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  return lines + text.substr(begin);
}

// Flags with their choices or default; that each is also a variable is said once, at the end.
class Help : public CLI::Formatter {
 public:
  Help() { column_width(kColumn); }
  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(option->get_description());
  }
  std::string make_subcommand(const CLI::App* sub) const override {
    std::ostringstream out;
    CLI::detail::format_help(out, sub->get_name(), wrapped(sub->get_description()), kColumn);
    return out.str();
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text = flag_value(*option);
    if (text.empty()) return {};
    text = " " + text;
    std::string value = option->get_default_str();  // lists come as [512]
    if (value.size() > 1 && value.front() == '[') value = value.substr(1, value.size() - 2);
    if (!value.empty()) text += " (" + value + ")";
    if (option->get_required()) text += " (required)";
    return text;
  }
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    const bool all = mode != CLI::AppFormatMode::Normal || !app->get_parent();
    std::string flags;
    for (const FlagGroup& g : flag_groups(*app, all)) flags += section(g, all);
    const std::string commands = make_subcommands(app, CLI::AppFormatMode::Normal);
    return make_description(app) + make_usage(app, name) + make_positionals(app) +
           (app->get_parent() ? flags + commands : commands + flags) + make_footer(app);
  }
  std::string make_usage(const CLI::App* app, std::string) const override {
    std::string text = "Usage: " + command_line_of(*app);
    if (!commands_of(*app).empty()) return text + " COMMAND [FLAGS]\n";
    for (const CLI::Option* option :
         app->get_options([](const CLI::Option* o) { return !o->nonpositional() && o->get_positional(); }))
      text +=
          fmt::format(fmt::runtime(option->get_required() ? " {}" : " [{}]"), upper(option->get_name(true)));
    return text + " [FLAGS]\n";
  }
  std::string make_footer(const CLI::App* app) const override {
    std::string text = "\n";
    if (!app->get_parent()) text += "carat COMMAND --help explains a command.\n";
    if (flag_groups(*app, false).size() > 2 && app->get_parent())
      text += command_line_of(*app) + " --help-all lists every flag, and llama.cpp's names of them.\n";
    return text +
           "Every flag --some-flag is also the variable CARAT_SOME_FLAG and a key of the --config file.\n";
  }

 private:
  static std::string upper(std::string text) {
    for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return text;
  }
  std::string section(const FlagGroup& group, bool all) const {
    std::string text;
    for (const CLI::Option* option : group.flags) {
      text += make_option(option, false);
      const std::string names = all ? synonyms(*option) : "";
      if (!names.empty()) text += std::string(kColumn, ' ') + "llama.cpp: " + names + "\n";
    }
    return "\n" + group.title + ":\n" + text;
  }
};

}  // namespace

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  // An option group is an App without a name.
  return app.get_subcommands(
      [](const CLI::App* a) { return !a->get_name().empty() && !a->get_group().empty(); });
}

std::string command_line_of(const CLI::App& app) {
  return (app.get_parent() ? command_line_of(*app.get_parent()) + " " : "") + app.get_name();
}

std::vector<FlagGroup> flag_groups(const CLI::App& app, bool all) {
  std::vector<FlagGroup> found;
  FlagGroup own{app.get_parent() ? "This command" : "Flags", {}}, help;
  for (const CLI::Option* flag : app.get_options([](const CLI::Option* o) { return o->nonpositional(); }))
    if (flag->check_name("--help") || flag->check_name("--help-all"))
      help.flags.push_back(flag);
    else if (!grouped(*flag))
      own.flags.push_back(flag);
  help.title = "Help";
  if (!own.flags.empty()) found.push_back(std::move(own));
  for (const Group& g : groups()) {
    FlagGroup group{g.title, {}};
    for (const char* name : g.often)
      if (const CLI::Option* flag = find(app, name)) group.flags.push_back(flag);
    for (const char* name : g.seldom)
      if (const CLI::Option* flag = all ? find(app, name) : nullptr) group.flags.push_back(flag);
    if (!group.flags.empty()) found.push_back(std::move(group));
  }
  found.push_back(std::move(help));
  return found;
}

std::vector<std::string> flag_choices(const CLI::Option& flag) {
  const std::string type = flag.get_type_name();  // "TEXT:{f32,f16}"
  const auto open = type.find('{'), close = type.find('}');
  std::vector<std::string> all;
  if (flag.get_items_expected_max() == 0 || open == std::string::npos || close == std::string::npos)
    return all;
  for (size_t at = open + 1; at <= close;) {
    const size_t end = std::min(type.find(',', at), close);
    all.push_back(type.substr(at, end - at));
    at = end + 1;
  }
  return all;
}

std::string flag_value(const CLI::Option& flag) {
  if (flag.get_items_expected_max() == 0) return {};
  if (const auto choices = flag_choices(flag); !choices.empty())
    return fmt::format("{}", fmt::join(choices, "|"));
  if (const std::string_view kind = kind_of(flag); !kind.empty()) return std::string(kind);
  const std::string type = flag.get_type_name();  // "INT:INT in [0 - 9]", "[TEXT,[TEXT,...]]"
  return type.find("TEXT") != std::string::npos || type == "SIZE" ? type == "SIZE" ? type : "TEXT" : "N";
}

std::shared_ptr<CLI::FormatterBase> make_help() { return std::make_shared<Help>(); }

void add_help_all(CLI::App& app) {
  for (CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    sub->set_help_all_flag("--help-all", "Print every flag and exit");
    add_help_all(*sub);
  }
}

}  // namespace carat
