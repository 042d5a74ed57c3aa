// One line a message on stderr: "time level message". Levels by --log-level; the page and the pipes own
// stdout.
#pragma once
#include <fmt/format.h>

#include <string_view>

namespace carat {

enum class LogLevel : int { debug, info, warn, error, off };
void set_log_level(LogLevel level);
LogLevel log_level();
void log_line(LogLevel level, std::string_view text);

template <class... T>
void log_debug(fmt::format_string<T...> f, T&&... v) {
  if (log_level() <= LogLevel::debug) log_line(LogLevel::debug, fmt::format(f, std::forward<T>(v)...));
}
template <class... T>
void log_info(fmt::format_string<T...> f, T&&... v) {
  if (log_level() <= LogLevel::info) log_line(LogLevel::info, fmt::format(f, std::forward<T>(v)...));
}
template <class... T>
void log_warn(fmt::format_string<T...> f, T&&... v) {
  if (log_level() <= LogLevel::warn) log_line(LogLevel::warn, fmt::format(f, std::forward<T>(v)...));
}
template <class... T>
void log_error(fmt::format_string<T...> f, T&&... v) {
  if (log_level() <= LogLevel::error) log_line(LogLevel::error, fmt::format(f, std::forward<T>(v)...));
}

}  // namespace carat
