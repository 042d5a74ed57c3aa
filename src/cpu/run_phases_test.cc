// Workers and the tasks of a step: each task runs once, and only after all of the phase before.
#include <doctest/doctest.h>

#include <memory>
#include <thread>
#include <vector>

#include "base/threads.h"
#include "cpu/compile.h"
#include "cpu/memory.h"
#include "cpu/pack.h"

using namespace carat;
using namespace carat::cpu;

namespace {

// A phase whose tasks leave plain, unguarded traces: a task that runs twice or too early is seen in them, and
// is a race to the thread sanitizer.
struct Traced : DenseOp {
  int64_t n = 0;
  const Traced* before = nullptr;
  std::vector<uint32_t> ran, depth;
  const std::byte* slow = nullptr;  // the scratch of a worker that the OS keeps
};

int64_t count(const Step&, const void* p) {
  return static_cast<const Traced*>(static_cast<const DenseOp*>(p))->n;
}
void run(const Step&, const void* p, int64_t task, Worker& worker) {
  Traced& op = *const_cast<Traced*>(static_cast<const Traced*>(static_cast<const DenseOp*>(p)));
  ++op.ran[task];
  uint32_t low = 0;
  if (op.before) {
    low = op.before->depth[op.before->n - 1 - task % op.before->n];
    for (int64_t i = 0; i < op.before->n; i += op.before->n / 16 + 1)
      low = std::min(low, op.before->depth[i]);
  }
  op.depth[task] = low + 1;
  if (worker.scratch == op.slow && task % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
}

}  // namespace

TEST_CASE("each task runs once, after all of the phase before, on any number of workers") {
  std::vector<std::byte> weights(1 << 16);
  for (const int threads : {1, 2, 3, 4, 5, 7, 8, 9, 11, 16, 17, 31}) {
    CAPTURE(threads);
    const int64_t counts[] = {1, threads, 0, 1000, threads - 1,     1, 1, threads + 1, 37,
                              0, 0,       2, 511,  8 * threads + 3, 1};
    constexpr size_t kPhases = 45;
    StepState state{};
    CpuExecutable exe;
    exe.state = &state;
    std::vector<std::unique_ptr<Traced>> ops;
    for (size_t i = 0; i < kPhases; ++i) {
      Traced& op = *ops.emplace_back(std::make_unique<Traced>());
      op.a.w = make_tensor(weights.data(), DType::q8_0, 16 * 40, 64);
      if (i % 2) op.up = op.a.w;
      exe.phases.push_back({count, run, static_cast<DenseOp*>(&op), 0, i % 3 ? i / 3 * 3 + 3 : i + 3});
      if (exe.phases.back().next_dense >= kPhases) exe.phases.back().next_dense = 0;
    }
    exe.done = std::make_unique<CpuExecutable::Done[]>(kPhases);
    std::vector<std::byte> scratch(threads);
    for (std::byte& b : scratch) exe.workers.push_back({&b});
    Team team(threads);
    for (size_t step = 0; step < 40; ++step) {
      const Traced* before = nullptr;
      for (size_t i = 0; i < kPhases; ++i) {
        Traced& op = *ops[i];
        op.n = counts[(i + step) % std::size(counts)];
        op.before = before, op.slow = step % 4 ? nullptr : &scratch[step / 4 % threads];
        op.ran.assign(op.n, 0), op.depth.assign(op.n, 0);
        if (op.n > 0) before = &op;
      }
      prepare_step(exe, threads, alloc_pages);
      team.start([&](int worker) { run_phases(exe, worker); });
      team.wait();
      uint32_t depth = 0, wrong = 0;
      for (const auto& op : ops) {
        depth += op->n > 0;
        for (int64_t t = 0; t < op->n; ++t) wrong += op->ran[t] != 1 || op->depth[t] != depth;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("the lanes of all numbers of workers cover all tasks once") {
  CpuExecutable exe;
  for (int threads = 1; threads <= 1024; ++threads) {
    exe.step.threads = threads;
    uint32_t wrong = exe.first_worker(0) != 0 || exe.first_worker(exe.lanes()) != threads;
    for (int w = 0; w < threads; ++w) {
      const int lane = exe.lane_of(w);
      wrong +=
          lane < 0 || lane >= exe.lanes() || w < exe.first_worker(lane) || w >= exe.first_worker(lane + 1);
    }
    for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{1000}, (int64_t{1} << 24) - 1}) {
      wrong += exe.first_task(n, 0) != 0 || exe.first_task(n, exe.lanes()) != n;
      for (int lane = 0; lane < exe.lanes(); ++lane)
        wrong += exe.first_task(n, lane) > exe.first_task(n, lane + 1);
    }
    CHECK(wrong == 0);
  }
}
