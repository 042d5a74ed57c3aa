#include "cuda/matmul/packed/instances.cuh"
#include "cuda/matmul/wide/tiles.cuh"

namespace carat::cuda {
CARAT_CUDA_PACKED_INSTANCES(DType::iq2_s)
template bool wide_tiles_of<DType::iq2_s>(const Context&, const TileJob&, const Rounded&, RowSet,
                                          const MatmulArgs*, int);
}  // namespace carat::cuda
