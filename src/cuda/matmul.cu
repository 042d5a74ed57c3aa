// Matmul and GateUp: the choice of kernels, and those that serve every format.
#include "cuda/matmul.cuh"

namespace carat::cuda {
void matmul(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows) {
  if (a.y.rows >= kPackedTileRows && x.q) {
    TileJob job;
    job.m = a;
    if (if_packed(a.w, a.w, [&](auto t) { return packed_tiles_of<t.value>(c, job, x, rows); })) return;
  }
  if (a.w.type == DType::bf16) return matmul_bf16(c, a, x, rows);
  if (a.w.type == DType::f32) return matmul_f32(c, a, x, rows);
  if (if_packed(a.w, a.w, [&](auto t) { return packed_product<t.value>(c, a, x, rows); })) return;
  if (a.y.rows >= kTileRows && x.q) return matmul_tiles(c, a, x, rows);
  if (a.y.rows == 1) return launch_matmul<AnyFormat, 1>(c, a, x, rows);
  launch_matmul<AnyFormat, 8>(c, a, x, rows);
}

void gate_up(const Context& c, const GateUpArgs& a, const Rounded& x, RowSet rows) {
  if (a.y.rows >= kPackedTileRows) {
    TileJob job;
    job.kind = TileJob::gate_up;
    job.m.y = a.y, job.m.x = a.x, job.m.w = a.gate, job.m.act = a.act, job.m.scale = a.gate_scale;
    job.other = a.up, job.other_scale = a.up_scale;
    if (if_packed(a.gate, a.up, [&](auto t) { return packed_tiles_of<t.value>(c, job, x, rows); })) return;
  }
  if (a.gate.type == DType::bf16 && a.up.type == DType::bf16) return gate_up_bf16(c, a, x, rows);
  if (if_packed(a.gate, a.up, [&](auto t) { return packed_product<t.value>(c, a, x, rows); })) return;
  if (a.y.rows >= kTileRows && !AnyFormat(a.gate.type).floats() && !AnyFormat(a.up.type).floats())
    return gate_up_tiles(c, a, x, rows);
  if (a.y.rows == 1) return launch_gate_up<AnyFormat, 1>(c, a, x, rows);
  launch_gate_up<AnyFormat, 8>(c, a, x, rows);
}

}  // namespace carat::cuda
