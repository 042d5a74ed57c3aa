// The kernels of Matmul and GateUp over one packed format (packed/rows.cuh): a block has a group of 32
// outputs and MT rows of the step. Instances are spread over formats/.
#pragma once
#include "cuda/matmul/experts/mixture.cuh"
#include "cuda/matmul/experts/rows.cuh"
#include "cuda/matmul/matmul.cuh"
#include "cuda/matmul/packed/rows.cuh"
#include "cuda/matmul/packed/stream.cuh"
#include "cuda/matmul/packed/stream_rows.cuh"
#include "cuda/matmul/packed/tiles.cuh"

namespace carat::cuda {

// One or two rows a lane an output, more on the tensor cores; the bits are the same.
template <DType T, int MT>
using ByRows = std::conditional_t<(MT < 8), LaneTasks<T, MT>, TensorTasks<T, MT>>;
template <DType T, int MT, class At>
CARAT_D auto ask(const Tasks& tasks, At at) {
  return ask_first<typename ByRows<T, MT>::Weights>(tasks, at);
}
template <DType T, int MT, class W, class At, class From, class Block>
CARAT_D float* run_tasks(const Tasks& tasks, uint8_t* memory, W& w, int32_t rows, At at, From from,
                         Block block) {
  auto* left = reinterpret_cast<float*>(memory);
  ByRows<T, MT>::run(tasks, left, memory + tasks.count * MT * 128, w, rows, at, from, block);
  let_next_start();
  sync_block();
  return left;
}
template <DType T, int MT>
int64_t shared_of(const Tasks& tasks) {
  return tasks.shared(MT, ByRows<T, MT>::kBytes);
}

// Of the step's rows from m0 on, at most MT; none: 0 or less.
template <int MT>
CARAT_D int32_t rows_from(const DevStep* s, RowSet set, int32_t m0) {
  const int32_t left = row_count(s, set) - m0;
  return left < MT ? left : MT;
}

template <DType T, int MT, bool kPaired>
__global__ void __launch_bounds__(kPackedThreads, MT < 8 ? 2 : 0)
    packed_products(const ProductJob job, const Rounded r, const Tasks tasks, const DevStep* s, RowSet set) {
  CARAT_SHARED(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t group = blockIdx.x, m0 = blockIdx.y * MT, blocks = r.blocks;
  const auto at = [&](int32_t task) { return product_tile<T>(job, blocks, group, task); };
  auto w = ask<T, MT>(tasks, at);
  wait_inputs();
  const int32_t rows = rows_from<MT>(s, set, m0);
  if (rows <= 0) return;
  const Acts x = acts_of(job.m[0].x, r).from(m0);
  const float* sums = run_tasks<T, MT>(
      tasks, memory, w, rows, at, [&](int32_t) { return x; },
      [&](int32_t task) { return kPaired && task >= blocks ? task - blocks : task; });
  for (int m = warp; m < rows; m += tasks.warps) {
    const float *d = x.d + int64_t{m} * blocks, *last = sums + (kPaired ? blocks * MT * 32 : 0);
    const float gate = kPaired ? add_up<MT>(sums, d, blocks, m, lane) : 0;
    product_finish(job, group, m0 + m, lane, gate, add_up<MT>(last, d, blocks, m, lane));
  }
}

inline dim3 packed_grid(int32_t outputs, int32_t rows, int per) {
  return dim3(static_cast<unsigned>(groups_of(outputs)), static_cast<unsigned>((rows + per - 1) / per));
}

template <DType T, int MT>
bool launch_packed(const Context& c, const ProductJob& a, const Rounded& x, RowSet rows) {
  const Tasks tasks(a.paired ? 2 * x.blocks : x.blocks);
  if (shared_of<T, MT>(tasks) > c.launcher.shared) return false;
  launch(c.launcher, a.paired ? "gate-up" : "matmul",
         a.paired ? packed_products<T, MT, true> : packed_products<T, MT, false>,
         packed_grid(kGroup * a.groups(), a.m[0].y.rows, MT), 32 * tasks.warps,
         static_cast<size_t>(shared_of<T, MT>(tasks)), a, x, tasks, c.step, rows);
  return true;
}
template <DType T>
bool packed_product(const Context& c, const ProductJob& a, const Rounded& x, RowSet rows) {
  const int32_t n = a.m[0].y.rows;
  return (n > 8 && launch_rows<T, 16>(c, a, x, rows)) || (n > 1 && launch_rows<T, 8>(c, a, x, rows)) ||
         (n == 1 && launch_stream<T>(c, a, x, rows)) || (n > 8 && launch_packed<T, 16>(c, a, x, rows)) ||
         (n > 2 && launch_packed<T, 8>(c, a, x, rows)) || (n > 1 && launch_packed<T, 2>(c, a, x, rows)) ||
         launch_packed<T, 1>(c, a, x, rows);
}

// Two formats at once: a single row, or as many as the tensor cores take with all of the rows at hand.
template <DType T, DType T2>
bool packed_pair_fits(const RowNorms& norms, int32_t rows, int32_t blocks, const DeviceProps& device) {
  if (rows == 1)
    return norms.n > 0 ? streams_fit<T, T2, NormedStream>(blocks, device)
                       : streams_fit<T, T2, ProductStream>(blocks, device);
  return norms.n == 0 &&
         (rows > 8 ? rows_pair_fits<T, T2, 16>(blocks, device) : rows_pair_fits<T, T2, 8>(blocks, device));
}
template <DType T, DType T2>
void packed_pair(const Context& c, const RowNorms& norms, const ProductJob& job, const ProductJob& job2,
                 const Rounded& x, RowSet rows) {
  const int32_t n = job.m[0].y.rows;
  if (norms.n > 0)
    run_streams<T, T2>(c, "norms, matmul", NormedStream{{job, {}}, norms}, NormedStream{{job2, {}}, norms},
                       norms.blocks(), rows);
  else if (n == 1)
    run_streams<T, T2>(c, "matmul", ProductStream{job, x}, ProductStream{job2, x}, x.blocks, rows);
  else if (n > 8)
    run_rows_pair<T, T2, 16>(c, job, job2, x, rows);
  else
    run_rows_pair<T, T2, 8>(c, job, job2, x, rows);
}

#define CARAT_CUDA_PACKED_INSTANCES(T)                                                                \
  template bool packed_tiles_of<T>(const Context&, const TileJob&, const Rounded&, RowSet);           \
  template bool packed_product<T>(const Context&, const ProductJob&, const Rounded&, RowSet);         \
  template bool packed_normed_fits<T>(const RowNorms&, const DeviceProps&);                           \
  template void packed_normed<T>(const Context&, const RowNorms&, const ProductJob&, RowSet);         \
  template bool packed_rounding_fits<T>(const DeviceProps&);                                          \
  template void packed_rounding<T>(const Context&, const ProductJob&, RowSet);                        \
  template bool packed_up<T>(const Context&, const ExpertsArgs&, const Rounded&, float* hidden, bool, \
                             RowSet);                                                                 \
  template bool packed_down<T>(const Context&, const ExpertsArgs&, const Rounded&, RowSet);           \
  template bool mixture_up_fits<T>(const Mixture&, const DeviceProps&);                               \
  template bool mixture_down_fits<T>(const Mixture&, const DeviceProps&);                             \
  template bool run_mixture_up<T>(const Context&, const Mixture&, const Rounded&, const Rounded&,     \
                                  float* hidden, RowSet);                                             \
  template bool run_mixture_down<T>(const Context&, const Mixture&, const float* hidden, RowSet);

#define CARAT_CUDA_PAIR_INSTANCES(T, T2)                                                                    \
  template bool packed_pair_fits<T, T2>(const RowNorms&, int32_t rows, int32_t blocks, const DeviceProps&); \
  template void packed_pair<T, T2>(const Context&, const RowNorms&, const ProductJob&, const ProductJob&,   \
                                   const Rounded&, RowSet);

}  // namespace carat::cuda
