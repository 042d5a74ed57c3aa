#include "base/cpus.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "base/error.h"
#include "base/file.h"

namespace carat {
namespace {

std::string text_of(const std::string& path) {
  try {
    return read_file(path, size_t{1} << 22);
  } catch (const Error&) {
    return {};
  }
}

// "0-3,8" as Linux writes lists of processors.
std::vector<int> list_of(const std::string& text) {
  std::vector<int> all;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    int first = 0, last = 0;
    const int n = std::sscanf(part.c_str(), "%d-%d", &first, &last);
    if (n < 1 || first < 0 || (n == 2 && last > (1 << 20))) continue;
    for (int i = first; i <= (n == 2 ? last : first); ++i) all.push_back(i);
  }
  return all;
}

double number_of(const std::string& path) {
  double v = 0;
  return std::sscanf(text_of(path).c_str(), "%lf", &v) == 1 ? v : 0;
}

// Speeds in any unit: what the kernel's scheduler goes by, else the highest clock. An efficiency core of
// Intel's has vectors half as wide.
double speed_of(const std::string& cpus, int id, const std::vector<int>& efficient) {
  const std::string cpu = fmt::format("{}/cpu/cpu{}", cpus, id);
  if (const double capacity = number_of(cpu + "/cpu_capacity"); capacity > 0) return capacity;
  const double clock = number_of(cpu + "/cpufreq/cpuinfo_max_freq");
  const bool slow = std::find(efficient.begin(), efficient.end(), id) != efficient.end();
  return (clock > 0 ? clock : 1) * (slow ? 0.5 : 1);
}

struct Mount {
  std::string group, at;  // the group that is mounted, and where
};

// Mounts of control groups that may limit processors. A line of mountinfo: id parent device root mount-point
// options... - type source options.
std::vector<Mount> cpu_mounts(const std::string& root, bool version_2) {
  std::vector<Mount> all;
  std::istringstream in(text_of(root + "/proc/self/mountinfo"));
  for (std::string line; std::getline(in, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream front(line), back(line.substr(dash + 3));
    std::string skip, type, source, options;
    Mount m;
    front >> skip >> skip >> skip >> m.group >> m.at;
    back >> type >> source >> options;
    const bool cpu = fmt::format(",{},", options).find(",cpu,") != std::string::npos;
    if (version_2 ? type == "cgroup2" : type == "cgroup" && cpu) all.push_back(m);
  }
  return all;
}

double quota_in(const std::string& folder, bool version_2) {
  double quota = -1, period = 0;
  if (version_2) {  // "max 100000" or "150000 100000"
    if (std::sscanf(text_of(folder + "/cpu.max").c_str(), "%lf %lf", &quota, &period) != 2) return -1;
  } else {
    if (std::sscanf(text_of(folder + "/cpu.cfs_quota_us").c_str(), "%lf", &quota) != 1) return -1;
    period = number_of(folder + "/cpu.cfs_period_us");
  }
  return quota > 0 && period > 0 ? quota / period : -1;
}

// The least of a group and those around it, as far as they can be seen from here.
double quota_of(const std::string& root, const std::string& group, bool version_2) {
  double least = -1;
  for (const Mount& m : cpu_mounts(root, version_2)) {
    // In a container the file system may begin at the group itself, whose path is then that of the machine.
    std::string below = group;
    if (m.group != "/" && (below + "/").starts_with(m.group + "/")) below.erase(0, m.group.size());
    while (true) {
      while (!below.empty() && below.back() == '/') below.pop_back();
      const double quota = quota_in(root + m.at + below, version_2);
      if (quota > 0) least = least < 0 ? quota : std::min(least, quota);
      if (below.empty()) break;
      below.erase(below.rfind('/') == std::string::npos ? 0 : below.rfind('/'));
    }
  }
  return least;
}

}  // namespace

Numa parse_numa(std::string_view word) {
  if (word.empty()) return Numa::off;
  if (word == "distribute") return Numa::distribute;
  if (word == "isolate") return Numa::isolate;
  if (word == "numactl") return Numa::numactl;
  throw Error(fmt::format("--numa {} is not known", word), "use distribute, isolate or numactl");
}

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  for (int room = 1024; room <= 1 << 20; room *= 2) {  // the kernel refuses a mask that is too short
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(room));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(room));
    CPU_ZERO_S(bytes, set);
    const bool told = sched_getaffinity(0, bytes, set) == 0;
    const bool short_mask = !told && errno == EINVAL;
    for (int i = 0; told && i < room; ++i)
      if (CPU_ISSET_S(static_cast<size_t>(i), bytes, set)) cpus.push_back(i);
    CPU_FREE(set);
    if (!short_mask) break;
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

