// The kernels of Matmul and GateUp over one weight format; instances are spread over formats/.
#pragma once
#include <type_traits>

#include "cuda/device/activate.cuh"
#include "cuda/matmul/products.cuh"
#include "cuda/matmul/table.h"
#include "cuda/ops/ops.h"
#include "cuda/quant/packed.h"

namespace carat::cuda {

inline constexpr int kMatThreads = 256, kMatWarps = kMatThreads / 32;
inline constexpr int32_t kFewOutputs = 1024;

// What sums over such a weight are multiplied by.
CARAT_HD float sum_scale(const Tensor& w) { return w.packing == kBf16AsF16 ? 1.0f / kBf16Scale : 1.0f; }

// What comes after the sums, rounded at every step as ref does.
CARAT_D float finished(const MatmulArgs& a, int32_t m, int32_t n, float v) {
  v = v * a.scale;
  if (a.bias.data) v = v + row_of<const float>(a.bias, 0)[n];
  if (a.act != Act::none) v = activate(a.act, v);
  if (a.softcap > 0) v = a.softcap * tanh_of(v / a.softcap);
  if (a.mul.data) v = v * row_of<const float>(a.mul, m)[a.mul.cols == 1 ? 0 : n];
  if (a.residual.data) v = v + row_of<const float>(a.residual, m)[n];
  return v;
}
CARAT_D void finish(const MatmulArgs& a, int32_t m, int32_t n, float v) {
  row_of<float>(a.y, m)[n] = finished(a, m, n, v);
}

// A warp an output, MT rows of the step at once.
template <class D, int MT>
__global__ void __launch_bounds__(kMatThreads)
    matmul_kernel(const MatmulArgs a, const Rounded r, const DevStep* s, const Tables* tables, RowSet set) {
  let_next_start();
  const int lane = threadIdx.x % 32;
  const int32_t n = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, m0 = blockIdx.y * MT;
  if (MT == 1 && a.w.packing == 0 && n < a.w.rows)  // of the weights before the inputs are there
    for (int64_t i = 128 * lane; i < a.w.pitch && i < (16 << 10); i += 128 * 32)
      fetch(a.w.data + n * a.w.pitch + i);
  wait_inputs();
  const int32_t rows = row_count(s, set) - m0;
  if (n >= a.w.rows || rows <= 0) return;
  float acc[MT];
  products<D, MT>(D(a.w.type), weight_row(a.w, 0, n), a.w.cols, acts_of(a.x, r).from(m0), rows, lane, *tables,
                  acc);
  if (lane < MT && lane < rows) finish(a, m0 + lane, n, pick<MT>(acc, lane));
}

template <class D, int MT>
__global__ void __launch_bounds__(kMatThreads)
    gate_up_kernel(const GateUpArgs a, const Rounded r, const DevStep* s, const Tables* tables, RowSet set) {
  begin_kernel();
  const int lane = threadIdx.x % 32;
  const int32_t n = blockIdx.x * kMatWarps + threadIdx.x / 32, m0 = blockIdx.y * MT;
  const int32_t rows = row_count(s, set) - m0;
  if (n >= a.gate.rows || rows <= 0) return;
  const Acts x = acts_of(a.x, r).from(m0);
  float gate[MT], up[MT];
  products<D, MT>(D(a.gate.type), weight_row(a.gate, 0, n), a.gate.cols, x, rows, lane, *tables, gate);
  products<D, MT>(D(a.up.type), weight_row(a.up, 0, n), a.up.cols, x, rows, lane, *tables, up);
  if (lane >= MT || lane >= rows) return;
  const float g = activate(a.act, pick<MT>(gate, lane) * a.gate_scale);
  row_of<float>(a.y, m0 + lane)[n] = g * (pick<MT>(up, lane) * a.up_scale);
}

template <class D, int MT>
void launch_matmul(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows) {
  const auto grid = [](int64_t n, int64_t per) { return static_cast<unsigned>((n + per - 1) / per); };
  const int warps = a.w.rows < kFewOutputs ? 1 : kMatWarps;  // to as many processors as there are
  launch(c.launcher, "matmul", matmul_kernel<D, MT>, dim3(grid(a.w.rows, warps), grid(a.y.rows, MT)),
         32 * warps, 0, a, x, c.step, c.tables, rows);
}
template <class D, int MT>
void launch_gate_up(const Context& c, const GateUpArgs& a, const Rounded& x, RowSet rows) {
  const auto grid = [](int64_t n, int64_t per) { return static_cast<unsigned>((n + per - 1) / per); };
  launch(c.launcher, "gate-up", gate_up_kernel<D, MT>, dim3(grid(a.gate.rows, kMatWarps), grid(a.y.rows, MT)),
         kMatThreads, 0, a, x, c.step, c.tables, rows);
}

// By the bucket's rows; a row's sums are the same in each.
template <class D>
void matmul_by_rows(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows) {
  // Few outputs leave processors idle: a row each then, as long as they read the weights from the cache.
  if (a.y.rows == 1 || (a.w.rows < kFewOutputs && a.y.rows <= 32)) return launch_matmul<D, 1>(c, a, x, rows);
  if (a.y.rows == 2) return launch_matmul<D, 2>(c, a, x, rows);
  if (a.y.rows <= 4) return launch_matmul<D, 4>(c, a, x, rows);
  launch_matmul<D, 8>(c, a, x, rows);
}
template <class D>
void gate_up_by_rows(const Context& c, const GateUpArgs& a, const Rounded& x, RowSet rows) {
  if (a.y.rows == 1) return launch_gate_up<D, 1>(c, a, x, rows);
  if (a.y.rows == 2) return launch_gate_up<D, 2>(c, a, x, rows);
  if (a.y.rows <= 4) return launch_gate_up<D, 4>(c, a, x, rows);
  launch_gate_up<D, 8>(c, a, x, rows);
}

// Many rows of quantized weights, on the tensor cores (tiles.cu).
inline constexpr int32_t kTileRows = kFewExpertRows + 1;  // from so many on
inline constexpr int32_t kPackedTileRows = kFewRows + 1;  // where weights are packed
// As much of a launcher as kernel_of() asks.
inline Launcher launcher_of(const DeviceProps& device) {
  Launcher l;
  l.shared = device.shared_per_block, l.major = device.major;
  return l;
}
// What the table says of weights `w` and, of gate and up, `other`; of experts `each` rows.
Kernel kernel_of(const Launcher& l, Product op, const Tensor& w, const Tensor& other, int32_t rows,
                 int32_t each);
void matmul_tiles(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows);
void gate_up_tiles(const Context& c, const GateUpArgs& a, const Rounded& x, RowSet rows);

// Float weights of their own type, f32 sums.
void matmul_f32(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows);
void matmul_bf16(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows);
void gate_up_bf16(const Context& c, const GateUpArgs& a, const Rounded& x, RowSet rows);
// In bf16, f16 or fp8, on the tensor cores: of few rows, and of many (float/rows.cu,
// float/tiles.cu). The weight alone decides whether it goes there, so that a row has the same bits in
// all steps.
inline bool aligned_rows(const Tensor& w) {
  return w.cols % (info(w.type).bytes == 1 ? 16 : 8) == 0 && w.pitch % 16 == 0 &&
         reinterpret_cast<uintptr_t>(w.data) % 16 == 0 && (w.slices <= 1 || w.slice_pitch % 16 == 0);
}
void matmul_float_rows(const Context& c, const MatmulArgs& a, const Rounded& x, RowSet rows);
void gate_up_float_rows(const Context& c, const GateUpArgs& a, const Rounded& x, RowSet rows);
// Experts of few rows, each row's experts by themselves. hidden: f32 [rows * used][inner]; out: f32
// [rows * used][outputs of down], not yet weighted. Down must be the next kernel after gate and up.
void experts_up_float_rows(const Context& c, const ExpertsArgs& a, float* hidden, RowSet rows);
void experts_down_float_rows(const Context& c, const ExpertsArgs& a, const float* hidden, float* out,
                             RowSet rows);
struct TileJob;
void float_tiles_of(const Context& c, const TileJob& a, const Rounded& x, RowSet rows);
// Many rows on warpgroups, with n more products of the same rows, or experts; x split as chunks.
void float_wide_of(const Context& c, const TileJob& a, const Rounded& x, RowSet rows, const MatmulArgs* more,
                   int n);
template <DType T>
void float_wide_by_rows(const Context& c, const TileJob& a, const Rounded& x, RowSet rows,
                        const MatmulArgs* more, int n);
bool float_wide_compiled();  // for the device in use
// Rows of any number, rounded to e4m3 with their scales, over weights of 4 bits; likewise.
void scaled_tiles_of(const Context& c, const TileJob& a, const Rounded& x, RowSet rows);
bool scaled_tiles_compiled();
bool norms_fit_float(const RowNorms& norms, const MatmulArgs& a, const DeviceProps& device);
// Up to kMatmulsAtOnce products over weights of one type.
void matmul_float(const Context& c, const RowNorms& norms, const std::vector<MatmulArgs>& a, RowSet rows);

// Of products counted through all of them, `end` behind each: whose the n-th is.
CARAT_HD int which_of(const int32_t (&end)[kMatmulsAtOnce], int32_t n) {
  int which = 0;
  for (int i = 0; i + 1 < static_cast<int>(kMatmulsAtOnce); ++i) which += n >= end[i];
  return which;
}
// Up to four products of the same rows, or gate and up, over weights packed alike.
struct ProductJob {
  MatmulArgs m[kMatmulsAtOnce];      // paired: m[0] with the gate's act and scale
  int32_t end[kMatmulsAtOnce] = {};  // groups of 32 outputs up to the end of each
  bool paired = false;
  Tensor up;
  float up_scale = 1;

