// Embed, Gather, RmsNorm, Route, and the rounding of activations.
#include "cuda/ops.h"
#include "cuda/weights.cuh"

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
  const int32_t token = s->token[step_row(s, set, m)];
  if (token < 0 || token >= a.table.rows) return;
  const auto* row = row_of<const uint8_t>(a.table, token);
  float* y = row_of<float>(a.y, m) + first;
  const int n = a.y.cols - first < 256 ? a.y.cols - first : 256;
  const AnyFormat format(a.table.type);
  if (format.floats()) {
    for (int k = lane; k < n; k += 32) {
      const int32_t at = first + k;
      float v;
      if (a.table.type == DType::f32)
        v = reinterpret_cast<const float*>(row)[at];
      else
        v = a.table.type == DType::f16 ? half_at(row + 2 * at) : bf16_float(u16_at(row + 2 * at));
      y[k] = v * a.scale;
    }
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

CARAT_D void norm_element(const RmsNormArgs& a, int32_t m, int32_t first, int32_t i, float inv) {
  float v = row_of<const float>(a.x, m)[first + i] * inv;
  if (a.weight.data) v = v * row_of<const float>(a.weight, 0)[i];
  if (a.residual.data) v = v + row_of<const float>(a.residual, m)[first + i];
  if (a.gain.data) v = v * row_of<const float>(a.gain, 0)[a.gain.cols == 1 ? 0 : first + i];
  row_of<float>(a.y, m)[first + i] = v * a.scale;
}

// Groups, or rows that norm_row cannot take: a warp each.
__global__ void __launch_bounds__(kThreads)
    norm_groups(const RmsNormArgs a, const DevStep* s, RowSet set, int32_t width, int32_t groups) {
  begin_kernel();
  const int lane = threadIdx.x % 32, m = blockIdx.x;
  const int32_t g = blockIdx.y * kWarps + threadIdx.x / 32, first = g * width;
  if (m >= row_count(s, set) || g >= groups) return;
  const float* x = row_of<const float>(a.x, m) + first;
  float sum = 0;
  for (int32_t i = lane; i < width; i += 32) sum = fmaf(x[i], x[i], sum);
  const float inv = 1 / sqrtf(warp_sum_f(sum) / static_cast<float>(width) + a.eps);
  for (int32_t i = lane; i < width; i += 32) norm_element(a, m, first, i, inv);
}

// Better first; a NaN is worse than what came before it and keeps its place by number.
CARAT_D bool better(float v, int32_t i, float w, int32_t j) {
  if (j < 0) return true;
  if (i < 0) return false;
  if (v > w) return true;
  if (w > v) return false;
  return i < j;
}

// Bits that compare as the number does, above 0. Not for NaN.
CARAT_D uint32_t ordered(float v) {
  const uint32_t bits = as_bits(v + 0.0f);  // one zero
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// As the rest of route_kernel, for up to 256 logits held in registers. False: there is a NaN.
CARAT_D bool route_held(const RouteArgs& a, const float* l, int32_t m, int lane) {
  constexpr int kHeld = 8;
  uint32_t key[kHeld];
  bool odd = false;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int32_t at = lane + 32 * i;
    const float v = at < a.logits.cols ? l[at] : 0;
    key[i] = at < a.logits.cols ? ordered(v) : 0;
    odd |= v != v;
  }
  if (ballot(odd)) return false;
  int32_t mine = 0;  // the lane-th choice
  for (int32_t k = 0; k < a.top_k; ++k) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) best = key[i] > best ? key[i] : best;
    best = warp_max(best);
    uint32_t first = 0;  // the lowest number, turned over
#pragma unroll
    for (int i = kHeld - 1; i >= 0; --i)
      if (key[i] == best) first = ~static_cast<uint32_t>(lane + 32 * i);
    const auto at = static_cast<int32_t>(~warp_max(first));
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (at == lane + 32 * i) key[i] = 0;
    if (lane == k) mine = at;
  }
  const float v = l[mine], e = expf(v - shuffle(v, 0));
  float sum = 0;
  for (int32_t k = 0; k < a.top_k; ++k) sum += shuffle(e, k);
  if (lane >= a.top_k) return true;
  const float scale = a.expert_scale.data ? row_of<const float>(a.expert_scale, 0)[mine] : 1.0f;
  row_of<int32_t>(a.experts, m)[lane] = mine;
  row_of<float>(a.weights, m)[lane] = e / sum * scale;
  return true;
}

