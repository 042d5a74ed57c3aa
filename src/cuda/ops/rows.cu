// Embed, Gather, Route, Top, and the rounding of activations.
#include "cuda/matmul/experts/route.cuh"
#include "cuda/ops/ops.h"
#include "cuda/quant/rounding.cuh"
#include "cuda/quant/weight_rows.cuh"

namespace carat::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kRowThreads = 1024;

// A warp decodes 256 columns of a token's row.
__global__ void __launch_bounds__(kThreads)
    embed_kernel(const EmbedArgs a, const DevStep* s, const Tables* tables, RowSet set) {
  begin_kernel();
  const int lane = threadIdx.x % 32, m = blockIdx.x;
  const int32_t first = (blockIdx.y * kWarps + threadIdx.x / 32) * 256;
  if (m >= row_count(s, set) || first >= a.y.cols) return;
  int32_t token = s->token[step_row(s, set, m)];
  if (token < 0) {  // of a soft row (DevStep::place)
    if (a.soft) return;
    token = ~token;
  }
  if (token >= a.table.rows) return;
  const auto* row = row_of<const uint8_t>(a.table, token);
  float* y = row_of<float>(a.y, m) + first;
  const int n = a.y.cols - first < 256 ? a.y.cols - first : 256;
  const AnyFormat format(a.table.type);
  if (format.floats()) {
    const float factor = a.table.type == DType::fp8 ? e4m3_factor(row, a.table.cols) : 1;
    for (int k = lane; k < n; k += 32) y[k] = plain_weight(a.table.type, row, first + k) * factor * a.scale;
    return;
  }
  if (8 * lane >= n) return;
  const Part p = format(row + int64_t{first / 256} * format.bytes(), lane, *tables);
  const Sums sums = format.sums();
  const bool scaled = sums == Sums::scaled || sums == Sums::scaled_min;
  const float d = scaled ? p.d * static_cast<float>(p.scale) : p.d;
  const float least = sums == Sums::scaled_min ? -(p.m * static_cast<float>(p.min)) : p.m;
  const bool mins = sums == Sums::scaled_min || sums == Sums::grouped_min;
  for (int i = 0; i < 8; ++i) {
    const auto code = static_cast<int8_t>((i < 4 ? p.low : p.high) >> 8 * (i & 3));
    float v = d * static_cast<float>(code);
    if (mins) v = v + least;
    y[8 * lane + i] = v * a.scale;
  }
}

__global__ void __launch_bounds__(kThreads) gather_kernel(const GatherArgs a, const DevStep* s) {
  begin_kernel();
  const int32_t m = blockIdx.x, k = blockIdx.y * kThreads + threadIdx.x;
  if (m >= s->n_out || k >= a.x.cols) return;
  row_of<float>(a.y, m)[k] = row_of<const float>(a.x, s->out_row[m])[k];
}

// A warp a row; taken experts are marked in shared memory.
__global__ void __launch_bounds__(32)
    route_kernel(const RouteArgs a, bool held, const DevStep* s, RowSet set) {
  begin_kernel();
  CARAT_SHARED(memory);
  const int lane = threadIdx.x;
  const int32_t m = blockIdx.x, n = a.logits.cols;
  if (m >= row_count(s, set)) return;
  if (held) {
    const Choice mine = choose(a, m, lane);
    if (lane >= a.top_k) return;
    row_of<int32_t>(a.experts, m)[lane] = mine.expert;
    row_of<float>(a.weights, m)[lane] = mine.weight;
    return;
  }
  auto* taken = memory;  // [n] bytes
  const float* l = row_of<const float>(a.logits, m);
  int32_t* chosen = row_of<int32_t>(a.experts, m);
  float* weight = row_of<float>(a.weights, m);
  for (int32_t i = lane; i < n; i += 32) taken[i] = 0;
  sync_warp();
  float top = 0, sum = 0;
  for (int32_t k = 0; k < a.top_k; ++k) {
    float v = 0;
    int32_t at = -1;
#pragma unroll 4
    for (int32_t i = lane; i < n; i += 32) {
      const float x = l[i];
      if (!taken[i] && better(x, i, v, at)) v = x, at = i;
    }
    best_of_warp(v, at);
    if (k == 0) top = v;
    const float e = expf(v - top);
    sum += e;
    if (lane == 0) chosen[k] = at, weight[k] = e, taken[at] = 1;
    sync_warp();
  }
  for (int32_t k = lane; k < a.top_k; k += 32) {
    const float scale = a.expert_scale.data ? row_of<const float>(a.expert_scale, 0)[chosen[k]] : 1.0f;
    weight[k] = weight[k] / sum * scale;
  }
}

