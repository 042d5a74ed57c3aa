// Which kernel attends, and the fold of what the segments of split attention leave.
#include "cuda/attention.cuh"

namespace carat::cuda {
namespace {

constexpr int kThreads = 128, kColumns = kMaxHead / kThreads;
constexpr int kAtOnce = kThreads;  // segments whose factors are kept

// Folds the segments of a row and query head, ascending, into an empty state.
__global__ void __launch_bounds__(kThreads)
    merge_kernel(const AttentionPart a, const DevStep* s, const Tables* tables, RowSet set) {
  begin_kernel();
  CARAT_SHARED(memory);
  auto* x = reinterpret_cast<float*>(memory);
  float *top = x + a.kv.dim, *sum = top + kAtOnce, *keep = sum + kAtOnce, *take = keep + kAtOnce;
  const int32_t m = blockIdx.x, head = blockIdx.y, dim = a.kv.dim, segments = s->segments[a.span];
  if (m >= row_count(s, set)) return;
  const Seen seen = seen_by(a, s, step_row(s, set, m));
  const int32_t length = segment_of(a.kv.window, s->pos[seen.row]),
                n = seen.last / length - seen.first / length + 1;
  const float* p = s->partial + partial_at(a, segments, m, head, 0);
  const int64_t pitch = dim + 2;
  SoftmaxState so_far{-INFINITY, 0};
  float mine[kColumns];
#pragma unroll
  for (int e = 0; e < kColumns; ++e) mine[e] = 0;
  for (int32_t first = 0; first < n; first += kAtOnce, p += kAtOnce * pitch) {
    const int32_t some = n - first < kAtOnce ? n - first : kAtOnce, k = threadIdx.x;
    if (k < some) top[k] = p[k * pitch + dim], sum[k] = p[k * pitch + dim + 1];
    sync_block();
    if (k < some) {
      float was = so_far.top;
      for (int32_t i = 0; i < k; ++i) was = fmaxf(was, top[i]);
      const float most = fmaxf(was, top[k]);
      keep[k] = weight_of(was, most), take[k] = weight_of(top[k], most);
    }
    sync_block();
#pragma unroll 16
    for (int32_t i = 0; i < some; ++i) {
#pragma unroll
      for (int e = 0; e < kColumns; ++e) {
        const int32_t column = threadIdx.x + e * kThreads;
        fold(mine[e], column < dim ? p[i * pitch + column] : 0, keep[i], take[i]);
      }
      fold(so_far.sum, sum[i], keep[i], take[i]);
      so_far.top = fmaxf(so_far.top, top[i]);
    }
    sync_block();
  }
#pragma unroll
  for (int e = 0; e < kColumns; ++e) {
    const int32_t i = threadIdx.x + e * kThreads;
    if (i < dim) x[i] = mine[e] / so_far.sum;
  }
  sync_block();
  write_head(a, x, row_of<float>(a.y, m) + head * dim, *tables, threadIdx.x, kThreads, [] { sync_block(); });
}

}  // namespace

int64_t partial_floats(const AttentionArgs& a, int32_t rows, int32_t segments) {
  return int64_t{rows} * (a.q.cols / a.kv.spec.dim) * segments * (a.kv.spec.dim + 2);
}

void attention(const Context& c, const AttentionArgs& args, const AttentionPlan& plan, RowSet set) {
  const int32_t heads = args.q.cols / args.kv.spec.dim, rows = args.y.rows;
  const AttentionPart a{args.y,
                        args.q,
                        dev_kv(args.kv),
                        args.scale,
                        args.softcap,
                        args.both_ways,
                        plan.split,
                        heads,
                        heads / args.kv.spec.heads,
                        0,
                        0,
                        plan.span};
  const DType k = args.kv.spec.k, v = args.kv.spec.v;
  const bool tiled = a.kv.dim <= 128 || a.kv.dim == 256 || a.kv.dim == 512;
  if (k == DType::f32 || v == DType::f32 || !tiled)
    attention_f32(c, a, rows, set);
  else if (k == DType::f16 && v == DType::f16)
    attention_f16(c, a, rows, set);
  else if (k == DType::q8_0 && v == DType::q8_0)
    attention_q8_0(c, a, rows, set);
  else
    attention_packed(c, a, rows, set);
  if (a.split)
    launch(c.launcher, "merging attention", merge_kernel,
           dim3(static_cast<unsigned>(rows), static_cast<unsigned>(heads)), kThreads,
           static_cast<size_t>(a.kv.dim + 4 * kAtOnce) * 4, a, c.step, c.tables, set);
}

}  // namespace carat::cuda
