// Which kernel attends, and the fold of what the segments of split attention leave.
#include "cuda/attention.cuh"

namespace carat::cuda {
namespace {

constexpr int kMergeThreads = 256;

__global__ void __launch_bounds__(kMergeThreads)
    merge_kernel(const AttentionPart a, const DevStep* s, const Tables* tables, RowSet set) {
  begin_kernel();
  CARAT_SHARED(memory);
  const int32_t m = blockIdx.x;
  if (m >= row_count(s, set)) return;
  fold_segments<kMergeThreads, kMaxHead, 16, true>(a, s, *tables, set, m, blockIdx.y, s->segments[a.span],
                                                   memory, threadIdx.x);
}

}  // namespace

int64_t partial_floats(const AttentionArgs& a, int32_t rows, int32_t segments) {
  return int64_t{rows} * (a.q.cols / a.kv.spec.dim) * segments * (a.kv.spec.dim + 2);
}

void attention(const Context& c, const AttentionArgs& args, const AttentionPlan& plan, const Rounded& out,
               RowSet set) {
  const int32_t heads = args.q.cols / args.kv.spec.dim, rows = args.y.rows;
  AttentionPart a{args.y,
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
                  plan.span,
                  false,
                  out};
  const DType k = args.kv.spec.k, v = args.kv.spec.v;
  const bool tiled = a.kv.dim <= 128 || a.kv.dim == 256 || a.kv.dim == 512;
  if (k == DType::f32 || v == DType::f32 || !tiled)
    attention_f32(c, a, rows, set);
  else if (attention_single(c, a, rows, set))
    ;
  else if (k == DType::f16 && v == DType::f16)
    attention_f16(c, a, rows, set);
  else if (k == DType::q8_0 && v == DType::q8_0)
    attention_q8_0(c, a, rows, set);
  else
    attention_packed(c, a, rows, set);
  if (a.split && !a.folds)
    launch(c.launcher, "merging attention", merge_kernel,
           dim3(static_cast<unsigned>(rows), static_cast<unsigned>(heads)), kMergeThreads,
           static_cast<size_t>(fold_bytes(a.kv.dim)), a, c.step, c.tables, set);
}

}  // namespace carat::cuda
