// Which instruction sets this machine and its kernel offer.
#pragma once
#include <string_view>
#include <vector>

#include "cpu/kernels.h"

namespace carat::cpu {

// From worst to best; "baseline" is always there. "amx" is listed only if the OS grants the tile state, which
// asking requests for the process.
std::vector<std::string_view> present_isas();
Kernels kernels_of(std::string_view isa);

}  // namespace carat::cpu
