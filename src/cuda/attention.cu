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
constexpr int kAtOnce = 4;     // positions whose rows are loaded together
constexpr int kWorkHeads = 4;  // heads whose parts are added together

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
  CARAT_D int32_t clamped(int32_t p) const { return p < first ? first : p > last ? last : p; }
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

// v[i] summed over all lanes, for N values at once: lane l gets that of index l * N / 32.
template <int N>
CARAT_D float sums_of_many(float (&v)[N], int lane) {
  int mask = 16;
#pragma unroll
  for (int half = N / 2; half > 0; half /= 2, mask /= 2) {
    const bool upper = lane & mask;
#pragma unroll
    for (int k = 0; k < half; ++k) {
      const float give = upper ? v[k] : v[k + half], keep = upper ? v[k + half] : v[k];
      v[k] = keep + shuffle_xor(give, mask);
    }
  }
  for (; mask > 0; mask /= 2) v[0] += shuffle_xor(v[0], mask);
  return v[0];
}

// Threads of a block on V: `wide` threads (a power of two) hold eight columns each, of every kThreads /
// wide-th position.
CARAT_HD int wide_of(int32_t dim) {
  int n = 1;
  while (8 * n < dim) n *= 2;
  return n;
}

// Scores of the tile's positions, in the order of the threads' loads: four positions a warp at once, so that
// their rows are on the way together.
template <int NH, class Kinds>
CARAT_D void tile_scores(const Args& a, const Seen& seen, int32_t kv_head, int n, int32_t tile,
                         const float* q, float* score, const Tables& tables) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t dim = a.kv.dim, eights = dim / 8;
  int per = 1;  // lanes a position
  while (per < eights && per < 32) per *= 2;
  const int step = kWarps * (32 / per);
  const auto capped = [&](float v) {
    v *= a.scale;
    return a.softcap > 0 ? a.softcap * tanhf(v / a.softcap) : v;
  };
  const auto valid = [&](int32_t p) { return p >= seen.first && p <= seen.last; };
  for (int32_t j = warp * (32 / per) + lane / per; j < kTile; j += kAtOnce * step) {
    const uint8_t* k[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u)
      k[u] = k_row(a.kv, *seen.seq, seen.slot(seen.clamped(tile + j + u * step)), kv_head);
    float dot[kAtOnce * NH];
#pragma unroll
    for (int i = 0; i < kAtOnce * NH; ++i) dot[i] = 0;
    for (int32_t i = lane % per; i < eights; i += per) {
      float x[kAtOnce][8];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) kv_load8(Kinds::k(a.kv), k[u], dim, i, tables, x[u]);
#pragma unroll
      for (int h = 0; h < NH; ++h)
        if (h < n) {
          const auto* of = reinterpret_cast<const float4*>(q + h * dim + 8 * i);
          const float4 a0 = of[0], a1 = of[1];
#pragma unroll
          for (int u = 0; u < kAtOnce; ++u) {
            float d = dot[u * NH + h];
            d = fmaf(a0.x, x[u][0], d), d = fmaf(a0.y, x[u][1], d);
            d = fmaf(a0.z, x[u][2], d), d = fmaf(a0.w, x[u][3], d);
            d = fmaf(a1.x, x[u][4], d), d = fmaf(a1.y, x[u][5], d);
            d = fmaf(a1.z, x[u][6], d), d = fmaf(a1.w, x[u][7], d);
            dot[u * NH + h] = d;
          }
        }
    }
    if (per == 32) {
      constexpr int kLanes = 32 / (kAtOnce * NH);
      const float v = capped(sums_of_many(dot, lane));
      const int at = lane / kLanes, u = at / NH, h = at % NH;
      const int32_t of = j + u * step;
      if (lane % kLanes == 0 && of < kTile) score[h * kTile + of] = valid(tile + of) ? v : -INFINITY;
    } else {
#pragma unroll
      for (int i = 0; i < kAtOnce * NH; ++i) {
        for (int d = per / 2; d; d >>= 1) dot[i] += shuffle_xor(dot[i], d);
        const int32_t of = j + i / NH * step;
        const float v = capped(dot[i]);
        if (lane % per == 0 && of < kTile) score[i % NH * kTile + of] = valid(tile + of) ? v : -INFINITY;
      }
    }
  }
}

