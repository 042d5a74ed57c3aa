// Kernels in plain C++, for any machine.
#include "cpu/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cmath>
#include <initializer_list>

#include "base/error.h"
#include "core/codec.h"
#include "core/codec_tables.h"
#include "core/int_block.h"
#include "core/kv_codec.h"
#include "cpu/pack.h"

namespace carat::cpu {
namespace baseline {
// Each builds on those before it.
// clang-format off
#include "cpu/simd_base.inl"
#include "cpu/math.inl"
#include "cpu/strips.inl"
#include "cpu/ints.inl"
#include "cpu/floats.inl"
#include "cpu/dense.inl"
#include "cpu/rows.inl"
#include "cpu/kv_load.inl"
#include "cpu/attention_range.inl"
#include "cpu/attention_vectors.inl"
#include "cpu/attention.inl"
#include "cpu/recurrent.inl"
#include "cpu/band.inl"
// clang-format on
}  // namespace baseline

Kernels baseline_kernels() {
  using namespace baseline;
  return {run_embed, run_gather,        run_norm,     run_pointwise, run_layer_norm, run_route, run_rope,
          run_prep,  run_quantize,      run_dense,    run_plan,      run_gate_up,    run_down,  run_reduce,
          run_split, run_slices,        run_conv,     run_delta,     run_top,        run_band,  run_refine,
          run_fold,  attention_kernels, run_dot_test, kDotTestOps};
}

}  // namespace carat::cpu
