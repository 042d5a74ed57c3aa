// When attention of a few rows decodes packed caches for all of them at once.
#include "cuda/attention/rows/rows.cuh"

#include "cuda/attention/rows/rows.h"

namespace carat::cuda {
namespace {

template <int DIM, bool COPIES>
bool run_rows(const Context& c, AttentionPart a, RowSet set) {
  using S = RowsShape<DIM, COPIES>;
  const int64_t unit = kKvTile * std::max(a.kv.k_row, a.kv.v_row);
  if (S::kBytes > c.launcher.shared || c.launcher.major != 9 || compiled_for(rows_attention<S>) != 90 ||
      2 * unit > S::kPackedBytes)
    return false;
  a.cut_heads(16);
  launch(c.launcher, "attention", rows_attention<S>, dim3(static_cast<unsigned>(c.launcher.sms)), S::kThreads,
         static_cast<size_t>(S::kBytes), a, c.step, c.tables, set);
  return true;
}

}  // namespace

bool attention_rows(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  const auto packed = [](DType t) { return t != DType::f16 && t != DType::bf16 && t != DType::f32; };
  if (!a.split || rows == 1 || a.kv.window || !packed(a.kv.k_type) || !packed(a.kv.v_type)) return false;
  if (a.kv.dim == 512)
    return a.copies.any() ? run_rows<512, true>(c, a, set) : run_rows<512, false>(c, a, set);
  if (a.kv.dim == 256 && !a.copies.any()) return run_rows<256, false>(c, a, set);
  return false;
}

}  // namespace carat::cuda
