// The gated delta rule, base and log: threads own columns, rows are taken one after the other.
#include "cuda/ops/recurrent.cuh"

namespace carat::cuda {
namespace {

template <int EACH, bool WHOLE>
struct DeltaWalk {
  using Stage = DeltaStage<EACH>;
  static constexpr int kFetch = kDeltaRows * 2 * 4 * EACH / kDeltaThreads;
  const DeltaNetArgs& a;
  const Run& r;
  Head<EACH, WHOLE>& m;
  Stage& stage;
  const int32_t column, v_first;  // of the block; its first one of a row of v and y
  static constexpr int kValues = kDeltaRows * kColumns / kDeltaThreads;
  float fetched[kFetch] = {}, values[kValues] = {}, rate = 0, beta = 0;

  // Rows i .. of the run on their way to registers.
  CARAT_D void fetch(int32_t i) {
    const int32_t most = r.count - i < kDeltaRows ? r.count - i : kDeltaRows;
#pragma unroll
    for (int f = 0; f < kFetch; ++f) {
      const int at = f * kDeltaThreads + threadIdx.x, row = at / (8 * EACH), query = at / (4 * EACH) % 2,
                k = at % (4 * EACH);
      fetched[f] = row < most && (WHOLE || k < m.k_dim)
                       ? (row_of<const float>(query ? a.q : a.k, r.first + i + row) + m.key * m.k_dim)[k]
                       : 0;
    }
#pragma unroll
    for (int f = 0; f < kValues; ++f) {
      const int at = f * kDeltaThreads + threadIdx.x, row = at / kColumns;
      values[f] = row < most ? row_of<const float>(a.v, r.first + i + row)[v_first + at % kColumns] : 0;
    }
    if (static_cast<int32_t>(threadIdx.x) < most) {
      rate = row_of<const float>(a.a, r.first + i + threadIdx.x)[m.h];
      beta = row_of<const float>(a.beta, r.first + i + threadIdx.x)[m.h];
    }
  }
  CARAT_D void put() {
#pragma unroll
    for (int f = 0; f < kFetch; ++f) {
      const int at = f * kDeltaThreads + threadIdx.x, k = at % (4 * EACH);
      stage.x[at / (8 * EACH)][at / (4 * EACH) % 2][k % 4 * Stage::kLane + k / 4] = fetched[f];
    }
#pragma unroll
    for (int f = 0; f < kValues; ++f) {
      const int at = f * kDeltaThreads + threadIdx.x;
      stage.v[at / kColumns][at % kColumns] = values[f];
    }
    if (threadIdx.x < kDeltaRows) stage.decay[threadIdx.x] = m.decay(rate), stage.beta[threadIdx.x] = beta;
  }
  // What this lane has of a row's key (0) or query (1).
  CARAT_D void take(int row, int which, float (&x)[EACH]) const {
    lane_values(stage.x[row][which], m.lane, x);
  }

