// When attention of a single row serves, and in which shapes: those that were measured to pay on an H200.
#include "cuda/attention/single/long.cuh"
#include "cuda/attention/single/single.cuh"

namespace carat::cuda {
namespace {

template <class S>
bool fits(const Context& c, AttentionPart& a, const RowPrep& prep, RowSet set) {
  if (!serves<S>(c)) return false;
  a.folds = S::kFolds;
  run_single<S>(c, a, prep, set);
  return true;
}

RowPrep row_prep(const QkvPrepArgs& p) {
  const auto row = [](const Tensor& t) { return reinterpret_cast<const float*>(t.data); };
  return {row(p.k), row(p.v), row(p.q_norm), row(p.k_norm), p.rope, p.eps, p.v_norm, true};
}
// Pairs that a lane has: half a head apart, or 32 elements.
bool pairs_in_lanes(const Rope& r, int32_t dim) {
  return r.pairs == 0 || (r.offset == dim / 2 && r.pairs <= dim / 2) || (r.offset == 32 && r.pairs <= 32);
}

// Single copies of K = V.
bool attention_single_copies(const Context& c, AttentionPart& a, RowSet set) {
  if (a.copies.protect.any() || a.copies.key_dim != kKeyColumns || a.kv.dim != 512) return false;
  const auto any = [&](auto shape) { return fits<decltype(shape)>(c, a, RowPrep{}, set); };
  switch (a.kv.v_type) {
    case DType::q8_0: return any(LongShape<DType::q8_0, 4, 1, true>());
    case DType::kv4: return any(LongShape<DType::kv4, 4, 2, true>());
    case DType::tq3: return any(LongShape<DType::tq3, 6, 2, true>());
    default: return false;
  }
}

}  // namespace

bool attention_single(const Context& c, AttentionPart& a, int32_t rows, RowSet set,
                      const QkvPrepArgs* prepares) {
  if (prepares && !pairs_in_lanes(prepares->rope, a.kv.dim)) return false;
  const RowPrep prep = prepares ? row_prep(*prepares) : RowPrep{};
  if (!a.split || rows != 1 || a.kv.k_type != a.kv.v_type || a.group > kSingleHeads) return false;
  if (a.copies.any()) return !prepares && attention_single_copies(c, a, set);
  const auto any = [&](auto shape) { return fits<decltype(shape)>(c, a, prep, set); };
  const auto window = [&](auto folded, auto other) {
    return folds_window(a.kv.window) ? any(folded) : any(other);
  };
  if (a.kv.dim == 512) switch (a.kv.k_type) {
      case DType::f16: return any(SingleShape<DType::f16, 512, 3, 1>());
      case DType::q8_0:
        return a.kv.heads <= 2 ? any(LongShape<DType::q8_0, 6, 1>())
                               : any(SingleShape<DType::q8_0, 512, 3, 2>());
      case DType::kv4: return any(LongShape<DType::kv4, 5>());
      case DType::tq3: return any(LongShape<DType::tq3, 8>());
      default: return false;
    }
  if (a.kv.dim == 256) switch (a.kv.k_type) {
      case DType::f16:
        return window(SingleShape<DType::f16, 256, 2, 2, true>(), SingleShape<DType::f16, 256, 2, 3>());
      case DType::q8_0:
        return window(SingleShape<DType::q8_0, 256, 3, 2, true>(), SingleShape<DType::q8_0, 256, 3, 3>());
      case DType::kv4:
        return window(SingleShape<DType::kv4, 256, 4, 2, true>(), SingleShape<DType::kv4, 256, 4, 3>());
      case DType::tq3:
        return window(SingleShape<DType::tq3, 256, 4, 2, true>(), SingleShape<DType::tq3, 256, 4, 3>());
      default: return false;
    }
  return false;
}

}  // namespace carat::cuda
