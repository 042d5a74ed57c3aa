#include "apps/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace carat {

std::string human_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  int u = 0;
  while (bytes >= 1000 && u < 4) bytes /= 1000, ++u;
  return fmt::format("{:.{}f} {}", bytes, bytes < 10 && u > 0 ? 1 : 0, kUnits[u]);
}

ProgressBar::ProgressBar(std::string what, std::string unit)
    : what_(std::move(what)), unit_(std::move(unit)), terminal_(::isatty(2) != 0) {}

ProgressBar::~ProgressBar() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::update(double done, double total, std::string_view detail) {
  if (!terminal_ || total <= 0) return;
  const auto now = Clock::now();
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  if (elapsed < 0.5 || now - drawn_ < std::chrono::milliseconds(100)) return;
  drawn_ = now;
  shown_ = true;
  const double part = std::clamp(done / total, 0.0, 1.0), rate = done / elapsed;
  constexpr int kWidth = 30;
  const int full = static_cast<int>(part * kWidth);
  std::string line = fmt::format("\r{} [{}{}] {:3.0f} %", what_, std::string(full, '#'),
                                 std::string(kWidth - full, '.'), part * 100);
  if (unit_ == "B") line += fmt::format("  {}/s", human_bytes(rate));
  if (unit_ != "B" && !unit_.empty()) line += fmt::format("  {:.1f} {}/s", rate, unit_);
  if (part > 0.01) line += fmt::format("  {:.0f} s left", elapsed / part - elapsed);
  if (!detail.empty()) line += fmt::format("  {}", detail);
  line += "\033[K";
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace carat