  // leave(i, delta, decay): what row i leaves behind, of the rows from `from` on.
  template <class Leave>
  CARAT_D void run(int32_t from, Leave leave) {
    fetch(0);
#pragma unroll 1
    for (int32_t i = 0; i < r.count; i += kDeltaRows) {
      const int32_t most = r.count - i < kDeltaRows ? r.count - i : kDeltaRows;
      sync_block();
      put();
      sync_block();
      if (i + kDeltaRows < r.count) fetch(i + kDeltaRows);
      float even[EACH], odd[EACH];
      take(0, 0, even);
      float seen = m.project([&](int n) { return even[n]; });
      const auto step = [&](int32_t row, const float(&k)[EACH], float(&k_next)[EACH]) {
        float q[EACH];
        take(row, 1, q), take(row + 1 < kDeltaRows ? row + 1 : row, 0, k_next);
        const float g = stage.decay[row], delta = stage.beta[row] * (stage.v[row][column] - g * seen);
        m.fold([&](int n) { return k[n]; }, delta, g);
        // The next row's product with the state beside this one's: neither waits for the other.
        float y = 0, next = 0;
        m.each([&](int n) { y = fmaf(q[n], m.s[n], y), next = fmaf(k_next[n], m.s[n], next); });
        y = m.over_lanes(y), seen = m.over_lanes(next);
        if (m.lane == 0) row_of<float>(a.y, r.first + i + row)[v_first + column] = y;
        if (i + row >= from) leave(i + row, delta, g);
      };
#pragma unroll 1
      for (int32_t row = 0; row < most; row += 2) {
        step(row, even, odd);
        if (row + 1 < most) step(row + 1, odd, even);
      }
    }
  }
};

template <int EACH, bool WHOLE>
__global__ void __launch_bounds__(kDeltaThreads) delta_kernel(const DeltaNetArgs a, const DevStep* s) {
  begin_kernel();
  CARAT_SHARED(memory);
  auto& stage = *reinterpret_cast<DeltaStage<EACH>*>(memory);
  const RecurrentSpec& spec = a.state.spec;
  const int32_t h = blockIdx.y, column = threadIdx.x / 4, first = blockIdx.x * kColumns,
                v_at = h * spec.v_dim + first + column;
  const int64_t delta_at = int64_t{spec.k_heads} * spec.k_dim + v_at;
  const int64_t decay_at = int64_t{spec.k_heads} * spec.k_dim + int64_t{spec.v_heads} * spec.v_dim + h;
#pragma unroll 1
  for (int32_t which = blockIdx.z; which < s->n_runs; which += gridDim.z) {
    const Run r = run_of(s, which);
    Head<EACH, WHOLE> m{a, h, h % spec.k_heads, spec.k_dim, static_cast<int32_t>(threadIdx.x % 4), {}};
    float* base = a.state.base + r.seq->slot * a.state.base_floats +
                  (int64_t{h} * spec.k_dim + m.lane) * spec.v_dim + first + column;
    m.take(r, base, delta_at, decay_at);
    const int32_t settled = r.settled();
    if (settled == 0) m.store(base);
    const auto leave = [&](int32_t i, float delta, float decay) {
      if (i + 1 == settled) m.store(base);
      if (i < settled) return;
      float* e = entry_of(a.state, *r.seq, r.entry(i));
      if (m.lane == 0) e[delta_at] = delta;
      if (blockIdx.x != 0) return;
      if (threadIdx.x == 0) e[decay_at] = decay;
      if (h < spec.k_heads)
        for (int32_t k = threadIdx.x; k < spec.k_dim; k += kDeltaThreads)
          e[h * spec.k_dim + k] = m.key_of(r.first + i)[k];
    };
    if (!s->parent) {
      DeltaWalk<EACH, WHOLE>{a, r, m, stage, column, h * spec.v_dim + first}.run(settled - 1, leave);
      continue;
    }
    // Rows of a tree: a branch goes its path again, from what is committed.
    float committed[EACH];
#pragma unroll
    for (int n = 0; n < EACH; ++n) committed[n] = m.s[n];
    for (int32_t i = 0; i < r.count; ++i) {
      const int32_t row = r.first + i, up = r.parent(i);
      if (up != i - 1) {
#pragma unroll
        for (int n = 0; n < EACH; ++n) m.s[n] = committed[n];
        int32_t depth = 0;
        for (int32_t p = up; p >= 0; p = r.parent(p)) ++depth;
        for (; depth > 0; --depth) {
          int32_t p = up;
          for (int32_t d = 1; d < depth; ++d) p = r.parent(p);
          m.step(r.first + p, row_of<const float>(a.v, r.first + p)[v_at]);
        }
      }
      const float delta = m.step(row, row_of<const float>(a.v, row)[v_at]);
      const float* q = row_of<const float>(a.q, row) + m.key * spec.k_dim + m.lane;
      const float y = m.project([&](int n) { return q[4 * n]; });
      if (m.lane == 0) row_of<float>(a.y, row)[v_at] = y;
      leave(i, delta, m.decay_of(row));
    }
  }
}

template <int EACH, bool WHOLE>
void launch_delta(const Context& c, const DeltaNetArgs& a) {
  const RecurrentSpec& s = a.state.spec;
  launch(c.launcher, "delta net", delta_kernel<EACH, WHOLE>,
         dim3(static_cast<unsigned>(s.v_dim / kColumns), static_cast<unsigned>(s.v_heads),
              static_cast<unsigned>(a.y.rows < 64 ? a.y.rows : 64)),
         kDeltaThreads, sizeof(DeltaStage<EACH>), a, c.step);
}

}  // namespace

bool delta_net_fits(const RecurrentSpec& s) { return s.k_dim <= kMaxKey; }
void delta_net(const Context& c, const DeltaNetArgs& a) {
  if (a.state.spec.k_dim == 128)
    launch_delta<32, true>(c, a);
  else if (a.state.spec.k_dim < 128)
    launch_delta<32, false>(c, a);
  else
    launch_delta<kMaxKey / 4, false>(c, a);
}

}  // namespace carat::cuda
