#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"

namespace carat {
namespace {

[[noreturn]] void fail(std::string_view doing, const std::string& path, int err) {
  std::string hint;
  if (err == ENOENT) hint = "check the path; relative paths start at the current directory";
  if (err == EACCES) hint = "check the file's permissions";
  throw Error(fmt::format("cannot {} '{}': {}", doing, path, std::strerror(err)), hint);
}

int open_regular(const std::string& path, size_t& size) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail("open", path, errno);
  struct stat st {};
  if (::fstat(fd, &st) != 0 || S_ISDIR(st.st_mode)) {
    const bool dir = S_ISDIR(st.st_mode);
    const int err = errno;
    ::close(fd);
    if (dir) throw Error(fmt::format("'{}' is a directory, a file was expected", path));
    fail("read", path, err);
  }
  size = static_cast<size_t>(st.st_size);
  return fd;
}

// What is mapped, by address: a backend that has copied a weight knows no more than where it was.
struct Mappings {
  struct Entry {
    size_t size;
    int fd;
  };
  std::mutex mutex;
  std::map<uintptr_t, Entry> all;

  // The mapping around p; null if there is none. The mutex must be held.
  const Entry* find(const void* p, uintptr_t& begin) const {
    auto at = all.upper_bound(reinterpret_cast<uintptr_t>(p));
    if (at == all.begin()) return nullptr;
    --at;
    begin = at->first;
    return reinterpret_cast<uintptr_t>(p) - begin < at->second.size ? &at->second : nullptr;
  }
};
Mappings& mappings() {
  static Mappings m;
  return m;
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int fd = open_regular(path, size_);
  if (size_ > 0) {
    void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int err = errno;
    if (p == MAP_FAILED) {
      ::close(fd);
      fail("map", path, err);
    }
    data_ = static_cast<const std::byte*>(p);
    Mappings& m = mappings();
    const std::lock_guard lock(m.mutex);
    m.all[reinterpret_cast<uintptr_t>(p)] = {size_, fd};
  } else {
    ::close(fd);
  }
}
MappedFile::MappedFile(MappedFile&& o) noexcept
    : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)), path_(std::move(o.path_)) {}
MappedFile& MappedFile::operator=(MappedFile&& o) noexcept {
  if (this == &o) return *this;
  close();
  data_ = std::exchange(o.data_, nullptr);
  size_ = std::exchange(o.size_, 0);
  path_ = std::move(o.path_);
  return *this;
}
MappedFile::~MappedFile() { close(); }
void MappedFile::close() {
  if (!data_) return;
  Mappings& m = mappings();
  const std::lock_guard lock(m.mutex);
  const auto at = m.all.find(reinterpret_cast<uintptr_t>(data_));
  ::close(at->second.fd);
  m.all.erase(at);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

void release_mapped(const void* p, size_t n) {
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t from = reinterpret_cast<uintptr_t>(p);
  const uintptr_t first = (from + page - 1) / page * page, last = (from + n) / page * page;
  if (first >= last) return;
  Mappings& m = mappings();
  uintptr_t begin = 0, end = 0;
  {
    const std::lock_guard lock(m.mutex);
    const Mappings::Entry* e = m.find(p, begin);
    if (!e) return;
    end = begin + e->size;
  }
  // The mapping is read-only and private: its pages hold nothing that the file does not.
  if (first >= begin && from + n <= end)
    ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

void drop_file_cache(const void* p) {
  Mappings& m = mappings();
  const std::lock_guard lock(m.mutex);
  uintptr_t begin = 0;
  if (const Mappings::Entry* e = m.find(p, begin)) ::posix_fadvise(e->fd, 0, 0, POSIX_FADV_DONTNEED);
}

bool is_mapped_file(const std::string& path) {
  struct stat target {
  }, mapped{};
  if (::stat(path.c_str(), &target) != 0) return false;
  Mappings& m = mappings();
  const std::lock_guard lock(m.mutex);
  for (const auto& [begin, e] : m.all)
    if (::fstat(e.fd, &mapped) == 0 && mapped.st_dev == target.st_dev && mapped.st_ino == target.st_ino)
      return true;
  return false;
}

std::string read_file(const std::string& path, size_t max_bytes) {
  size_t size = 0;
  const int fd = open_regular(path, size);
  std::string text;
  char buffer[1 << 16];
  for (;;) {  // the size of a pipe or a /proc file is not known beforehand
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int err = errno;
      ::close(fd);
      if (n < 0) fail("read", path, err);
      return text;
    }
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > max_bytes) {
      ::close(fd);
      throw Error(fmt::format("'{}' is larger than {} bytes", path, max_bytes));
    }
  }
}

}  // namespace carat
