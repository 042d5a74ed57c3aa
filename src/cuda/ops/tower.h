// Operations that only towers for pictures and sounds have.
#pragma once
#include "cuda/ops/ops.h"

namespace carat::cuda {

void pointwise(const Context& c, const PointwiseArgs& a, RowSet rows);
void layer_norm(const Context& c, const LayerNormArgs& a, RowSet rows);
void band_attention(const Context& c, const BandAttentionArgs& a, RowSet rows);
// Whether it is a tower's attention, in which all rows of a picture see each other, over keys and values in
// f32, in heads that have a kernel of their own (attention/attention_whole.cu).
inline bool attends_whole(const AttentionArgs& a) {
  const KvSpec& kv = a.kv.spec;
  return a.blocks && kv.window == 0 && kv.k == DType::f32 && kv.v == DType::f32 && kv.pairs == 0 &&
         !kv.protect.any() && kv.dim % 8 == 0 && kv.dim <= 80;
}

}  // namespace carat::cuda
