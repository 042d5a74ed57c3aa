#include "cuda/matmul/matmul_packed.cuh"

namespace carat::cuda {
CARAT_CUDA_PACKED_INSTANCES(DType::iq3_xxs)
}  // namespace carat::cuda
