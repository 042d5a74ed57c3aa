#include "base/threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <system_error>

#include "base/error.h"

namespace carat {
namespace {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void stay_on(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  const auto room = static_cast<size_t>(*std::max_element(cpus.begin(), cpus.end()) + 1);
  cpu_set_t* set = CPU_ALLOC(room);
  const size_t bytes = CPU_ALLOC_SIZE(room);
  CPU_ZERO_S(bytes, set);
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
  pthread_setaffinity_np(pthread_self(), bytes, set);  // a refusal costs speed, nothing else
  CPU_FREE(set);
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

int available_cpus() { return threads_for(static_cast<int>(allowed_cpus().size()), cgroup_quota()); }

Team::Team(int n, Numa numa) {
  n = std::min(n, 1024);
  places_ = carat::places(n, numa, cpus_of(allowed_cpus()), cgroup_quota(), sched_getcpu());
  n = static_cast<int>(places_.size());
  threads_.reserve(places_.size());
  try {
    for (int i = 0; i < n; ++i) threads_.emplace_back(&Team::loop, this, i);
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

void Team::loop(int worker) {
  stay_on(places_[static_cast<size_t>(worker)].cpus);
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
