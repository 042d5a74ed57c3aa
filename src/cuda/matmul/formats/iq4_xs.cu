#include "cuda/matmul/packed/instances.cuh"
#include "cuda/matmul/wide/tiles.cuh"

namespace carat::cuda {
CARAT_CUDA_PACKED_INSTANCES(DType::iq4_xs)
template bool wide_tiles_of<DType::iq4_xs>(const Context&, const TileJob&, const Rounded&, RowSet,
                                           const MatmulArgs*, int);
}  // namespace carat::cuda
