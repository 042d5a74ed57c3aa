// Products with chosen slices: experts, and slices of an output head. A warp an output and row; who else
// chose the slice changes nothing.
#include "cuda/matmul/experts/route.cuh"
#include "cuda/matmul/matmul.cuh"

namespace carat::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
// A mixture's two kernels: more rows are faster with a branch beside the experts
// (docs/lab/2026-11-29-few-rows.md).
constexpr int32_t kMixtureRows = 4;

__global__ void __launch_bounds__(kThreads)
    experts_up_kernel(const ExpertsArgs a, const Rounded r, float* hidden, const DevStep* s,
                      const Tables* tables, RowSet set) {
  wait_inputs();
  let_next_start();  // experts_down reads what has been chosen without waiting
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
        activate(a.act, gate[0] * sum_scale(a.gate) * expert_scale(a.gate_scale, e)) *
        (up[0] * sum_scale(a.up) * expert_scale(a.up_scale, e));
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
    y = y + row_of<const float>(a.weights, m)[k] * (v[0] * sum_scale(a.down) * expert_scale(a.down_scale, e));
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
  if (lane == 0) row_of<float>(a.y, m)[int64_t{k} * a.w.rows + n] = v[0] * sum_scale(a.w) * a.scale;
}

// A block an expert: where its pairs begin, and which they are. A warp looks through a share of the pairs.
constexpr int kListWarps = 32;
__global__ void __launch_bounds__(32 * kListWarps)
    list_kernel(const Tensor experts, int32_t slices, const PairLists lists, const DevStep* s, RowSet set) {
  CARAT_STATIC_SHARED int32_t found[2][kListWarps];  // by warp: of lower experts, of this one
  begin_kernel();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t e = blockIdx.x, used = experts.cols, pairs = row_count(s, set) * used;
  const int32_t share = (pairs + 32 * kListWarps - 1) / (32 * kListWarps) * 32, begin = warp * share,
                end = begin + share < pairs ? begin + share : pairs;
  const auto chosen = [&](int32_t pair) {
    return pair < end ? row_of<const int32_t>(experts, pair / used)[pair % used] : -1;
  };
  int32_t before = 0, mine = 0;
#pragma unroll 4
  for (int32_t p = begin + lane; p < end; p += 32) {
    const int32_t of = chosen(p);
    before += of >= 0 && of < e, mine += of == e;
  }
  before = warp_sum(before), mine = warp_sum(mine);
  if (lane == 0) found[0][warp] = before, found[1][warp] = mine;
  sync_block();
  const int32_t start = warp_sum(found[0][lane]), here = found[1][lane], all = warp_sum(here);
  int32_t at = start + warp_sum(lane < warp ? here : 0);
  if (threadIdx.x == 0) {
    lists.start[e] = start;
    if (e == slices - 1) lists.start[slices] = start + all;
  }
  if (mine == 0) return;
  for (int32_t p = begin + lane; p - lane < end; p += 32) {
    const uint32_t those = ballot(chosen(p) == e);
    if (those >> lane & 1) lists.order[at + bits_set(those & ((1u << lane) - 1))] = p;
    at += bits_set(those);
  }
}

// What a row's experts gave, in the order of its choices.
__global__ void __launch_bounds__(kThreads)
    add_experts_kernel(const ExpertsArgs a, const PairLists lists, const DevStep* s, RowSet set) {
  begin_kernel();
  const int32_t m = blockIdx.x, d = blockIdx.y * kThreads + threadIdx.x, used = a.weights.cols;
  if (m >= row_count(s, set) || d >= a.down.rows) return;
  float y = a.residual.data ? row_of<const float>(a.residual, m)[d] : 0;
  for (int32_t k = 0; k < used; ++k) {
    const int32_t e = row_of<const int32_t>(a.experts, m)[k];
    if (e < 0 || e >= a.down.slices) continue;
    y = y + row_of<const float>(a.weights, m)[k] * lists.out[(int64_t{m} * used + k) * a.down.rows + d];
  }
  row_of<float>(a.y, m)[d] = y;
}

