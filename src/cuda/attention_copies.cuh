// What attention over single copies of K = V (KvSpec::pairs) has besides: a query in two parts, of which one
// meets the stored values and the other what is stored of the keys.
#pragma once
#include "cuda/attention.cuh"

namespace carat::cuda {

inline constexpr int kKeyColumns =
    128;  // of queries in tiles that meet stored keys of single copies, at most
inline bool tiles_take(const DevCopies& c) {
  return c.pairs == 0 || (c.key_dim % 8 == 0 && c.key_dim <= kKeyColumns);
}

// As split_query() of core/kv_codec.h, by a warp: heads of up to 32 EACH, keys of up to 32 KEY elements.
template <int EACH, int KEY>
struct QuerySplit {
  const AttentionPart& a;
  const int lane;
  const Rotation<EACH> by_value;
  const Rotation<KEY> by_key;

  CARAT_D QuerySplit(const AttentionPart& args, const Tables& tables, int thread)
      : a(args),
        lane(thread),
        by_value(device_rotation(args.kv.v_type), false, args.kv.dim, tables, thread),
        by_key(device_rotation(args.kv.k_type), false, args.copies.key_dim, tables, thread) {}

  // value(i, x), i < dim: what meets the values. key(i, x), i < key_dim: what meets the keys.
  template <class V, class K>
  CARAT_D void run(const float* q, V value, K key) const {
    const int32_t dim = a.kv.dim, half = dim / 2, pairs = a.copies.pairs, n = a.copies.key_dim;
    float part[KEY];
#pragma unroll
    for (int k = 0; k < KEY; ++k) {
      const int32_t i = lane + 32 * k;
      part[k] = i < n ? q[i < pairs ? i : half + i - pairs] : 0;
    }
    by_key.turn(part, lane);
#pragma unroll
    for (int k = 0; k < KEY; ++k)
      if (lane + 32 * k < n) key(lane + 32 * k, part[k]);
    float v[EACH];
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      const int32_t i = lane + 32 * k;
      v[k] = i < dim && (i < half ? i : i - half) >= pairs ? q[i] * a.copies.gain[i] : 0;
    }
    by_value.turn(v, lane);
#pragma unroll
    for (int k = 0; k < EACH; ++k)
      if (lane + 32 * k < dim) value(lane + 32 * k, v[k]);
  }
};

}  // namespace carat::cuda