  int32_t groups() const { return end[kMatmulsAtOnce - 1]; }
  // Which product a group is of, and that one's first.
  CARAT_HD int which(int32_t group) const { return which_of(end, group); }
  CARAT_HD int32_t begin(int which) const { return which == 0 ? 0 : end[which - 1]; }
};
// Packed formats (packed/instances.cuh), instances in a file each: by the bucket's rows, or fewer at a
// time where shared memory is short; a row's sums are the same in each. False: it does not hold one row.
template <DType T>
bool packed_product(const Context& c, const ProductJob& a, const Rounded& x, RowSet rows);
// Of a single row, behind norms (packed/stream.cuh).
template <DType T>
bool packed_normed_fits(const RowNorms& norms, const DeviceProps& device);
template <DType T>
void packed_normed(const Context& c, const RowNorms& norms, const ProductJob& a, RowSet rows);
// Of a single row that nobody has rounded.
template <DType T>
bool packed_rounding_fits(const DeviceProps& device);
template <DType T>
void packed_rounding(const Context& c, const ProductJob& a, RowSet rows);
// Over two formats, x rounded or, of a single row, behind norms.
template <DType T, DType T2>
bool packed_pair_fits(const RowNorms& norms, int32_t rows, int32_t blocks, const DeviceProps& device);
template <DType T, DType T2>
void packed_pair(const Context& c, const RowNorms& norms, const ProductJob& a, const ProductJob& b,
                 const Rounded& x, RowSet rows);
template <DType T>
bool packed_up(const Context& c, const ExpertsArgs& a, const Rounded& x, float* hidden, bool chosen,
               RowSet rows);
template <DType T>
bool packed_down(const Context& c, const ExpertsArgs& a, const Rounded& h, RowSet rows);

// A mixture's two kernels (experts/mixture.cuh), by the format of gate and up, and of down.
template <DType T>
bool mixture_up_fits(const Mixture& m, const DeviceProps& device);
template <DType T>
bool mixture_down_fits(const Mixture& m, const DeviceProps& device);
template <DType T>
bool run_mixture_up(const Context& c, const Mixture& m, const Rounded& dense, const Rounded& experts,
                    float* hidden, RowSet rows);
template <DType T>
bool run_mixture_down(const Context& c, const Mixture& m, const float* hidden, RowSet rows);

// Products of many rows over packed weights (packed/tiles.cuh), and what their sums are for.
struct TileJob {
  enum Kind : int32_t { matmul, gate_up, experts_up, experts_down } kind = matmul;
  MatmulArgs m;  // not Matmul: y, x, w (gate, down), act and scale (gate's)
  Tensor other;  // up
  float other_scale = 1;
  Tensor expert_scales, other_scales;  // one a slice
  PairLists pairs;                     // rows of experts are pairs
  int32_t used = 1;

