// Attention over packed K and V. A task is a row, a KV head and up to eight of its query heads, over one
// segment of positions or all of them in turn. Segments and the tiles of 64 positions in them are cut at
// absolute positions and begin from an empty state; segments are folded in ascending order, by the same
// arithmetic whether one block walks them or a second kernel does. Of the step only the row itself enters, so
// its bits do not depend on its neighbours (docs/numerics.md).
#include "cuda/kv.cuh"
#include "cuda/ops.h"

namespace carat::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kTile = 64, kHeads = 8;

struct Args {
  Tensor y, q;
  DevKv kv;
  float scale, softcap;
  bool both_ways, split;
  int32_t heads, group, chunks, span;  // query heads; per KV head; tasks a KV head; of DevStep::segments
};

// What a segment, or all so far, leaves of a query head.
struct State {
  float top, sum;
};

CARAT_D float weight_of(float top, float most) { return top == -INFINITY ? 0 : expf(top - most); }

// The row's positions and where they are stored.
struct Seen {
  const DevStep* s;
  const SeqView* seq;
  int32_t row, first, last, settled;  // below `settled` positions are slots

  CARAT_D int32_t slot(int32_t p) const { return p < settled ? p : slot_seen(s, row, p); }
};
CARAT_D Seen seen_by(const Args& a, const DevStep* s, int32_t row) {
  const int32_t pos = s->pos[row], window = a.kv.window;
  Seen v{s, &s->seqs[s->seq[row]], row, 0, a.both_ways ? s->last_pos[row] : pos, INT32_MAX};
  if (window && pos - window + 1 > 0) v.first = pos - window + 1;
  if (on_chain(s, row)) return v;
  while (s->parent[row] >= 0) row = s->parent[row];
  v.settled = s->pos[row];
  return v;
}

// Threads of a block on V: `wide` threads (a power of two) hold eight columns each, of every kThreads /
// wide-th position.
CARAT_HD int wide_of(int32_t dim) {
  int n = 1;
  while (8 * n < dim) n *= 2;
  return n;
}

// One segment [begin, end): state and output per query head. out: [n][dim] shared. Scores and the parts of
// the output take turns in `work`.
template <int NH>
CARAT_D void run_segment(const Args& a, const Seen& seen, int32_t kv_head, int n, int32_t begin, int32_t end,
                         const float* q, float* score, float* alpha, State* state, float* work, float* out,
                         const Tables& tables) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t dim = a.kv.dim, eights = dim / 8;
  int per = 1;  // lanes a position
  while (per < eights && per < 32) per *= 2;
  const int wide = wide_of(dim), column = threadIdx.x % wide, part = threadIdx.x / wide,
            parts = kThreads / wide;
  float acc[NH][8];
#pragma unroll
  for (int h = 0; h < NH; ++h)
#pragma unroll
    for (int k = 0; k < 8; ++k) acc[h][k] = 0;
  if (threadIdx.x < NH) state[threadIdx.x] = {-INFINITY, 0};
  sync_block();
  for (int32_t tile = begin; tile < end; tile += kTile) {
    if (tile + kTile <= seen.first || tile > seen.last) continue;
    // Scores: a group of lanes a position.
    for (int32_t j = warp * (32 / per) + lane / per; j < kTile; j += kWarps * (32 / per)) {
      const int32_t p = tile + j;
      const bool valid = p >= seen.first && p <= seen.last;
      float dot[NH];
#pragma unroll
      for (int h = 0; h < NH; ++h) dot[h] = 0;
      if (valid) {
        const uint8_t* k = k_row(a.kv, *seen.seq, seen.slot(p), kv_head);
        for (int32_t i = lane % per; i < eights; i += per) {
          float x[8];
          kv_load8(a.kv.k_type, k, dim, i, tables, x);
#pragma unroll
          for (int h = 0; h < NH; ++h)
            if (h < n) {
              const auto* of = reinterpret_cast<const float4*>(q + h * dim + 8 * i);
              const float4 a0 = of[0], a1 = of[1];
              dot[h] = fmaf(a0.x, x[0], dot[h]), dot[h] = fmaf(a0.y, x[1], dot[h]);
              dot[h] = fmaf(a0.z, x[2], dot[h]), dot[h] = fmaf(a0.w, x[3], dot[h]);
              dot[h] = fmaf(a1.x, x[4], dot[h]), dot[h] = fmaf(a1.y, x[5], dot[h]);
              dot[h] = fmaf(a1.z, x[6], dot[h]), dot[h] = fmaf(a1.w, x[7], dot[h]);
            }
        }
      }
#pragma unroll
      for (int h = 0; h < NH; ++h) {
        for (int d = per / 2; d; d >>= 1) dot[h] += shuffle_xor(dot[h], d);
        float v = dot[h] * a.scale;
        if (a.softcap > 0) v = a.softcap * tanhf(v / a.softcap);
        if (lane % per == 0) score[h * kTile + j] = valid ? v : -INFINITY;
      }
    }
    sync_block();
    // Softmax: a warp a head.
    if (warp < n) {
      float* sc = score + warp * kTile;
      const float x = sc[lane], y = sc[lane + 32], was = state[warp].top;
      const float top = fmaxf(was, warp_max_f(fmaxf(x, y)));
      const float px = x == -INFINITY ? 0 : expf(x - top), py = y == -INFINITY ? 0 : expf(y - top);
      const float sum = warp_sum_f(px + py), fade = weight_of(was, top);
      sc[lane] = px, sc[lane + 32] = py;
      if (lane == 0) {
        alpha[warp] = fade;
        state[warp] = {top, fmaf(state[warp].sum, fade, sum)};
      }
    }
    sync_block();
    // Output: acc = acc * alpha + p v.
#pragma unroll
    for (int h = 0; h < NH; ++h)
      if (h < n)
#pragma unroll
        for (int k = 0; k < 8; ++k) acc[h][k] *= alpha[h];
    if (column < eights)
      for (int32_t j = part; j < kTile; j += parts) {
        const int32_t p = tile + j;
        if (p < seen.first || p > seen.last) continue;
        float x[8];
        kv_load8(a.kv.v_type, v_row(a.kv, *seen.seq, seen.slot(p), kv_head), dim, column, tables, x);
#pragma unroll
        for (int h = 0; h < NH; ++h)
          if (h < n) {
            const float w = score[h * kTile + j];
#pragma unroll
            for (int k = 0; k < 8; ++k) acc[h][k] = fmaf(w, x[k], acc[h][k]);
          }
      }
    sync_block();
  }
  // The parts, ascending.
