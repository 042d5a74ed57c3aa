// Files: mapped for reading, read whole, and written so that a reader never sees half of one.
#pragma once
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace carat {

// A file mapped read-only. Throws Error if it is missing, a directory or unreadable. An empty file has size
// 0.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& o) noexcept;
  MappedFile& operator=(MappedFile&& o) noexcept;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  void close();

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
};

// The path of a mapped file that has become shorter than its mapping (or that its disk no longer reads): what
// was read there since is zero instead of the end of the process by SIGBUS. Sticky. "": none.
std::string lost_file();
// The path of a mapped file that was written to or cut since it was mapped: by size, time and what the kernel
// tells. "": none. One that was replaced by rename has not changed: the old one is still mapped.
std::string changed_file();

// Lets go of the part of a mapped file inside [p, p + n): it leaves this process's memory, and is read again
// where it is touched again. Memory that is not a MappedFile's is left as it is.
void release_mapped(const void* p, size_t n);
// Also takes what has been let go of the file that p points into out of the OS's cache, for when memory is
// short: the kernel would do it page by page, and too late for huge pages.
void drop_file_cache(const void* p);

// Whether this process has mapped the file at `path`, by this name, a link's or a part's: it must not be
// overwritten.
bool is_mapped_file(const std::string& path);

// The whole file as text; at most max_bytes, more is an Error.
std::string read_file(const std::string& path, size_t max_bytes = size_t{1} << 30);

// A file could not be written: the disk's fault or that of who chose the place.
class WriteError : public Error {
 public:
  using Error::Error;
};

// Writes PATH.tmp.PID beside the target; commit() makes it the target at once. Without commit() the temporary
// file is removed, so a full disk, an exception, Ctrl-C and SIGTERM leave nothing behind. A symbolic link is
// followed and stays one; a target that is there and no regular file (a device, a pipe, a directory) is
// refused: renaming would replace it. Every failed write throws WriteError with the OS's reason.
class AtomicFile {
 public:
  // secret: nobody but its owner may read it.
  explicit AtomicFile(const std::string& path, bool secret = false);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();
  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void seek(size_t offset);
  size_t tell() const;
  void commit();

 private:
  std::string path_, target_, temp_;  // as given; behind its links; beside that
  std::FILE* file_ = nullptr;
  int slot_ = -1;  // in the list of what a signal must remove
};

}  // namespace carat
