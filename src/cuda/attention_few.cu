#include "cuda/attention_few.cuh"

namespace carat::cuda {

bool attention_few(const Context& c, AttentionPart& args, int32_t rows, RowSet set) {
  AttentionPart a = args;
  a.chunks = (a.group + kFewPairs - 1) / kFewPairs;
  a.width = (a.group + a.chunks - 1) / a.chunks;
  if (!a.split || rows * a.width > kFewPairs || c.launcher.major < 9 || a.kv.k_type != a.kv.v_type) return false;
  a.folds = a.kv.window > 0 && a.kv.window <= kFoldedWindow && rows * a.heads <= kArrivals;
  const auto run = [&]<class S>(S) {
    if (S::kBytes > c.launcher.shared) return false;
    args.folds = a.folds;
    run_few<S>(c, a, set);
    return true;
  };
  if (a.kv.dim == 512) switch (a.kv.k_type) {
      case DType::f16: return run(FewShape<DType::f16, 512, 3, 1>());
      case DType::q8_0: return run(FewShape<DType::q8_0, 512, 3, 2>());
      case DType::kv4: return run(FewShape<DType::kv4, 512, 4, 2>());
      case DType::tq3: return run(FewShape<DType::tq3, 512, 4, 2>());
      default: return false;
    }
  if (a.kv.dim == 256) switch (a.kv.k_type) {
      case DType::f16: return run(FewShape<DType::f16, 256, 3, 2>());
      case DType::q8_0: return run(FewShape<DType::q8_0, 256, 4, 2>());
      case DType::kv4: return run(FewShape<DType::kv4, 256, 4, 2>());
      case DType::tq3: return run(FewShape<DType::tq3, 256, 4, 2>());
      default: return false;
    }
  return false;
}

}  // namespace carat::cuda
