// Attention of towers for pictures (attends_whole(), cuda/ops/tower.h).
#pragma once
#include "cuda/attention/attention.cuh"
#include "cuda/ops/tower.h"

namespace carat::cuda {

// rows: of the program's bucket. Rows stand on chains.
void attention_whole(const Context& c, const AttentionPart& a, int32_t rows, RowSet set);

}  // namespace carat::cuda