// A warp a row; taken experts are marked in shared memory.
__global__ void __launch_bounds__(32) route_kernel(const RouteArgs a, const DevStep* s, RowSet set) {
  begin_kernel();
  CARAT_SHARED(memory);
  const int lane = threadIdx.x;
  const int32_t m = blockIdx.x, n = a.logits.cols;
  if (m >= row_count(s, set)) return;
  if (n <= 256 && a.top_k <= 32 && a.top_k <= n && route_held(a, row_of<const float>(a.logits, m), m, lane))
    return;
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
    for (int d = 16; d; d >>= 1) {
      const float w = shuffle_xor(v, d);
      const int32_t j = shuffle_xor(at, d);
      if (better(w, j, v, at)) v = w, at = j;
    }
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

// As quantize_act, of a warp's 256 columns: v are the lane's eight, zeros behind the last column.
CARAT_D void round_block(const float (&v)[8], const Rounded& out, int64_t at, int lane) {
  uint32_t top = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t size = as_bits(v[i]) & 0x7fffffffu;
    top = size > top ? size : top;
  }
  top = warp_max(top);
  constexpr uint32_t kInf = 0x7f800000u, kTiny = (127u - 100u) << 23;
  const bool rounds = top < kInf && top >= kTiny;
  const float amax = as_float(top), inv = 127.0f / amax, magic = 12582912.0f;
  uint32_t word[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float shifted = v[i] * inv + magic;
    int32_t q = rounds ? static_cast<int32_t>(as_bits(shifted) - as_bits(magic)) : 0;
    q = q < -127 ? -127 : q > 127 ? 127 : q;
    word[i / 4] |= static_cast<uint32_t>(q & 255) << 8 * (i & 3);
  }
  *reinterpret_cast<uint2*>(out.q + at * 256 + 8 * lane) = uint2{word[0], word[1]};
  int32_t sum = dot4(0x01010101u, word[1], dot4(0x01010101u, word[0], 0));
  sum += shuffle_xor(sum, 1);
  if (lane % 2 == 0) out.sums[at * 16 + lane / 2] = static_cast<int16_t>(sum);
  if (lane == 0) out.d[at] = rounds ? amax / 127.0f : top >= kInf ? as_float(0x7fc00000u) : 0.0f;
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

CARAT_D void load_eight(const Tensor& t, int32_t m, int32_t first, float (&v)[8]) {
  const auto* p = reinterpret_cast<const float4*>(row_of<const float>(t, m) + first);
  const float4 a = p[0], b = p[1];
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
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

CARAT_D void store_eight(const Tensor& t, int32_t m, int32_t first, const float (&v)[8]) {
  auto* p = reinterpret_cast<float4*>(row_of<float>(t, m) + first);
  p[0] = float4{v[0], v[1], v[2], v[3]}, p[1] = float4{v[4], v[5], v[6], v[7]};
}

// 1 / rms of a row of `cols` that lies in a block of threads, eight columns in each.
CARAT_D float inverse_rms(const float (&v)[8], float* part, int32_t cols, float eps) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = fmaf(v[i], v[i], sum);
  sum = warp_sum_f(sum);
  if (lane == 0) part[warp] = sum;
  sync_block();
  sum = warp_sum_f(lane < warps ? part[lane] : 0);
  return 1 / sqrtf(sum / static_cast<float>(cols) + eps);
}

// A whole row in a block, eight columns a thread; then, if b.y, the plain norm b of what came out. The last
// is rounded too if out.q.
template <bool kTwo>
__global__ void __launch_bounds__(kRowThreads)
    norm_row(const RmsNormArgs a, const RmsNormArgs b, const Rounded out, const DevStep* s, RowSet set) {
  CARAT_STATIC_SHARED float part[2][kRowThreads / 32];
  const int32_t m = blockIdx.x, first = 8 * threadIdx.x;
  const bool some = first < a.y.cols;
  float w[8], v[8], gain[8], r[8];  // all on their way before anything is used
#pragma unroll
  for (int i = 0; i < 8; ++i) w[i] = v[i] = r[i] = 0, gain[i] = 1;
  if (some && a.weight.data) load_eight(a.weight, 0, first, w);
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (some && a.gain.data) gain[i] = row_of<const float>(a.gain, 0)[a.gain.cols == 1 ? 0 : first + i];
  begin_kernel();
  if (some) load_eight(a.x, m, first, v);
  if (some && a.residual.data) load_eight(a.residual, m, first, r);
  if (m >= row_count(s, set)) return;
  const float inv = inverse_rms(v, part[0], a.y.cols, a.eps);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] *= inv;
    if (a.weight.data) v[i] *= w[i];
    if (a.residual.data) v[i] += r[i];
    if (a.gain.data) v[i] *= gain[i];
    v[i] *= a.scale;
    if (!some) v[i] = 0;
  }
  if (some) store_eight(a.y, m, first, v);
  if constexpr (kTwo) {
    if (some && b.weight.data) load_eight(b.weight, 0, first, w);
    const float next = inverse_rms(v, part[1], b.y.cols, b.eps);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      v[i] *= next;
      if (b.weight.data) v[i] *= w[i];
      v[i] *= b.scale;
      if (!some) v[i] = 0;
    }
    if (some) store_eight(b.y, m, first, v);
  }
  if (out.q) round_block(v, out, int64_t{m} * out.blocks + threadIdx.x / 32, threadIdx.x % 32);
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
bool norm_rounds(const RmsNormArgs& a) {
  const auto even = [](const Tensor& t) {
    return !t.data || (reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.pitch % 16 == 0);
  };
  return (a.width == 0 || a.width == a.y.cols) && a.y.cols % 8 == 0 && a.y.cols <= 8 * kRowThreads &&
         even(a.x) && even(a.y) && even(a.weight) && even(a.residual);
}
void rms_norm(const Context& c, const RmsNormArgs& a, const Rounded& out, RowSet rows) {
  const int32_t width = a.width ? a.width : a.y.cols, groups = a.y.cols / width;
  if (norm_rounds(a))
    launch(c.launcher, "norm", norm_row<false>, dim3(u(a.y.rows)), static_cast<int>(32 * up(a.y.cols, 256)),
           0, a, RmsNormArgs{}, out, c.step, rows);
  else
    launch(c.launcher, "norm", norm_groups, dim3(u(a.y.rows), u(up(groups, kWarps))), kThreads, 0, a, c.step,
           rows, width, groups);
}
bool norms_at_once(const RmsNormArgs& a, const RmsNormArgs& b) {
  return norm_rounds(a) && norm_rounds(b) && !b.residual.data && !b.gain.data && b.y.data != a.y.data &&
         b.x.data == a.y.data && b.x.pitch == a.y.pitch && b.x.cols == a.y.cols && b.x.rows == a.y.rows;
}
void two_norms(const Context& c, const RmsNormArgs& a, const RmsNormArgs& b, const Rounded& out,
               RowSet rows) {
  launch(c.launcher, "norms", norm_row<true>, dim3(u(a.y.rows)), static_cast<int>(32 * up(a.y.cols, 256)), 0,
         a, b, out, c.step, rows);
}
void top(const Context& c, const TopArgs& a, RowSet rows) {
  launch(c.launcher, "top", top_kernel, dim3(u(a.x.rows)), kRowThreads, 0, a, c.step, rows);
}
void route(const Context& c, const RouteArgs& a, RowSet rows) {
  launch(c.launcher, "route", route_kernel, dim3(u(a.logits.rows)), 32, static_cast<size_t>(a.logits.cols), a,
         c.step, rows);
}
void round_rows(const Context& c, const Tensor& x, const Rounded& out, RowSet rows, int32_t per_row) {
  launch(c.launcher, "rounding", round_kernel, dim3(u(x.rows), u(up(out.blocks, kWarps))), kThreads, 0, x,
         out, c.step, rows, per_row);
}

}  // namespace carat::cuda
