#include "cuda/matmul/packed/instances.cuh"

namespace carat::cuda {
CARAT_CUDA_PACKED_INSTANCES(DType::q5_1)
}  // namespace carat::cuda
