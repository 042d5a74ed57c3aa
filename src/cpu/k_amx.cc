// AVX-512 kernels, with products on AMX tiles where there are enough rows, and attention on them always.
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
#include <type_traits>

#include "base/error.h"
#include "core/codec.h"
#include "core/codec_tables.h"
#include "core/int_block.h"
#include "core/kv_codec.h"
#include "cpu/pack.h"

#if defined(__x86_64__)
CARAT_ISA_BEGIN("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,amx-tile,amx-int8,amx-bf16")
namespace carat::cpu {
namespace amx {
// Each builds on those before it.
// clang-format off
#define CARAT_AMX 1
#include "cpu/simd_avx512.inl"
#include "cpu/math.inl"
#include "cpu/strips.inl"
#include "cpu/ints.inl"
#include "cpu/floats.inl"
#include "cpu/amx.inl"
#include "cpu/dense.inl"
#include "cpu/rows.inl"
#include "cpu/kv_load.inl"
#include "cpu/attention_range.inl"
#include "cpu/amx_parts.inl"
#include "cpu/attention_tiles.inl"
#include "cpu/attention.inl"
#include "cpu/recurrent.inl"
#include "cpu/band.inl"
#include "cpu/list.inl"
// clang-format on
// Floats have more bits than two bf16 parts.
static AttentionKernels attention_of(const KvSpec& spec) {
  if (spec.k == DType::f32 || spec.v == DType::f32) return avx512_kernels().attention(spec);
  return attention_kernels(spec);
}
}  // namespace amx

Kernels amx_kernels() {
  using namespace amx;
  return all_kernels(attention_of, run_tile_test, kTileTestOps);
}

}  // namespace carat::cpu
CARAT_ISA_END
#endif
