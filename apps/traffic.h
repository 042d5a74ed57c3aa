// What a step must read from memory at the least: the bytes behind "share of the read ceiling".
#pragma once
#include "core/program.h"

namespace carat {

// Weights once, for experts as many as `rows` rows can choose; per sequence the cached keys and values that
// one row at position `depth` sees. Activations are left out: they stay in caches.
double step_read_bytes(const Program& program, int32_t rows, int32_t depth);

}  // namespace carat
