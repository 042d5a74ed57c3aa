// A program turned into phases: operands resolved, scratch laid out, everything that does not change from
// step to step.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/backend.h"
#include "cpu/kernels.h"
#include "cpu/lanes.h"

namespace carat::cpu {

struct ShareOp {
  ShareArgs a;
  RowSet rows;
};

struct CpuExecutable : Executable {
  const StepState* state = nullptr;
  std::vector<Phase> phases;
  // The phases' operands, which stay where they are. Steps write to slots and attentions; the others are kept
  // as they were made.
  std::deque<Slots> slots;
  std::deque<AttentionOp> attentions;
  std::vector<std::shared_ptr<const void>> kept;
  template <class T>
  const T* keep(T op) {
    auto at = std::make_shared<const T>(std::move(op));
    kept.push_back(at);
    return at.get();
  }
  bool recurrent = false;    // some operation follows sequences through the step:
  std::vector<SeqRun> runs;  // their rows

  int32_t max_rows = 0, max_out = 0;  // rows the operands have room for
  std::vector<Buffer> memory;
  Buffer partial;  // of split attention; grows with the context
  std::vector<Worker> workers;

  // Tasks of each phase that are done; a line each, since all workers write it.
  struct alignas(64) Done {
    std::atomic<uint32_t> tasks{0};
  };
  std::unique_ptr<Done[]> done;
  // Tasks that are left of each lane (run_phases.cc).
  struct alignas(64) Left {
    std::atomic<uint64_t> tasks{0};
  };
  Left left[Lanes::kMost];
  Lanes lanes;                             // of this step
  std::vector<double>* seconds = nullptr;  // of this step: per operation of the program, added to
  Step step;
};

constexpr size_t kMaxPhases = (1 << 16) - 1;  // run_phases.cc packs a phase and two tasks in 64 bits
using Alloc = Buffer (*)(size_t bytes);

std::unique_ptr<CpuExecutable> compile_program(const Program& program, const StepState* state,
                                               const Kernels& kernels, int threads, Alloc alloc);
// Reads the state and decides what depends on it. Nothing of the executable may be running.
void prepare_step(CpuExecutable& exe, const Lanes& lanes, Alloc alloc);

struct Tasks {
  int64_t first = 0, last = 0;
};
// Takes some of the n tasks of phase i for a worker; none: no task is left. steal: 0 before the worker's
// first call in a phase; then which lanes have been found empty.
Tasks take(CpuExecutable& exe, size_t i, int64_t n, int worker, int& steal);
// One worker's part (run_phases.cc). A phase is over when its tasks are done, not when all workers have come:
// one that the OS keeps waiting holds up nobody, and skips what it missed.
void run_phases(CpuExecutable& exe, int worker);

}  // namespace carat::cpu
