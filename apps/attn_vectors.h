// Queries and keys of one operation as a GPU multiplies them: halves, from a cache in the host's memory.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/codec.h"
#include "core/kv_codec.h"
#include "core/ops.h"

namespace carat {

inline constexpr float kLog2e = 1.44269504f;
inline float as_half(float x) { return f16_to_f32(f32_to_f16(x)); }

// What meets what: queries and rows of one KV head, of single copies values first, then what is stored of the
// keys.
struct AttentionVectors {
  const AttentionArgs& a;
  int32_t value_dim = a.kv.spec.pairs ? a.kv.spec.dim : 0, key_dim = a.kv.spec.key_dim(),
          columns = value_dim + key_dim;

  std::vector<float> keys(const SeqView& seq, int32_t positions, int32_t kv_head) const {
    std::vector<float> all(static_cast<size_t>(positions) * static_cast<size_t>(columns));
    for (int32_t p = 0; p < positions; ++p) {
      float* to = all.data() + static_cast<int64_t>(p) * columns;
      if (value_dim) decode_row(a.kv.spec.v, a.kv.v_row(seq, p, kv_head), to, value_dim);
      decode_row(a.kv.spec.k, a.kv.k_row(seq, p, kv_head), to + value_dim, key_dim);
    }
    for (float& x : all) x = as_half(x);
    return all;
  }
  std::vector<float> query(int32_t row, int32_t head) const {
    const float* q = a.q.row<float>(row) + int64_t{head} * a.kv.spec.dim;
    std::vector<float> x(static_cast<size_t>(columns));
    if (value_dim)
      split_query(a.kv.spec.k, a.kv.spec.v, a.kv.gain, q, a.kv.spec.dim, a.kv.spec.pairs, x.data(),
                  x.data() + value_dim);
    else
      std::copy(q, q + columns, x.begin());
    for (float& v : x) v = as_half(v);
    return x;
  }
  // In powers of two.
  float score(const float* q, const float* k) const {
    float sum[16] = {};
    int32_t i = 0;
    for (; i + 16 <= columns; i += 16)
      for (int32_t j = 0; j < 16; ++j) sum[j] += q[i + j] * k[i + j];
    for (; i < columns; ++i) sum[0] += q[i] * k[i];
    float s = 0;
    for (const float part : sum) s += part;
    s *= a.scale;
    return kLog2e * (a.softcap > 0 ? a.softcap * std::tanh(s / a.softcap) : s);
  }
  const float* key(const std::vector<float>& keys, int32_t position) const {
    return keys.data() + static_cast<int64_t>(position) * columns;
  }
};

}  // namespace carat
