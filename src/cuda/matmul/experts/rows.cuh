// Experts of few rows over packed formats, and the dense branch that may stand beside them: a block of
// threads has a row, a group of 32 outputs, and one of the row's experts (of down: all of them).
#pragma once
#include "cuda/matmul/experts/route.cuh"
#include "cuda/matmul/packed/rows.cuh"
#include "cuda/quant/rounding.cuh"

namespace carat::cuda {

CARAT_D bool exists(const Tensor& slices, int32_t e) { return e >= 0 && e < slices.slices; }

// What tasks leave, in shared memory.
template <DType T, class At, class From, class Block>
CARAT_D float* experts_sums(const Tasks& tasks, uint8_t* memory, LaneBlock<T>& w, At at, From from,
                            Block block) {
  auto* sums = reinterpret_cast<float*>(memory);
  LaneTasks<T, 1>::run(tasks, sums, memory + tasks.count * 128, w, 1, at, from, block);
  let_next_start();
  sync_block();
  return sums;
}

// A row of the step and one of its experts. chosen: the operation before waits for the one that chooses.
template <DType T>
__global__ void __launch_bounds__(kPackedThreads)
    packed_experts_up(const ExpertsArgs a, const Rounded r, const Tasks tasks, float* hidden, bool chosen,
                      const DevStep* s, RowSet set) {
  CARAT_SHARED(memory);
  if (!chosen) wait_inputs();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t used = a.weights.cols, pair = blockIdx.x, m = pair / used, group = blockIdx.y,
                blocks = r.blocks;
  const int32_t e =
      m < row_count(s, set) ? load_fresh(row_of<const int32_t>(a.experts, m) + pair % used) : -1;
  if (!exists(a.gate, e)) {
    if (chosen) wait_inputs();
    return;
  }
  const Acts x = acts_of(a.x, r).from(m);
  const auto at = [&](int32_t task) {
    return task < blocks ? tile_at<T>(a.gate, e, group, task) : tile_at<T>(a.up, e, group, task - blocks);
  };
  auto w = ask_first<LaneBlock<T>>(tasks, at);
  if (chosen) wait_inputs();
  const float* sums = experts_sums<T>(
      tasks, memory, w, at, [&](int32_t) { return x; },
      [&](int32_t task) { return task < blocks ? task : task - blocks; });
  const int32_t n = group * kGroup + lane;
  if (warp != 0 || n >= a.gate.rows) return;
  const float gate = add_up<1>(sums, x.d, blocks, 0, lane),
              up = add_up<1>(sums + blocks * 32, x.d, blocks, 0, lane);
  hidden[int64_t{pair} * a.gate.rows + n] =
      activate(a.act, gate * expert_scale(a.gate_scale, e)) * (up * expert_scale(a.up_scale, e));
}

// All experts of a row, added up in the order of its slots.
template <DType T>
__global__ void __launch_bounds__(kPackedThreads)
    packed_experts_down(const ExpertsArgs a, const Rounded h, const Tasks tasks, const DevStep* s,
                        RowSet set) {
  CARAT_SHARED(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t m = blockIdx.x, group = blockIdx.y, blocks = h.blocks, used = a.weights.cols;
  if (m >= row_count(s, set)) return wait_inputs();
  const int32_t* chosen = row_of<const int32_t>(a.experts, m);
  const Acts x = Acts{nullptr, 0, h.q, h.sums, h.d, blocks}.from(int64_t{m} * used);
  const int32_t mine = lane < used ? load_fresh(chosen + lane) : -1;  // of a lane's choice
  const auto at = [&](int32_t task) {
    const int32_t k = task / blocks, e = k < 32 ? shuffle(mine, k) : load_fresh(chosen + k);
    return tile_at<T>(a.down, exists(a.down, e) ? e : 0, group, task % blocks);
  };
  auto w = ask_first<LaneBlock<T>>(tasks, at);
  wait_inputs();
  const float* sums = experts_sums<T>(
      tasks, memory, w, at, [&](int32_t task) { return x.from(task / blocks); },
      [&](int32_t task) { return task % blocks; });
  const int32_t n = group * kGroup + lane;
  if (warp != 0 || n >= a.down.rows) return;
  float y = a.residual.data ? row_of<const float>(a.residual, m)[n] : 0;
  for (int32_t k = 0; k < used; ++k) {
    if (!exists(a.down, chosen[k])) continue;
    const float v = add_up<1>(sums + k * blocks * 32, x.d + int64_t{k} * blocks, blocks, 0, lane);
    y = y + row_of<const float>(a.weights, m)[k] * (v * expert_scale(a.down_scale, chosen[k]));
  }
  row_of<float>(a.y, m)[n] = y;
}

// The dense branch of a mixture of few rows, whose experts are chosen here; as wide as one of them at the
// most.
struct Branch {
  RouteArgs route;
  GateUpArgs gate_up;
  MatmulArgs down;
  Rounded x;
  bool adds = false;  // down.y is added to the experts' y
};

// Expert k of row m, by every warp for itself; one of the row's warps tells down.
CARAT_D int32_t choose_expert(const RouteArgs& a, int32_t m, int32_t k, bool tells, int lane) {
  const Choice mine = tells ? choose(a, m, lane) : choose<false>(a, m, lane);
  if (tells && lane < a.top_k) {
    row_of<int32_t>(a.experts, m)[lane] = mine.expert;
    row_of<float>(a.weights, m)[lane] = mine.weight;
  }
  return shuffle(mine.expert, k);
}

// Gate and up of a row's experts, and of its branch behind them.
template <DType T>
__global__ void __launch_bounds__(kPackedThreads)
    packed_branch_up(const __grid_constant__ ExpertsArgs a, const __grid_constant__ Branch branch,
                     const Rounded r, const Tasks tasks, float* hidden, const DevStep* s, RowSet set) {
  CARAT_SHARED(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t used = a.weights.cols, m = blockIdx.x / (used + 1), k = blockIdx.x - m * (used + 1),
                group = blockIdx.y, blocks = r.blocks;
  const bool expert = k < used;
  const GateUpArgs& b = branch.gate_up;
  const Tensor &gate = expert ? a.gate : b.gate, &up = expert ? a.up : b.up;
  const bool some = m < row_count(s, set) && group < groups_of(gate.rows);
  if (expert) wait_inputs();  // the branch's weights are known before
  const int32_t e = !expert || !some ? 0 : choose_expert(branch.route, m, k, k + group + warp == 0, lane);
  if (!some || (expert && !exists(gate, e))) return expert ? void() : wait_inputs();
  const auto at = [&](int32_t task) {
    return task < blocks ? tile_at<T>(gate, e, group, task) : tile_at<T>(up, e, group, task - blocks);
  };
  auto w = ask_first<LaneBlock<T>>(tasks, at);
  if (!expert) wait_inputs();
  const Acts x = (expert ? acts_of(a.x, r) : acts_of(b.x, branch.x)).from(m);
  const float* sums = experts_sums<T>(
      tasks, memory, w, at, [&](int32_t) { return x; },
      [&](int32_t task) { return task < blocks ? task : task - blocks; });
  const int32_t n = group * kGroup + lane;
  if (warp != 0 || n >= gate.rows) return;
  const float g = add_up<1>(sums, x.d, blocks, 0, lane),
              u = add_up<1>(sums + blocks * 32, x.d, blocks, 0, lane);
  if (expert)
    hidden[(int64_t{m} * used + k) * gate.rows + n] =
        activate(a.act, g * expert_scale(a.gate_scale, e)) * (u * expert_scale(a.up_scale, e));
  else
    row_of<float>(b.y, m)[n] = activate(b.act, g * b.gate_scale) * (u * b.up_scale);
}

// Down of both; a warp rounds the inputs of its tile.
inline int64_t branch_down_bytes(const Tasks& tasks) {
  return (int64_t{tasks.count} * 33 + 3) / 4 * 16 + int64_t{tasks.warps} * Stage<1>::kBytes;
}
template <DType T>
__global__ void __launch_bounds__(kPackedThreads)
    packed_branch_down(const __grid_constant__ ExpertsArgs a, const __grid_constant__ Branch branch,
                       const float* hidden, const Tasks tasks, const DevStep* s, RowSet set) {
  CARAT_SHARED(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t m = blockIdx.x, group = blockIdx.y, used = a.weights.cols, inner = a.down.cols,
                blocks = (inner + 255) / 256, experts = used * blocks;
  wait_inputs();
  if (m >= row_count(s, set)) return;
  const int32_t mine = lane < used ? row_of<const int32_t>(a.experts, m)[lane] : -1;
  const auto at = [&](int32_t task) {
    if (task >= experts) return tile_at<T>(branch.down.w, 0, group, task - experts);
    const int32_t e = shuffle(mine, task / blocks);
    return tile_at<T>(a.down, exists(a.down, e) ? e : 0, group, task % blocks);
  };
  const auto columns = [&](int32_t task) {
    return task >= experts ? row_of<const float>(branch.down.x, m) + 256 * (task - experts)
                           : hidden + (int64_t{m} * used + task / blocks) * inner + task % blocks * 256;
  };
  auto w = ask_first<LaneBlock<T>>(tasks, at);
  auto* sums = reinterpret_cast<float*>(memory);
  float* d = sums + tasks.count * 32;
  const Stage<1> stage{memory + (tasks.count * 33 + 3) / 4 * 16 + warp * Stage<1>::kBytes};
  for (int32_t task = warp; task < tasks.count; task += tasks.warps) {
    const TileAt tile = at(task);
    if (task != warp) w.load(tile.tile, lane, tile.n);
    float x[8], t[1];
    load_columns(columns(task), tile.n, x, lane);
    round_block(x, {reinterpret_cast<int8_t*>(stage.p), reinterpret_cast<int16_t*>(stage.p + 256), d + task},
                0, lane);
    sync_warp();
    w.template dot<1>(stage, tile.n, t);
    sums[task * 32 + lane] = t[0];
    sync_warp();
  }
  let_next_start();
  sync_block();
  for (int32_t k = warp; k <= used; k += tasks.warps)
    sums[k * blocks * 32 + lane] =
        add_up<1>(sums + k * blocks * 32, d + k * blocks, k < used ? blocks : tasks.count - experts, 0, lane);
  sync_block();
  const int32_t n = group * kGroup + lane;
  if (warp != 0) return;
  const bool has = n < a.down.rows;
  float y = has && a.residual.data ? row_of<const float>(a.residual, m)[n] : 0;
  for (int32_t k = 0; k < used; ++k) {
    const int32_t e = shuffle(mine, k);
    if (!exists(a.down, e)) continue;
    y = y +
        row_of<const float>(a.weights, m)[k] * (sums[k * blocks * 32 + lane] * expert_scale(a.down_scale, e));
  }
  if (!has) return;
  const float dense = finished(branch.down, m, n, sums[experts * 32 + lane]);
  row_of<float>(branch.down.y, m)[n] = dense;
  row_of<float>(a.y, m)[n] = branch.adds ? y + dense : y;
}

inline int64_t experts_bytes(const Tasks& tasks) { return tasks.shared(1, Stage<1>::kBytes); }

template <DType T>
bool packed_up(const Context& c, const ExpertsArgs& a, const Rounded& x, float* hidden, bool chosen,
               RowSet rows) {
  const Tasks tasks(2 * x.blocks);
  if (experts_bytes(tasks) > c.launcher.shared) return false;
  launch(
      c.launcher, "experts: gate, up", packed_experts_up<T>,
      dim3(static_cast<unsigned>(a.y.rows * a.weights.cols), static_cast<unsigned>(groups_of(a.gate.rows))),
      32 * tasks.warps, static_cast<size_t>(experts_bytes(tasks)), a, x, tasks, hidden, chosen, c.step, rows);
  return true;
}
template <DType T>
bool packed_down(const Context& c, const ExpertsArgs& a, const Rounded& h, RowSet rows) {
  const Tasks tasks(h.blocks * a.weights.cols);
  if (experts_bytes(tasks) > c.launcher.shared) return false;
  launch(c.launcher, "experts: down", packed_experts_down<T>,
         dim3(static_cast<unsigned>(a.y.rows), static_cast<unsigned>(groups_of(a.down.rows))),
         32 * tasks.warps, static_cast<size_t>(experts_bytes(tasks)), a, h, tasks, c.step, rows);
  return true;
}

// A mixture of few rows in two kernels.
inline Tasks branch_up_tasks(const Mixture& m) { return Tasks(2 * ((m.gate_up.gate.cols + 255) / 256)); }
inline Tasks branch_down_tasks(const Mixture& m) {
  return Tasks(m.route.top_k * ((m.experts.down.cols + 255) / 256) + (m.down.w.cols + 255) / 256);
}
inline bool branch_up_fits(const Mixture& m, int64_t shared) {
  return groups_of(m.gate_up.gate.rows) <= groups_of(m.experts.gate.rows) &&
         experts_bytes(branch_up_tasks(m)) <= shared;
}
inline bool branch_down_fits(const Mixture& m, int64_t shared) {
  return branch_down_bytes(branch_down_tasks(m)) <= shared;
}
inline Branch branch_of(const Mixture& m, const Rounded& x) {
  return {m.route, m.gate_up, m.down, x, m.adds};
}
template <DType T>
bool run_branch_up(const Context& c, const Mixture& m, const Rounded& dense, const Rounded& experts,
                   float* hidden, RowSet rows) {
  const Tasks tasks = branch_up_tasks(m);
  launch(c.launcher, "gate-up of a mixture", packed_branch_up<T>,
         dim3(static_cast<unsigned>(m.experts.y.rows * (m.route.top_k + 1)),
              static_cast<unsigned>(groups_of(m.experts.gate.rows))),
         32 * tasks.warps, static_cast<size_t>(experts_bytes(tasks)), m.experts, branch_of(m, dense), experts,
         tasks, hidden, c.step, rows);
  return true;
}
template <DType T>
bool run_branch_down(const Context& c, const Mixture& m, const float* hidden, RowSet rows) {
  const Tasks tasks = branch_down_tasks(m);
  launch(c.launcher, "down of a mixture", packed_branch_down<T>,
         dim3(static_cast<unsigned>(m.experts.y.rows), static_cast<unsigned>(groups_of(m.experts.down.rows))),
         32 * tasks.warps, static_cast<size_t>(branch_down_bytes(tasks)), m.experts, branch_of(m, {}), hidden,
         tasks, c.step, rows);
  return true;
}

}  // namespace carat::cuda
