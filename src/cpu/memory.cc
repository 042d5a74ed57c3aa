#include "cpu/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace carat::cpu {
namespace {

constexpr size_t kHuge = size_t{2} << 20;

std::string text_of(const char* path) {
  try {
    return read_file(path, 1 << 16);
  } catch (const Error&) {
    return {};
  }
}
// The number after `key`; -1 if there is none ("max").
int64_t number_after(const std::string& text, const char* key) {
  const size_t at = text.find(key);
  if (at == std::string::npos) return -1;
  const char* p = text.c_str() + at + std::strlen(key);
  char* end = nullptr;
  const long long v = std::strtoll(p, &end, 10);
  return end == p ? -1 : v;
}

}  // namespace

Buffer alloc_pages(size_t bytes) {
  if (bytes == 0) return {};
  const size_t align = bytes >= 2 * kHuge ? kHuge : 0, mapped = bytes + align;
  void* p = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    throw Error(fmt::format("cannot allocate {} MiB: {}", bytes >> 20, std::strerror(errno)),
                "use a smaller context or a smaller model");
  std::byte *base = static_cast<std::byte*>(p), *start = base;
  if (align) {
    start += (align - reinterpret_cast<uintptr_t>(base) % align) % align;
    madvise(start, bytes, MADV_HUGEPAGE);
  }
  return {start, bytes, [base, mapped](std::byte*) { munmap(base, mapped); }};
}

Buffer Arena::alloc(size_t bytes) {
  constexpr size_t kBlock = size_t{64} << 20, kAlone = kBlock / 2;
  if (bytes == 0 || bytes > kAlone) return alloc_pages(bytes);
  if (!block_ || used_ + bytes > block_->size()) {
    block_ = std::make_shared<Buffer>(alloc_pages(kBlock));
    used_ = 0;
  }
  std::byte* p = block_->data() + used_;
  used_ += (bytes + 63) / 64 * 64;
  return {p, bytes, [block = block_](std::byte*) {}};
}

int64_t memory_total() {
  const int64_t machine = int64_t{sysconf(_SC_PAGESIZE)} * sysconf(_SC_PHYS_PAGES);
  const int64_t limit = number_after(text_of("/sys/fs/cgroup/memory.max"), "");
  return limit > 0 ? std::min(limit, machine) : machine;
}

int64_t memory_free() {
  int64_t free = number_after(text_of("/proc/meminfo"), "MemAvailable:") << 10;
  const int64_t limit = number_after(text_of("/sys/fs/cgroup/memory.max"), "");
  if (limit > 0) {  // cached file pages count as used there, but go when asked for
    const int64_t used = number_after(text_of("/sys/fs/cgroup/memory.current"), "");
    const int64_t cached = number_after(text_of("/sys/fs/cgroup/memory.stat"), "\nfile ");
    free = std::min(free, limit - used + std::max<int64_t>(0, cached));
  }
  return std::max<int64_t>(0, free);
}

}  // namespace carat::cpu
