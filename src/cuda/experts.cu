// Products with chosen slices: experts, and slices of an output head. A warp an output and row; who else
// chose the slice changes nothing.
#include "cuda/matmul.cuh"

namespace carat::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

__global__ void __launch_bounds__(kThreads)
    experts_up_kernel(const ExpertsArgs a, const Rounded r, float* hidden, const DevStep* s,
                      const Tables* tables, RowSet set) {
  begin_kernel();
  const int lane = threadIdx.x % 32;
  const int32_t used = a.weights.cols, pair = blockIdx.x, m = pair / used,
                i = blockIdx.y * kWarps + threadIdx.x / 32;
  if (m >= row_count(s, set) || i >= a.gate.rows) return;
  const int32_t e = row_of<const int32_t>(a.experts, m)[pair % used];
  if (e < 0 || e >= a.gate.slices) return;
  const Acts x = acts_of(a.x, r).from(m);
  float gate[1], up[1];
  products<AnyFormat, 1>(AnyFormat(a.gate.type), weight_row(a.gate, e, i), a.gate.cols, x, 1, lane, *tables,
                         gate);
  products<AnyFormat, 1>(AnyFormat(a.up.type), weight_row(a.up, e, i), a.up.cols, x, 1, lane, *tables, up);
  if (lane == 0)
    hidden[int64_t{pair} * a.gate.rows + i] =
        activate(a.act, gate[0] * expert_scale(a.gate_scale, e)) * (up[0] * expert_scale(a.up_scale, e));
}

__global__ void __launch_bounds__(kThreads)
    experts_down_kernel(const ExpertsArgs a, const float* hidden, const Rounded h, const DevStep* s,
                        const Tables* tables, RowSet set) {
  begin_kernel();
  const int lane = threadIdx.x % 32;
  const int32_t m = blockIdx.x, d = blockIdx.y * kWarps + threadIdx.x / 32, used = a.weights.cols;
  if (m >= row_count(s, set) || d >= a.down.rows) return;
  const int32_t inner = a.down.cols;
  float y = a.residual.data ? row_of<const float>(a.residual, m)[d] : 0;
  for (int32_t k = 0; k < used; ++k) {
    const int32_t e = row_of<const int32_t>(a.experts, m)[k];
    if (e < 0 || e >= a.down.slices) continue;
    const Acts x = Acts{hidden, inner, h.q, h.sums, h.d, h.blocks}.from(int64_t{m} * used + k);
    float v[1];
    products<AnyFormat, 1>(AnyFormat(a.down.type), weight_row(a.down, e, d), inner, x, 1, lane, *tables, v);
    y = y + row_of<const float>(a.weights, m)[k] * (v[0] * expert_scale(a.down_scale, e));
  }
  if (lane == 0) row_of<float>(a.y, m)[d] = y;
}

__global__ void __launch_bounds__(kThreads) slice_kernel(const SliceMatmulArgs a, const Rounded r,
                                                         const DevStep* s, const Tables* tables, RowSet set) {
  begin_kernel();
  const int lane = threadIdx.x % 32;
  const int32_t choices = a.chosen.cols, pair = blockIdx.x, m = pair / choices, k = pair % choices;
  const int32_t n = blockIdx.y * kWarps + threadIdx.x / 32;
  if (m >= row_count(s, set) || n >= a.w.rows) return;
  const int32_t e = row_of<const int32_t>(a.chosen, m)[k];
  if (e < 0 || e >= a.w.slices) return;
  const Acts x = acts_of(a.x, r).from(m);
  float v[1];
  products<AnyFormat, 1>(AnyFormat(a.w.type), weight_row(a.w, e, n), a.w.cols, x, 1, lane, *tables, v);
  if (lane == 0) row_of<float>(a.y, m)[int64_t{k} * a.w.rows + n] = v[0] * a.scale;
}

dim3 grid(int64_t outputs, int64_t pairs) {
  return dim3(static_cast<unsigned>(pairs), static_cast<unsigned>((outputs + kWarps - 1) / kWarps));
}

}  // namespace

void experts_gate_up(const Context& c, const ExpertsArgs& a, const Rounded& x, float* hidden, RowSet rows) {
  if (if_packed(a.gate, a.up, [&](auto t) { return packed_up<t.value>(c, a, x, hidden, rows); })) return;
  launch(c.launcher, "experts: gate, up", experts_up_kernel,
         grid(a.gate.rows, int64_t{a.y.rows} * a.weights.cols), kThreads, 0, a, x, hidden, c.step, c.tables,
         rows);
}
void experts_down(const Context& c, const ExpertsArgs& a, const float* hidden, const Rounded& h,
                  RowSet rows) {
  if (if_packed(a.down, a.down, [&](auto t) { return packed_down<t.value>(c, a, h, rows); })) return;
  launch(c.launcher, "experts: down", experts_down_kernel, grid(a.down.rows, a.y.rows), kThreads, 0, a,
         hidden, h, c.step, c.tables, rows);
}
void slice_matmul(const Context& c, const SliceMatmulArgs& a, const Rounded& x, RowSet rows) {
  launch(c.launcher, "slices", slice_kernel, grid(a.w.rows, int64_t{a.y.rows} * a.chosen.cols), kThreads, 0,
         a, x, c.step, c.tables, rows);
}

}  // namespace carat::cuda
