// Random weights, made as blocks of a quantized type directly: as fast as a disk writes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace carat {

// n elements (whole blocks) of mean 0 and standard deviation sigma. A function of its arguments alone.
void fill_random(DType type, std::byte* out, int64_t n, float sigma, uint64_t seed);

}  // namespace carat
