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

struct ShareOp {
  ShareArgs a;
  RowSet rows;
};

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
  std::deque<PointwiseOp> pointwise;
  std::deque<LayerNormOp> layer_norms;
  std::deque<BandOp> bands;
  std::deque<RouteOp> routes;
  std::deque<TopOp> tops;
  std::deque<ShareOp> shared;
  std::deque<RopeOp> ropes;
  std::deque<PrepOp> preps;

  int32_t max_rows = 0, max_out = 0;  // rows the operands have room for
  std::vector<Buffer> memory;
  Buffer partial;  // of split attention; grows with the context
  std::vector<Worker> workers;

  // Tasks of each phase that are done; a line each, since all workers write it.
  struct alignas(64) Done {
    std::atomic<uint32_t> tasks{0};
  };
  std::unique_ptr<Done[]> done;
  // Tasks that are left, in lanes: of a worker each, or of a few where there are many (run_phases.cc).
  struct alignas(64) Lane {
    std::atomic<uint64_t> tasks{0};
  };
  static constexpr int kLanes = 8;
  Lane shares[kLanes];
  int lanes() const { return step.threads < kLanes ? step.threads : kLanes; }
  int lane_of(int worker) const { return worker * lanes() / step.threads; }
  int first_worker(int lane) const { return (lane * step.threads + lanes() - 1) / lanes(); }
  // The first of n tasks that a lane has: as many as its workers' part.
  int64_t first_task(int64_t n, int lane) const { return n * first_worker(lane) / step.threads; }
  std::vector<double>* seconds = nullptr;  // of this step: per operation of the program, added to
  Step step;
};

constexpr size_t kMaxPhases = (1 << 16) - 1;  // run_phases.cc packs a phase and two tasks in 64 bits
using Alloc = Buffer (*)(size_t bytes);

std::unique_ptr<CpuExecutable> compile_program(const Program& program, const StepState* state,
                                               const Kernels& kernels, int threads, Alloc alloc);
// Reads the state and decides what depends on it. Nothing of the executable may be running.
void prepare_step(CpuExecutable& exe, int threads, Alloc alloc);
// One worker's part (run_phases.cc). A phase is over when its tasks are done, not when all workers have come:
// one that the OS keeps waiting holds up nobody, and skips what it missed.
void run_phases(CpuExecutable& exe, int worker);

}  // namespace carat::cpu
