// Weights that are floats of one type.
#include "cuda/matmul.cuh"

namespace carat::cuda {
void matmul_f32(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows) {
  matmul_by_rows<Fixed<DType::f32>>(c, a, x, rows);
}
void matmul_bf16(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows) {
  matmul_by_rows<Fixed<DType::bf16>>(c, a, x, rows);
}
void gate_up_bf16(const Context& c, const GateUpArgs& a, const Rounded& x, RowSet rows) {
  gate_up_by_rows<Fixed<DType::bf16>>(c, a, x, rows);
}
}  // namespace carat::cuda
