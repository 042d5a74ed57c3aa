// What Prometheus's client libraries say of every process, by their names.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "serve/metrics.h"

namespace carat {
namespace {

double seconds(const timeval& t) {
  return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
}

}  // namespace

std::string process_metrics(double start) {
  std::string out;
  const auto value = [&](std::string_view name, std::string_view type, std::string_view help, auto v) {
    out += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n{0} {3}\n", name, type, help, v);
  };
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  value("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", pages * page);
  value("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", resident * page);
  value("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.",
        fmt::format("{:.2f}", start));
  rusage used{};
  if (::getrusage(RUSAGE_SELF, &used) == 0)
    value("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.",
          fmt::format("{:.2f}", seconds(used.ru_utime) + seconds(used.ru_stime)));
  std::error_code ec;
  int64_t files = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", ec), end; !ec && it != end; it.increment(ec))
    ++files;
  if (files > 0)
    value("process_open_fds", "gauge", "Number of open file descriptors.", files - 1);  // one is this
  rlimit most{};
  if (::getrlimit(RLIMIT_NOFILE, &most) == 0)
    value("process_max_fds", "gauge", "Maximum number of open file descriptors.", most.rlim_cur);
  return out;
}

}  // namespace carat
