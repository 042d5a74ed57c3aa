#include "cuda/matmul.cuh"

namespace carat::cuda {
CARAT_CUDA_INSTANCES(q6_k)
}  // namespace carat::cuda
