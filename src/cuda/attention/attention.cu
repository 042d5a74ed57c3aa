// Which kernel attends, and the fold of what the segments of split attention leave.
#include "cuda/attention/copies.cuh"
#include "cuda/attention/rows/rows.h"

namespace carat::cuda {
namespace {

constexpr int kMergeThreads = 256, kAtOnce = 128;  // segments whose factors are kept
constexpr int merge_bytes(int32_t dim) { return (dim + 5 * kAtOnce) * 4; }

// Folds the segments of a row and a query head, ascending, into an empty state.
__global__ void __launch_bounds__(kMergeThreads)
    merge_kernel(const AttentionPart a, const DevStep* s, const Tables* tables, RowSet set) {
  constexpr int kBatch = 16,
                kEach = kMaxHead / 32;  // segments that are asked for while those before are folded
  static_assert(kMaxHead == 2 * kMergeThreads);
  let_next_start();
  CARAT_SHARED(memory);
  const int thread = threadIdx.x;
  const int32_t m = blockIdx.x, head = blockIdx.y, segments = s->segments[a.span], dim = a.kv.dim;
  if (m >= row_count(s, set)) return wait_inputs();
  const Rotation<kEach> rotation(device_rotation(a.kv.v_type), true, dim, *tables, thread % 32);
  auto* factors = reinterpret_cast<float4*>(memory);  // to keep, to take, sum, top
  auto* tops = reinterpret_cast<float*>(factors + kAtOnce);
  float* x = tops + kAtOnce;
  const Seen seen = seen_by(a, s, step_row(s, set, m));
  const int32_t length = segment_of(a.kv.window, pos_of(s, seen.row)),
                n = segment_at(seen.last, length) - segment_at(seen.first, length) + 1;
  const float* p = s->partial + partial_at(a, segments, m, head, 0);
  const int64_t pitch = dim + 2;
  const int32_t column = 2 * thread;
  float top = -INFINITY, sum = 0;
  float2 mine{0, 0};
  wait_inputs();
#pragma unroll 1
  for (int32_t first = 0; first < n; first += kAtOnce, p += kAtOnce * pitch) {
    const int32_t some = n - first < kAtOnce ? n - first : kAtOnce, k = thread;
    float2 next[kBatch];
    const auto ask = [&](int32_t from) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        next[i] = from + i < some && column < dim
                      ? *reinterpret_cast<const float2*>(p + (from + i) * pitch + column)
                      : float2{0, 0};
    };
    ask(0);
    float2 state{-INFINITY, 0};
    if (k < kAtOnce) {
      if (k < some) state = *reinterpret_cast<const float2*>(p + k * pitch + dim);
      tops[k] = state.x;
    }
    sync_block();
    if (k < kAtOnce) {
      float was = top;
#pragma unroll 8
      for (int32_t i = 0; i < k; ++i) was = fmaxf(was, tops[i]);
      const float most = fmaxf(was, state.x);
      factors[k] = float4{weight_of(was, most), weight_of(state.x, most), state.y, most};
    }
    sync_block();
#pragma unroll 1
    for (int32_t from = 0; from < some; from += kBatch) {
      float2 v[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) v[i] = next[i];
      if (from + kBatch < some) ask(from + kBatch);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (from + i >= some) break;
        const float4 f = factors[from + i];
        fold(mine.x, v[i].x, f.x, f.y), fold(mine.y, v[i].y, f.x, f.y), fold(sum, f.z, f.x, f.y);
      }
    }
    top = factors[some - 1].w;
    sync_block();
  }
  if (column < dim) x[column] = mine.x / sum, x[column + 1] = mine.y / sum;
  sync_block();
  if (thread >= 32) return;
  write_head(a, x, row_of<float>(a.y, m) + head * dim, rotation, thread);
  if (a.rounded.q) round_head(a, x, m, head, thread);
}

}  // namespace

int64_t partial_floats(const AttentionArgs& a, int32_t rows, int32_t segments) {
  return int64_t{rows} * (a.q.cols / a.kv.spec.dim) * segments * (a.kv.spec.dim + 2);
}

void attention(const Context& c, const AttentionArgs& args, const AttentionPlan& plan, const Rounded& out,
               RowSet set, const QkvPrepArgs* prepares) {
  const int32_t heads = args.q.cols / args.kv.spec.dim, rows = args.y.rows;
  AttentionPart a{args.y,
                  args.q,
                  dev_kv(args.kv),
                  args.scale,
                  args.softcap,
                  args.both_ways || (args.blocks && rows > 1),
                  plan.split,
                  heads,
                  heads / args.kv.spec.heads,
                  0,
                  0,
                  {},
                  {},
                  plan.span,
                  false,
                  false,
                  out,
                  dev_copies(args.kv)};
  if (attends_whole(args)) {
    if (prepares) qkv_prep(c, *prepares, set);
    return attention_whole(c, a, rows, set);
  }
  const DType k = args.kv.spec.k, v = args.kv.spec.v;
  const bool copies = a.copies.any(), wide = a.kv.dim == 256 || a.kv.dim == 512;
  const bool tiled = copies ? wide && tiles_take(a.copies) : wide || a.kv.dim <= 128;
  const bool scalar = k == DType::f32 || v == DType::f32 || !tiled;
  const auto single = [&](const QkvPrepArgs* first) {
    return !scalar && attention_single(c, a, rows, set, first);
  };
  if (plan.unpacked) {
    a.unpacked = unpacked_at(args, plan.unpacked, plan.tiles);
    attend_unpacked(c, a, rows, set, c.unpackings[plan.span]);
    a.covered = true;
  }
  const bool prepared = prepares && single(prepares);
  if (prepares && !prepared) qkv_prep(c, *prepares, set);
  if (!scalar && !copies && attention_batch(c, a, rows, set)) a.runs.over = 1;
  if (prepared || single(nullptr))
    ;
  else if (scalar)
    attention_f32(c, a, rows, set);
  else if (attention_rows(c, a, rows, set))
    ;
  else if (copies)
    attention_copies(c, a, rows, set);
  else if (k == DType::f16 && v == DType::f16)
    attention_f16(c, a, rows, set);
  else if (k == DType::q8_0 && v == DType::q8_0)
    attention_q8_0(c, a, rows, set);
  else
    attention_packed(c, a, rows, set);
  if (a.split && !a.folds)
    launch(c.launcher, "merging attention", merge_kernel,
           dim3(static_cast<unsigned>(rows), static_cast<unsigned>(heads)), kMergeThreads,
           static_cast<size_t>(merge_bytes(a.kv.dim)), a, c.step, c.tables, set);
}

}  // namespace carat::cuda
