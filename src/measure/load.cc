#include "measure/load.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/threads.h"

namespace carat {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double rounded(double v) { return std::round(v * 1000) / 1000; }

struct Sample {
  Clock::time_point at = Clock::now();
  double busy = 0, steal = 0;                               // ticks of the allowed processors
  std::map<int, std::pair<std::string, double>> processes;  // name, ticks
  double throttled = 0;                                     // seconds, by the cgroup
};

std::string first_line(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

double value_of(const std::filesystem::path& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) return std::strtod(line.c_str() + line.find_first_of("0123456789"), nullptr);
  return 0;
}

// user and system ticks of /proc/PID/stat, whose second field may hold any character.
std::pair<std::string, double> ticks_of(const std::filesystem::path& stat) {
  const std::string line = first_line(stat);
  const size_t open = line.find('('), close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return {};
  std::istringstream rest(line.substr(close + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) rest >> skipped;  // state .. cmajflt
  double user = 0, system = 0;
  rest >> user >> system;
  return {line.substr(open + 1, close - open - 1), user + system};
}

Sample take(const std::string& proc) {
  // Others' work on processors that this process may not use is not in its way.
  static const std::vector<int> mine = allowed_cpus();
  static const std::set<int> allowed(mine.begin(), mine.end());
  Sample s;
  std::ifstream in(proc + "/stat");
  for (std::string line; std::getline(in, line);) {
    std::istringstream f(line);
    std::string name;
    double v[8] = {};  // user nice system idle iowait irq softirq steal
    f >> name;
    if (!name.starts_with("cpu") || name.size() == 3) continue;
    for (double& x : v) f >> x;
    if (!allowed.contains(std::atoi(name.c_str() + 3))) continue;
    s.busy += v[0] + v[1] + v[2] + v[5] + v[6];
    s.steal += v[7];
  }
  std::error_code ec;
  for (const auto& e : std::filesystem::directory_iterator(proc, ec)) {
    const std::string name = e.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    auto ticks = ticks_of(e.path() / "stat");
    if (!ticks.first.empty()) s.processes[std::atoi(name.c_str())] = std::move(ticks);
  }
  s.throttled = value_of("/sys/fs/cgroup/cpu.stat", "throttled_usec") * 1e-6;
  return s;
}

Json gpu_json(const Nvml& nvml, int gpu, const std::string& proc) {
  const GpuState s = nvml.state(gpu);
  Json j = {{"memory_used_bytes", s.memory_used}};
  if (s.utilization) j["utilization"] = *s.utilization;
  if (s.temperature_c) j["temperature_c"] = *s.temperature_c;
  if (s.sm_mhz) j["sm_mhz"] = *s.sm_mhz;
  if (s.watts) j["watts"] = *s.watts;
  if (s.throttle) j["throttle_reasons"] = *s.throttle;
  for (const GpuState::Process& p : s.processes)
    if (p.pid != static_cast<uint32_t>(::getpid()))
      j["other_processes"].push_back(
          {{"pid", p.pid}, {"name", first_line(fmt::format("{}/{}/comm", proc, p.pid))}, {"bytes", p.bytes}});
  return j;
}

}  // namespace

struct LoadWatch::Impl {
  std::shared_ptr<Nvml> nvml;
  std::string proc;
  Sample last;
};

LoadWatch::LoadWatch(std::shared_ptr<Nvml> nvml, std::string proc)
    : impl_(new Impl{std::move(nvml), std::move(proc), {}}) {
  impl_->last = take(impl_->proc);
}
LoadWatch::~LoadWatch() = default;

Json LoadWatch::state() {
  const Sample now = take(impl_->proc), &last = impl_->last;
  const double seconds = std::max(1e-3, std::chrono::duration<double>(now.at - last.at).count());
  const double per = 1 / (static_cast<double>(::sysconf(_SC_CLK_TCK)) * seconds);
  double own = 0;
  std::vector<Json> top;
  for (const auto& [pid, process] : now.processes) {
    const auto before = last.processes.find(pid);
    if (before == last.processes.end()) continue;
    const double cpus = (process.second - before->second.second) * per;
    if (pid == ::getpid())
      own = cpus;
    else if (cpus >= 0.02)
      top.push_back({{"pid", pid}, {"name", process.first}, {"cpus", rounded(cpus)}});
  }
  std::sort(top.begin(), top.end(), [](const Json& a, const Json& b) { return a["cpus"] > b["cpus"]; });
  if (top.size() > 5) top.resize(5);
  double load[3] = {0, 0, 0};
  Json j = {{"seconds", rounded(seconds)},
            {"cpus", available_cpus()},
            {"own_cpus", rounded(own)},
            {"others_cpus", rounded(std::max(0.0, (now.busy - last.busy) * per - own))},
            {"steal_cpus", rounded((now.steal - last.steal) * per)},
            {"throttled_seconds", rounded(now.throttled - last.throttled)}};
  if (::getloadavg(load, 3) > 0) j["load_average"] = rounded(load[0]);
  j["memory_free_bytes"] = static_cast<int64_t>(value_of(impl_->proc + "/meminfo", "MemAvailable") * 1024);
  j["top"] = top;
  for (int g = 0; impl_->nvml && g < impl_->nvml->count(); ++g)
    j["gpus"].push_back(gpu_json(*impl_->nvml, g, impl_->proc));
  impl_->last = now;
  return j;
}

namespace {
// Of a process in another container nothing but its number is seen.
std::string named(const Json& process) {
  const std::string name = process.value("name", "");
  return name.empty() ? "a process" : name;
}
}  // namespace

std::vector<std::string> busy_with(const Json& state, const BusyLimits& limits) {
  std::vector<std::string> all;
  const double cpus = std::max(1, state.value("cpus", 1)), others = state.value("others_cpus", 0.0);
  if (others > limits.cores * cpus) {
    std::string text = fmt::format("other processes take {:.1f} of {:.0f} processors", others, cpus);
    std::string most;
    for (const Json& p : state.value("top", Json::array()))
      most += fmt::format("{}{} ({}) {:.1f}", most.empty() ? "" : ", ", p["name"].get<std::string>(),
                          p["pid"].get<int>(), p["cpus"].get<double>());
    all.push_back(most.empty() ? text : text + ": " + most);
  }
  if (const double s = state.value("steal_cpus", 0.0); s > limits.steal * cpus)
    all.push_back(fmt::format("the hypervisor takes {:.1f} of {:.0f} processors", s, cpus));
  if (const double s = state.value("throttled_seconds", 0.0); s > 0.05 * state.value("seconds", 1.0))
    all.push_back(fmt::format("the control group held this process back for {:.1f} s", s));
  const Json gpus = state.value("gpus", Json::array());
  for (size_t g = 0; g < gpus.size(); ++g) {
    if (const double u = gpus[g].value("utilization", 0.0); u > limits.gpu)
      all.push_back(fmt::format("GPU {} is busy {:.0f} % of the time", g, 100 * u));
    for (const Json& p : limits.holders ? gpus[g].value("other_processes", Json::array()) : Json::array())
      all.push_back(fmt::format("{} ({}) holds {:.1f} GB of GPU {}", named(p), p["pid"].get<uint32_t>(),
                                static_cast<double>(p["bytes"].get<int64_t>()) / 1e9, g));
  }
  return all;
}

Json machine_json(const Nvml* nvml) {
  std::string cpu = "unknown";
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name")) {
      cpu = line.substr(line.find(':') + 2);
      break;
    }
  utsname system{};
  ::uname(&system);
  Json j = {{"cpu", cpu},
            {"cpus", available_cpus()},
            {"memory_bytes", static_cast<int64_t>(value_of("/proc/meminfo", "MemTotal") * 1024)},
            {"system", fmt::format("{} {} {}", system.sysname, system.release, system.machine)}};
  for (int g = 0; nvml && g < nvml->count(); ++g) {
    const GpuFacts f = nvml->facts(g);
    Json gpu = {{"name", f.name}, {"driver", f.driver}, {"memory_bytes", f.memory_bytes}};
    if (f.power_limit_w) gpu["power_limit_w"] = *f.power_limit_w;
    j["gpus"].push_back(std::move(gpu));
  }
  return j;
}

}  // namespace carat
