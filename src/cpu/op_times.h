// How long operations take, for carat bench --ops.
#pragma once
#include <vector>

#include "core/backend.h"

namespace carat {

// Every submit from now on adds to (*seconds)[i] what operation i of its program took; null: no more. A
// backend that is not the CPU's leaves it as it is.
void time_ops(Backend& backend, std::vector<double>* seconds);

}  // namespace carat
