// The short convolution of layers with a recurrent state, base and log. Threads own columns.
#include <algorithm>

#include "cuda/ops/recurrent.cuh"

namespace carat::cuda {
namespace {

constexpr int kConvThreads = 128, kConvRows = 16;  // rows: of a prompt, a thread
constexpr int kFewConvRows = 32, kMostConvThreads = 512;

// Inputs that stand before a step's, oldest first: of the base, then the kept ones behind them.
CARAT_D float conv_before(const ConvArgs& a, const SeqView& seq, bool fresh, int32_t t, int32_t c) {
  const int32_t past = a.state.spec.taps - 1, at = seq.n_kept + t;
  if (at >= past) return entry_of(a.state, seq, seq.kept[at - past])[c];
  return fresh ? 0 : a.state.base[seq.slot * a.state.base_floats + int64_t{at} * a.state.spec.channels + c];
}

// v of a head's column, after the norm of that head: `row` is its columns' memory, which the block's threads
// pass all at once. The sum is norm_groups's.
CARAT_D float head_normed(const HeadNorms& norms, int which, float v, float* row, int32_t at) {
  row[at] = v;
  sync_block();
  const float inv = group_inverse_rms(row, norms.width, norms.eps[which], threadIdx.x % 32);
  sync_block();  // all have read the row
  return v * inv * norms.scale[which];
}

// A thread a channel, some of a run's rows beside each other. ROWS: y is computed here, too, and the norms
// behind it, a block a head; without norms a block has kConvThreads channels. step: rows beside each other;
// stride: threads of each.
template <bool ROWS>
__global__ void __launch_bounds__(kMostConvThreads)
    conv_kernel(const ConvArgs a, const HeadNorms norms, int32_t step, int32_t stride, const DevStep* s) {
  CARAT_STATIC_SHARED float row[kMostConvThreads];
  const RecurrentSpec& spec = a.state.spec;
  const int32_t width = norms.width ? norms.width : kConvThreads,
                beside = step == 1 ? 0 : threadIdx.x / stride, at = threadIdx.x - beside * stride,
                c = blockIdx.x * width + at, past = spec.taps - 1,
                head = norms.width ? static_cast<int32_t>(blockIdx.x) : 2 * norms.heads,
                which = head < norms.heads ? 0 : 1;
  const bool some = at < width && c < spec.channels;
  const bool runs = static_cast<int32_t>(blockIdx.y) < s->n_runs;
  const Run r = runs ? run_of(s, blockIdx.y) : Run{s, nullptr, 0, 0};
  float before[kMaxTaps], weight[kMaxTaps];
  // The state is on its way before the inputs are there: what wrote it has ended, since the delta rule's
  // kernel behind it lets the next one start only when it has waited.
  if (runs && some) {
    const bool fresh = r.fresh();
#pragma unroll
    for (int t = 0; t < kMaxTaps; ++t) {
      if (t < spec.taps) weight[t] = row_of<const float>(a.weight, t)[c];
      if (t < past) before[t] = conv_before(a, *r.seq, fresh, t, c);
    }
  }
  begin_kernel();
  if (!runs) return;
  float* base = a.state.base + r.seq->slot * a.state.base_floats;
  // The input `back` rows before row i.
  const auto input = [&](int32_t i, int32_t back) {
    for (; back > 0 && i >= 0; --back) i = r.parent(i);
    if (i >= 0) return row_of<const float>(a.x, r.first + i)[c];
    float v = 0;
#pragma unroll
    for (int t = 0; t < kMaxTaps; ++t)
      if (t == past - 1 - back) v = before[t];
    return v;
  };
  const int32_t settled = r.settled();
  for (int32_t first = ROWS ? 0 : settled; first < r.count; first += step) {
    const int32_t i = first + beside;
    const bool mine = some && i < r.count;
    if constexpr (ROWS) {
      float v = 0;
#pragma unroll
      for (int t = 0; t < kMaxTaps; ++t)
        if (mine && t < spec.taps) v = fmaf(weight[t], input(i, past - t), v);
      v = activate(a.act, v);
      if (head < 2 * norms.heads) v = head_normed(norms, which, v, row + beside * stride, at);
      if (mine) row_of<float>(a.y, r.first + i)[c] = v;
    }
    if (mine && i >= settled)
      entry_of(a.state, *r.seq, r.entry(i))[c] = row_of<const float>(a.x, r.first + i)[c];
  }
  if (step > 1) sync_block();  // all have what was before
  if (!some || beside > 0) return;
  for (int32_t t = 0; t < past; ++t) base[int64_t{t} * spec.channels + c] = input(settled - 1, past - 1 - t);
}

// y alone, of a prompt's rows: some at a time, all at once. The state is conv_kernel<false>'s, behind this.
__global__ void __launch_bounds__(kConvThreads) conv_rows_kernel(const ConvArgs a, const DevStep* s) {
  begin_kernel();
  const RecurrentSpec& spec = a.state.spec;
  const int32_t c = blockIdx.x * kConvThreads + threadIdx.x, past = spec.taps - 1;
  if (c >= spec.channels) return;
  float weight[kMaxTaps], in[kMaxTaps];  // of the newest input first, then of those before it
#pragma unroll
  for (int b = 0; b < kMaxTaps; ++b)
    if (b <= past) weight[b] = row_of<const float>(a.weight, past - b)[c];
  const auto input = [&](int32_t row, int32_t back) {
    const int32_t of = row;
    int32_t root = row;
    for (; back > 0 && row >= 0; --back) root = row, row = continued(s, row);
    if (row >= 0) return row_of<const float>(a.x, row)[c];
    const SeqView& seq = s->seqs[s->seq[of]];
    return conv_before(a, seq, s->pos[root] == seq.n_kept, past - 1 - back, c);
  };
  const int32_t first = blockIdx.y * kConvRows, rest = s->n_rows - first;
  for (int32_t m = first; m < first + (rest < kConvRows ? rest : kConvRows); ++m) {
    const bool goes_on = m > first && continued(s, m) == m - 1;
#pragma unroll
    for (int b = kMaxTaps - 1; b >= 0; --b)
      if (b <= past) in[b] = goes_on && b > 0 ? in[b > 0 ? b - 1 : 0] : input(m, b);
    float sum = 0;
#pragma unroll
    for (int b = kMaxTaps - 1; b >= 0; --b)
      if (b <= past) sum = fmaf(weight[b], in[b], sum);
    row_of<float>(a.y, m)[c] = activate(a.act, sum);
  }
}

bool plain(const RmsNormArgs& a) { return !a.weight.data && !a.residual.data && !a.gain.data && !a.mul.data; }

}  // namespace

HeadNorms head_norms(const ConvArgs& a, const RmsNormArgs& q, const RmsNormArgs& k) {
  const int32_t width = q.width, cols = q.y.cols;
  if (a.y.rows > kFewConvRows || width <= 0 || width > kMaxKey || cols % width || k.width != width) return {};
  if (2 * cols > a.y.cols || !plain(q) || !plain(k)) return {};
  for (const auto& [norm, first] : {std::pair(&q, 0), std::pair(&k, cols)})
    if (const Tensor t = a.y.columns(first, cols); !same_columns(norm->x, t) || !same_columns(norm->y, t))
      return {};
  return {width, cols / width, {q.eps, k.eps}, {q.scale, k.scale}};
}
void conv(const Context& c, const ConvArgs& a, const HeadNorms& norms) {
  const auto blocks = [](int32_t n, int32_t per) { return static_cast<unsigned>((n + per - 1) / per); };
  const int32_t channels = a.state.spec.channels, width = norms.width ? norms.width : kConvThreads;
  const auto runs = static_cast<unsigned>(a.y.rows < 256 ? a.y.rows : 256);
  const dim3 grid(blocks(channels, width), runs);
  const int32_t stride = 32 * static_cast<int32_t>(blocks(width, 32)),
                step = std::min(a.y.rows, kMostConvThreads / stride);
  if (a.y.rows <= kFewConvRows)
    return launch(c.launcher, "conv", conv_kernel<true>, grid, stride * step, size_t{0}, a, norms, step,
                  stride, c.step);
  launch(c.launcher, "conv", conv_rows_kernel,
         dim3(blocks(channels, kConvThreads), blocks(a.y.rows, kConvRows)), kConvThreads, size_t{0}, a,
         c.step);
  launch(c.launcher, "conv, state", conv_kernel<false>, grid, stride, size_t{0}, a, norms, 1, stride, c.step);
}

}  // namespace carat::cuda
