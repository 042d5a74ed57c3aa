// Products of many rows with weights that the host keeps: the device multiplies, and the weights come to it,
// one operation's at a time. Rows have the bits that the host would give them (docs/numerics.md).
#pragma once
#include <memory>
#include <vector>

#include "cuda/executable.h"

namespace carat::cuda {

struct Streamed {
  struct Weight {
    int32_t op;
    Tensor from, to;  // the host's strips; packed, on the device
  };
  Program program;  // with weights where they come to
  std::vector<Weight> weights;
  std::shared_ptr<Memory> memory;  // of the largest operation's weights, then a piece of strips
};
// Copies and launches, in order on the stream; memory: Streamed's.
void bring_weight(const Launcher& l, const Streamed::Weight& w, const Memory& memory);
// The program as it is where weights are not streamed: few rows, float weights, memory that the device cannot
// read or does not have.
Streamed stream_weights(const Program& program, HostPart& host);

}  // namespace carat::cuda
