#include "base/log.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>

#include "base/printable.h"

namespace carat {
namespace {
std::atomic<LogLevel> g_level{LogLevel::info};
}  // namespace

std::string printable(std::string_view text, bool lines) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const unsigned b = byte(i);
    size_t n = b < 0x80 ? 1 : b >> 5 == 0x6 ? 2 : b >> 4 == 0xE ? 3 : b >> 3 == 0x1E ? 4 : 0;
    for (size_t k = 1; k < n; ++k)
      if (byte(i + k) >> 6 != 2) n = 0;
    const bool control =
        (b < 0x20 && !(lines && b == '\n')) || b == 0x7F || (b == 0xC2 && byte(i + 1) < 0xA0);
    if (n == 0 || control)
      out += fmt::format("\\x{:02x}", b), ++i;
    else
      out += text.substr(i, n), i += n;
  }
  return out;
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
                                       ms, kNames[static_cast<int>(level)], printable(text));
  std::fwrite(line.data(), 1, line.size(), stderr);  // one call: lines of several threads do not mix
}

}  // namespace carat
