#include "cuda/matmul/matmul_packed.cuh"

namespace carat::cuda {
CARAT_CUDA_PACKED_INSTANCES(DType::q5_k)
CARAT_CUDA_PAIR_INSTANCES(DType::q5_k, DType::q6_k)
}  // namespace carat::cuda