#pragma unroll
  for (int h = 0; h < NH; ++h) {
    if (h >= n) continue;
#pragma unroll
    for (int k = 0; k < 8; ++k) work[threadIdx.x * 8 + k] = acc[h][k];
    sync_block();
    for (int32_t i = threadIdx.x; i < dim; i += kThreads) {
      float v = 0;
      for (int p = 0; p < parts; ++p) v += work[(p * wide + i / 8) * 8 + i % 8];
      out[h * dim + i] = v;
    }
    sync_block();
  }
}

// total = total and the next segment.
CARAT_D void fold(float& value, float next, float keep, float take) {
  value = fmaf(next, take, value * keep);
}

CARAT_D void write_row(const Args& a, float* x, float sum, float* y, const Tables& tables, int threads) {
  for (int32_t i = threadIdx.x; i < a.kv.dim; i += threads) x[i] = x[i] / sum;
  sync_block();
  rotate_row(device_rotation(a.kv.v_type), true, x, a.kv.dim, tables, threadIdx.x, threads,
             [] { sync_block(); });
  for (int32_t i = threadIdx.x; i < a.kv.dim; i += threads) y[i] = x[i];
  sync_block();
}

struct Shared {  // floats
  int32_t q, score, alpha, state, work, out, total, all;
  CARAT_HD Shared(int32_t dim, int heads) {
    q = 0;
    score = q + heads * dim;
    alpha = score + heads * kTile;
    state = alpha + kHeads;
    work = state + 4 * kHeads;
    out = work + kThreads * 8;
    total = out + heads * dim;
    all = total + heads * dim;
  }
};

// Where a split segment's output and state go.
CARAT_HD int64_t partial_at(const Args& a, int32_t segments, int32_t m, int32_t head, int32_t k) {
  return ((int64_t{m} * a.heads + head) * segments + k) * (a.kv.dim + 2);
}

template <int NH>
__global__ void __launch_bounds__(kThreads)
    attention_kernel(const Args a, const DevStep* s, const Tables* tables, RowSet set) {
  begin_kernel();
  CARAT_SHARED(memory);
  auto* floats = reinterpret_cast<float*>(memory);
  const Shared at(a.kv.dim, NH);
  const int32_t dim = a.kv.dim, segments = a.split ? s->segments[a.span] : 1;
  const int64_t per_row = int64_t{a.kv.heads} * a.chunks * segments, tasks = row_count(s, set) * per_row;
  auto* state = reinterpret_cast<State*>(floats + at.state);
  auto* running = state + kHeads;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const auto m = static_cast<int32_t>(task / per_row), rest = static_cast<int32_t>(task % per_row);
    const int32_t k = rest % segments, chunk = rest / segments % a.chunks,
                  kv_head = rest / segments / a.chunks;
    const Seen seen = seen_by(a, s, step_row(s, set, m));
    const int32_t length = segment_of(a.kv.window, s->pos[seen.row]), first = seen.first / length,
                  last = seen.last / length;
    if (a.split && first + k > last) continue;
    const int n = a.group - chunk * NH < NH ? a.group - chunk * NH : NH;
    const int32_t head = kv_head * a.group + chunk * NH;
    const float* from = row_of<const float>(a.q, m) + head * dim;
    for (int32_t i = threadIdx.x; i < n * dim; i += kThreads) floats[at.q + i] = from[i];
    for (int32_t g = a.split ? first + k : first; g <= (a.split ? first + k : last); ++g) {
      run_segment<NH>(a, seen, kv_head, n, g * length, (g + 1) * length, floats + at.q, floats + at.score,
                      floats + at.alpha, state, floats + at.work, floats + at.out, *tables);
      if (a.split) {
        for (int32_t i = threadIdx.x; i < n * (dim + 2); i += kThreads) {
          const int32_t h = i / (dim + 2), e = i % (dim + 2);
          s->partial[partial_at(a, segments, m, head + h, k) + e] = e < dim    ? floats[at.out + h * dim + e]
                                                                    : e == dim ? state[h].top
                                                                               : state[h].sum;
        }
      } else if (g == first) {
        for (int32_t i = threadIdx.x; i < n * dim; i += kThreads) floats[at.total + i] = floats[at.out + i];
        if (threadIdx.x < static_cast<unsigned>(n)) running[threadIdx.x] = state[threadIdx.x];
      } else {
        for (int32_t i = threadIdx.x; i < n * dim; i += kThreads) {
          const State was = running[i / dim], now = state[i / dim];
          const float top = fmaxf(was.top, now.top);
          fold(floats[at.total + i], floats[at.out + i], weight_of(was.top, top), weight_of(now.top, top));
        }
        sync_block();
        if (threadIdx.x < static_cast<unsigned>(n)) {
          const State was = running[threadIdx.x], now = state[threadIdx.x];
          const float top = fmaxf(was.top, now.top);
          float sum = was.sum;
          fold(sum, now.sum, weight_of(was.top, top), weight_of(now.top, top));
          running[threadIdx.x] = {top, sum};
        }
      }
      sync_block();
    }
    if (a.split) continue;
    for (int h = 0; h < n; ++h)
      write_row(a, floats + at.total + h * dim, running[h].sum, row_of<float>(a.y, m) + (head + h) * dim,
                *tables, kThreads);
  }
}

