// Attention over a row and those shortly before it, which know how far behind it they stand (sound towers).
// Task: a row. Sums go as in products: 16 lanes, then the lanes pairwise.

// q . (k + ahead)
static float band_score(const float* q, const float* k, const float* ahead, int32_t dim) {
  F16 sum = zero16();
  const auto add = [&](const F16& qv, F16 kv, const F16& av) {
    for (int i = 0; i < 16 / W; ++i) kv.v[i] = addf(kv.v[i], av.v[i]);
    sum = mad16(qv, kv, sum);
  };
  int32_t i = 0;
  for (; i + 16 <= dim; i += 16) add(load16(q + i), load16(k + i), load16(ahead + i));
  const int32_t left = dim - i;
  if (left) add(load16_part(q + i, left), load16_part(k + i, left), load16_part(ahead + i, left));
  return sum16(sum);
}

// Shares of n scores, in their place; room for whole vectors.
static void band_shares(float* w, int32_t n, float softcap) {
  for (int32_t i = n; i % W; ++i) w[i] = w[0];
  for (int32_t i = 0; i < n && softcap > 0; i += W)
    storef(w + i, mulf(setf(softcap), tanh_v(divf(loadf(w + i), setf(softcap)))));
  float top = w[0], sum = 0;
  for (int32_t i = 1; i < n; ++i) top = w[i] > top ? w[i] : top;
  for (int32_t i = 0; i < n; i += W) storef(w + i, exp_v(subf(loadf(w + i), setf(top))));
  for (int32_t i = 0; i < n; ++i) sum += w[i];
  for (int32_t i = 0; i < n; i += W) storef(w + i, divf(loadf(w + i), setf(sum)));
}

// y = sum of w[j] * v's row first + j, columns [at, at + dim).
static void band_values(const Tensor& v, int64_t first, int64_t at, const float* w, int32_t n, float* y,
                        int32_t dim) {
  int32_t i = 0;
  for (; i + W <= dim; i += W) {
    VF sum = setf(0.0f);
    for (int32_t j = 0; j < n; ++j) sum = mad(setf(w[j]), loadf(v.row<float>(first + j) + at + i), sum);
    storef(y + i, sum);
  }
  if (i == dim) return;
  const size_t left = static_cast<size_t>(dim - i) * 4;
  float t[W] = {};
  VF sum = setf(0.0f);
  for (int32_t j = 0; j < n; ++j) {
    __builtin_memcpy(t, v.row<float>(first + j) + at + i, left);
    sum = mad(setf(w[j]), loadf(t), sum);
  }
  storef(t, sum);
  __builtin_memcpy(y + i, t, left);
}

static void run_band(const Step& step, const void* p, int64_t m, Worker&) {
  const BandAttentionArgs& a = static_cast<const ByRow<BandAttentionArgs>*>(p)->a;
  const int32_t dim = a.y.cols / a.heads, *seq = step.state.seq;
  int64_t first = m;
  while (first > 0 && m - first + 1 < a.ahead.rows && seq[first - 1] == seq[m]) --first;
  const int32_t n = static_cast<int32_t>(m - first + 1);
  alignas(64) float w[kMostBand];
  for (int64_t at = 0; at < a.y.cols; at += dim) {
    for (int32_t j = 0; j < n; ++j)
      w[j] = band_score(a.q.row<float>(m) + at, a.k.row<float>(first + j) + at,
                        a.ahead.row<float>(n - 1 - j) + at, dim);
    band_shares(w, n, a.softcap);
    band_values(a.v, first, at, w, n, a.y.row<float>(m) + at, dim);
  }
}
