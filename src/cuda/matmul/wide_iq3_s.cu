#include "cuda/matmul/wide_tiles.cuh"

namespace carat::cuda {
template bool wide_tiles_of<DType::iq3_s>(const Context&, const TileJob&, const Rounded&, RowSet,
                                          const MatmulArgs*, int);
}  // namespace carat::cuda
