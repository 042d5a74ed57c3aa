#include "cuda/attention/tiles/tiles.cuh"

namespace carat::cuda {
void attention_packed(const Context& c, AttentionPart a, int32_t rows, RowSet set) {
  by_head<AnyKvKinds>(c, a, rows, set);
}
}  // namespace carat::cuda
