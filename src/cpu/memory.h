// Memory of the CPU: anonymous pages, and what the machine has.
#pragma once
#include "core/backend.h"

namespace carat::cpu {

// Zeroed, at least 64-byte aligned; 2 MiB aligned with huge pages asked for when large. Untouched pages cost
// nothing.
Buffer alloc_pages(size_t bytes);
// Bytes this process may have in all, and may still take: of the machine or of the cgroup, whichever is less.
int64_t memory_total();
int64_t memory_free();

}  // namespace carat::cpu
