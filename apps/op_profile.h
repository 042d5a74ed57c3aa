// Where the time of a step goes, operation by operation: carat bench --ops.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/program.h"

namespace carat {

// Operations of one kind, weight type and shape, over all layers of a step.
struct OpGroup {
  std::string name;
  int count = 0;
  double seconds = 0, bytes = 0, operations = 0;
};

// seconds: per operation of the program. Sorted by time, longest first. rows, wanted: of the step; depth: of
// its first row.
std::vector<OpGroup> group_ops(const Program& program, std::span<const double> seconds, int32_t rows,
                               int32_t wanted, int32_t depth);
// A table with shares of the ceilings (bytes and operations a second).
std::string op_table(std::span<const OpGroup> groups, double read_ceiling, double dot_ceiling);

}  // namespace carat
