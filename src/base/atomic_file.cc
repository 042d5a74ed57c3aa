#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/file.h"

namespace carat {
namespace {

[[noreturn]] void fail_write(const std::string& path, int err) {
  std::string hint;
  if (err == ENOENT) hint = "check the path; relative paths start at the current directory";
  if (err == EACCES) hint = "check the file's permissions";
  if (err == ENOSPC || err == EDQUOT || err == EFBIG)
    hint = "free some space or write to another disk; nothing was left behind";
  throw WriteError(fmt::format("cannot write '{}': {}", path, std::strerror(err)), hint);
}

// Temporary files of this process, in memory that a signal handler may read. Files beyond the last slot are
// written all the same; a signal leaves them.
struct Slot {
  std::atomic<bool> taken = false;
  std::atomic<pid_t> owner = 0;  // 0: nothing to remove; a forked child owns none of its parent's
  char path[PATH_MAX] = {};
};
Slot g_slots[32];

void on_end(int number) {
  const int error = errno;
  for (const Slot& s : g_slots)
    if (s.owner.load() == ::getpid()) ::unlink(s.path);
  errno = error;
  std::signal(number, SIG_DFL);
  std::raise(number);
}

// A program that handles a signal itself keeps its handler: it ends by itself, and its files with it.
void catch_ends() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now {};
    if (::sigaction(number, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) || now.sa_handler != SIG_DFL)
      continue;
    struct sigaction ours {};
    ours.sa_handler = on_end;
    ours.sa_flags = SA_NODEFER | SA_RESTART;
    ::sigaction(number, &ours, nullptr);
  }
}

int take_slot(const std::string& path) {
  if (path.size() >= PATH_MAX) return -1;
  for (size_t i = 0; i < std::size(g_slots); ++i) {
    Slot& s = g_slots[i];
    if (s.taken.exchange(true)) continue;
    std::memcpy(s.path, path.c_str(), path.size() + 1);
    s.owner.store(::getpid());
    return static_cast<int>(i);
  }
  return -1;
}
void give_slot(int& slot) {
  if (slot < 0) return;
  g_slots[slot].owner.store(0);
  g_slots[slot].taken.store(false);
  slot = -1;
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

// Where `path` leads, through links; what is there must be a regular file, or nothing.
std::string behind_links(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) == 0 && !S_ISREG(st.st_mode))
    throw WriteError(fmt::format("cannot write '{}': it is {}", path, kind_of(st.st_mode)),
                     "give the name of a file");
  std::filesystem::path at = path;
  for (int links = 0; links < 40; ++links) {
    std::error_code ec;
    if (!std::filesystem::is_symlink(std::filesystem::symlink_status(at, ec))) return at.string();
    const std::filesystem::path to = std::filesystem::read_symlink(at, ec);
    if (ec) fail_write(path, ec.value());
    at = to.is_absolute() ? to : at.parent_path() / to;
  }
  fail_write(path, ELOOP);
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path, bool secret) : path_(path), target_(behind_links(path)) {
  catch_ends();
  int fd = -1;
  for (int i = 0; fd < 0 && i < 100; ++i) {  // a name that is there is another's: neither followed nor reused
    temp_ = fmt::format("{}.tmp.{}{}", target_, ::getpid(), i ? fmt::format(".{}", i) : "");
    fd = ::open(temp_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, secret ? 0600 : 0666);
    if (fd < 0 && errno != EEXIST) fail_write(path, errno);
  }
  if (fd < 0) fail_write(path, EEXIST);
  slot_ = take_slot(temp_);
  file_ = ::fdopen(fd, "wb");
  if (file_) return;
  const int error = errno;
  ::close(fd);
  ::unlink(temp_.c_str());
  give_slot(slot_);
  fail_write(path, error);
}
AtomicFile::~AtomicFile() {
  if (!file_) return;
  std::fclose(file_);
  ::unlink(temp_.c_str());
  give_slot(slot_);
}
void AtomicFile::write(const void* data, size_t bytes) {
  if (bytes && std::fwrite(data, 1, bytes, file_) != bytes) fail_write(path_, errno);
}
void AtomicFile::seek(size_t offset) {
  if (::fseeko(file_, static_cast<off_t>(offset), SEEK_SET) != 0) fail_write(path_, errno);
}
size_t AtomicFile::tell() const { return static_cast<size_t>(::ftello(file_)); }
void AtomicFile::commit() {
  if (const std::string lost = lost_file(); !lost.empty())
    throw Error(fmt::format("'{}' was cut while it was read", lost), "nothing was written; begin again");
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) fail_write(path_, errno);
  if (::rename(temp_.c_str(), target_.c_str()) != 0) fail_write(path_, errno);
  give_slot(slot_);
  std::fclose(std::exchange(file_, nullptr));
}

}  // namespace carat
