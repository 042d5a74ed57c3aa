// What is said about a command line that cannot be read.
#pragma once
#include "base/error.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace carat {

// What is wrong, and what was probably meant: the nearest command or flag, or the help that lists them.
Error usage_error(const CLI::App& app, const CLI::ParseError& error);

}  // namespace carat
