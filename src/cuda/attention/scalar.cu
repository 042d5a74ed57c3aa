// Attention in f32 throughout: over caches in f32, and for heads that have no tiles. A task is a row, a KV
// head and up to eight of its query heads, over one segment of positions or all of them in turn. Of the step
// only the row itself enters.
#include "cuda/attention/copies.cuh"

namespace carat::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kTile = kKvTile, kHeads = 8;
constexpr int kAtOnce = 4;     // positions whose rows are loaded together
constexpr int kWorkHeads = 4;  // heads whose parts are added together

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

// dot[u * NH + h] += the products of query head h, heads `stride` apart, and of position u's row, whose
// eights from `first` on, `per` apart, load() brings.
template <int NH, class Load>
CARAT_D void add_dots(const float* q, int32_t stride, int n, int32_t first, int32_t eights, int per,
                      float (&dot)[kAtOnce * NH], Load load) {
  for (int32_t i = first; i < eights; i += per) {
    float x[kAtOnce][8];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) load(u, i, x[u]);
#pragma unroll
    for (int h = 0; h < NH; ++h)
      if (h < n) {
        const auto* of = reinterpret_cast<const float4*>(q + h * stride + 8 * i);
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
}

// Queries in shared memory: [heads][dim]; of single copies that part meets values, and what meets keys is
// beside it, [heads][key_pitch()].
struct Queries {
  const float *q, *by_key;
};
CARAT_HD int32_t key_pitch(const DevCopies& c) { return (c.key_dim + 7) / 8 * 8; }

// Scores of the tile's positions, in the order of the threads' loads: four positions a warp at once, so that
// their rows are on the way together.
template <int NH, bool COPIES>
CARAT_D void tile_scores(const AttentionPart& a, const Seen& seen, int32_t kv_head, int n, int32_t tile,
                         const Queries& q, float* score, const Tables& tables) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t dim = a.kv.dim, eights = dim / 8;
  int per = 1;  // lanes a position
  while (per < eights && per < 32) per *= 2;
  const int step = kWarps * (32 / per);
  const auto valid = [&](int32_t p) { return p >= seen.first && p <= seen.last; };
  for (int32_t j = warp * (32 / per) + lane / per; j < kTile; j += kAtOnce * step) {
    float dot[kAtOnce * NH];
#pragma unroll
    for (int i = 0; i < kAtOnce * NH; ++i) dot[i] = 0;
    if constexpr (COPIES) {
      const int32_t pos = pos_of(seen.s, seen.row), keys = a.copies.key_dim,
                    pitch = a.copies.pairs ? key_pitch(a.copies) : dim;
      KeptRow k[kAtOnce], v[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int32_t p = seen.clamped(tile + j + u * step);
        k[u] = key_read(a, seen, pos, p, kv_head), v[u] = value_read(a, seen, pos, p, kv_head);
      }
      if (a.copies.pairs)
        add_dots<NH>(q.q, dim, n, lane % per, eights, per, dot, [&](int u, int32_t i, float(&x)[8]) {
          kv_load8(v[u].type, v[u].row, dim, i, tables, x);
        });
      add_dots<NH>(a.copies.pairs ? q.by_key : q.q, pitch, n, lane % per, pitch / 8, per, dot,
                   [&](int u, int32_t i, float(&x)[8]) {
                     if (keys % 8 == 0)
                       kv_load8(k[u].type, k[u].row, keys, i, tables, x);
                     else
                       kv_load_end(k[u].type, k[u].row, keys, i, x);
                   });
    } else {
      const uint8_t* k[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u)
        k[u] = k_row(a.kv, *seen.seq, seen.slot(seen.clamped(tile + j + u * step)), kv_head);
      add_dots<NH>(q.q, dim, n, lane % per, eights, per, dot,
                   [&](int u, int32_t i, float(&x)[8]) { kv_load8(a.kv.k_type, k[u], dim, i, tables, x); });
    }
    if (per == 32) {
      constexpr int kLanes = 32 / (kAtOnce * NH);
      const float v = score_of(a, sums_of_many(dot, lane));
      const int at = lane / kLanes, u = at / NH, h = at % NH;
      const int32_t of = j + u * step;
      if (lane % kLanes == 0 && of < kTile) score[h * kTile + of] = valid(tile + of) ? v : -INFINITY;
    } else {
#pragma unroll
      for (int i = 0; i < kAtOnce * NH; ++i) {
        for (int d = per / 2; d; d >>= 1) dot[i] += shuffle_xor(dot[i], d);
        const int32_t of = j + i / NH * step;
        const float v = score_of(a, dot[i]);
        if (lane % per == 0 && of < kTile) score[i % NH * kTile + of] = valid(tile + of) ? v : -INFINITY;
      }
    }
  }
}

