// The help of a command: its flags in groups, most used first; --help-all adds those that few need. The same
// tables make the man page and the completions of shells (cmd_shell.cc).
#pragma once
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class FormatterBase;
class Option;
}  // namespace CLI

namespace carat {

std::shared_ptr<CLI::FormatterBase> make_help();
// --help-all for every command.
void add_help_all(CLI::App& app);

struct FlagGroup {
  std::string title;
  std::vector<const CLI::Option*> flags;
};
// all: with those that few need.
std::vector<FlagGroup> flag_groups(const CLI::App& app, bool all);
// "FILE", "DIR", "TEXT", "N", or its choices with bars between; empty: it takes no value.
std::string flag_value(const CLI::Option& flag);
// Empty where it takes anything.
std::vector<std::string> flag_choices(const CLI::Option& flag);
// "carat eval kld"
std::string command_line_of(const CLI::App& app);
// In the order they were added.
std::vector<const CLI::App*> commands_of(const CLI::App& app);

// carat completions, man (cmd_shell.cc).
void add_shell(CLI::App& app);

}  // namespace carat
