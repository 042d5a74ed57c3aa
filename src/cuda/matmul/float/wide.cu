#include "cuda/matmul/float/wide.cuh"

namespace carat::cuda {

extern template void float_wide_by_rows<DType::f16>(const Context&, const TileJob&, const Rounded&, RowSet,
                                                    const MatmulArgs*, int);
extern template void float_wide_by_rows<DType::fp8>(const Context&, const TileJob&, const Rounded&, RowSet,
                                                    const MatmulArgs*, int);
extern template void float_wide_by_rows<DType::fp8_a8>(const Context&, const TileJob&, const Rounded&, RowSet,
                                                       const MatmulArgs*, int);
template void float_wide_by_rows<DType::bf16>(const Context&, const TileJob&, const Rounded&, RowSet,
                                              const MatmulArgs*, int);

void float_wide_of(const Context& c, const TileJob& a, const Rounded& x, RowSet rows, const MatmulArgs* more,
                   int n) {
  switch (a.m.w.type) {
    case DType::bf16: return float_wide_by_rows<DType::bf16>(c, a, x, rows, more, n);
    case DType::f16: return float_wide_by_rows<DType::f16>(c, a, x, rows, more, n);
    case DType::fp8_a8: return float_wide_by_rows<DType::fp8_a8>(c, a, x, rows, more, n);
    default: return float_wide_by_rows<DType::fp8>(c, a, x, rows, more, n);
  }
}
bool float_wide_compiled() { return compiled_for(float_wide<FloatStage<DType::bf16, 128, false>>) == 90; }

}  // namespace carat::cuda
