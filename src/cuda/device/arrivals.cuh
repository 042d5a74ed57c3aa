// Warps that arrive at an mbarrier.
#pragma once
#include "cuda/device/rt.h"

namespace carat::cuda {

// One lane says that its warp has read or written what others wait for, behind a warp barrier.
// compute-sanitizer's racecheck does not follow that: with CARAT_RACECHECK every lane says it (3 % of a
// prompt's time).
#ifdef CARAT_RACECHECK
inline constexpr bool kEveryLaneArrives = true;
#else
inline constexpr bool kEveryLaneArrives = false;
#endif
// How often such a gate is arrived at by so many warps.
CARAT_HD constexpr int arrivals(int warps) { return kEveryLaneArrives ? 32 * warps : warps; }
CARAT_D void arrive_as_warp(SharedAddress gate) {
  sync_warp();
  if (kEveryLaneArrives || threadIdx.x % 32 == 0) gate_arrive(gate);
}

}  // namespace carat::cuda
