#include "base/threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/file.h"

namespace carat {
namespace {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int i = 0; i < CPU_SETSIZE; ++i)
      if (CPU_ISSET(i, &set)) cpus.push_back(i);
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

// CPUs' worth of time the cgroup grants, or a negative number for no limit. Version 2: "max 100000" or
// "150000 100000".
double cgroup_quota() {
  const auto read = [](const char* path) -> std::string {
    try {
      return read_file(path, 4096);
    } catch (const Error&) {
      return {};
    }
  };
  double quota = -1, period = 0;
  const std::string v2 = read("/sys/fs/cgroup/cpu.max");
  if (!v2.empty()) {
    if (std::sscanf(v2.c_str(), "%lf %lf", &quota, &period) == 2 && period > 0) return quota / period;
    return -1;
  }
  const std::string q = read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
                    p = read("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (std::sscanf(q.c_str(), "%lf", &quota) == 1 && std::sscanf(p.c_str(), "%lf", &period) == 1 &&
      quota > 0 && period > 0)
    return quota / period;
  return -1;
}

}  // namespace

uint32_t await_change(const std::atomic<uint32_t>& value, uint32_t seen) {
  for (int i = 0;; ++i) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != seen) return now;
    if (i < 4000)
      relax();
    else if (i < 4400)
      sched_yield();
    else
      value.wait(seen, std::memory_order_acquire);
  }
}

int available_cpus() {
  const int n = static_cast<int>(allowed_cpus().size());
  const double quota = cgroup_quota();
  return quota > 0 ? std::clamp(static_cast<int>(std::ceil(quota)), 1, n) : n;
}

Team::Team(int n) {
  const std::vector<int> cpus = allowed_cpus();
  if (n <= 0) n = available_cpus();
  n = std::min(n, 1024);
  const bool pin = n == static_cast<int>(cpus.size());
  threads_.reserve(n);
  try {
    for (int i = 0; i < n; ++i) threads_.emplace_back(&Team::loop, this, i, pin ? cpus[i] : -1);
  } catch (const std::system_error& e) {
    end();
    throw Error(fmt::format("cannot start {} threads: {}", n, e.code().message()),
                "use fewer with -t, or raise the limits of memory and processes");
  }
}

Team::~Team() {
  wait();
  end();
}

void Team::end() {
  stop_.store(true, std::memory_order_relaxed);
  region_.fetch_add(1, std::memory_order_release);
  region_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void Team::start(std::function<void(int)> work) {
  wait();
  work_ = std::move(work);
  running_.store(size(), std::memory_order_relaxed);
  region_.fetch_add(1, std::memory_order_release);
  region_.notify_all();
}

void Team::wait() {
  const uint32_t want = region_.load(std::memory_order_relaxed);
  for (uint32_t done = done_.load(std::memory_order_acquire); done != want;) done = await_change(done_, done);
}

void Team::loop(int worker, int cpu) {
  if (cpu >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // a refusal costs speed, nothing else
  }
  for (uint32_t seen = 0;;) {
    seen = await_change(region_, seen);
    if (stop_.load(std::memory_order_relaxed)) return;
    work_(worker);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      done_.store(seen, std::memory_order_release);
      done_.notify_all();
    }
  }
}

}  // namespace carat
