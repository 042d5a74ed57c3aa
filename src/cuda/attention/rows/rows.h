// Attention of a few rows of a sequence over packed caches (rows/rows.cuh).
#pragma once
#include "cuda/attention/attention.cuh"

namespace carat::cuda {

// False if these caches, these heads or this device are nothing for it.
bool attention_rows(const Context& c, const AttentionPart& a, int32_t rows, RowSet set);

}  // namespace carat::cuda
