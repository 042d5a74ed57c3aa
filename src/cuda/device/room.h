// How much of a device's memory this program may take.
#pragma once
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>

namespace carat::cuda {

struct MemoryRoom {
  int64_t free = 0, total = 0;  // bytes
};

// limit: the device counts as one that has no more than this, other programs' use included (bytes; 0: none).
// utilization: the share of it that may be used.
inline MemoryRoom room_within(MemoryRoom device, int64_t limit, double utilization) {
  MemoryRoom r = device;
  if (limit > 0 && limit < device.total) {
    r.total = limit;
    r.free = limit - (device.total - device.free);
  }
  r.free -= static_cast<int64_t>((1 - utilization) * static_cast<double>(r.total));
  r.free = std::max<int64_t>(0, r.free);
  return r;
}

// A GPU that shares the host's memory (GB10, Jetson): its driver counts the page cache as used, though the
// kernel gives it back. So what is free is MemAvailable of /proc/meminfo, less a sixteenth of all memory for
// everything else that runs. Without that line: what the driver says.
inline MemoryRoom unified_room(MemoryRoom driver, std::string_view meminfo) {
  constexpr std::string_view kName = "MemAvailable:";
  const size_t at = meminfo.find(kName);
  if (at == std::string_view::npos) return driver;
  size_t begin = at + kName.size();
  while (begin < meminfo.size() && meminfo[begin] == ' ') ++begin;
  int64_t kib = 0;
  const auto [end, error] = std::from_chars(meminfo.data() + begin, meminfo.data() + meminfo.size(), kib);
  if (error != std::errc() || kib <= 0) return driver;
  const int64_t available = kib * 1024 - driver.total / 16;
  return {std::clamp<int64_t>(available, 0, driver.total), driver.total};
}

}  // namespace carat::cuda
