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
#include "cpu/list.inl"
// clang-format on
}  // namespace baseline

Kernels baseline_kernels() {
  using namespace baseline;
  return all_kernels(attention_kernels, run_dot_test, kDotTestOps);
}

}  // namespace carat::cpu
