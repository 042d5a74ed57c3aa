// What steps with pictures and sounds have beyond others. Soft rows themselves are copied to their places
// before a step begins (backend.cc): in those the token is ~token, and Embed leaves them as they are.
#pragma once
#include "cuda/device/step.h"

namespace carat::cuda {

struct SoftStep : DevStep {  // every step in device memory is one
  const int32_t* place;      // [n_rows][3] as StepState::place, or null
};

#if defined(__CUDACC__) || defined(CARAT_CUDA_EMULATE)

// What pair i of a rotation turns by, of a row that stands at `pos`.
CARAT_D int32_t place_of(const DevStep* s, const Rope& rope, int32_t row, int32_t pos, int32_t i) {
  if (!rope.axis) return pos;
  const int32_t* place = static_cast<const SoftStep*>(s)->place;
  return place ? place[int64_t{3} * row + rope.axis[i]] : pos;
}

#endif

}  // namespace carat::cuda
