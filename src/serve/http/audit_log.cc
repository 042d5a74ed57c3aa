#include "serve/http/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/log.h"

namespace carat {

AuditLog::AuditLog(std::string path) : path_(std::move(path)) {
  if (!open())
    throw Error(fmt::format("cannot write '{}': {}", path_, std::strerror(errno)),
                "--audit-log takes a file in a directory that can be written");
}

AuditLog::~AuditLog() {
  if (file_ >= 0) ::close(file_);
}

bool AuditLog::open() {
  const int file = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600);
  if (file < 0) return false;
  if (file_ >= 0) ::close(file_);
  file_ = file;
  struct stat st {};
  ::fstat(file_, &st);
  id_ = {st.st_dev, st.st_ino};
  return true;
}

void AuditLog::write(const Answered& a) {
  const std::string line = json_line(a);
  const std::lock_guard lock(mutex_);
  if (Clock::now() - looked_ > std::chrono::seconds(1)) {
    looked_ = Clock::now();
    struct stat st {};
    if (::stat(path_.c_str(), &st) != 0 || Id{st.st_dev, st.st_ino} != id_) open();
  }
  const bool written = ::write(file_, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  if (!written && !failing_)
    log_error("'{}' cannot be written, requests go unrecorded: {}", path_, std::strerror(errno));
  failing_ = !written;
}

}  // namespace carat