// Of gate and up, or of down.
Kernel kernel_of(const Launcher& l, const ExpertsArgs& a, bool down) {
  const int32_t each = a.y.rows * a.weights.cols / a.gate.slices;
  return kernel_of(l, Product::experts, down ? a.down : a.gate, down ? a.down : a.up, a.y.rows, each);
}
// All products of floats by that kernel, on every device.
bool all_by(const ExpertsArgs& a, Kernel k) {
  return a.gate.type == a.down.type && kernel_of({}, a, false) == k && kernel_of({}, a, true) == k;
}
bool all_packed(const ExpertsArgs& a) {
  return a.gate.packing == kPacked && a.up.packing == kPacked && a.down.packing == kPacked &&
         a.gate.type == a.up.type;
}

bool splits(const ExpertsArgs& a) { return all_by(a, Kernel::float_tiles); }
void floats_of(const Context& c, const TileJob& job, const Rounded& x, RowSet rows) {
  if (rounds_to_e4m3(job.m.w.type) && !x.chunks) return scaled_tiles_of(c, job, x, rows);
  x.chunks ? float_wide_of(c, job, x, rows, nullptr, 0) : float_tiles_of(c, job, x, rows);
}

dim3 grid(int64_t outputs, int64_t pairs) {
  return dim3(static_cast<unsigned>(pairs), static_cast<unsigned>((outputs + kWarps - 1) / kWarps));
}

void add_experts(const Context& c, const ExpertsArgs& a, const PairLists& lists, RowSet rows) {
  launch(
      c.launcher, "experts: sums", add_experts_kernel,
      dim3(static_cast<unsigned>(a.y.rows), static_cast<unsigned>((a.down.rows + kThreads - 1) / kThreads)),
      kThreads, 0, a, lists, c.step, rows);
}

}  // namespace

Parts parts_of(const DeviceProps& device, const ExpertsArgs& a) {
  if (rounds_to_e4m3(a.gate.type)) {
    const auto kernel = [&](bool down) { return kernel_of(launcher_of(device), a, down); };
    if (a.down.type != a.gate.type || kernel(false) != kernel(true)) return Parts::none;
    return kernel(false) == Kernel::float_wide     ? Parts::chunks
           : kernel(false) == Kernel::scaled_tiles ? Parts::scaled
                                                   : Parts::none;
  }
  if (!splits(a)) return Parts::none;
  return kernel_of(launcher_of(device), a, false) == Kernel::float_wide ? Parts::chunks : Parts::rows;
}
int64_t pair_bytes(const DeviceProps& device, const ExpertsArgs& a) {
  const int64_t pairs = int64_t{a.y.rows} * a.weights.cols;
  const bool by_expert = parts_of(device, a) != Parts::none || (a.y.rows >= kTileRows && all_packed(a));
  if (!by_expert) return all_by(a, Kernel::float_rows) ? pairs * a.down.rows * 4 : 0;
  return (pairs * (a.down.rows + 1) + a.gate.slices + 1) * 4;
}
PairLists pair_lists(const DeviceProps& device, const ExpertsArgs& a, std::byte* memory) {
  if (pair_bytes(device, a) == 0) return {};
  const int64_t pairs = int64_t{a.y.rows} * a.weights.cols;
  auto* out = reinterpret_cast<float*>(memory);
  if (all_by(a, Kernel::float_rows)) return {nullptr, nullptr, out};
  auto* order = reinterpret_cast<int32_t*>(out + pairs * a.down.rows);
  return {order + pairs, order, out};
}
void list_pairs(const Context& c, const ExpertsArgs& a, const PairLists& lists, RowSet rows) {
  launch(c.launcher, "experts: lists", list_kernel, dim3(static_cast<unsigned>(a.gate.slices)),
         32 * kListWarps, 0, a.experts, a.gate.slices, lists, c.step, rows);
}

