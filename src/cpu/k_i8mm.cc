// Kernels for NEON with dot products of bytes, and products of two rows by two outputs (i8mm).
#include "cpu/kernels.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cmath>
#include <initializer_list>

#include "base/error.h"
#include "core/codec.h"
#include "core/codec_tables.h"
#include "core/int_block.h"
#include "core/kv_codec.h"
#include "cpu/pack.h"

#if defined(__aarch64__)
CARAT_ISA_BEGIN("arch=armv8.2-a+dotprod+fp16+i8mm")
namespace carat::cpu {
namespace i8mm {
// Each builds on those before it.
// clang-format off
#define CARAT_MMLA 1
#include "cpu/simd_neon.inl"
#include "cpu/math.inl"
#include "cpu/strips.inl"
#include "cpu/code_blocks.inl"
#include "cpu/mmla.inl"
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
}  // namespace i8mm

Kernels i8mm_kernels() {
  using namespace i8mm;
  return all_kernels(attention_kernels, run_dot_test, kDotTestOps);
}

}  // namespace carat::cpu
CARAT_ISA_END
#endif
