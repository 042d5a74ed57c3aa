// Products of few outputs over the same rows, of floats in one type: routers, one kernel for all of them.
#pragma once
#include "cuda/ops/ops.h"

namespace carat::cuda {

// Of a step: every block of threads copies them all, so more are slower (docs/lab/2026-11-29-few-rows.md).
inline constexpr int32_t kRouterRows = 4;
// Whether that kernel computes a, alone or among others.
bool router_fits(const MatmulArgs& a, const DeviceProps& device);
// Up to kMatmulsAtOnce of them over one type.
void routers(const Context& c, const std::vector<MatmulArgs>& a, RowSet rows);

}  // namespace carat::cuda
