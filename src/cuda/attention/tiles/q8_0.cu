#include "cuda/attention/tiles/tiles.cuh"

namespace carat::cuda {
void attention_q8_0(const Context& c, AttentionPart a, int32_t rows, RowSet set) {
  by_head<KvKinds<DType::q8_0, DType::q8_0>>(c, a, rows, set);
}
}  // namespace carat::cuda
