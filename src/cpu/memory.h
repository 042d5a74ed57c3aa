// Memory of the CPU: anonymous pages, and what the machine has.
#pragma once
#include <cstdint>
#include <memory>

#include "core/backend.h"

namespace carat::cpu {

// Zeroed, at least 64-byte aligned; 2 MiB aligned with huge pages asked for when large. Untouched pages cost
// nothing.
Buffer alloc_pages(size_t bytes);
// Memory for weights, one behind the other in blocks of huge pages: reading ahead past the end of one is
// reading the next, and a small matrix needs no pages of its own. A block lives as long as anything in it.
class Arena {
 public:
  Buffer alloc(size_t bytes);  // 64-byte aligned, zeroed

 private:
  std::shared_ptr<Buffer> block_;
  size_t used_ = 0;
};

// Bytes this process may have in all, and may still take: of the machine or of the cgroup, whichever is less.
int64_t memory_total();
int64_t memory_free();

}  // namespace carat::cpu
