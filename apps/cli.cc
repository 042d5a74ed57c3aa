#include "apps/cli.h"
#include "apps/cli_measure.h"
#include "apps/cmd_bench_eyes.h"
#include "apps/sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string_view>
#include <utility>

#include "apps/help.h"
#include "apps/hub.h"
#include "apps/llama_flags.h"
#include "apps/other_flags.h"
#include "apps/usage.h"
#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "cpu/isa.h"
#include "measure/record.h"
#include "media/picture.h"
#include "media/sound.h"
#include "serve/config.h"
#include "serve/kv_events.h"

namespace carat {
namespace {

std::string env_name(const CLI::Option& option) {
  std::string name = "CARAT_" + option.get_lnames().front();
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

// Every flag NAME of every command can also be set as CARAT_NAME.
void name_environment(CLI::App& app) {
  static constexpr std::string_view kNot[] = {"help", "help-all", "version"};
  for (CLI::Option* option : app.get_options())
    if (!option->get_lnames().empty() &&
        std::find(std::begin(kNot), std::end(kNot), option->get_lnames().front()) == std::end(kNot))
      option->envname(env_name(*option));
  for (CLI::App* sub : app.get_subcommands({})) name_environment(*sub);
}

CLI::Option* long_option(CLI::App& app, const std::string& name) {
  for (CLI::Option* option : app.get_options())
    if (option->check_lname(name)) return option;
  return nullptr;
}

// INI: keys before the first [section] go to every command that has such a flag, [serve] to `carat serve`
// alone. Flags win over the environment, the environment over the file.
class Config : public CLI::ConfigINI {
 public:
  explicit Config(CLI::App& app) : app_(app) {}
  std::vector<CLI::ConfigItem> from_config(std::istream& in) const override {
    std::vector<CLI::ConfigItem> all;
    for (CLI::ConfigItem& item : CLI::ConfigINI::from_config(in)) {
      if (item.name == "++" || item.name == "--") continue;
      const auto before = all.size();
      if (item.parents.empty() && !long_option(app_, item.name))
        spread(app_, item, {}, all);
      else
        all.push_back(item), check(item);
      if (all.size() == before && !known(app_, item.name)) unknown_key(item);
    }
    return all;
  }

 private:
  [[noreturn]] static void unknown_key(const CLI::ConfigItem& item) {
    throw CLI::ConfigError(fmt::format("unknown key '{}' in the configuration file", item.fullname()));
  }
  static bool from_environment(const CLI::Option& option) {
    return environment(env_name(option)).has_value();
  }
  static bool known(CLI::App& app, const std::string& name) {
    if (long_option(app, name)) return true;
    for (CLI::App* sub : app.get_subcommands({}))
      if (known(*sub, name)) return true;
    return false;
  }
  static void spread(CLI::App& app, const CLI::ConfigItem& item, std::vector<std::string> parents,
                     std::vector<CLI::ConfigItem>& all) {
    for (CLI::App* sub : app.get_subcommands({})) {
      auto path = parents;
      path.push_back(sub->get_name());
      CLI::Option* option = long_option(*sub, item.name);
      if (option && !from_environment(*option)) {
        all.push_back(item);
        all.back().parents = path;
      }
      spread(*sub, item, path, all);
    }
  }
  void check(const CLI::ConfigItem& item) const {
    CLI::App* app = &app_;
    for (const std::string& name : item.parents) {
      const auto subs = app->get_subcommands([&](CLI::App* a) { return a->get_name() == name; });
      if (subs.empty()) throw CLI::ConfigError(fmt::format("no command [{}]", name));
      app = subs.front();
    }
    if (!long_option(*app, item.name)) unknown_key(item);
  }
  CLI::App& app_;
};

// What was typed, with llama.cpp's flags under our names (llama_flags.h). bench, eval and the rest know
// llama.cpp's short names only.
std::vector<std::string> arguments(const CLI::App& app, int argc, char** argv, Translated& llama) {
  std::vector<std::string> before, args(argv + 1, argv + argc);
  const CLI::App* command = nullptr;
  while (!args.empty() && !command) {
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
      if (sub->check_name(args.front())) command = sub;
    before.push_back(std::move(args.front()));
    args.erase(args.begin());
  }
  // The flags of `eval ppl` are those of ppl.
  if (command && !args.empty())
    for (const CLI::App* sub : command->get_subcommands([](const CLI::App*) { return true; }))
      if (sub->check_name(args.front())) {
        command = sub;
        before.push_back(std::move(args.front()));
        args.erase(args.begin());
        break;
      }
  if (command) {
    // gate and promote hand what they do not know to serve.
    const CLI::App* serve =
        command->check_name("gate") || command->check_name("promote") ? app.get_subcommand("serve") : nullptr;
    const bool talks = command->check_name("serve") || command->check_name("run") || serve;
    const auto own = [&](std::string_view name) {
      const std::string n(name);
      if (command->get_option_no_throw(n) || app.get_option_no_throw(n)) return true;
      if (serve && serve->get_option_no_throw(n)) return true;
      const LlamaFlag* flag = talks ? nullptr : find_llama_flag(name);
      return flag && flag->use != LlamaUse::ours;
    };
    Translated other;
    if (command->check_name("serve")) other = translate_other_flags(args, own), args = other.args;
    llama = translate_llama_flags(args, own);
    llama.ignored.insert(llama.ignored.end(), other.ignored.begin(), other.ignored.end());
    llama.changed.insert(llama.changed.end(), other.changed.begin(), other.changed.end());
    refuse_clusters(llama.args, [&](std::string_view name) -> std::optional<bool> {
      const std::string n(name.substr(0, name.find('=')));
      const CLI::Option* option = command->get_option_no_throw(n);
      if (!option) option = app.get_option_no_throw(n);
      if (!option) return {};
      return option->get_items_expected_min() > 0 && n.size() == name.size();
    });
    before.insert(before.end(), llama.args.begin(), llama.args.end());
  }
  std::reverse(before.begin(), before.end());  // as CLI11 takes them
  return before;
}

// What this program is, and what of it can be used here.
std::string version() {
  return fmt::format(
      "carat {} ({})\ninstruction sets: baseline, avx2, avx512, amx or neon, i8mm by the machine; here: "
      "{}\nCUDA "
      "architectures: {}\npictures: {}\nsound: {}\nKV events: {}",
      CARAT_VERSION, build_commit(), fmt::join(cpu::present_isas(), ", "), CARAT_CUDA_BUILT,
      picture_formats(), sound_formats(),
      zmq_version().empty() ? "none (built without ZeroMQ)" : "ZeroMQ " + zmq_version());
}

void print_error(const Error& e) {
  std::fprintf(stderr, "error: %s\n", printable(e.what(), true).c_str());
  if (!e.hint().empty()) std::fprintf(stderr, "hint: %s\n", printable(e.hint(), true).c_str());
}

// Most used first; the help has them in these groups.
void add_commands(CLI::App& app) {
  size_t done = 0;
  const auto group = [&](const char* title, std::initializer_list<void (*)(CLI::App&)> adds) {
    for (const auto add : adds) add(app);
    const auto all = app.get_subcommands([](const CLI::App*) { return true; });
    for (; done < all.size(); ++done) {
      all[done]->group(title);
      for (CLI::App* sub :
           all[done]->get_subcommands([](const CLI::App* a) { return !a->get_name().empty(); }))
        sub->group("Commands");
    }
  };
  group("Talk and serve", {add_run, add_serve, add_promote, add_hub});
  group("Model files", {add_inspect, add_plan, add_convert, add_forge});
  group("Measure",
        {add_bench, add_bench_ops, add_bench_eyes, add_eval, add_load, add_gate, add_tune, add_report});
  group("This program", {add_shell});
}

// 1 if what was printed did not arrive: a full disk is no success. A reader that has what it wanted (| head)
// needs no word about it.
int output_written() {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return 0;
  pollfd p{1, POLLOUT, 0};
  if (::poll(&p, 1, 0) != 1 || !(p.revents & POLLERR))
    print_error(Error("the output could not be written", "see whether its disk is full"));
  return 1;
}

}  // namespace

int run_cli(int argc, char** argv) {
  if (const auto code = run_sweep(argc, argv)) return *code;
  CLI::App app{"Run Gemma 4 and Qwen3.6 on this computer: a chat, a page and an API server."};
  app.name("carat");
  app.require_subcommand(1);
  app.formatter(make_help());
  app.fallthrough();
  app.set_version_flag("--version", version,
                       "Print version, instruction sets and CUDA architectures and exit");
  std::string level = "info";
  Translated llama;
  app.add_option("--log-level", level, "Level of the messages on stderr")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  app.parse_complete_callback([&] {
    static constexpr const char* kLevels[] = {"debug", "info", "warn", "error", "off"};
    set_log_level(static_cast<LogLevel>(std::find(std::begin(kLevels), std::end(kLevels), level) - kLevels));
    if (!llama.ignored.empty())
      log_info("{}: taken, but without effect here (docs/operations.md has the flags of others)",
               fmt::join(llama.ignored, ", "));
    for (const std::string& c : llama.changed) log_info("{}", c);
  });
  add_commands(app);
  add_hub_flags(app);
  add_help_all(app);
  name_environment(app);
  app.set_config("--config", environment("CARAT_CONFIG").value_or(""),
                 "INI file: flag = value; [command] for one command's own")
      ->envname("CARAT_CONFIG");
  app.config_formatter(std::make_shared<Config>(app));
  try {
    if (const auto file = environment("CARAT_CONFIG"); file && !file->empty() && !std::ifstream(*file))
      throw UsageError(fmt::format("CARAT_CONFIG names '{}', which cannot be read", *file),
                       "give the variable the name of an INI file, or unset it");
    app.parse(arguments(app, argc, argv, llama));
    return output_written();
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e) + output_written();
  } catch (const CLI::CallForAllHelp& e) {
    return app.exit(e) + output_written();
  } catch (const CLI::CallForVersion& e) {
    return app.exit(e) + output_written();
  } catch (const CLI::Success&) {
    return 0;
  } catch (const CLI::ParseError& e) {
    print_error(usage_error(app, e));
    return 2;
  } catch (const UsageError& e) {
    print_error(e);
    return 2;
  } catch (const Error& e) {
    print_error(e);
    return 1;
  } catch (const std::bad_alloc&) {
    print_error(Error("out of memory", "choose a smaller context (-c) or model"));
    return 1;
  } catch (const std::exception& e) {  // threads that cannot be had, say
    print_error(Error(e.what()));
    return 1;
  }
}

}  // namespace carat
