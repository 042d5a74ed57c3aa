#include "cuda/matmul/packed/instances.cuh"

namespace carat::cuda {
CARAT_CUDA_PACKED_INSTANCES(DType::q4_1)
}  // namespace carat::cuda
