#include "cuda/matmul.cuh"

namespace carat::cuda {
CARAT_CUDA_INSTANCES(q4_k)
}  // namespace carat::cuda
