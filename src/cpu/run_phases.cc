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

// All of a phase that this worker gets; returns how many tasks it ran.
uint32_t work(CpuExecutable& exe, size_t i, int64_t n, int worker) {
  const Phase& p = exe.phases[i];
  uint32_t ran = 0;
  int steal = 0;
  while (true) {
    Tasks t = take(exe, i, n, worker, steal);
    if (t.first >= t.last) return ran;
    ran += static_cast<uint32_t>(t.last - t.first);
    for (; t.first < t.last; ++t.first) p.run(exe.step, p.op, t.first, exe.workers[worker]);
  }
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
    const int lane = exe.lanes.of(worker);
    const int64_t n = p.count(exe.step, p.op), first = exe.lanes.first_task(n, lane),
                  last = exe.lanes.first_task(n, lane + 1);
    if (first == last || worker != exe.lanes.first_worker(lane)) return;
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

// From the front of the worker's own lane, in order, so that weights are read as one stream; from the end of
// others, those first that share most of its number: they are on its node. Nobody waits for a worker that the
// OS keeps: who comes first opens a lane.
Tasks take(CpuExecutable& exe, size_t i, int64_t n, int worker, int& steal) {
  const Lanes& lanes = exe.lanes;
  const uint64_t phase = i + 1;
  for (; steal < Lanes::kMost; ++steal) {
    const int lane = lanes.of(worker) ^ steal;
    if (lane >= lanes.count()) continue;
    std::atomic<uint64_t>& at = exe.left[lane].tasks;
    for (uint64_t seen = at.load(std::memory_order_relaxed);;) {
      Share s = unpacked(seen);
      if (s.phase > phase) break;  // this phase is over
      if (s.phase < phase)
        s = {phase, static_cast<uint64_t>(lanes.first_task(n, lane)),
             static_cast<uint64_t>(lanes.first_task(n, lane + 1))};
      if (s.last == s.first) break;
      const auto some =
          static_cast<uint64_t>(lanes.portion(lane, worker, static_cast<int64_t>(s.last - s.first)));
      const Share rest =
          steal == 0 ? Share{phase, s.first + some, s.last} : Share{phase, s.first, s.last - some};
      if (at.compare_exchange_weak(seen, packed(rest), std::memory_order_relaxed))
        return steal == 0 ? Tasks{static_cast<int64_t>(s.first), static_cast<int64_t>(rest.first)}
                          : Tasks{static_cast<int64_t>(rest.last), static_cast<int64_t>(s.last)};
    }
  }
  return {};
}

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
