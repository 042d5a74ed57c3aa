// When attention of sequences with a row each serves, and in which shapes.
#include "cuda/attention/single/batch.cuh"

namespace carat::cuda {

bool attention_batch(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  if (a.split || rows == 1 || a.kv.k_type != a.kv.v_type || a.group > kSingleHeads) return false;
  const auto run = [&](auto shape) { return run_batch<decltype(shape)>(c, a, rows, set); };
  if (a.kv.dim == 512) switch (a.kv.k_type) {
      case DType::f16: return run(SingleShape<DType::f16, 512, 3, 1>());
      case DType::q8_0: return run(SingleShape<DType::q8_0, 512, 3, 2>());
      default: return false;
    }
  if (a.kv.dim == 256) switch (a.kv.k_type) {
      case DType::f16: return run(SingleShape<DType::f16, 256, 2, 2>());
      case DType::q8_0: return run(SingleShape<DType::q8_0, 256, 3, 2>());
      case DType::kv4: return run(SingleShape<DType::kv4, 256, 4, 2>());
      case DType::tq3: return run(SingleShape<DType::tq3, 256, 4, 2>());
      default: return false;
    }
  return false;
}

}  // namespace carat::cuda
