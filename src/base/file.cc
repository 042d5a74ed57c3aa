#include "base/file.h"

#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/read_mapped.h"

namespace carat {
namespace {

[[noreturn]] void fail(std::string_view doing, const std::string& path, int err) {
  std::string hint;
  if (err == ENOENT) hint = "check the path; relative paths start at the current directory";
  struct stat link {};
  if (err == ENOENT && ::lstat(path.c_str(), &link) == 0) hint = "it is a link to a file that is not there";
  if (err == ELOOP) hint = "the link leads back to itself";
  if (err == EACCES) hint = "check the file's permissions";
  throw Error(fmt::format("cannot {} '{}': {}", doing, path, std::strerror(err)), hint);
}

int open_regular(const std::string& path, size_t& size, int flags = 0) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
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
    std::string path;
    struct stat was;
    uint64_t sample;  // of what it holds
    int watch;        // of inotify; -1: there is none
    bool written = false, touched = false;
  };
  std::mutex mutex;
  std::map<uintptr_t, Entry> all;
  const int notes = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);

  // All with the mutex held. Writing and touching a file both leave a new time; the kernel tells them apart.
  int watch_notes(int fd) const {
    if (notes < 0) return -1;
    return ::inotify_add_watch(notes, fmt::format("/proc/self/fd/{}", fd).c_str(), IN_MODIFY | IN_ATTRIB);
  }
  void forget_notes(int watch) const {
    const auto same = [&](const auto& e) { return e.second.watch == watch; };
    if (watch >= 0 && std::none_of(all.begin(), all.end(), same)) ::inotify_rm_watch(notes, watch);
  }
  void read_notes() {
    alignas(inotify_event) char buffer[4096];
    for (ssize_t n; notes >= 0 && (n = ::read(notes, buffer, sizeof buffer)) > 0;)
      for (const char* at = buffer; at < buffer + n;) {
        const auto* note = reinterpret_cast<const inotify_event*>(at);
        for (auto& [begin, e] : all) {
          if (e.watch != note->wd) continue;
          e.written |= (note->mask & IN_MODIFY) != 0;
          e.touched |= (note->mask & IN_ATTRIB) != 0;
        }
        at += sizeof *note + note->len;
      }
  }

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

uint64_t sample_of(int fd, size_t size) {
  constexpr size_t kParts = 64;
  uint64_t h = 0xcbf29ce484222325;
  char buffer[4096];
  for (size_t i = 0; i < kParts; ++i) {
    const size_t room = size > sizeof buffer ? size - sizeof buffer : 0;
    const ssize_t n = ::pread(fd, buffer, sizeof buffer, static_cast<off_t>(room / (kParts - 1) * i));
    for (ssize_t k = 0; k < n; ++k) h = (h ^ static_cast<unsigned char>(buffer[k])) * 0x100000001b3;
    if (room == 0) break;
  }
  return h;
}

// The same for a signal handler, which may take no lock: slots that are written once while they are free.
struct Slot {
  std::atomic<uintptr_t> begin{0}, end{0};
};
constexpr size_t kSlots = 1024;
Slot g_slots[kSlots];
std::atomic<uintptr_t> g_lost{0};                                     // where
const auto g_page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));  // 4, 16 or 64 KiB on Arm
struct sigaction g_before;

// The lost rest of a mapping becomes zeros, so that whoever reads it goes on to where it is noticed.
void on_bus_error(int number, siginfo_t* info, void* context) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Slot& s : g_slots) {
    const uintptr_t begin = s.begin.load(), end = s.end.load();
    if (at < begin || at >= end) continue;
    const uintptr_t page = at / g_page * g_page;
    void* const there = ::mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (there == MAP_FAILED) break;
    g_lost.store(at);
    return;
  }
  if (g_before.sa_flags & SA_SIGINFO && g_before.sa_sigaction)
    return g_before.sa_sigaction(number, info, context);
  ::signal(SIGBUS, SIG_DFL);  // comes again at once, and ends the process
}

void watch(uintptr_t begin, size_t size) {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    return ::sigaction(SIGBUS, &action, &g_before) == 0;
  }();
  for (Slot& s : g_slots) {
    if (!installed || s.begin != 0) continue;
    s.end = begin + size;
    s.begin = begin;
    return;
  }
}

void unwatch(uintptr_t begin) {
  for (Slot& s : g_slots)
    if (s.begin == begin) s.begin = 0;
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int fd = open_regular(path, size_, O_NONBLOCK);  // a FIFO would be waited for
  struct stat st {};
  if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(fd);
    throw Error(fmt::format("'{}' is no regular file", path), "pipes and devices cannot be mapped");
  }
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
    const int noted = m.watch_notes(fd);
    m.all[reinterpret_cast<uintptr_t>(p)] = {size_, fd, path, st, sample_of(fd, size_), noted};
    watch(reinterpret_cast<uintptr_t>(p), size_);
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
  unwatch(at->first);
  const int noted = at->second.watch;
  ::close(at->second.fd);
  m.all.erase(at);
  m.forget_notes(noted);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

std::string lost_file() {
  const uintptr_t at = g_lost.load(std::memory_order_relaxed);
  if (at == 0) return {};
  Mappings& m = mappings();
  const std::lock_guard lock(m.mutex);
  uintptr_t begin;
  const Mappings::Entry* e = m.find(reinterpret_cast<const void*>(at), begin);
  return e ? e->path : "a file that is no longer open";
}

// A new time alone is a touch if the kernel has told of one and of no write. It tells nothing of writes
// through shared mappings and of other machines': these count as changes.
std::string changed_file() {
  Mappings& m = mappings();
  const std::lock_guard lock(m.mutex);
  m.read_notes();
  for (auto& [begin, e] : m.all) {
    struct stat now {};
    if (::fstat(e.fd, &now) != 0) continue;
    if (e.written || now.st_size != e.was.st_size) return e.path;
    const bool touched = std::exchange(e.touched, false);
    if (now.st_mtim.tv_sec == e.was.st_mtim.tv_sec && now.st_mtim.tv_nsec == e.was.st_mtim.tv_nsec) continue;
    if (!touched || sample_of(e.fd, static_cast<size_t>(now.st_size)) != e.sample) {
      e.written = true;
      return e.path;
    }
    e.was = now;
  }
  return {};
}

void release_mapped(const void* p, size_t n) {
  const uintptr_t page = g_page;
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

bool read_mapped(void* to, const void* p, size_t n, bool drop) {
  int fd = -1;  // open as long as the mapping, which the caller reads
  off_t at = 0;
  {
    Mappings& m = mappings();
    const std::lock_guard lock(m.mutex);
    uintptr_t begin = 0;
    const Mappings::Entry* e = m.find(p, begin);
    const size_t from = reinterpret_cast<uintptr_t>(p) - begin;
    if (!e || n > e->size - from) return false;
    fd = e->fd, at = static_cast<off_t>(from);
  }
  for (size_t done = 0; done < n;) {
    const ssize_t got = ::pread(fd, static_cast<char*>(to) + done, n - done, at + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  if (drop) ::posix_fadvise(fd, at, static_cast<off_t>(n), POSIX_FADV_DONTNEED);
  return true;
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
