// carat bench-ops: the speed of single matrix products, as a share of what the machine's memory gives.
#pragma once
#include <CLI/CLI.hpp>

namespace carat {

void add_bench_ops(CLI::App& app);

}  // namespace carat
