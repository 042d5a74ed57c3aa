// What kernels of RmsNorm over groups of columns have in common.
#pragma once
#include "cuda/device/activate.cuh"
#include "cuda/ops/ops.h"

namespace carat::cuda {

// 1 / rms of a group of `width` columns, by a warp.
CARAT_D float group_inverse_rms(const float* x, int32_t width, float eps, int lane) {
  float sum = 0;
  for (int32_t i = lane; i < width; i += 32) sum = fmaf(x[i], x[i], sum);
  return 1 / sqrtf(warp_sum_f(sum) / static_cast<float>(width) + eps);
}

// Column i of the group that begins at column `first`. v: x / rms.
CARAT_D void norm_element(const RmsNormArgs& a, int32_t m, int32_t first, int32_t i, float v) {
  if (a.weight.data) v = v * row_of<const float>(a.weight, 0)[i];
  if (a.residual.data) v = v + row_of<const float>(a.residual, m)[first + i];
  if (a.gain.data) v = v * row_of<const float>(a.gain, 0)[a.gain.cols == 1 ? 0 : first + i];
  v = v * a.scale;
  if (a.mul.data) v = v * activate(a.act, row_of<const float>(a.mul, m)[first + i]);
  row_of<float>(a.y, m)[first + i] = v;
}

}  // namespace carat::cuda
