#include "cuda/attention/tiles/tiles.cuh"

namespace carat::cuda {
void attention_f16(const Context& c, AttentionPart a, int32_t rows, RowSet set) {
  by_head<KvKinds<DType::f16, DType::f16>>(c, a, rows, set);
}
}  // namespace carat::cuda
