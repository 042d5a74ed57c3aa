// What a model will take of this machine's memory, before it is loaded.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/backend.h"

namespace carat {

struct CpuMemory {
  int64_t weights = 0;  // bytes of repacked copies, and of what is read in the mapped file as it stands
  int64_t other = 0;    // bytes of all that was allocated and is still held: norms, caches, steps
};
// A CPU backend that computes nothing: weights are not repacked, memory is reserved and not touched, and
// counted in *counts, which must outlive it. Steps are taken apart as if they ran, so that what they allocate
// at a depth counts, too.
std::unique_ptr<Backend> make_cpu_planner(int threads, std::string_view isa, CpuMemory* counts);

}  // namespace carat
