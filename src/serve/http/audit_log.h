// A file with a line for every request: which client, from where, for what, and what came of it. Refused ones
// too; no text of prompts or answers, no keys.
#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "serve/http/request_log.h"

namespace carat {

class AuditLog {
 public:
  // Appends; Error if the file cannot be written. Others than its owner cannot read a file that it makes.
  explicit AuditLog(std::string path);
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;
  // Any thread. A file that was moved away (logrotate) is begun anew, within a second. One that cannot be
  // written costs its lines, which the other log says.
  void write(const Answered& a);

 private:
  using Clock = std::chrono::steady_clock;
  using Id = std::pair<uint64_t, uint64_t>;
  bool open();

  const std::string path_;
  std::mutex mutex_;
  int file_ = -1;
  Id id_;
  Clock::time_point looked_{};
  bool failing_ = false;
};

}  // namespace carat
