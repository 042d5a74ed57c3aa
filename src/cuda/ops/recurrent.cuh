// What layers with a recurrent state share (docs/design.md, "Recurrent state"; src/ref/ref_recurrent.cc): a
// sequence's rows of a step, and a head's matrix in registers.
#pragma once
#include "cuda/device/activate.cuh"
#include "cuda/ops/norm_element.cuh"
#include "cuda/ops/ops.h"

namespace carat::cuda {

struct Run {
  const DevStep* s;
  const SeqView* seq;
  int32_t first, count;

  CARAT_D bool fresh() const { return s->pos[first] == seq->n_kept; }  // its base holds nothing yet
  CARAT_D int32_t settled() const { return seq->settled < count ? seq->settled : count; }
  CARAT_D int32_t entry(int32_t i) const { return seq->log + i - settled(); }
  CARAT_D int32_t parent(int32_t i) const {
    const int32_t row = continued(s, first + i);
    return row < 0 ? -1 : row - first;
  }
};
CARAT_D Run run_of(const DevStep* s, int32_t i) {
  const SeqRun r = s->runs[i];
  return {s, &s->seqs[s->seq[r.first]], r.first, r.count};
}

CARAT_D float* entry_of(const RecurrentView& v, const SeqView& s, int32_t i) {
  return v.log + (int64_t{s.slot} * v.entries + i) * v.entry_floats;
}

constexpr int kMaxKey = 256;

constexpr int kColumns = 16, kDeltaThreads = 4 * kColumns, kDeltaRows = 4;

CARAT_D float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

// A block has 16 columns of a head's matrix; thread 4 j + l has rows l, l + 4, ... of column j, in registers,
// at most EACH. WHOLE: exactly.
template <int EACH, bool WHOLE>
struct Head {
  const DeltaNetArgs& a;
  const int32_t h, key, k_dim, lane;
  float s[EACH];

  CARAT_D bool has(int n) const { return WHOLE || lane + 4 * n < k_dim; }
  // f(n) for the rows that are there.
  template <class F>
  CARAT_D void each(F f) {
#pragma unroll
    for (int n = 0; n < EACH; ++n)
      if (has(n)) f(n);
  }
  CARAT_D static float over_lanes(float sum) {  // (lanes 0 + 2) + (1 + 3)
    sum += shuffle_xor(sum, 2);
    return sum + shuffle_xor(sum, 1);
  }
  // x(n): element lane + 4 n of a key or a query.
  template <class X>
  CARAT_D float project(X x) {
    float sum = 0;
    each([&](int n) { sum = fmaf(x(n), s[n], sum); });
    return over_lanes(sum);
  }
  template <class X>
  CARAT_D void fold(X k, float delta, float decay) {
    each([&](int n) { s[n] = fmaf(k(n), delta, decay * s[n]); });
  }
  // The state before a run's rows. base: of this lane's first row and the column.
  CARAT_D void take(const Run& r, const float* base, int64_t delta_at, int64_t decay_at) {
    const RecurrentSpec& spec = a.state.spec;
    const bool fresh = r.fresh();
    each([&](int n) { s[n] = fresh ? 0 : base[int64_t{4} * n * spec.v_dim]; });
    for (int32_t i = 0; i < r.seq->n_kept; ++i) {
      const float* e = entry_of(a.state, *r.seq, r.seq->kept[i]);
      const float* k = e + key * k_dim + lane;
      fold([&](int n) { return k[4 * n]; }, e[delta_at], e[decay_at]);
    }
  }
  CARAT_D void store(float* base) {
    each([&](int n) { base[int64_t{4} * n * a.state.spec.v_dim] = s[n]; });
  }
  CARAT_D float decay(float x) const {
    return expf(row_of<const float>(a.rate, 0)[h] * softplus(x + row_of<const float>(a.bias, 0)[h]));
  }
  CARAT_D float decay_of(int32_t row) const { return decay(row_of<const float>(a.a, row)[h]); }
  CARAT_D const float* key_of(int32_t row) const { return row_of<const float>(a.k, row) + key * k_dim; }
  // The state behind `row` from that before it; v: its value. Returns delta.
  CARAT_D float step(int32_t row, float v) {
    const float* k = key_of(row) + lane;
    const auto x = [&](int n) { return k[4 * n]; };
    const float decay = decay_of(row), seen = decay * project(x),
                delta = row_of<const float>(a.beta, row)[h] * (v - seen);
    fold(x, delta, decay);
    return delta;
  }
};

// Rows of keys and queries in shared memory, as lanes read them: lane l has elements l, l + 4, ... in a row.
template <int EACH>
struct alignas(16) DeltaStage {
  static constexpr int kLane = EACH + 4;  // lanes' vectors of four lie in different banks
  float x[kDeltaRows][2][4 * kLane], v[kDeltaRows][kColumns], decay[kDeltaRows], beta[kDeltaRows];
};

// What a lane has of a row of a stage.
template <int EACH>
CARAT_D void lane_values(const float* row, int lane, float (&x)[EACH]) {
  const auto* from = reinterpret_cast<const float4*>(row + lane * DeltaStage<EACH>::kLane);
#pragma unroll
  for (int n = 0; n < EACH; n += 4) {
    const float4 v = from[n / 4];
    x[n] = v.x, x[n + 1] = v.y, x[n + 2] = v.z, x[n + 3] = v.w;
  }
}

inline bool same_columns(const Tensor& a, const Tensor& b) {
  return a.data == b.data && a.rows == b.rows && a.cols == b.cols && a.pitch == b.pitch;
}

}  // namespace carat::cuda
