#include "cuda/matmul.cuh"

namespace carat::cuda {
CARAT_CUDA_INSTANCES(q5_k)
}  // namespace carat::cuda
