// Workers and the tasks of a step: each task runs once, and only after all of the phase before.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <thread>
#include <utility>
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
  for (const int threads : {1, 2, 3, 4, 5, 7, 8, 9, 11, 16, 17, 31, 65, 96}) {
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
    for (size_t step = 0; step < (threads > 32 ? 6u : 40u); ++step) {
      const Traced* before = nullptr;
      for (size_t i = 0; i < kPhases; ++i) {
        Traced& op = *ops[i];
        op.n = counts[(i + step) % std::size(counts)];
        op.before = before, op.slow = step % 4 ? nullptr : &scratch[step / 4 % threads];
        op.ran.assign(op.n, 0), op.depth.assign(op.n, 0);
        if (op.n > 0) before = &op;
      }
      prepare_step(exe, Lanes(threads), alloc_pages);
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

TEST_CASE("the lanes of all numbers of workers, fast and slow, cover all tasks once") {
  for (int threads = 1; threads <= 1024; ++threads)
    for (const bool hybrid : {false, true}) {
      std::vector<Place> team(static_cast<size_t>(threads));
      for (size_t w = 0; hybrid && w < team.size(); w += 3) team[w].speed = static_cast<int>(100 + w % 900);
      const Lanes lanes(team);
      uint32_t wrong = lanes.first_worker(0) != 0 || lanes.first_worker(lanes.count()) != threads;
      for (int w = 0; w < threads; ++w) {
        const int lane = lanes.of(w);
        wrong += lane < 0 || lane >= lanes.count() || w < lanes.first_worker(lane) ||
                 w >= lanes.first_worker(lane + 1);
      }
      for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{1000}, (int64_t{1} << 24) - 1}) {
        wrong += lanes.first_task(n, 0) != 0 || lanes.first_task(n, lanes.count()) != n;
        for (int lane = 0; lane < lanes.count(); ++lane)
          wrong += lanes.first_task(n, lane) > lanes.first_task(n, lane + 1);
      }
      CHECK(wrong == 0);
    }
}

namespace {

// A phase of n equal tasks in virtual time: who is free first takes next. Its length over the least that
// these speeds allow, or over a slow one's single task where that is longer.
double stretch(const std::vector<double>& speed, const std::vector<Place>& told, int64_t n) {
  StepState state{};
  CpuExecutable exe;
  exe.state = &state;
  prepare_step(exe, Lanes(told), alloc_pages);
  std::set<std::pair<double, int>> free;
  std::vector<int> steal(speed.size());
  double all = 0, end = 0, slowest = 1;
  for (size_t w = 0; w < speed.size(); ++w) {
    free.insert({0, static_cast<int>(w)});
    all += speed[w], slowest = std::min(slowest, speed[w]);
  }
  int64_t ran = 0;
  while (!free.empty()) {
    const auto [now, w] = *free.begin();
    free.erase(free.begin());
    const Tasks t = take(exe, 0, n, w, steal[static_cast<size_t>(w)]);
    if (t.first >= t.last) continue;
    ran += t.last - t.first;
    const double until = now + static_cast<double>(t.last - t.first) / speed[static_cast<size_t>(w)];
    end = std::max(end, until);
    free.insert({until, w});
  }
  CHECK(ran == n);
  return end / (static_cast<double>(n) / all + 1 / slowest);
}

}  // namespace

TEST_CASE("no phase waits for the share of a slow core") {
  for (const int threads : {4, 8, 16, 20, 32, 64, 128, 192}) {
    CAPTURE(threads);
    const auto n = static_cast<size_t>(threads);
    const std::vector<Place> even(n);
    for (const int64_t each : {64, 32, 8}) {
      CAPTURE(each);
      std::vector<double> half(n, 1), one(n, 1), tenth(n, 1);
      std::vector<Place> known(n);
      for (size_t w = 0; w < n; w += 2) half[w] = 0.5, known[w].speed = 512;
      CHECK(stretch(half, known, threads * each) < 1.05);
      CHECK(stretch(half, even, threads * each) < 1.05);  // nothing tells which are slow
      for (size_t w = 0; w < n / 2; ++w) half[w] = 1, half[n / 2 + w] = 0.5;
      CHECK(stretch(half, even, threads * each) < 1.05);
      one[n / 3] = 0.3;
      CHECK(stretch(one, even, threads * each) < 1.05);
      tenth[n / 2] = 0.1;  // one that other programs keep busy
      CHECK(stretch(tenth, even, threads * each) < 1.25);
    }
  }
}

TEST_CASE("workers of a node take from each other before they take from another node") {
  std::vector<Place> team(16);
  for (size_t w = 8; w < 16; ++w) team[w].node = 1;
  const Lanes lanes(team);
  REQUIRE(lanes.nodes() == 2);
  CHECK(lanes.first_on(1) == 8);
  CHECK(lanes.node_of(7) == 0);
  CHECK(lanes.node_of(8) == 1);
  StepState state{};
  CpuExecutable exe;
  exe.state = &state;
  prepare_step(exe, lanes, alloc_pages);
  int steal = 0;
  int64_t own = 0;
  for (int64_t all = 0; all < 1600;) {  // one worker does everything
    const Tasks t = take(exe, 0, 1600, 9, steal);
    REQUIRE(t.first < t.last);
    if (all < 800) {
      CHECK(t.first >= 800);
      own += t.last - t.first;
    }
    all += t.last - t.first;
  }
  CHECK(own == 800);
}
