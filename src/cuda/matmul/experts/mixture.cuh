// A single row's choice of experts, its dense branch and its experts as two kernels (of few rows:
// experts/rows.cuh): a stream of gate and up of both, and down of both, which rounds what it reads.
// Nothing waits for small kernels between.
#pragma once
#include "cuda/matmul/experts/rows.cuh"
#include "cuda/matmul/packed/stream.cuh"
#include "cuda/quant/rounding.cuh"

namespace carat::cuda {

CARAT_D int32_t* held_choices() {
  CARAT_STATIC_SHARED int32_t experts[kHeldChoices];
  return experts;
}
// Where gate and up tell down which experts there are.
CARAT_D uint32_t* told(const DevStep* s, const Mixture& m) { return s->chosen + kChoiceWords * m.number; }

// Groups of the dense branch, whose weights are known before experts are chosen, then those of every chosen
// expert.
struct MixtureUp {
  static constexpr bool kChooses = true, kNormed = false, kRoundsRow = false, paired = true;
  static constexpr RowKind kRow = RowKind::rounded;
  Mixture m;
  Rounded dense, experts;
  float* hidden;  // [experts used][inner]
  int32_t first;  // groups of the dense branch
  Divider each;   // of an expert

  CARAT_D const MixtureUp& sums() const { return *this; }
  CARAT_D const Rounded& acts(int32_t group) const { return group < first ? dense : experts; }
  CARAT_D int32_t scales_at(int32_t group) const { return group < first ? 0 : dense.blocks; }
  CARAT_D int32_t cols() const { return m.experts.gate.cols; }
  CARAT_D bool known(int32_t group) const { return group < first; }
  template <DType T>
  CARAT_D TileAt weights(const Deal& deal, int32_t at) const {
    const int32_t group = deal.group(at), tile = deal.tile(at), b = deal.block(at);
    if (group < first) return tile_at<T>(tile < deal.blocks ? m.gate_up.gate : m.gate_up.up, 0, group, b);
    const int32_t k = each.quotient(group - first), e = held_choices()[k];
    const Tensor& w = tile < deal.blocks ? m.experts.gate : m.experts.up;
    return tile_at<T>(w, exists(w, e) ? e : 0, group - first - k * each.by, b);
  }
  // By a warp. Tiles wait for this, and need no weights of experts; down finds those by itself, and is told
  // the experts before these tiles have ended.
  CARAT_D void choose(const DevStep* s, int lane) const {
    const int32_t expert = cuda::choose<false>(m.route, 0, lane).expert;
    if (lane >= m.route.top_k) return;
    held_choices()[lane] = expert;
    if (blockIdx.x == 0) tell_choice(s, told(s, m) + lane, expert);
  }
  CARAT_D void take_scales(const Deal& deal, float* d, int lane) const {
    for (int32_t i = lane; i < deal.blocks; i += 32) d[i] = dense.d[i], d[deal.blocks + i] = experts.d[i];
  }
  CARAT_D void finish(int32_t group, int lane, float gate, float up) const {
    if (group < first) {
      const GateUpArgs& a = m.gate_up;
      const int32_t n = group * kGroup + lane;
      if (n < a.gate.rows)
        row_of<float>(a.y, 0)[n] = activate(a.act, gate * a.gate_scale) * (up * a.up_scale);
      return;
    }
    const ExpertsArgs& a = m.experts;
    const int32_t k = each.quotient(group - first), n = (group - first - k * each.by) * kGroup + lane,
                  e = held_choices()[k];
    if (n < a.gate.rows && exists(a.gate, e))
      hidden[int64_t{k} * a.gate.rows + n] =
          activate(a.act, gate * expert_scale(a.gate_scale, e)) * (up * expert_scale(a.up_scale, e));
  }
};

// Down: a block has 32 outputs of all experts, or some groups of 32 of the dense branch; where both are added
// up, 32 outputs of all. A warp rounds the inputs of its tile.
struct MixtureDown {
  Mixture m;
  const float* hidden;
  int32_t groups;                // of 32 outputs
  Divider dense;                 // blocks of threads of the dense branch
  Divider blocks, dense_blocks;  // of 256 columns: of an expert, of the dense branch
  int32_t most, slots;           // tiles a block has at the most; in shared memory at once, a warp's

