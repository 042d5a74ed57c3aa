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

// Packed caches in heads of 512 whose row has been prepared: keys and values of two types, single copies of
// K = V, protected rows.
bool attention_prepared(const Context& c, AttentionPart& a, RowSet set) {
  using enum DType;
  const bool one = a.copies.pairs > 0, protects = a.copies.protect.any();
  const DType k = a.kv.k_type, v = a.kv.v_type;
  if (a.kv.dim != 512 || (one && (k != v || a.copies.key_dim != kKeyColumns))) return false;
  const auto any = [&](auto shape) { return fits<decltype(shape)>(c, a, RowPrep{}, set); };
  const auto either = [&](auto plain, auto with) { return protects ? any(with) : any(plain); };
  if (one) {
    if (v == kv4) return either(LongShape<kv4, kv4, 4, 2, true>(), LongShape<kv4, kv4, 4, 2, true, true>());
    if (v == tq3) return either(LongShape<tq3, tq3, 6, 2, true>(), LongShape<tq3, tq3, 6, 2, true, true>());
    return v == q8_0 && !protects && any(LongShape<q8_0, q8_0, 4, 1, true>());
  }
  if (k == kv4 && v == tq3) return either(LongShape<kv4, tq3, 6>(), LongShape<kv4, tq3, 6, 2, false, true>());
  if (k == q8_0 && v == kv4) return !protects && any(LongShape<q8_0, kv4, 8, 1>());
  if (!protects || k != v) return false;
  return k == kv4   ? any(LongShape<kv4, kv4, 5, 2, false, true>())
         : k == tq3 ? any(LongShape<tq3, tq3, 7, 2, false, true>())
                    : false;
}

}  // namespace

bool attention_single(const Context& c, AttentionPart& a, int32_t rows, RowSet set,
                      const QkvPrepArgs* prepares) {
  if (prepares && !pairs_in_lanes(prepares->rope, a.kv.dim)) return false;
  const RowPrep prep = prepares ? row_prep(*prepares) : RowPrep{};
  if (!a.split || rows != 1 || a.group > kSingleHeads) return false;
  if (a.copies.any() || a.kv.k_type != a.kv.v_type) return !prepares && attention_prepared(c, a, set);
  const auto any = [&](auto shape) { return fits<decltype(shape)>(c, a, prep, set); };
  const auto window = [&](auto folded, auto other) {
    return folds_window(a.kv.window) ? any(folded) : any(other);
  };
  using enum DType;
  if (a.kv.dim == 512) switch (a.kv.k_type) {
      case f16: return any(SingleShape<f16, 512, 3, 1>());
      case q8_0:
        return a.kv.heads <= 2 ? any(LongShape<q8_0, q8_0, 6, 1>()) : any(SingleShape<q8_0, 512, 3, 2>());
      case kv4: return any(LongShape<kv4, kv4, 5>());
      case tq3: return any(LongShape<tq3, tq3, 8>());
      default: return false;
    }
  if (a.kv.dim == 256) switch (a.kv.k_type) {
      case f16: return window(SingleShape<f16, 256, 2, 2, true>(), SingleShape<f16, 256, 2, 3>());
      case q8_0: return window(SingleShape<q8_0, 256, 3, 2, true>(), SingleShape<q8_0, 256, 3, 3>());
      case kv4: return window(SingleShape<kv4, 256, 4, 2, true>(), SingleShape<kv4, 256, 4, 3>());
      case tq3: return window(SingleShape<tq3, 256, 4, 2, true>(), SingleShape<tq3, 256, 4, 3>());
      default: return false;
    }
  return false;
}

}  // namespace carat::cuda
