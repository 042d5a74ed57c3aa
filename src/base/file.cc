#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace carat {
namespace {

[[noreturn]] void fail(std::string_view doing, const std::string& path, int err) {
  std::string hint;
  if (err == ENOENT) hint = "check the path; relative paths start at the current directory";
  if (err == EACCES) hint = "check the file's permissions";
  if (err == ENOSPC || err == EDQUOT)
    hint = "free some space or write to another disk; nothing was left behind";
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

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int fd = open_regular(path, size_);
  if (size_ > 0) {
    void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int err = errno;
    ::close(fd);
    if (p == MAP_FAILED) fail("map", path, err);
    data_ = static_cast<const std::byte*>(p);
  } else {
    ::close(fd);
  }
}
MappedFile::MappedFile(MappedFile&& o) noexcept
    : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)), path_(std::move(o.path_)) {}
MappedFile& MappedFile::operator=(MappedFile&& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(size_, o.size_);
  std::swap(path_, o.path_);
  return *this;
}
MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
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

AtomicFile::AtomicFile(const std::string& path)
    : path_(path), temp_(fmt::format("{}.tmp.{}", path, ::getpid())) {
  file_ = std::fopen(temp_.c_str(), "wb");
  if (!file_) fail("write", path, errno);
}
AtomicFile::~AtomicFile() {
  if (!file_) return;
  std::fclose(file_);
  ::unlink(temp_.c_str());
}
void AtomicFile::write(const void* data, size_t bytes) {
  if (bytes && std::fwrite(data, 1, bytes, file_) != bytes) fail("write", path_, errno);
}
void AtomicFile::seek(size_t offset) {
  if (::fseeko(file_, static_cast<off_t>(offset), SEEK_SET) != 0) fail("write", path_, errno);
}
size_t AtomicFile::tell() const { return static_cast<size_t>(::ftello(file_)); }
void AtomicFile::commit() {
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) fail("write", path_, errno);
  if (::rename(temp_.c_str(), path_.c_str()) != 0) fail("write", path_, errno);
  std::fclose(std::exchange(file_, nullptr));
}

}  // namespace carat
