// Attention of sequences that have a row each, in steps of many rows.
#pragma once
#include "cuda/attention/attention.cuh"

namespace carat::cuda {

// False: these caches or heads are nothing for its kernel. Other sequences' rows are left to others.
bool attention_batch(const Context& c, const AttentionPart& a, int32_t rows, RowSet set);

}  // namespace carat::cuda
