// What this machine's memory gives, for stating speeds as a share of it.
#pragma once

namespace carat {

// GB/s that `threads` threads (0: all allowed) read together from memory: the best of several access
// patterns, over a buffer much larger than any cache. Takes about half a second.
double measure_read_gbps(int threads);

}  // namespace carat