  CARAT_HD bool paired() const { return kind == gate_up || kind == experts_up; }
  CARAT_HD bool experts() const { return kind >= experts_up; }
};
// False: shared memory is too small.
template <DType T>
bool packed_tiles_of(const Context& c, const TileJob& a, const Rounded& x, RowSet rows);

// The same on warpgroups (wide/tiles.cuh, goes_wide() formats), with n more products of the same rows.
// False: not on this device, or shared memory is too small.
template <DType T>
bool wide_tiles_of(const Context& c, const TileJob& a, const Rounded& x, RowSet rows,
                   const MatmulArgs* more = nullptr, int n = 0);

template <DType T>
bool tiles_of(const Context& c, const TileJob& a, const Rounded& x, RowSet rows, bool wide) {
  if constexpr (goes_wide(T))
    if (wide && wide_tiles_of<T>(c, a, x, rows)) return true;
  return packed_tiles_of<T>(c, a, x, rows);
}

// f(the format, as a constant) if both weights are packed in it; else false.
template <class F>
bool if_packed(const Tensor& w, const Tensor& other, F f) {
  if (w.packing != kPacked || other.packing != kPacked || w.type != other.type) return false;
  switch (w.type) {
    case DType::q4_0: return f(std::integral_constant<DType, DType::q4_0>());
    case DType::q5_0: return f(std::integral_constant<DType, DType::q5_0>());
    case DType::q8_0: return f(std::integral_constant<DType, DType::q8_0>());
    case DType::q4_k: return f(std::integral_constant<DType, DType::q4_k>());
    case DType::q5_k: return f(std::integral_constant<DType, DType::q5_k>());
    case DType::q6_k: return f(std::integral_constant<DType, DType::q6_k>());
    case DType::q4_1: return f(std::integral_constant<DType, DType::q4_1>());
    case DType::q5_1: return f(std::integral_constant<DType, DType::q5_1>());
    case DType::q2_k: return f(std::integral_constant<DType, DType::q2_k>());
    case DType::q3_k: return f(std::integral_constant<DType, DType::q3_k>());
    case DType::iq2_xxs: return f(std::integral_constant<DType, DType::iq2_xxs>());
    case DType::iq2_xs: return f(std::integral_constant<DType, DType::iq2_xs>());
    case DType::iq2_s: return f(std::integral_constant<DType, DType::iq2_s>());
    case DType::iq3_xxs: return f(std::integral_constant<DType, DType::iq3_xxs>());
    case DType::iq3_s: return f(std::integral_constant<DType, DType::iq3_s>());
    case DType::iq4_nl: return f(std::integral_constant<DType, DType::iq4_nl>());
    case DType::iq4_xs: return f(std::integral_constant<DType, DType::iq4_xs>());
    case DType::mxfp4: return f(std::integral_constant<DType, DType::mxfp4>());
    case DType::nvfp4: return f(std::integral_constant<DType, DType::nvfp4>());
    default: return false;
  }
}

// f(both formats) of pairs that files mix in q, k, v; else false. Instances are with the first format's.
template <class F>
bool if_packed_pair(const Tensor& w, const Tensor& other, F f) {
  if (w.packing != kPacked || other.packing != kPacked || other.type != DType::q6_k) return false;
  constexpr std::integral_constant<DType, DType::q6_k> second;
  switch (w.type) {
    case DType::q4_k: return f(std::integral_constant<DType, DType::q4_k>(), second);
    case DType::q5_k: return f(std::integral_constant<DType, DType::q5_k>(), second);
    default: return false;
  }
}

}  // namespace carat::cuda
