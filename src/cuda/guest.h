// A second backend on a device that a model runs on.
#pragma once
#include <memory>

#include "core/backend.h"

namespace carat {

// For programs of another thread than the host's, which run between its steps (cuda/turns.h): a step waits
// for one program at most. Null: `host` is no CUDA device.
std::unique_ptr<Backend> make_cuda_guest(Backend& host);

}  // namespace carat
