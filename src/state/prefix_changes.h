// What has come to be known and what has been forgotten, for those who send requests where their beginning
// is known already (serve/kv_events.h).
#pragma once
#include <cstdint>
#include <vector>

namespace carat {

// Whole pages that follow each other. A page's hash is that of its tokens and of all that stand before them;
// never 0.
struct PrefixRun {
  uint64_t parent = 0;  // the hash of the page before; 0: there is none
  std::vector<uint64_t> hashes;
  std::vector<int32_t> tokens;  // of all of them
};

struct PrefixChanges {
  bool anew = false;  // what was told before counts no more
  std::vector<uint64_t> removed;
  std::vector<PrefixRun> stored;  // parents before their children
  bool empty() const { return !anew && removed.empty() && stored.empty(); }
};

}  // namespace carat
