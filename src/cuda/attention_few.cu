// When attention of few pairs serves, and in which shapes: those that were measured to pay on an H200. One
// row only: of several, trees above all, a misaligned address was seen there in q8_0 at head size 512,
// unexplained.
#include "cuda/attention_few.cuh"

namespace carat::cuda {
namespace {

template <class S>
bool fits(const Context& c, AttentionPart& a, RowSet set) {
  const int32_t chunks = (a.group + 15) / 16, width = (a.group + chunks - 1) / chunks;
  if (!serves<S>(c) || width > S::kPairs) return false;
  a.chunks = chunks, a.width = width;
  run_few<S>(c, a, set);
  return true;
}

}  // namespace

bool attention_few(const Context& c, AttentionPart& args, int32_t rows, RowSet set) {
  AttentionPart a = args;
  if (!a.split || rows != 1 || a.kv.k_type != a.kv.v_type) return false;
  a.folds = a.kv.dim == 256 && a.kv.window > 0 && a.kv.window <= kFoldedWindow && rows * a.heads <= kArrivals;
  const auto any = [&](auto shape) { return fits<decltype(shape)>(c, a, set); };
  const auto run = [&] {
    if (a.kv.dim == 512) switch (a.kv.k_type) {
        case DType::f16: return any(FewShape<DType::f16, 512, 8, 3, 1>());  // more: attention_tiles.cuh
        case DType::q8_0: return any(FewShape<DType::q8_0, 512, 8, 3, 2>());
        case DType::kv4: return any(FewShape<DType::kv4, 512, 8, 4, 2>());
        case DType::tq3: return any(FewShape<DType::tq3, 512, 8, 4, 2>());
        default: return false;
      }
    if (a.kv.dim == 256) switch (a.kv.k_type) {
        case DType::f16: return any(FewShape<DType::f16, 256, 8, 2, 3>());
        case DType::q8_0: return any(FewShape<DType::q8_0, 256, 8, 3, 3>());
        case DType::kv4: return any(FewShape<DType::kv4, 256, 8, 4, 3>());
        case DType::tq3: return any(FewShape<DType::tq3, 256, 8, 4, 3>());
        default: return false;
      }
    return false;
  };
  if (!run()) return false;
  args.folds = a.folds;
  return true;
}

}  // namespace carat::cuda
