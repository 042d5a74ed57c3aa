#include "cuda/matmul.cuh"

namespace carat::cuda {
CARAT_CUDA_INSTANCES(bf16)
}  // namespace carat::cuda
