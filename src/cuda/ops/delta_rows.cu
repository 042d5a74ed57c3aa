// The gated delta rule of few rows with the gated norm behind it, a block a head. Threads, sums and bits are
// delta_kernel's (recurrent.cu).
#include "cuda/ops/recurrent.cuh"

namespace carat::cuda {
namespace {

constexpr int kMostValues = 128, kFewDeltaRows = 16;

// A thread's part of the head that its block has, and where a log entry has what the head leaves.
struct HeadThread {
  int32_t h, lane, column, v_at;
  int64_t delta_at, decay_at;

  CARAT_D explicit HeadThread(const RecurrentSpec& spec)
      : h(blockIdx.x), lane(threadIdx.x % 4), column(threadIdx.x / 4), v_at(h * spec.v_dim + column) {
    const int64_t keys = int64_t{spec.k_heads} * spec.k_dim;
    delta_at = keys + v_at, decay_at = keys + int64_t{spec.v_heads} * spec.v_dim + h;
  }
  CARAT_D float* base(const RecurrentView& v, const SeqView& seq) const {
    return v.base + seq.slot * v.base_floats + (int64_t{h} * v.spec.k_dim + lane) * v.spec.v_dim + column;
  }
};

// A single row, and the gated norm behind it: a block a head, whose matrix comes to registers before the
// row's inputs are there (its last writer has ended: the convolution's kernel between has waited for it).
template <int EACH, bool WHOLE>
__global__ void __launch_bounds__(4 * kMostValues)
    delta_row_kernel(const DeltaNetArgs a, const RmsNormArgs norm, const DevStep* s) {
  constexpr int kLane = DeltaStage<EACH>::kLane;
  CARAT_STATIC_SHARED float4 staged[2 * kLane];  // key and query, as DeltaStage has them
  CARAT_STATIC_SHARED float values[kMostValues];
  const RecurrentSpec& spec = a.state.spec;
  const HeadThread at(spec);
  const int32_t h = at.h, lane = at.lane, column = at.column, v_at = at.v_at;
  Head<EACH, WHOLE> m{a, h, h % spec.k_heads, spec.k_dim, lane, {}};
  const bool some = s->n_runs > 0;
  const Run r = some ? run_of(s, 0) : Run{s, nullptr, 0, 0};
  float* base = nullptr;
  if (some) {
    base = at.base(a.state, *r.seq);
    m.take(r, base, at.delta_at, at.decay_at);
  }
  begin_kernel();
  if (!some) return;
  auto* x = reinterpret_cast<float*>(staged);
  for (int i = threadIdx.x; i < 8 * EACH; i += blockDim.x) {
    const int which = i / (4 * EACH), k = i % (4 * EACH);
    const bool there = WHOLE || k < spec.k_dim;
    x[which * 4 * kLane + k % 4 * kLane + k / 4] =
        there ? (row_of<const float>(which ? a.q : a.k, 0) + m.key * spec.k_dim)[k] : 0;
  }
  const float decay = m.decay_of(0), beta = row_of<const float>(a.beta, 0)[h],
              v = row_of<const float>(a.v, 0)[v_at];
  const bool settled = r.settled() > 0;
  if (!settled) m.store(base);
  sync_block();
  float key[EACH], query[EACH];
  lane_values(x, lane, key), lane_values(x + 4 * kLane, lane, query);
  const float seen = m.project([&](int n) { return key[n]; }), delta = beta * (v - decay * seen);
  m.fold([&](int n) { return key[n]; }, delta, decay);
  const float y = m.project([&](int n) { return query[n]; });
  if (lane == 0) values[column] = row_of<float>(a.y, 0)[v_at] = y;
  if (settled) {
    m.store(base);
  } else {
    float* e = entry_of(a.state, *r.seq, r.entry(0));
    if (lane == 0) e[at.delta_at] = delta;
    if (threadIdx.x == 0) e[at.decay_at] = decay;
    if (h < spec.k_heads)
      for (int32_t k = threadIdx.x; k < spec.k_dim; k += blockDim.x) e[h * spec.k_dim + k] = m.key_of(0)[k];
  }
  sync_block();
  const float inv = group_inverse_rms(values, spec.v_dim, norm.eps, threadIdx.x % 32);
  for (int32_t i = threadIdx.x; i < spec.v_dim; i += blockDim.x)
    norm_element(norm, 0, h * spec.v_dim, i, values[i] * inv);
}

// Few rows, a block a run and head, likewise; the inputs of all rows come to shared memory first. (A single
// row is faster without: docs/lab/2026-11-29-few-rows.md.)
template <int EACH, bool WHOLE>
__global__ void __launch_bounds__(4 * kMostValues)
    delta_rows_kernel(const DeltaNetArgs a, const RmsNormArgs norm, const DevStep* s) {
  constexpr int kLane = DeltaStage<EACH>::kLane;
  CARAT_STATIC_SHARED float4 staged[kFewDeltaRows][2 * kLane];  // key and query, as DeltaStage has them
  CARAT_STATIC_SHARED float value[kFewDeltaRows][kMostValues], result[2][kMostValues];
  CARAT_STATIC_SHARED float decays[kFewDeltaRows], gates[kFewDeltaRows];
  const RecurrentSpec& spec = a.state.spec;
  const HeadThread at(spec);
  const int32_t h = at.h, lane = at.lane, column = at.column, v_at = at.v_at;
  Head<EACH, WHOLE> m{a, h, h % spec.k_heads, spec.k_dim, lane, {}};
  const bool some = static_cast<int32_t>(blockIdx.y) < s->n_runs;
  const Run r = some ? run_of(s, blockIdx.y) : Run{s, nullptr, 0, 0};
  float* base = nullptr;
  if (some) {
    base = at.base(a.state, *r.seq);
    m.take(r, base, at.delta_at, at.decay_at);
  }
  begin_kernel();
  if (!some) return;
  // The last threads have the rows' numbers: of wide heads they bring neither keys nor queries.
  if (const int32_t i = static_cast<int32_t>(blockDim.x - 1 - threadIdx.x); i < r.count)
    decays[i] = m.decay_of(r.first + i), gates[i] = row_of<const float>(a.beta, r.first + i)[h];
  const int which = threadIdx.x / (4 * EACH), k_at = threadIdx.x % (4 * EACH);
#pragma unroll 4
  for (int32_t i = 0; i < r.count; ++i) {
    const int32_t row = r.first + i;
    if (which < 2)
      reinterpret_cast<float*>(staged[i])[which * 4 * kLane + k_at % 4 * kLane + k_at / 4] =
          WHOLE || k_at < spec.k_dim
              ? (row_of<const float>(which ? a.q : a.k, row) + m.key * spec.k_dim)[k_at]
              : 0;
    if (threadIdx.x >= blockDim.x / 2)
      for (int32_t c = threadIdx.x - blockDim.x / 2; c < spec.v_dim; c += blockDim.x / 2)
        value[i][c] = row_of<const float>(a.v, row)[h * spec.v_dim + c];
  }
  const int32_t settled = r.settled();
  if (settled == 0) m.store(base);
  sync_block();
#pragma unroll 1
  for (int32_t i = 0; i < r.count; ++i) {
    const int32_t row = r.first + i;
    if (s->parent &&
        r.parent(i) != i - 1) {  // a branch goes its path again, from the base: behind all that stays
      m.each([&](int n) { m.s[n] = base[int64_t{4} * n * spec.v_dim]; });
      int32_t depth = 0;
      for (int32_t p = r.parent(i); p >= settled; p = r.parent(p)) ++depth;
      for (; depth > 0; --depth) {
        int32_t p = r.parent(i);
        for (int32_t d = 1; d < depth; ++d) p = r.parent(p);
        m.step(r.first + p, row_of<const float>(a.v, r.first + p)[v_at]);
      }
    }
    const auto* x = reinterpret_cast<const float*>(staged[i]);
    const float decay = decays[i];
    float key[EACH], query[EACH], *values = result[i % 2];
    lane_values(x, lane, key), lane_values(x + 4 * kLane, lane, query);
    const float seen = m.project([&](int n) { return key[n]; }),
                delta = gates[i] * (value[i][column] - decay * seen);
    m.fold([&](int n) { return key[n]; }, delta, decay);
    const float y = m.project([&](int n) { return query[n]; });
    if (lane == 0) values[column] = row_of<float>(a.y, row)[v_at] = y;
    if (i + 1 == settled) m.store(base);
    if (i >= settled) {
      float* e = entry_of(a.state, *r.seq, r.entry(i));
      if (lane == 0) e[at.delta_at] = delta;
      if (threadIdx.x == 0) e[at.decay_at] = decay;
      if (h < spec.k_heads)
        for (int32_t k = threadIdx.x; k < spec.k_dim; k += blockDim.x)
          e[h * spec.k_dim + k] = x[k % 4 * kLane + k / 4];
    }
    sync_block();
    const float inv = group_inverse_rms(values, spec.v_dim, norm.eps, threadIdx.x % 32);
    for (int32_t c = threadIdx.x; c < spec.v_dim; c += blockDim.x)
      norm_element(norm, row, h * spec.v_dim, c, values[c] * inv);
  }
}

}  // namespace

bool delta_row_fits(const DeltaNetArgs& a, const RmsNormArgs& norm) {
  const RecurrentSpec& s = a.state.spec;
  const bool few = a.y.rows == 1 || (a.y.rows <= kFewDeltaRows && s.v_dim >= 64);
  return few && s.k_dim <= 128 && s.v_dim % 8 == 0 && s.v_dim <= kMostValues && same_columns(norm.x, a.y) &&
         norm.width == s.v_dim;
}
void delta_row(const Context& c, const DeltaNetArgs& a, const RmsNormArgs& norm) {
  const RecurrentSpec& s = a.state.spec;
  const auto run = [&](auto kernel) {
    launch(c.launcher, "delta net", kernel,
           dim3(static_cast<unsigned>(s.v_heads), static_cast<unsigned>(a.y.rows)), 4 * s.v_dim, size_t{0}, a,
           norm, c.step);
  };
  if (a.y.rows == 1)
    run(s.k_dim == 128 ? delta_row_kernel<32, true> : delta_row_kernel<32, false>);
  else
    run(s.k_dim == 128 ? delta_rows_kernel<32, true> : delta_rows_kernel<32, false>);
}

}  // namespace carat::cuda