// One segment [begin, end): state and output per query head. out: [n][dim] shared.
template <int NH, bool COPIES>
CARAT_D void run_segment(const AttentionPart& a, const Seen& seen, int32_t kv_head, int n, int32_t begin,
                         int32_t end, const Queries& q, float* score, float* alpha, SoftmaxState* state,
                         float* work, float* out, const Tables& tables) {
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
    tile_scores<NH, COPIES>(a, seen, kv_head, n, tile, q, score, tables);
    sync_block();
    // Softmax: a warp a head.
    if (warp < n) {
      float* sc = score + warp * kTile;
      const float x = sc[lane], y = sc[lane + 32], was = state[warp].top;
      const float top = fmaxf(was, warp_max_f(fmaxf(x, y)));
      const float px = x == -INFINITY ? 0 : exp2f(x - top), py = y == -INFINITY ? 0 : exp2f(y - top);
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
          if constexpr (COPIES) {
            const KeptRow v =
                value_read(a, seen, pos_of(seen.s, seen.row), seen.clamped(tile + j + u * parts), kv_head);
            kv_load8(v.type, v.row, dim, column, tables, x[u]);
          } else {
            kv_load8(a.kv.v_type,
                     v_row(a.kv, *seen.seq, seen.slot(seen.clamped(tile + j + u * parts)), kv_head), dim,
                     column, tables, x[u]);
          }
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

CARAT_D void write_row(const AttentionPart& a, float* x, float sum, float* y, const Tables& tables) {
  for (int32_t i = threadIdx.x; i < a.kv.dim; i += kThreads) x[i] = x[i] / sum;
  sync_block();
  if (threadIdx.x < 32) {
    constexpr int kEach = kMaxHead / 32;
    const Rotation<kEach> rotation(device_rotation(a.kv.v_type), true, a.kv.dim, tables, threadIdx.x);
    write_head(a, x, y, rotation, threadIdx.x);
  }
  sync_block();
}

struct Shared {  // floats
  int32_t q, score, alpha, state, work, out, total, by_key, all;
  CARAT_HD Shared(int32_t dim, int heads, int32_t keys) {
    q = 0;
    score = q + heads * dim;
    alpha = score + heads * kTile;
    state = alpha + kHeads;
    work = state + 4 * kHeads;
    out = work + kThreads * 8 * (heads < kWorkHeads ? heads : kWorkHeads);
    total = out + heads * dim;
    by_key = total + heads * dim;
    all = by_key + heads * keys;
  }
};

template <int NH, bool COPIES>
CARAT_D void take_queries(const AttentionPart& a, const float* from, int n, float* q, float* by_key,
                          const Tables& tables) {
  const int32_t dim = a.kv.dim, pitch = key_pitch(a.copies);
  if (COPIES && a.copies.pairs) {
    constexpr int kEach = kMaxHead / 32;
    const QuerySplit<kEach, kEach> split(a, tables, threadIdx.x % 32);
    for (int32_t i = threadIdx.x; i < n * pitch; i += kThreads) by_key[i] = 0;
    sync_block();
    for (int h = threadIdx.x / 32; h < n; h += kWarps)
      split.run(
          from + h * dim, [&](int32_t i, float x) { q[h * dim + i] = x; },
          [&](int32_t i, float x) { by_key[h * pitch + i] = x; });
  } else {
    for (int32_t i = threadIdx.x; i < n * dim; i += kThreads) q[i] = from[i];
  }
}

// COPIES: single copies of K = V, protected rows.
template <int NH, bool COPIES>
__global__ void __launch_bounds__(kThreads)
    attention_kernel(const AttentionPart a, const DevStep* s, const Tables* tables, RowSet set) {
  begin_kernel();
  CARAT_SHARED(memory);
  auto* floats = reinterpret_cast<float*>(memory);
  const Shared at(a.kv.dim, NH, COPIES && a.copies.pairs ? key_pitch(a.copies) : 0);
  const int32_t dim = a.kv.dim, segments = a.split ? s->segments[a.span] : 1;
  const int64_t per_row = int64_t{a.kv.heads} * a.chunks * segments, tasks = row_count(s, set) * per_row;
  auto* state = reinterpret_cast<SoftmaxState*>(floats + at.state);
  auto* running = state + kHeads;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const auto m = static_cast<int32_t>(task / per_row), rest = static_cast<int32_t>(task % per_row);
    const int32_t k = rest % segments, chunk = rest / segments % a.chunks,
                  kv_head = rest / segments / a.chunks;
    const Seen seen = seen_by(a, s, step_row(s, set, m));
    const int32_t length = segment_of(a.kv.window, pos_of(s, seen.row)), first = seen.first / length,
                  last = seen.last / length;
    if (a.split && first + k > last) continue;
    const int n = a.group - chunk * NH < NH ? a.group - chunk * NH : NH;
    const int32_t head = kv_head * a.group + chunk * NH;
    take_queries<NH, COPIES>(a, row_of<const float>(a.q, m) + head * dim, n, floats + at.q,
                             floats + at.by_key, *tables);
    for (int32_t g = a.split ? first + k : first; g <= (a.split ? first + k : last); ++g) {
      run_segment<NH, COPIES>(a, seen, kv_head, n, g * length, (g + 1) * length,
                              {floats + at.q, floats + at.by_key}, floats + at.score, floats + at.alpha,
                              state, floats + at.work, floats + at.out, *tables);
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
          const SoftmaxState was = running[i / dim], now = state[i / dim];
          const float top = fmaxf(was.top, now.top);
          fold(floats[at.total + i], floats[at.out + i], weight_of(was.top, top), weight_of(now.top, top));
        }
        sync_block();
        if (threadIdx.x < static_cast<unsigned>(n)) {
          const SoftmaxState was = running[threadIdx.x], now = state[threadIdx.x];
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
                *tables);
  }
}

template <int NH, bool COPIES = false>
void run(const Context& c, AttentionPart a, int32_t rows, RowSet set) {
  a.cut_heads(NH);
  const size_t shared =
      static_cast<size_t>(Shared(a.kv.dim, NH, a.copies.pairs ? key_pitch(a.copies) : 0).all) * 4;
  // Tasks are dealt to a fixed grid: how many there are, only the step knows.
  const int64_t grid = a.split ? int64_t{4} * c.launcher.sms : int64_t{rows} * a.kv.heads * a.chunks;
  launch(c.launcher, "attention", attention_kernel<NH, COPIES>, dim3(static_cast<unsigned>(grid)), kThreads,
         shared, a, c.step, c.tables, set);
}

}  // namespace

void attention_f32(const Context& c, AttentionPart a, int32_t rows, RowSet set) {
  if (a.copies.any()) return run<4, true>(c, a, rows, set);  // rare: one instance
  if (a.group == 1) return run<1>(c, a, rows, set);
  if (a.group == 2) return run<2>(c, a, rows, set);
  if (a.group <= 4) return run<4>(c, a, rows, set);
  run<8>(c, a, rows, set);
}

}  // namespace carat::cuda
