#include "cuda/matmul/matmul_packed.cuh"

namespace carat::cuda {
CARAT_CUDA_PACKED_INSTANCES(DType::q4_1)
}  // namespace carat::cuda
