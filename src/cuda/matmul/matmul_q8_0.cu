#include "cuda/matmul/matmul_packed.cuh"

namespace carat::cuda {
CARAT_CUDA_PACKED_INSTANCES(DType::q8_0)
}  // namespace carat::cuda
