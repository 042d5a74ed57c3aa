// The help of a command: its flags in groups, most used first; --help-all adds those that few need.
#pragma once
#include <memory>

namespace CLI {
class App;
class FormatterBase;
}  // namespace CLI

namespace carat {

std::shared_ptr<CLI::FormatterBase> make_help();
// --help-all for every command.
void add_help_all(CLI::App& app);

}  // namespace carat