__global__ void __launch_bounds__(kThreads)
    round_kernel(const Tensor x, const Rounded out, const DevStep* s, RowSet set, int32_t per_row) {
  begin_kernel();
  const int lane = threadIdx.x % 32;
  const int32_t m = blockIdx.x, b = blockIdx.y * kWarps + threadIdx.x / 32;
  if (b >= out.blocks) return;
  const float* from = row_of<const float>(x, m);
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int32_t k = 256 * b + 8 * lane + i;
    v[i] = k < x.cols ? from[k] : 0;
  }
  if (m >= row_count(s, set) * per_row) return;
  round_block(v, out, int64_t{m} * out.blocks + b, lane);
}

// What the threads of top_kernel share. Keys: `ordered`, ~0 of a NaN or +inf, 0 of nothing; columns turned
// over, so that of equal keys the lowest column is largest.
struct TopShared {
  uint32_t key[kRowThreads], column[kRowThreads];  // candidates
  uint32_t warp_key[32], warp_column[32];
  int32_t count[2][32], found;
  float sum[32];
};

CARAT_D uint32_t top_key(float v) { return v < INFINITY ? v > -INFINITY ? ordered(v) : 0 : ~0u; }

// The best of what every thread has, in all of them.
CARAT_D void block_best(TopShared& h, uint32_t& key, uint32_t& column) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto agree = [&](uint32_t k, uint32_t c) { key = warp_max(k), column = warp_max(k == key ? c : 0); };
  agree(key, column);
  sync_block();
  if (lane == 0) h.warp_key[warp] = key, h.warp_column[warp] = column;
  sync_block();
  agree(h.warp_key[lane], h.warp_column[lane]);
}

// The largest number that at least k threads' keys reach.
CARAT_D uint32_t reached_by(TopShared& h, uint32_t key, int k) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t bar = 0;
#pragma unroll 1
  for (int bit = 31; bit >= 0; --bit) {
    const int n = bits_set(ballot(key >= (bar | 1u << bit)));
    if (lane == 0) h.count[bit % 2][warp] = n;
    sync_block();
    if (warp_sum(h.count[bit % 2][lane]) >= k) bar |= 1u << bit;
  }
  return bar;
}

CARAT_D void write_top(const TopArgs& a, int32_t m, int k, const float* x, uint32_t key, uint32_t column) {
  row_of<int32_t>(a.column, m)[k] = key ? static_cast<int32_t>(~column) : -1;
  if (a.value.data) row_of<float>(a.value, m)[k] = key ? x[~column] : 0;
}

// From each thread's largest key: all that are no less than the k-th largest of those are candidates, and
// few. False: too many.
CARAT_D bool top_by_rank(const TopArgs& a, int32_t m, const float* x, uint32_t largest, TopShared& h) {
  const int k = a.column.cols;
  const uint32_t bar = reached_by(h, largest, k);
  if (threadIdx.x == 0) h.found = 0;
  sync_block();
#pragma unroll 8
  for (int32_t i = threadIdx.x; i < a.x.cols; i += kRowThreads) {
    const uint32_t key = top_key(x[i]);
    if (key < bar || key == 0) continue;
    const int32_t at = arrive(&h.found);
    if (at < kRowThreads) h.key[at] = key, h.column[at] = ~static_cast<uint32_t>(i);
  }
  sync_block();
  const int32_t found = h.found;
  if (found > kRowThreads) return false;
  const int t = threadIdx.x;
  if (t < found) {
    int rank = 0;
    for (int j = 0; j < found; ++j)
      rank += h.key[j] > h.key[t] || (h.key[j] == h.key[t] && h.column[j] > h.column[t]);
    if (rank < k) write_top(a, m, rank, x, h.key[t], h.column[t]);
  } else if (t < k) {
    write_top(a, m, t, x, 0, 0);
  }
  return true;
}