std::vector<Cpu> cpus_of(const std::vector<int>& ids, const std::string& root) {
  const std::string devices = root + "/sys/devices", system = devices + "/system";
  const std::vector<int> efficient = list_of(text_of(devices + "/cpu_atom/cpus"));
  std::vector<Cpu> cpus;
  std::vector<double> speed;
  double most = 0;
  for (const int id : ids) {
    cpus.push_back({id});
    speed.push_back(speed_of(system, id, efficient));
    most = std::max(most, speed.back());
  }
  for (size_t i = 0; i < cpus.size(); ++i)
    cpus[i].speed = std::max(1, static_cast<int>(std::lround(speed[i] / most * 1024)));
  for (const int node : list_of(text_of(system + "/node/online")))
    for (const int id : list_of(text_of(fmt::format("{}/node/node{}/cpulist", system, node))))
      for (Cpu& c : cpus)
        if (c.id == id) c.node = node;
  std::stable_sort(cpus.begin(), cpus.end(), [](const Cpu& a, const Cpu& b) { return a.node < b.node; });
  return cpus;
}

double cgroup_quota(const std::string& root) {
  double least = -1;
  std::istringstream in(text_of(root + "/proc/self/cgroup"));
  for (std::string line; std::getline(in, line);) {  // number:controllers:path
    const size_t a = line.find(':'), b = line.find(':', a == std::string::npos ? a : a + 1);
    if (b == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(a + 1, b - a - 1));
    const bool version_2 = controllers == ",,";
    if (!version_2 && controllers.find(",cpu,") == std::string::npos) continue;
    const double quota = quota_of(root, line.substr(b + 1), version_2);
    if (quota > 0) least = least < 0 ? quota : std::min(least, quota);
  }
  return least;
}

int threads_for(int n, double quota) {
  return quota > 0 ? std::clamp(static_cast<int>(std::ceil(quota)), 1, n) : n;
}

std::vector<Place> places(int threads, Numa numa, std::vector<Cpu> cpus, double quota, int here) {
  if (numa == Numa::isolate) {
    int node = cpus.front().node;
    for (const Cpu& c : cpus)
      if (c.id == here) node = c.node;
    std::erase_if(cpus, [&](const Cpu& c) { return c.node != node; });
  }
  const int all = static_cast<int>(cpus.size()), n = threads > 0 ? threads : threads_for(all, quota);
  std::vector<Place> team(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    Place& p = team[static_cast<size_t>(i)];
    if (n == all) {
      const Cpu& c = cpus[static_cast<size_t>(i)];
      p = {{c.id}, c.node, c.speed};
    } else if (numa == Numa::isolate || numa == Numa::distribute) {
      // The processor in the middle of the thread's part of all says which node; all of that node are its.
      const auto middle = static_cast<size_t>((int64_t{2} * i + 1) * all / (int64_t{2} * n));
      p.node = cpus[middle].node;
      for (const Cpu& c : cpus)
        if (c.node == p.node) p.cpus.push_back(c.id);
    }
  }
  return team;
}

}  // namespace carat
