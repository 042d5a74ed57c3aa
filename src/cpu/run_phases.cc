// How workers go through the phases of a step.
#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/threads.h"
#include "cpu/compile.h"

namespace carat::cpu {
namespace {

// Which tasks of which phase a lane still has: [first, last).
struct Share {
  uint64_t phase, first, last;
};
constexpr int kTaskBits = 24;
constexpr uint64_t kMaxTasks = uint64_t{1} << kTaskBits;
uint64_t packed(Share s) { return s.phase << 2 * kTaskBits | s.first << kTaskBits | s.last; }
Share unpacked(uint64_t v) {
  return {v >> 2 * kTaskBits, v >> kTaskBits & (kMaxTasks - 1), v & (kMaxTasks - 1)};
}

struct Tasks {
  int64_t first = 0, last = 0;
};

// Takes tasks of phase i from a lane: its own workers from the front, in order, so that weights are read as
// one stream; others a quarter of what is left from the end. Nobody waits for a worker that the OS keeps: who
// comes first opens a lane.
Tasks take(CpuExecutable& exe, uint64_t phase, int64_t n, int lane, bool own) {
  const int workers = exe.first_worker(lane + 1) - exe.first_worker(lane);
  std::atomic<uint64_t>& at = exe.shares[lane].tasks;
  for (uint64_t seen = at.load(std::memory_order_relaxed);;) {
    Share s = unpacked(seen);
    if (s.phase > phase) return {};  // this phase is over
    if (s.phase < phase)
      s = {phase, static_cast<uint64_t>(exe.first_task(n, lane)),
           static_cast<uint64_t>(exe.first_task(n, lane + 1))};
    const uint64_t left = s.last - s.first;
    if (left == 0) return {};
    const uint64_t some = std::max<uint64_t>(1, !own ? left / 4 : workers > 1 ? left / (4 * workers) : 1);
    const Share rest = own ? Share{phase, s.first + some, s.last} : Share{phase, s.first, s.last - some};
    if (at.compare_exchange_weak(seen, packed(rest), std::memory_order_relaxed))
      return own ? Tasks{static_cast<int64_t>(s.first), static_cast<int64_t>(rest.first)}
                 : Tasks{static_cast<int64_t>(rest.last), static_cast<int64_t>(s.last)};
  }
}

// All of a phase that this worker gets; returns how many tasks it ran.
uint32_t work(CpuExecutable& exe, size_t i, int64_t n, int worker) {
  const Phase& p = exe.phases[i];
  const int lanes = exe.lanes(), own = exe.lane_of(worker);
  uint32_t ran = 0;
  for (int k = 0; k < lanes; ++k)
    while (true) {
      Tasks t = take(exe, i + 1, n, (own + k) % lanes, k == 0);
      if (t.first >= t.last) break;
      ran += static_cast<uint32_t>(t.last - t.first);
      for (; t.first < t.last; ++t.first) p.run(exe.step, p.op, t.first, exe.workers[worker]);
    }
  return ran;
}

// Weights that a worker will read first in a phase to come, asked for while it waits for others.
class Ahead {
 public:
  // Behind phase i.
  void aim(const CpuExecutable& exe, size_t i, int worker) {
    const size_t next = exe.phases[i].next_dense;
    if (next == phase_) return;
    phase_ = next, at_ = 0, end_ = 0;
    if (next == 0) return;
    const Phase& p = exe.phases[next];
    const DenseOp& op = *static_cast<const DenseOp*>(p.op);
    const int lane = exe.lane_of(worker);
    const int64_t n = p.count(exe.step, p.op), first = exe.first_task(n, lane),
                  last = exe.first_task(n, lane + 1);
    if (first == last || worker != exe.first_worker(lane)) return;
    const int64_t per = strips_a_task(op.a.w.rows, exe.step.threads),
                  runs = (strips(op.a.w.rows) + per - 1) / per;
    const int64_t strip = first % runs * per;
    size_ = op.a.w.pitch * kStripRows;
    w_[0] = op.a.w.data + strip * size_;
    w_[1] = op.up.valid() ? op.up.data + strip * op.up.pitch * kStripRows : nullptr;
    end_ = std::min<int64_t>(kBytes, (last - first) * per * size_);
  }
  // Asks for some more; false: there is nothing.
  bool step() {
    if (at_ >= end_) return false;
    for (int i = 0; i < 8; ++i, at_ += 64) {
      const int64_t strip = at_ / size_, in = at_ % size_;
      const std::byte* w = w_[1] ? w_[strip % 2] + strip / 2 * size_ : w_[0] + strip * size_;
      __builtin_prefetch(w + in, 0, 2);
    }
    return true;
  }

 private:
  static constexpr int64_t kBytes = 128 << 10;
  size_t phase_ = 0;
  int64_t at_ = 0, end_ = 0, size_ = 1;
  const std::byte* w_[2] = {};
};

}  // namespace

void run_phases(CpuExecutable& exe, int worker) {
  const bool timed = exe.seconds && worker == 0;
  using Clock = std::chrono::steady_clock;
  Clock::time_point began = timed ? Clock::now() : Clock::time_point();
  Ahead ahead;
  for (size_t i = 0; i < exe.phases.size(); ++i) {
    const Phase& p = exe.phases[i];
    const int64_t n = p.count(exe.step, p.op);
    if (n == 0) continue;
    CARAT_CHECK(n < static_cast<int64_t>(kMaxTasks), "{} tasks", n);
    std::atomic<uint32_t>& done = exe.done[i].tasks;
    const uint32_t mine = work(exe, i, n, worker);
    const auto all = static_cast<uint32_t>(n);
    if (mine > 0 && done.fetch_add(mine, std::memory_order_acq_rel) + mine == all) {
      done.notify_all();
    } else {
      ahead.aim(exe, i, worker);
      for (uint32_t now = done.load(std::memory_order_acquire); now != all;)
        now = ahead.step() ? done.load(std::memory_order_acquire) : await_change(done, now);
    }
    if (timed) {
      const Clock::time_point now = Clock::now();
      (*exe.seconds)[p.record] += std::chrono::duration<double>(now - began).count();
      began = now;
    }
  }
}

}  // namespace carat::cpu
