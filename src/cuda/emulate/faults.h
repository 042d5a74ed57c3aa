// Faults of emulated devices, for tests.
#pragma once
#include <cstdint>

namespace carat::cuda {

// The device runs so many kernels more; then its context is lost: kernels do nothing, and whatever asks it
// for something gets what the CUDA runtime says then.
void lose_device(int index, int64_t kernels);
void repair_devices();  // all, as if the process had begun anew

}  // namespace carat::cuda
