#include "base/log.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>

namespace carat {
namespace {
std::atomic<LogLevel> g_level{LogLevel::info};
}

void set_log_level(LogLevel level) { g_level = level; }
LogLevel log_level() { return g_level.load(std::memory_order_relaxed); }

void log_line(LogLevel level, std::string_view text) {
  static constexpr const char* kNames[] = {"debug", "info", "warn", "error", ""};
  const auto now = std::chrono::system_clock::now();
  const std::time_t t = std::chrono::system_clock::to_time_t(now);
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm tm{};
  localtime_r(&t, &tm);
  const std::string line = fmt::format("{:02}:{:02}:{:02}.{:03} {} {}\n", tm.tm_hour, tm.tm_min, tm.tm_sec,
                                       ms, kNames[static_cast<int>(level)], text);
  std::fwrite(line.data(), 1, line.size(), stderr);  // one call: lines of several threads do not mix
}

}  // namespace carat
