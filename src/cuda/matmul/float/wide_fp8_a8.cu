#include "cuda/matmul/float/wide.cuh"

namespace carat::cuda {
template void float_wide_by_rows<DType::fp8_a8>(const Context&, const TileJob&, const Rounded&, RowSet,
                                                const MatmulArgs*, int);
}  // namespace carat::cuda