// One segment [begin, end): state and output per query head. out: [n][dim] shared.
template <int NH, class Kinds>
CARAT_D void run_segment(const Args& a, const Seen& seen, int32_t kv_head, int n, int32_t begin, int32_t end,
                         const float* q, float* score, float* alpha, State* state, float* work, float* out,
                         const Tables& tables) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t dim = a.kv.dim, eights = dim / 8;
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
    tile_scores<NH, Kinds>(a, seen, kv_head, n, tile, q, score, tables);
    sync_block();
    // Softmax: a warp a head.
    if (warp < n) {
      float* sc = score + warp * kTile;
      const float x = sc[lane], y = sc[lane + 32], was = state[warp].top;
      const float top = fmaxf(was, warp_max_f(fmaxf(x, y)));
      const float px = x == -INFINITY ? 0 : expf(x - top), py = y == -INFINITY ? 0 : expf(y - top);
      const float sum = warp_sum_f(px + py), fade = weight_of(was, top);
      sync_warp();  // all have read the state
      sc[lane] = px, sc[lane + 32] = py;
      if (lane == 0) {
        alpha[warp] = fade;
        state[warp] = {top, fmaf(state[warp].sum, fade, sum)};
      }
    }
    sync_block();
    // Output: acc = acc * alpha + p v. A position that is not seen has p = 0.
#pragma unroll
    for (int h = 0; h < NH; ++h)
      if (h < n)
#pragma unroll
        for (int k = 0; k < 8; ++k) acc[h][k] *= alpha[h];
    if (column < eights)
      for (int32_t j = part; j < kTile; j += kAtOnce * parts) {
        float x[kAtOnce][8];
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u)
          kv_load8(Kinds::v(a.kv),
                   v_row(a.kv, *seen.seq, seen.slot(seen.clamped(tile + j + u * parts)), kv_head), dim,
                   column, tables, x[u]);
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u)
          if (j + u * parts < kTile)
#pragma unroll
            for (int h = 0; h < NH; ++h)
              if (h < n) {
                const float w = score[h * kTile + j + u * parts];
#pragma unroll
                for (int k = 0; k < 8; ++k) acc[h][k] = fmaf(w, x[u][k], acc[h][k]);
              }
      }
    sync_block();
  }
  // The parts, ascending; some heads at a time.
#pragma unroll
  for (int first = 0; first < NH; first += kWorkHeads) {
    if (first >= n) continue;
#pragma unroll
    for (int g = 0; g < kWorkHeads && first + g < NH; ++g)
#pragma unroll
      for (int k = 0; k < 8; ++k) work[(g * kThreads + threadIdx.x) * 8 + k] = acc[first + g][k];
    sync_block();
    const int32_t some = n - first < kWorkHeads ? n - first : kWorkHeads;
    for (int32_t e = threadIdx.x; e < some * dim; e += kThreads) {
      const int32_t g = e / dim, i = e % dim;
      float v = 0;
      for (int p = 0; p < parts; ++p) v += work[(g * kThreads + p * wide + i / 8) * 8 + i % 8];
      out[(first + g) * dim + i] = v;
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
    out = work + kThreads * 8 * (heads < kWorkHeads ? heads : kWorkHeads);
    total = out + heads * dim;
    all = total + heads * dim;
  }
};

// Where a split segment's output and state go.
CARAT_HD int64_t partial_at(const Args& a, int32_t segments, int32_t m, int32_t head, int32_t k) {
  return ((int64_t{m} * a.heads + head) * segments + k) * (a.kv.dim + 2);
}

template <int NH, class Kinds>
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
      run_segment<NH, Kinds>(a, seen, kv_head, n, g * length, (g + 1) * length, floats + at.q,
                             floats + at.score, floats + at.alpha, state, floats + at.work, floats + at.out,
                             *tables);
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
  const float* p = s->partial + partial_at(a, segments, m, head, 0);
  const int64_t pitch = dim + 2;
  State running{p[dim], p[dim + 1]};
  float mine[kMaxHead / kMergeThreads];
