// What this machine's memory gives, for stating speeds as a share of it.
#pragma once
#include <string_view>

namespace carat {

// GB/s that `threads` threads (0: all allowed) read together from memory: the best of several access
// patterns, over a buffer much larger than any cache. Takes about half a second.
double measure_read_gbps(int threads);
// 1e9 operations (a product, a sum) of byte dots a second, with an instruction set ("": the best present).
// About a tenth of a second.
double measure_dot_gops(int threads, std::string_view isa);

}  // namespace carat