// One after the other: of many equal numbers.
CARAT_D void top_in_turn(const TopArgs& a, int32_t m, const float* x, uint32_t key, uint32_t column,
                         TopShared& h) {
  for (int k = 0; k < a.column.cols; ++k) {
    if (threadIdx.x == 0) write_top(a, m, k, x, key, column);
    uint32_t next = 0, at = 0;
    for (int32_t i = threadIdx.x; i < a.x.cols && k + 1 < a.column.cols; i += kRowThreads) {
      const uint32_t v = top_key(x[i]), c = ~static_cast<uint32_t>(i);
      const bool behind = v < key || (v == key && c < column);
      if (behind && (v > next || (v == next && c > at))) next = v, at = c;
    }
    block_best(h, next, at);
    key = next, column = at;
  }
}

// A row a block.
__global__ void __launch_bounds__(kRowThreads) top_kernel(const TopArgs a, const DevStep* s, RowSet set) {
  CARAT_STATIC_SHARED TopShared h;
  begin_kernel();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t m = blockIdx.x, n = a.x.cols;
  if (m >= row_count(s, set)) return;
  const float* x = row_of<const float>(a.x, m);
  uint32_t largest = 0, column = 0;
#pragma unroll 8
  for (int32_t i = threadIdx.x; i < n; i += kRowThreads) {
    const uint32_t key = top_key(x[i]);
    if (key > largest) largest = key, column = ~static_cast<uint32_t>(i);
  }
  uint32_t key = largest;
  block_best(h, key, column);
  if (key == ~0u) key = largest = 0;
  const bool some = key != 0;
  if (!some) {
    for (int k = threadIdx.x; k < a.column.cols; k += kRowThreads) write_top(a, m, k, x, 0, 0);
  } else if (a.column.cols == 1 || !top_by_rank(a, m, x, largest, h)) {
    top_in_turn(a, m, x, key, column, h);
  }
  if (!a.share.data) return;
  const float most = some ? x[~column] : 0;
  float sum = 0;
#pragma unroll 8
  for (int32_t i = threadIdx.x; i < n; i += kRowThreads) sum += expf(x[i] - most);
  sum = warp_sum_f(sum);
  if (lane == 0) h.sum[warp] = sum;
  sync_block();
  sum = warp_sum_f(h.sum[lane]);
  if (threadIdx.x == 0) *row_of<float>(a.share, m) = some ? 1 / sum : 0;
}

unsigned u(int64_t n) { return static_cast<unsigned>(n); }
int64_t up(int64_t n, int64_t d) { return (n + d - 1) / d; }

}  // namespace

void embed(const Context& c, const EmbedArgs& a, RowSet rows) {
  launch(c.launcher, "embed", embed_kernel, dim3(u(a.y.rows), u(up(a.y.cols, 256 * kWarps))), kThreads, 0, a,
         c.step, c.tables, rows);
}
void gather(const Context& c, const GatherArgs& a) {
  launch(c.launcher, "gather", gather_kernel, dim3(u(a.y.rows), u(up(a.y.cols, kThreads))), kThreads, 0, a,
         c.step);
}
void top(const Context& c, const TopArgs& a, RowSet rows) {
  launch(c.launcher, "top", top_kernel, dim3(u(a.x.rows)), kRowThreads, 0, a, c.step, rows);
}
void route(const Context& c, const RouteArgs& a, RowSet rows) {
  launch(c.launcher, "route", route_kernel, dim3(u(a.logits.rows)), 32, static_cast<size_t>(a.logits.cols), a,
         routes_held(a), c.step, rows);
}
void round_rows(const Context& c, const Tensor& x, const Rounded& out, RowSet rows, int32_t per_row) {
  launch(c.launcher, "rounding", round_kernel, dim3(u(x.rows), u(up(out.blocks, kWarps))), kThreads, 0, x,
         out, c.step, rows, per_row);
}

}  // namespace carat::cuda