  // What the operation Route leaves.
  CARAT_D void store_choice(const Choice& mine, int lane) const {
    if (lane >= m.route.top_k) return;
    row_of<int32_t>(m.route.experts, 0)[lane] = mine.expert;
    row_of<float>(m.route.weights, 0)[lane] = mine.weight;
  }
  // Of the dense branch's blocks of threads.
  CARAT_D int32_t dense_from(int32_t i) const { return dense.quotient(groups * i); }
};
template <DType T>
struct DownShape {
  static constexpr int kStage = packed_tile(T, 256), kSlot = kStage + kStreamStage;
};

// A block's tiles: those of one expert after the other, or of its groups of outputs, the first one `from`.
struct DownTile {
  TileAt weights;
  const float* x;  // its columns of the input
};
template <DType T>
CARAT_D DownTile down_tile(const MixtureDown& job, int32_t from, int32_t task) {
  const auto group = static_cast<int32_t>(blockIdx.x);
  const int32_t behind = task - job.m.route.top_k * job.blocks.by;  // experts' tiles
  if (group < job.groups && behind < 0) {
    const int32_t k = job.blocks.quotient(task), b = task - k * job.blocks.by, e = held_choices()[k];
    const Tensor& w = job.m.experts.down;
    return {tile_at<T>(w, exists(w, e) ? e : 0, group, b), job.hidden + int64_t{k} * w.cols + 256 * b};
  }
  const bool added = group < job.groups;
  const int32_t g = added ? 0 : job.dense_blocks.quotient(task),
                b = added ? behind : task - g * job.dense_blocks.by;
  return {tile_at<T>(job.m.down.w, 0, added ? group : from + g, b),
          row_of<const float>(job.m.down.x, 0) + 256 * b};
}
// What a block's tiles have left, in the orders of Experts and of Matmul.
// `mine`: of the first warp's lane k, choice k.
template <int W>
CARAT_D void finish_down(const MixtureDown& job, int32_t from, int32_t to, float* left, const float* d,
                         const Choice& mine) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (const auto group = static_cast<int32_t>(blockIdx.x); group < job.groups) {
    const ExpertsArgs& a = job.m.experts;
    const int32_t n = group * kGroup + lane, used = job.m.route.top_k, blocks = job.blocks.by;
    for (int32_t k = warp; k < used + job.m.adds; k += W)
      left[k * blocks * 32 + lane] =
          add_up<1>(left + k * blocks * 32, d + k * blocks, k < used ? blocks : job.dense_blocks.by, 0, lane);
    sync_block();
    if (warp != 0) return;
    const bool some = n < a.down.rows;
    float y = a.residual.data && some ? row_of<const float>(a.residual, 0)[n] : 0;
#pragma unroll 4
    for (int32_t k = 0; k < used; ++k) {
      const int32_t e = held_choices()[k];
      const float weight = shuffle(mine.weight, k);
      if (exists(a.down, e)) y = y + weight * (left[k * blocks * 32 + lane] * expert_scale(a.down_scale, e));
    }
    if (some && job.m.adds) {
      const float dense = finished(job.m.down, 0, n, left[used * blocks * 32 + lane]);
      row_of<float>(job.m.down.y, 0)[n] = dense, y = y + dense;
    }
    if (some) row_of<float>(a.y, 0)[n] = y;
    return;
  }
  const int32_t blocks = job.dense_blocks.by;
  for (int32_t g = warp; from + g < to; g += W) {
    const int32_t n = (from + g) * kGroup + lane;
    const float v = add_up<1>(left + g * blocks * 32, d + g * blocks, blocks, 0, lane);
    if (n < job.m.down.w.rows) finish(job.m.down, 0, n, v);
  }
}

