#include "cuda/attention/tiles/tiles.cuh"

namespace carat::cuda {
void attention_copies(const Context& c, AttentionPart a, int32_t rows, RowSet set) {
  if (a.kv.dim == 256) return by_rows<256, AnyKvKinds, true>(c, a, rows, set);
  by_rows<512, AnyKvKinds, true>(c, a, rows, set);
}
}  // namespace carat::cuda