constexpr int kMergeThreads = 128;

// Folds the segments of a row and query head.
__global__ void __launch_bounds__(kMergeThreads)
    merge_kernel(const Args a, const DevStep* s, const Tables* tables, RowSet set) {
  begin_kernel();
  CARAT_SHARED(memory);
  auto* x = reinterpret_cast<float*>(memory);
  const int32_t m = blockIdx.x, head = blockIdx.y, dim = a.kv.dim, segments = s->segments[a.span];
  if (m >= row_count(s, set)) return;
  const Seen seen = seen_by(a, s, step_row(s, set, m));
  const int32_t length = segment_of(a.kv.window, s->pos[seen.row]),
                n = seen.last / length - seen.first / length + 1;
  State running{};
  for (int32_t k = 0; k < n; ++k) {
    const float* p = s->partial + partial_at(a, segments, m, head, k);
    const State now{p[dim], p[dim + 1]};
    if (k == 0) {
      for (int32_t i = threadIdx.x; i < dim; i += kMergeThreads) x[i] = p[i];
      running = now;
      continue;
    }
    const float top = fmaxf(running.top, now.top), keep = weight_of(running.top, top),
                take = weight_of(now.top, top);
    for (int32_t i = threadIdx.x; i < dim; i += kMergeThreads) fold(x[i], p[i], keep, take);
    fold(running.sum, now.sum, keep, take);
    running.top = top;
  }
  sync_block();
  write_row(a, x, running.sum, row_of<float>(a.y, m) + head * dim, *tables, kMergeThreads);
}

template <int NH>
void run(const Context& c, Args a, int32_t rows, int64_t most_tasks, RowSet set) {
  a.chunks = (a.group + NH - 1) / NH;
  const size_t shared = static_cast<size_t>(Shared(a.kv.dim, NH).all) * 4;
  // Tasks are dealt to a fixed grid: how many there are, only the step knows.
  const int64_t grid = a.split ? int64_t{4} * c.launcher.sms : most_tasks * a.chunks;
  launch(c.launcher, "attention", attention_kernel<NH>, dim3(static_cast<unsigned>(grid)), kThreads, shared,
         a, c.step, c.tables, set);
  if (a.split)
    launch(c.launcher, "merging attention", merge_kernel,
           dim3(static_cast<unsigned>(rows), static_cast<unsigned>(a.heads)), kMergeThreads,
           static_cast<size_t>(a.kv.dim) * 4, a, c.step, c.tables, set);
}

}  // namespace

int64_t partial_floats(const AttentionArgs& a, int32_t rows, int32_t segments) {
  return int64_t{rows} * (a.q.cols / a.kv.spec.dim) * segments * (a.kv.spec.dim + 2);
}

void attention(const Context& c, const AttentionArgs& a, const AttentionPlan& plan, RowSet rows) {
  Args args{a.y, a.q, dev_kv(a.kv), a.scale, a.softcap, a.both_ways, plan.split, 0, 0, 0, plan.span};
  args.heads = a.q.cols / a.kv.spec.dim;
  args.group = args.heads / a.kv.spec.heads;
  const int64_t tasks = int64_t{a.y.rows} * a.kv.spec.heads;
  if (args.group == 1) return run<1>(c, args, a.y.rows, tasks, rows);
  if (args.group == 2) return run<2>(c, args, a.y.rows, tasks, rows);
  if (args.group <= 4) return run<4>(c, args, a.y.rows, tasks, rows);
  run<8>(c, args, a.y.rows, tasks, rows);
}

}  // namespace carat::cuda
