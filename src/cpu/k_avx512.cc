// Kernels for AVX-512 with VNNI.
#include "cpu/kernels.h"

#if defined(__x86_64__)
#if !defined(__clang__)  // g++ 12 calls its own "undefined" operands uninitialized (GCC bug 105593)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
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
CARAT_ISA_BEGIN("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
namespace carat::cpu {
namespace avx512 {
// Each builds on those before it.
// clang-format off
#include "cpu/simd_avx512.inl"
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
}  // namespace avx512

Kernels avx512_kernels() {
  using namespace avx512;
  return all_kernels(attention_kernels, run_dot_test, kDotTestOps);
}

}  // namespace carat::cpu
CARAT_ISA_END
#endif