void experts_gate_up(const Context& c, const ExpertsArgs& a, const Rounded& x, float* hidden,
                     const PairLists& lists, bool chosen, RowSet rows) {
  if (lists.start) {
    TileJob job;
    job.kind = TileJob::experts_up;
    job.m.y = make_tensor(hidden, DType::f32, a.y.rows * a.weights.cols, a.gate.rows);
    job.m.w = a.gate, job.m.act = a.act, job.other = a.up;
    job.expert_scales = a.gate_scale, job.other_scales = a.up_scale;
    job.pairs = lists, job.used = a.weights.cols;
    if (x.parts) return floats_of(c, job, x, rows);
    if (if_packed(a.gate, a.up, [&](auto t) {
          return tiles_of<t.value>(c, job, x, rows, kernel_of(c.launcher, a, false) == Kernel::packed_wide);
        }))
      return;
  } else if (lists.out) {
    return experts_up_float_rows(c, a, hidden, rows);
  }
  if (if_packed(a.gate, a.up, [&](auto t) { return packed_up<t.value>(c, a, x, hidden, chosen, rows); }))
    return;
  launch(c.launcher, "experts: gate, up", experts_up_kernel,
         grid(a.gate.rows, int64_t{a.y.rows} * a.weights.cols), kThreads, 0, a, x, hidden, c.step, c.tables,
         rows);
}
void experts_down(const Context& c, const ExpertsArgs& a, const float* hidden, const Rounded& h,
                  const PairLists& lists, RowSet rows) {
  if (lists.start) {
    TileJob job;
    job.kind = TileJob::experts_down;
    job.m.y = make_tensor(lists.out, DType::f32, a.y.rows * a.weights.cols, a.down.rows);
    job.m.w = a.down, job.expert_scales = a.down_scale;
    job.pairs = lists, job.used = a.weights.cols;
    const bool floats = h.parts;
    if (floats) floats_of(c, job, h, rows);
    if (floats || if_packed(a.down, a.down, [&](auto t) {
          return tiles_of<t.value>(c, job, h, rows, kernel_of(c.launcher, a, true) == Kernel::packed_wide);
        }))
      return add_experts(c, a, lists, rows);
  } else if (lists.out) {
    experts_down_float_rows(c, a, hidden, lists.out, rows);
    return add_experts(c, a, lists, rows);
  }
  if (if_packed(a.down, a.down, [&](auto t) { return packed_down<t.value>(c, a, h, rows); })) return;
  launch(c.launcher, "experts: down", experts_down_kernel, grid(a.down.rows, a.y.rows), kThreads, 0, a,
         hidden, h, c.step, c.tables, rows);
}
bool mixture_fits(const Mixture& m, const DeviceProps& device) {
  const RouteArgs& r = m.route;
  const GateUpArgs& g = m.gate_up;
  const ExpertsArgs& e = m.experts;
  const auto is = [](const Tensor& p, const Tensor& q) { return p.data == q.data; };
  const auto even = [](const Tensor& t) { return t.cols % 8 == 0; };
  const bool rows_fit = g.y.rows == 1 || (g.y.rows <= kMixtureRows && g.y.pitch % 16 == 0);
  return rows_fit && routes_held(r) && is(r.experts, e.experts) && is(r.weights, e.weights) &&
         r.top_k == e.weights.cols && is(m.down.x, g.y) && reinterpret_cast<uintptr_t>(g.y.data) % 16 == 0 &&
         even(e.down) && even(m.down.w) && g.gate.cols == e.gate.cols && m.down.w.rows == e.down.rows &&
         g.gate.type == e.gate.type && e.gate.type == e.up.type && e.up.packing == kPacked &&
         g.gate.packing == kPacked &&
         if_packed(g.gate, g.up, [&](auto t) { return mixture_up_fits<t.value>(m, device); }) &&
         if_packed(m.down.w, e.down, [&](auto t) { return mixture_down_fits<t.value>(m, device); });
}
void mixture_up(const Context& c, const Mixture& m, const Rounded& dense, const Rounded& experts,
                float* hidden, RowSet rows) {
  if_packed(m.gate_up.gate, m.gate_up.up,
            [&](auto t) { return run_mixture_up<t.value>(c, m, dense, experts, hidden, rows); });
}
void mixture_down(const Context& c, const Mixture& m, const float* hidden, RowSet rows) {
  if_packed(m.down.w, m.experts.down, [&](auto t) { return run_mixture_down<t.value>(c, m, hidden, rows); });
}
void slice_matmul(const Context& c, const SliceMatmulArgs& a, const Rounded& x, RowSet rows) {
  launch(c.launcher, "slices", slice_kernel, grid(a.w.rows, int64_t{a.y.rows} * a.chosen.cols), kThreads, 0,
         a, x, c.step, c.tables, rows);
}

}  // namespace carat::cuda
