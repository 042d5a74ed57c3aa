#include "cuda/attention_tiles.cuh"

namespace carat::cuda {
void attention_packed(const Context& c, AttentionPart a, int32_t rows, RowSet set) {
  if (a.kv.dim <= 128 || a.kv.dim == 256 || a.kv.dim == 512) return by_head<AnyKvKinds>(c, a, rows, set);
  by_rows<512, false, AnyKvKinds>(c, a, rows, set);
}
}  // namespace carat::cuda
