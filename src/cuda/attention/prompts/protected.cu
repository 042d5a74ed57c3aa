// Prompts over decoded caches with protected rows.
#include "cuda/attention/prompts/prompts.cuh"

namespace carat::cuda {

void attend_protected(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  attend_decoded<true>(c, a, rows, set);
}

}  // namespace carat::cuda
