// Kernels for AVX2, FMA and F16C.
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

#if defined(__x86_64__)
CARAT_ISA_BEGIN("avx2,fma,f16c,bmi2")
namespace carat::cpu {
namespace avx2 {
// Each builds on those before it.
// clang-format off
#define CARAT_CODES 1
#include "cpu/simd_avx2.inl"
#include "cpu/math.inl"
#include "cpu/strips.inl"
#include "cpu/code_blocks.inl"
#include "cpu/codes.inl"
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
}  // namespace avx2

Kernels avx2_kernels() {
  using namespace avx2;
  return all_kernels(attention_kernels, run_dot_test, kDotTestOps);
}

}  // namespace carat::cpu
CARAT_ISA_END
#endif
