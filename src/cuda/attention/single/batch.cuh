// Attention of sequences that have a row each in a step of many: a row and a KV head a task, which goes
// through all that the row sees by the walk of a single row (single/single.cuh) and folds segments
// as it passes their ends. The same sums as tiles/tiles.cuh has, whose products would be mostly
// empty here.
#pragma once
#include "cuda/attention/single/single.cuh"
#include "cuda/attention/tasks.cuh"

namespace carat::cuda {

template <class S>
struct BatchWalk : SingleWalk<S> {
  using Base = SingleWalk<S>;
  using Base::Base, Base::a, Base::memory, Base::o, Base::sum, Base::top, Base::t, Base::lane, Base::warp;
  // Tiles whose pages are known at a time: whole segments of every length (segment_of).
  static constexpr int kChunk = 64;
  static constexpr int kPitch = S::kDim + 2;  // of leave_segment()
  static_assert(segment_of(0, INT32_MAX - 1) == kChunk * kKvTile);
  static_assert(kSingleHeads * kPitch * 4 <= S::kUnits * S::kTile);
  float total[S::kColumns / 2][4], total_sum[2], total_top;  // as o, sum and top

  CARAT_D void run(RowSet set, int32_t m, int32_t kv_head) {
    const Seen seen = this->seen_by_row(set, m);
    const int32_t each = segment_of(a.kv.window, this->own_pos(seen)) / kKvTile, end = seen.last / kKvTile;
    total_top = -INFINITY, total_sum[0] = total_sum[1] = 0;
#pragma unroll
    for (int n = 0; n < S::kColumns / 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) total[n][i] = 0;
#pragma unroll 1
    for (int32_t from = seen.first / kKvTile; from <= end; from = (from / kChunk + 1) * kChunk) {
      const int32_t to = (from / kChunk + 1) * kChunk - 1;
      this->settle(seen, m, kv_head, from, to < end ? to : end, -1);
      this->walk([&](int32_t tile) {
        if ((tile + 1) % each == 0 || tile == end) fold_segment();
      });
    }
    write_row(m, kv_head);
  }

 private:
  // As merge_kernel (attention.cu) does.
  CARAT_D void fold_segment() {
    const float most = fmaxf(total_top, top), keeps = weight_of(total_top, most),
                takes = weight_of(top, most);
    total_top = most;
    float keep[2], take[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {  // heads 2 t + r are those of lanes 8 t + 4 r
      keep[r] = shuffle(keeps, 8 * t + 4 * r), take[r] = shuffle(takes, 8 * t + 4 * r);
      fold(total_sum[r], sum[r], keep[r], take[r]);
    }
#pragma unroll
    for (int n = 0; n < S::kColumns / 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) fold(total[n][i], o[n][i], keep[i % 2], take[i % 2]);
    this->clear();
  }
  CARAT_D void write_row(int32_t m, int32_t kv_head) {
    auto* x = reinterpret_cast<float*>(memory + S::kRingAt);
#pragma unroll
    for (int n = 0; n < S::kColumns / 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] = total[n][i] / total_sum[i % 2];
    this->leave_segment(0, [&](int head, int column, float v) { x[head * kPitch + column] = v; });
    sync_block();
    const Rotation<S::kDim / 32> rotation(device_rotation(a.kv.v_type), true, S::kDim, this->tables, lane);
    for (int head = warp; head < a.group; head += kSingleWarps)
      write_head(a, x + head * kPitch, row_of<float>(a.y, m) + (kv_head * a.group + head) * S::kDim, rotation,
                 lane);
  }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads) __maxnreg__(S::kRegisters)
    batch_attention(const AttentionPart given, const DevStep* s, const Tables* tables, RowSet set) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900  // as single_attention
  const LoneRow lone(s);
  const RowPrep prepared{};
  AttentionPart a = given;  // with what the compiler knows
  a.kv.dim = S::kDim, a.kv.k_type = a.kv.v_type = S::kType, a.kv.k_row = a.kv.v_row = S::kRow;
  CARAT_SHARED(memory);
  bool started = false;
  const RunLengths lone_runs{0, 1};
  const int32_t rows = group_count(lone_runs, s, set, 1), tasks = rows * a.kv.heads;
  if (static_cast<int32_t>(blockIdx.x) >= tasks) return begin_kernel();
#pragma unroll 1
  for (int32_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int32_t kv_head = task / rows;
    BatchWalk<S> w(a, prepared, s, lone, *tables, memory, started);
    w.run(set, group_of(lone_runs, s, set, 1, task - kv_head * rows).m, kv_head);
  }
#endif
}

template <class S>
bool run_batch(const Context& c, const AttentionPart& a, int32_t rows, RowSet set) {
  if (S::kBytes > c.launcher.shared || c.launcher.major != 9 || compiled_for(batch_attention<S>) != 90)
    return false;
  const int32_t tasks = rows * a.kv.heads, blocks = S::kBlocks * c.launcher.sms;
  launch(c.launcher, "attention", batch_attention<S>, dim3(static_cast<unsigned>(std::min(tasks, blocks))),
         S::kThreads, static_cast<size_t>(S::kBytes), a, c.step, c.tables, set);
  return true;
}

}  // namespace carat::cuda