#pragma unroll
  for (int e = 0; e < kMaxHead / kMergeThreads; ++e) {
    const int32_t i = threadIdx.x + e * kMergeThreads;
    mine[e] = i < dim ? p[i] : 0;
  }
#pragma unroll 4
  for (int32_t k = 1; k < n; ++k) {
    p += pitch;
    const State now{p[dim], p[dim + 1]};
    const float top = fmaxf(running.top, now.top), keep = weight_of(running.top, top),
                take = weight_of(now.top, top);
#pragma unroll
    for (int e = 0; e < kMaxHead / kMergeThreads; ++e) {
      const int32_t i = threadIdx.x + e * kMergeThreads;
      fold(mine[e], i < dim ? p[i] : 0, keep, take);
    }
    fold(running.sum, now.sum, keep, take);
    running.top = top;
  }
#pragma unroll
  for (int e = 0; e < kMaxHead / kMergeThreads; ++e) {
    const int32_t i = threadIdx.x + e * kMergeThreads;
    if (i < dim) x[i] = mine[e];
  }
  sync_block();
  write_row(a, x, running.sum, row_of<float>(a.y, m) + head * dim, *tables, kMergeThreads);
}

template <int NH, class Kinds>
void run(const Context& c, Args a, int32_t rows, int64_t most_tasks, RowSet set) {
  a.chunks = (a.group + NH - 1) / NH;
  const size_t shared = static_cast<size_t>(Shared(a.kv.dim, NH).all) * 4;
  // Tasks are dealt to a fixed grid: how many there are, only the step knows.
  const int64_t grid = a.split ? int64_t{4} * c.launcher.sms : most_tasks * a.chunks;
  launch(c.launcher, "attention", attention_kernel<NH, Kinds>, dim3(static_cast<unsigned>(grid)), kThreads,
         shared, a, c.step, c.tables, set);
  if (a.split)
    launch(c.launcher, "merging attention", merge_kernel,
           dim3(static_cast<unsigned>(rows), static_cast<unsigned>(a.heads)), kMergeThreads,
           static_cast<size_t>(a.kv.dim) * 4, a, c.step, c.tables, set);
}

template <class Kinds>
void by_group(const Context& c, const Args& a, int32_t rows, RowSet set) {
  const int64_t tasks = int64_t{rows} * a.kv.heads;
  if (a.group == 1) return run<1, Kinds>(c, a, rows, tasks, set);
  if (a.group == 2) return run<2, Kinds>(c, a, rows, tasks, set);
  if (a.group <= 4) return run<4, Kinds>(c, a, rows, tasks, set);
  run<8, Kinds>(c, a, rows, tasks, set);
}

}  // namespace

int64_t partial_floats(const AttentionArgs& a, int32_t rows, int32_t segments) {
  return int64_t{rows} * (a.q.cols / a.kv.spec.dim) * segments * (a.kv.spec.dim + 2);
}

void attention(const Context& c, const AttentionArgs& a, const AttentionPlan& plan, RowSet rows) {
  Args args{a.y, a.q, dev_kv(a.kv), a.scale, a.softcap, a.both_ways, plan.split, 0, 0, 0, plan.span};
  args.heads = a.q.cols / a.kv.spec.dim;
  args.group = args.heads / a.kv.spec.heads;
  if (a.kv.spec.k == DType::f16 && a.kv.spec.v == DType::f16)
    return by_group<KvKinds<DType::f16, DType::f16>>(c, args, a.y.rows, rows);
  if (a.kv.spec.k == DType::q8_0 && a.kv.spec.v == DType::q8_0)
    return by_group<KvKinds<DType::q8_0, DType::q8_0>>(c, args, a.y.rows, rows);
  by_group<AnyKvKinds>(c, args, a.y.rows, rows);
}

}  // namespace carat::cuda
