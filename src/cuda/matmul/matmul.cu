// Matmul and GateUp: the choice of kernels, and those that serve every format.
#include "cuda/matmul/experts/routers.h"
#include "cuda/matmul/matmul.cuh"

namespace carat::cuda {
namespace {

bool packed(const Context& c, const ProductJob& job, const Tensor& other, const Rounded& x, RowSet rows) {
  return if_packed(job.m[0].w, other, [&](auto t) { return packed_product<t.value>(c, job, x, rows); });
}
// Those over the first one's format; behind them may be some over another.
size_t alike(const std::vector<MatmulArgs>& a) {
  size_t n = 1;
  while (n < a.size() && a[n].w.type == a[0].w.type) ++n;
  return n;
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

// Gate and up as one product.
ProductJob job_of(const GateUpArgs& a) {
  MatmulArgs gate{.y = a.y, .x = a.x, .w = a.gate, .bias = {}, .mul = {}};
  gate.scale = a.gate_scale, gate.act = a.act;
  ProductJob job = job_of(&gate, 1);
  job.paired = true, job.up = a.up, job.up_scale = a.up_scale;
  return job;
}
bool meets(const RowNorms& norms, const Tensor& y) {
  const auto* first = reinterpret_cast<const float*>(y.data);
  const auto* last = reinterpret_cast<const float*>(y.data + y.pitch);
  for (const float* p : {norms.x, norms.second, norms.residual})
    if (p && p < last && first < p + norms.cols) return true;
  return false;
}
// What blocks read besides must not be what another one writes.
bool reads_result(const RowNorms& norms, const Tensor& t) {
  const auto* first = reinterpret_cast<const float*>(t.data);
  const auto* last = reinterpret_cast<const float*>(t.data + t.pitch);
  for (int k = 0; t.data && k < norms.n; ++k)
    if (norms.step[k].y < last && first < norms.step[k].y + norms.cols) return true;
  return false;
}
bool norms_fit_packed(const RowNorms& norms, const Tensor& w, const Tensor& other, const Tensor& x,
                      const DeviceProps& device) {
  const RowNorms::Step& last = norms.step[norms.n - 1];
  return reinterpret_cast<float*>(x.data) == last.y && last.out.q && w.cols == norms.cols &&
         if_packed(w, other, [&](auto t) { return packed_normed_fits<t.value>(norms, device); });
}
bool over_two_formats(const Context& c, const RowNorms& norms, const std::vector<MatmulArgs>& a,
                      const Rounded& x, RowSet rows) {
  const size_t n = alike(a);
  return n < a.size() && if_packed_pair(a[0].w, a[n].w, [&](auto t, auto t2) {
           return packed_pair<t.value, t2.value>(c, norms, job_of(a.data(), n),
                                                 job_of(a.data() + n, a.size() - n), x, rows),
                  true;
         });
}

}  // namespace

bool norms_fit(const RowNorms& norms, const MatmulArgs& a, const DeviceProps& device) {
  if (norms.n == 0 || a.y.rows != 1 || meets(norms, a.y) || reads_result(norms, a.mul) ||
      reads_result(norms, a.residual))
    return false;
  return info(a.w.type).family == Family::block ? norms_fit_packed(norms, a.w, a.w, a.x, device)
                                                : norms_fit_float(norms, a, device);
}
bool norms_fit(const RowNorms& norms, const GateUpArgs& a, const DeviceProps& device) {
  return norms.n > 0 && a.y.rows == 1 && !meets(norms, a.y) &&
         norms_fit_packed(norms, a.gate, a.up, a.x, device);
}
void matmuls(const Context& c, const RowNorms& norms, const std::vector<MatmulArgs>& a, RowSet rows) {
  if (info(a[0].w.type).family != Family::block) return matmul_float(c, norms, a, rows);
  if (over_two_formats(c, norms, a, {}, rows)) return;
  const ProductJob job = job_of(a.data(), a.size());
  if_packed(a[0].w, a[0].w, [&](auto t) { return packed_normed<t.value>(c, norms, job, rows), true; });
}
void gate_up(const Context& c, const RowNorms& norms, const GateUpArgs& a, RowSet rows) {
  if_packed(a.gate, a.up, [&](auto t) { return packed_normed<t.value>(c, norms, job_of(a), rows), true; });
}

bool rounds_itself(const MatmulArgs& a, const DeviceProps& device) {
  const auto even = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; };
  return a.y.rows == 1 && a.w.cols % 8 == 0 && even(a.x) &&
         if_packed(a.w, a.w, [&](auto t) { return packed_rounding_fits<t.value>(device); });
}
void matmul_rounding(const Context& c, const MatmulArgs& a, RowSet rows) {
  if_packed(a.w, a.w, [&](auto t) { return packed_rounding<t.value>(c, job_of(&a, 1), rows), true; });
}

bool matmuls_at_once(const std::vector<MatmulArgs>& all, const MatmulArgs& b, const RowNorms& norms,
                     const DeviceProps& device) {
  const auto alone = [](const MatmulArgs& m) { return !m.mul.data && !m.residual.data; };
  const MatmulArgs& a = all[0];
  if (!alone(a) || !alone(b)) return false;
  if (if_packed(all.back().w, b.w, [](auto) { return true; })) return true;
  const auto wide = [&](const MatmulArgs& m) {
    return parts_of(device, m.w, m.y.rows) == Parts::chunks && m.w.type == a.w.type;
  };
  if (wide(a) && wide(b)) return true;
  const auto router = [&](const MatmulArgs& m) {
    return info(m.w.type).family != Family::block &&
           (norms.n > 0 ? norms_fit(norms, m, device) : router_fits(m, device));
  };
  if (a.w.type == b.w.type && router(a) && router(b)) return true;
  return a.y.rows < kPackedTileRows && alike(all) == all.size() &&
         if_packed_pair(a.w, b.w, [&](auto t, auto t2) {
           return packed_pair_fits<t.value, t2.value>(norms, a.y.rows, (a.w.cols + 255) / 256, device);
         });
}
Kernel kernel_of(const Launcher& l, Product op, const Tensor& w, const Tensor& other, int32_t rows,
                 int32_t each) {
  const bool alike = w.type == other.type;
  const ProductShape shape{.op = op,
                           .type = w.type,
                           .packed = alike && w.packing == kPacked && other.packing == kPacked,
                           .aligned = alike && aligned_rows(w) && aligned_rows(other),
                           .rows = each,
                           .step_rows = rows,
                           .outputs = w.rows,
                           .cols = w.cols};
  const Kernel kernel = choose(shape, {10 * l.major, l.shared}, forced());
  const bool there = kernel == Kernel::float_wide     ? float_wide_compiled()
                     : kernel == Kernel::scaled_tiles ? scaled_tiles_compiled()
                                                      : true;
  return there ? kernel : choose(shape, {80, l.shared}, forced());  // code without 9.0a's or 12.0a's own
}
namespace {
Kernel kernel_of(const Context& c, Product op, const Tensor& w, const Tensor& other, int32_t rows) {
  return kernel_of(c.launcher, op, w, other, rows, rows);
}

bool all_wide(const Context& c, const MatmulArgs* a, size_t n, const Rounded& x, RowSet rows) {
  TileJob job;
  job.m = a[0];
  return if_packed(a[0].w, a[0].w, [&](auto t) {
    if constexpr (goes_wide(t.value))
      return wide_tiles_of<t.value>(c, job, x, rows, a + 1, static_cast<int>(n - 1));
    else
      return false;
  });
}
}  // namespace

void matmuls(const Context& c, const std::vector<MatmulArgs>& a, const Rounded& x, RowSet rows) {
  const size_t n = alike(a);
  const Kernel kernel = kernel_of(c, Product::matmul, a[0].w, a[0].w, a[0].y.rows);
  if (n > 1 && kernel == Kernel::f32_rows) return routers(c, a, rows);
  size_t done = 0;
  if (n > 1 && kernel == Kernel::float_wide) {
    TileJob job;
    job.m = a[0];
    float_wide_of(c, job, x, rows, a.data() + 1, static_cast<int>(n - 1));
    done = n;
  } else if (n > 1 && kernel == Kernel::packed_wide)
    done = all_wide(c, a.data(), n, x, rows) ? n : 0;
  else if (kernel == Kernel::packed_few) {
    if (over_two_formats(c, {}, a, x, rows)) return;
    done = n > 1 && packed(c, job_of(a.data(), n), a[0].w, x, rows) ? n : 0;
  }
  for (size_t i = done; i < a.size(); ++i) matmul(c, a[i], x, rows);
}

namespace {
Parts parts_of(Kernel k, int32_t rows) {
  if (k == Kernel::float_wide) return Parts::chunks;
  if (k == Kernel::scaled_tiles) return Parts::scaled;
  return k == Kernel::float_tiles || (k == Kernel::float_rows && rows > kFewSplitRows) ? Parts::rows
                                                                                       : Parts::none;
}
}  // namespace
Parts parts_of(const DeviceProps& device, const Tensor& w, int32_t rows) {
  return parts_of(kernel_of(launcher_of(device), Product::matmul, w, w, rows, rows), rows);
}
Parts parts_of(const DeviceProps& device, const GateUpArgs& a) {
  return parts_of(kernel_of(launcher_of(device), Product::gate_up, a.gate, a.up, a.y.rows, a.y.rows),
                  a.y.rows);
}

void matmul(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows) {
  const Kernel kernel = kernel_of(c, Product::matmul, a.w, a.w, a.y.rows);
  TileJob job;
  job.m = a;
  switch (kernel) {
    case Kernel::float_rows: return matmul_float_rows(c, a, x, rows);
    case Kernel::float_tiles: return float_tiles_of(c, job, x, rows);
    case Kernel::float_wide: return float_wide_of(c, job, x, rows, nullptr, 0);
    case Kernel::scaled_tiles: return scaled_tiles_of(c, job, x, rows);
    case Kernel::f32_rows:
      return a.w.type == DType::bf16 ? matmul_bf16(c, a, x, rows) : matmul_f32(c, a, x, rows);
    case Kernel::packed_wide:
    case Kernel::packed_tiles:
      if (if_packed(a.w, a.w, [&](auto t) {
            return tiles_of<t.value>(c, job, x, rows, kernel == Kernel::packed_wide);
          }))
        return;
      [[fallthrough]];
    case Kernel::packed_few:
      if (packed(c, job_of(&a, 1), a.w, x, rows)) return;
      break;
    case Kernel::int8_tiles:
    case Kernel::any_format: break;
  }
  if (a.y.rows >= kTileRows && x.q) return matmul_tiles(c, a, x, rows);
  if (a.y.rows == 1) return launch_matmul<AnyFormat, 1>(c, a, x, rows);
  launch_matmul<AnyFormat, 8>(c, a, x, rows);
}

void gate_up(const Context& c, const GateUpArgs& a, const Rounded& x, RowSet rows) {
  const Kernel kernel = kernel_of(c, Product::gate_up, a.gate, a.up, a.y.rows);
  TileJob job;
  job.kind = TileJob::gate_up;
  job.m.y = a.y, job.m.x = a.x, job.m.w = a.gate, job.m.act = a.act, job.m.scale = a.gate_scale;
  job.other = a.up, job.other_scale = a.up_scale;
  switch (kernel) {
    case Kernel::float_rows: return gate_up_float_rows(c, a, x, rows);
    case Kernel::float_tiles: return float_tiles_of(c, job, x, rows);
    case Kernel::float_wide: return float_wide_of(c, job, x, rows, nullptr, 0);
    case Kernel::scaled_tiles: return scaled_tiles_of(c, job, x, rows);
    case Kernel::f32_rows:
      if (a.up.type == DType::bf16) return gate_up_bf16(c, a, x, rows);
      break;
    case Kernel::packed_wide:
    case Kernel::packed_tiles:
      if (if_packed(a.gate, a.up, [&](auto t) {
            return tiles_of<t.value>(c, job, x, rows, kernel == Kernel::packed_wide);
          }))
        return;
      [[fallthrough]];
    case Kernel::packed_few:
      if (packed(c, job_of(a), a.up, x, rows)) return;
      break;
    case Kernel::int8_tiles:
    case Kernel::any_format: break;
  }
  if (a.y.rows >= kTileRows && !AnyFormat(a.gate.type).floats() && !AnyFormat(a.up.type).floats())
    return gate_up_tiles(c, a, x, rows);
  if (a.y.rows == 1) return launch_gate_up<AnyFormat, 1>(c, a, x, rows);
  launch_gate_up<AnyFormat, 8>(c, a, x, rows);
}

}  // namespace carat::cuda
