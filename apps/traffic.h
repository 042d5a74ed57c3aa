// What a step must read from memory at the least: the bytes behind "share of the read ceiling".
#pragma once
#include "core/program.h"

namespace carat {

// Weights once, for experts as many as `rows` rows can choose; per sequence the cached keys and values that
// one row at position `depth` sees. Activations are left out: they stay in caches.
double op_read_bytes(const OpRecord& op, int32_t rows, int32_t depth);
double step_read_bytes(const Program& program, int32_t rows, int32_t depth);

// Products and sums of an operation over `rows` rows, the first at position `depth`: of matrix products and
// of attention; the rest is little.
double op_operations(const OpRecord& op, int32_t rows, int32_t depth);

}  // namespace carat
