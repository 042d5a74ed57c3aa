// Matmul and GateUp: the choice of kernels, and those that serve every format.
#include "cuda/matmul.cuh"

namespace carat::cuda {
namespace {

bool packed(const Context& c, const ProductJob& job, const Tensor& other, const Rounded& x, RowSet rows) {
  return if_packed(job.m[0].w, other, [&](auto t) { return packed_product<t.value>(c, job, x, rows); });
}
ProductJob job_of(const MatmulArgs* a, size_t n) {
  ProductJob job;
  int32_t groups = 0;
  for (size_t i = 0; i < kMatmulsAtOnce; ++i) {
    if (i < n) job.m[i] = a[i], groups += groups_of(a[i].w.rows);
    job.end[i] = groups;
  }
  return job;
}

}  // namespace

bool matmuls_at_once(const MatmulArgs& a, const MatmulArgs& b) {
  const auto alone = [](const MatmulArgs& m) { return !m.mul.data && !m.residual.data; };
  return a.y.rows < kPackedTileRows && alone(a) && alone(b) && if_packed(a.w, b.w, [](auto) { return true; });
}
void matmuls(const Context& c, const std::vector<MatmulArgs>& a, const Rounded& x, RowSet rows) {
  if (a.size() > 1 && packed(c, job_of(a.data(), a.size()), a[0].w, x, rows)) return;
  for (const MatmulArgs& m : a) matmul(c, m, x, rows);
}

void matmul(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows) {
  if (a.y.rows >= kPackedTileRows && x.q) {
    TileJob job;
    job.m = a;
    if (if_packed(a.w, a.w, [&](auto t) { return tiles_of<t.value>(c, job, x, rows); })) return;
  }
  if (a.w.type == DType::bf16) return matmul_bf16(c, a, x, rows);
  if (a.w.type == DType::f32) return matmul_f32(c, a, x, rows);
  if (packed(c, job_of(&a, 1), a.w, x, rows)) return;
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
    if (if_packed(a.gate, a.up, [&](auto t) { return tiles_of<t.value>(c, job, x, rows); })) return;
  }
  if (a.gate.type == DType::bf16 && a.up.type == DType::bf16) return gate_up_bf16(c, a, x, rows);
  MatmulArgs gate{.y = a.y, .x = a.x, .w = a.gate, .bias = {}, .mul = {}};
  gate.scale = a.gate_scale, gate.act = a.act;
  ProductJob job = job_of(&gate, 1);
  job.paired = true, job.up = a.up, job.up_scale = a.up_scale;
  if (packed(c, job, a.up, x, rows)) return;
  if (a.y.rows >= kTileRows && !AnyFormat(a.gate.type).floats() && !AnyFormat(a.up.type).floats())
    return gate_up_tiles(c, a, x, rows);
  if (a.y.rows == 1) return launch_gate_up<AnyFormat, 1>(c, a, x, rows);
  launch_gate_up<AnyFormat, 8>(c, a, x, rows);
}

}  // namespace carat::cuda
