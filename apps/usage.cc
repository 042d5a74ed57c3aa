#include "apps/usage.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/help.h"

namespace carat {
namespace {

// Letters to change, add or leave out.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t corner = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t change = corner + (a[i] != b[j]);
      corner = row[j + 1];
      row[j + 1] = std::min({change, corner + 1, row[j] + 1});
    }
  }
  return row.back();
}

// The nearest of `names`, or "" where none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& names) {
  std::string best;
  size_t least = word.size() / 3 + 1;
  for (const std::string& name : names)
    if (const size_t d = distance(word, name); d < least) least = d, best = name;
  return best;
}

const CLI::App& command_of(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

// The flags of a command and of what it belongs to, as they are written out.
std::vector<std::string> flags_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* app = &command; app; app = app->get_parent())
    for (const CLI::Option* option :
         app->get_options([](const CLI::Option* o) { return o->nonpositional(); }))
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

Error unknown(const CLI::App& command, const std::string& word, const std::string& help) {
  const bool flag = word.starts_with('-');
  std::vector<std::string> names;
  for (const CLI::App* c : commands_of(command)) names.push_back(c->get_name());
  const bool lacks_command = !flag && !names.empty();
  if (flag) names = flags_of(command);
  const std::string meant = nearest(word.substr(0, word.find('=')), names);
  std::string hint = meant.empty() ? "" : fmt::format("is {} meant? ", meant);
  if (!flag && command.get_option_no_throw("--model"))
    hint = "a model is given with -m FILE or -hf OWNER/REPO. ";
  return Error(fmt::format("unknown {} '{}'", lacks_command ? "command" : "argument", word),
               fmt::format("{}{} lists the {}", hint, help, lacks_command ? "commands" : "flags"));
}

}  // namespace

Error usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = command_of(app);
  const std::string line = command_line_of(command), help = line + " --help";
  // A mistyped flag is the likelier mistake than whatever was found missing because of it.
  if (const std::vector<std::string> words = app.remaining(true); !words.empty())
    return unknown(command, words.front(), help);
  std::string what = error.what();
  const std::string kind = error.get_name();
  if (kind == "RequiredError" && !commands_of(command).empty())
    return Error(line + " needs a command", help + " lists them");
  if (const size_t end = what.find(" is required"); kind == "RequiredError" && end != std::string::npos)
    if (std::string name = what.substr(0, end); !name.starts_with('-')) {  // a positional
      for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      return Error(fmt::format("{} needs {}", line, name), help + " says what that is");
    }
  if (kind == "ArgumentMismatch" && what.ends_with(" missing"))
    what = fmt::format("{} needs a value", what.substr(0, what.find(':')));
  return Error(what, help + " lists the flags");
}

}  // namespace carat
