// What this machine's memory gives, for stating speeds as a share of it.
#pragma once
#include <cstddef>
#include <string_view>

#include "base/cpus.h"

namespace carat {

// GB/s that `threads` threads (0: all allowed) read together from memory: the best of several access
// patterns. bytes: of the buffer, which a step of a model as large reads over and over, from the processor's
// caches where they hold it; 0: much larger than any cache. Takes about half a second.
double measure_read_gbps(int threads, size_t bytes = 0, Numa numa = Numa::off);
// 1e9 operations (a product, a sum) of byte dots a second, with an instruction set ("": the best present).
// About a tenth of a second.
double measure_dot_gops(int threads, std::string_view isa);

}  // namespace carat
