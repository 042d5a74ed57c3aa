// A progress bar on stderr, only where a person watches (a terminal) and only once something takes noticeably
// long.
#pragma once
#include <chrono>
#include <string>
#include <string_view>

namespace carat {

class ProgressBar {
 public:
  // what: "loading", "converting". unit: what `done` counts ("tok", "B"); bytes are shown as MB, GB.
  explicit ProgressBar(std::string what, std::string unit = "");
  ~ProgressBar();  // wipes the bar
  void update(double done, double total, std::string_view detail = {});

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_, unit_;
  Clock::time_point start_ = Clock::now(), drawn_{};
  bool terminal_, shown_ = false;
};

// "3.2 GB", "17 MB".
std::string human_bytes(double bytes);

}  // namespace carat
