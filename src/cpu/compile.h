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

namespace carat::cpu {

struct CpuExecutable : Executable {
  const StepState* state = nullptr;
  std::vector<Phase> phases;
  // The phases' operands; deques, since phases point into them.
  std::deque<QuantOp> quants;
  std::deque<DenseOp> denses;
  std::deque<ExpertsOp> experts;
  std::deque<SliceOp> slices;
  std::deque<ConvOp> convs;
  std::deque<DeltaOp> deltas;
  std::vector<SeqRun> runs;  // of this step
  std::deque<Slots> slots;
  std::deque<AttentionOp> attentions;
  std::deque<EmbedOp> embeds;
  std::deque<GatherOp> gathers;
  std::deque<NormOp> norms;
  std::deque<RouteOp> routes;
  std::deque<TopOp> tops;
  std::deque<RopeOp> ropes;
  std::deque<PrepOp> preps;

  int32_t max_rows = 0, max_out = 0;  // rows the operands have room for
  std::vector<Buffer> memory;
  Buffer partial;  // of split attention; grows with the context
  std::vector<Worker> workers;

  // Next task of each phase, and how many are done; a line each, since all workers write it.
  struct alignas(64) Counter {
    std::atomic<int64_t> next{0};
    std::atomic<uint32_t> done{0};
  };
  std::unique_ptr<Counter[]> counters;
  std::vector<double>* seconds = nullptr;  // of this step: per operation of the program, added to
  Step step;
};

using Alloc = Buffer (*)(size_t bytes);

std::unique_ptr<CpuExecutable> compile_program(const Program& program, const StepState* state,
                                               const Kernels& kernels, int threads, Alloc alloc);
// Reads the state and decides what depends on it. Nothing of the executable may be running.
void prepare_step(CpuExecutable& exe, int threads, Alloc alloc);
// One worker's part. A phase is over when its tasks are done, not when all workers have come: one that the OS
// keeps waiting holds up nobody, and skips what it missed.
void run_phases(CpuExecutable& exe, int worker);

}  // namespace carat::cpu
