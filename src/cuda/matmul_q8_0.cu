#include "cuda/matmul.cuh"

namespace carat::cuda {
CARAT_CUDA_INSTANCES(q8_0)
}  // namespace carat::cuda
