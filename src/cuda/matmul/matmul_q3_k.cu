#include "cuda/matmul/matmul_packed.cuh"

namespace carat::cuda {
CARAT_CUDA_PACKED_INSTANCES(DType::q3_k)
}  // namespace carat::cuda
