// What of each part of a file is there that comes in parts.
#pragma once
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"

namespace carat {

// Kept in a small file that is written as the parts grow, so that an end at any time loses nothing: size of
// the whole and of a part, then how many bytes of each part are there.
class PartMap {
 public:
  PartMap(const std::string& path, int64_t size, int64_t part)
      : size_(size), part_(part), parts_((size + part - 1) / part) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) throw Error(fmt::format("cannot write '{}'", path));
    there_.assign(static_cast<size_t>(parts_), 0);
    int64_t head[2] = {0, 0};
    const auto bytes = static_cast<ssize_t>(there_.size() * sizeof(int64_t));
    if (::pread(fd_, head, sizeof head, 0) != sizeof head || head[0] != size || head[1] != part ||
        ::pread(fd_, there_.data(), static_cast<size_t>(bytes), sizeof head) != bytes) {
      std::fill(there_.begin(), there_.end(), 0);
      head[0] = size, head[1] = part;
      write(head, sizeof head, 0);
      write(there_.data(), static_cast<size_t>(bytes), sizeof head);
    }
    for (int64_t i = 0; i < parts_; ++i) {
      int64_t& n = there_[static_cast<size_t>(i)];
      n = std::clamp(n, int64_t{0}, end(i) - begin(i));
      all_ += n;
    }
  }
  ~PartMap() { ::close(fd_); }
  PartMap(const PartMap&) = delete;
  PartMap& operator=(const PartMap&) = delete;

  int64_t begin(int64_t i) const { return i * part_; }
  int64_t end(int64_t i) const { return std::min(size_, (i + 1) * part_); }
  int64_t at(int64_t i) const { return begin(i) + there_[static_cast<size_t>(i)]; }
  // The next part that is not whole, each given out once; -1: none.
  int64_t take() {
    const std::lock_guard lock(mutex_);
    while (next_ < parts_ && at(next_) == end(next_)) ++next_;
    return next_ < parts_ ? next_++ : -1;
  }
  // Bytes of the whole that are there now.
  int64_t grow(int64_t i, int64_t to) {
    const std::lock_guard lock(mutex_);
    int64_t& n = there_[static_cast<size_t>(i)];
    all_ += to - begin(i) - n;
    n = to - begin(i);
    write(&n, sizeof n, static_cast<int64_t>(sizeof(int64_t)) * (i + 2));
    return all_;
  }
  int64_t all() const { return all_; }

 private:
  void write(const void* data, size_t bytes, int64_t at) {
    if (::pwrite(fd_, data, bytes, at) != static_cast<ssize_t>(bytes))
      throw Error(fmt::format("cannot write what is loaded: {}", std::strerror(errno)));
  }
  int fd_ = -1;
  int64_t size_, part_, parts_, next_ = 0, all_ = 0;
  std::vector<int64_t> there_;
  std::mutex mutex_;
};

// Bytes that such a file says are there; 0 without it.
inline int64_t bytes_in_map(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  int64_t head[2], n = 0, all = 0;
  if (::read(fd, head, sizeof head) == sizeof head)
    while (::read(fd, &n, sizeof n) == sizeof n) all += n;
  ::close(fd);
  return all;
}

}  // namespace carat