template <DType T, int W>
__global__ void __launch_bounds__(32 * W, 1)
    mixture_down_kernel(const __grid_constant__ MixtureDown job, const DevStep* s, RowSet set) {
  using Shape = DownShape<T>;
  CARAT_SHARED(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slots = job.slots;
  const bool chosen = static_cast<int32_t>(blockIdx.x) < job.groups;
  const int32_t at = static_cast<int32_t>(blockIdx.x) - job.groups, from = chosen ? 0 : job.dense_from(at),
                to = chosen ? 0 : job.dense_from(at + 1),
                tiles = chosen ? job.m.route.top_k * job.blocks.by + (job.m.adds ? job.dense_blocks.by : 0)
                               : (to - from) * job.dense_blocks.by;
  uint8_t* ring = memory + warp * slots * Shape::kSlot;
  const SharedAddress gates = shared_address(memory + W * slots * Shape::kSlot) + warp * slots * 8;
  auto* left = reinterpret_cast<float*>(memory + W * slots * (Shape::kSlot + 8));
  float* d = left + job.most * 32;
  const bool some = row_count(s, set) > 0;
  if (lane == 0)
    for (int k = 0; k < slots; ++k) gate_init(gates + 8 * k, asks_arrive(1));
  const RouteArgs& route = job.m.route;
  Choice mine{-1, 0};
  float logit = 0, scale = 0;
  if (chosen && some) {
    if (warp == 0 && lane < route.top_k) {
      held_choices()[lane] = mine.expert = told_choice(s, told(s, job.m) + lane);
      // Whoever computes logits has ended: the kernel before has waited for that.
      logit = row_of<const float>(route.logits, 0)[mine.expert], scale = scale_of_expert(route, mine.expert);
    }
    sync_block();
  }
  sync_warp();
  const auto ask = [&](int32_t task, int slot) {
    if (task >= tiles || !has_part(lane)) return;
    const TileAt w = down_tile<T>(job, from, task).weights;
    ask_copy_once(gates + 8 * slot, lane,
                  {shared_address(ring + slot * Shape::kSlot), w.tile, packed_tile(T, w.n)});
  };
  if (some)
#pragma unroll 1
    for (int k = 0; k < slots; ++k) ask(warp + k * W, k);
  wait_inputs();
  let_next_start();
  if (!some) return;
  if (chosen && warp == 0) {
    mine.weight = choice_weight(route, logit, scale, lane);
    if (blockIdx.x == 0) job.store_choice(mine, lane);
  }
  int slot = 0, parity = 0;
  float x[8], next[8] = {};
  DownTile t = down_tile<T>(job, from, warp < tiles ? warp : 0);
  load_columns(t.x, t.weights.n, x, lane);
#pragma unroll 1
  for (int32_t task = warp; task < tiles; task += W) {
    const int n = t.weights.n;
    if (task + W < tiles) {
      t = down_tile<T>(job, from, task + W);
      load_columns(t.x, t.weights.n, next, lane);
    }
    uint8_t* tile = ring + slot * Shape::kSlot;
    const Stage<1> stage{tile + Shape::kStage};
    round_block(x, {reinterpret_cast<int8_t*>(stage.p), reinterpret_cast<int16_t*>(stage.p + 256), d + task},
                0, lane);
    sync_warp();
    gate_wait(gates + 8 * slot, parity);
    LaneBlock<T> w;
    w.take(tile, lane, n, [](const uint8_t* p) { return *reinterpret_cast<const uint4*>(p); });
    float v[1];
    w.template dot<1>(stage, n, v);
    left[task * 32 + lane] = v[0];
    sync_warp();
    ask(task + slots * W, slot);
    if (++slot == slots) slot = 0, parity ^= 1;
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = next[k];
  }
  sync_block();
  finish_down<W>(job, from, to, left, d, mine);
}

static_assert(kHeldChoices <= kChoiceWords);
inline int32_t down_grid(const Mixture& m, int32_t sms) {
  const int32_t groups = groups_of(m.experts.down.rows);
  return m.adds ? groups : std::max(sms, groups + (groups + 1) / 2);
}
inline MixtureDown down_of(const Mixture& m, const float* hidden, int32_t sms) {
  MixtureDown job{m,
                  hidden,
                  groups_of(m.experts.down.rows),
                  Divider(std::max(1, down_grid(m, sms) - groups_of(m.experts.down.rows))),
                  Divider((m.experts.down.cols + 255) / 256),
                  Divider((m.down.w.cols + 255) / 256),
                  0,
                  0};
  const int32_t chosen = m.route.top_k * job.blocks.by;
  job.most = m.adds ? chosen + job.dense_blocks.by
                    : std::max(chosen, (job.groups + job.dense.by - 1) / job.dense.by * job.dense_blocks.by);
  return job;
}
// A Hopper's, or the most that have room for a slot each on a narrow device.
template <DType T>
int down_warps(int64_t shared) {
  return is_narrow(shared) ? narrow_down_warps(T) : kDownWarps;
}

template <DType T>
bool mixture_up_fits(const Mixture& m, const DeviceProps& device) {
  if (m.gate_up.y.rows > 1) return branch_up_fits(m, device.shared_per_block);
  return stream_fits<T, MixtureUp>(2 * ((m.gate_up.gate.cols + 255) / 256), device.shared_per_block);
}
template <DType T>
bool mixture_down_fits(const Mixture& m, const DeviceProps& device) {
  const int64_t shared = device.shared_per_block;
  if (m.gate_up.y.rows > 1) return branch_down_fits(m, shared);
  return down_bytes(T, down_of(m, nullptr, device.sms).most, down_warps<T>(shared), 1) <= shared;
}
template <DType T>
bool run_mixture_up(const Context& c, const Mixture& m, const Rounded& dense, const Rounded& experts,
                    float* hidden, RowSet rows) {
  if (m.gate_up.y.rows > 1) return run_branch_up<T>(c, m, dense, experts, hidden, rows);
  const MixtureUp job{
      m, dense, experts, hidden, groups_of(m.gate_up.gate.rows), Divider(groups_of(m.experts.gate.rows))};
  run_stream<T>(c, "gate-up of a mixture", job, job.first + m.route.top_k * job.each.by, true, dense.blocks,
                2 * dense.blocks, rows, job.first);
  return true;
}
template <DType T>
bool run_mixture_down(const Context& c, const Mixture& m, const float* hidden, RowSet rows) {
  if (m.gate_up.y.rows > 1) return run_branch_down<T>(c, m, hidden, rows);
  MixtureDown job = down_of(m, hidden, c.launcher.sms);
  const int warps = down_warps<T>(c.launcher.shared);
  for (job.slots = (job.most + warps - 1) / warps; job.slots > 1; --job.slots)
    if (down_bytes(T, job.most, warps, job.slots) <= c.launcher.shared) break;
  launch(
      c.launcher, "down of a mixture",
      warps == kDownWarps ? mixture_down_kernel<T, kDownWarps> : mixture_down_kernel<T, narrow_down_warps(T)>,
      dim3(static_cast<unsigned>(down_grid(m, c.launcher.sms))), 32 * warps,
      static_cast<size_t>(down_bytes(T, job.most, warps, job.slots)), job, c.step, rows);
  return true;
}

}  // namespace carat::cuda
