// AVX-512 kernels, with products on AMX tiles where there are enough rows.
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
#include "cpu/pack.h"

#if defined(__x86_64__)
CARAT_ISA_BEGIN("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,amx-tile,amx-int8")
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
// clang-format on
}  // namespace amx

Kernels amx_kernels() {
  Kernels k = avx512_kernels();
  k.quantize = amx::run_quantize;
  k.dense = amx::run_dense;
  k.plan = amx::run_plan;
  k.gate_up = amx::run_gate_up;
  k.down = amx::run_down;
  k.reduce = amx::run_reduce;
  k.slices = amx::run_slices;
  k.dot_test = amx::run_tile_test;
  k.dot_test_ops = amx::kTileTestOps;
  return k;
}

}  // namespace carat::cpu
CARAT_ISA_END
#endif
