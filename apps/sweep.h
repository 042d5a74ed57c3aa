// --sweep name=a,b,c: a command of bench or eval once for each value of a flag, each in a process of its own,
// the order turned round every other time, and one table of all of them.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace carat {

// Of a command line with --sweep: runs it and returns the exit code. Else nothing.
std::optional<int> run_sweep(int argc, char** argv);

// What this program prints on stdout with these arguments (the first is its name), and its exit code.
std::pair<std::string, int> output_of(const std::vector<std::string>& arguments);

}  // namespace carat
