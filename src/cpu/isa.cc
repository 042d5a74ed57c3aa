#include "cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1 << 20)
#endif
#ifndef HWCAP2_I8MM
#define HWCAP2_I8MM (1 << 13)
#endif
#endif
#include "base/error.h"

namespace carat::cpu {
namespace {

#if defined(__x86_64__)
// Not by __builtin_cpu_supports(), whose names clang 14 does not all know.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() &&
         __builtin_cpu_supports("bmi2");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}
// Linux grants the 8 KB of tile state per process, on request (arch_prctl ARCH_REQ_XCOMP_PERM, state 18).
bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!has_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if (!(d >> 22 & 1) || !(d >> 24 & 1) || !(d >> 25 & 1)) return false;  // AMX-BF16, AMX-TILE, AMX-INT8
  constexpr int kRequest = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}
#endif

}  // namespace

std::vector<std::string_view> present_isas() {
  std::vector<std::string_view> isas{"baseline"};
#if defined(__x86_64__)
  if (has_avx2()) isas.push_back("avx2");
  if (has_avx512()) isas.push_back("avx512");
  if (has_amx()) isas.push_back("amx");
#endif
#if defined(__aarch64__)
  if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) {
    isas.push_back("neon");
    if (getauxval(AT_HWCAP2) & HWCAP2_I8MM) isas.push_back("i8mm");
  }
#endif
  return isas;
}

Kernels kernels_of(std::string_view isa) {
#if defined(__x86_64__)
  if (isa == "avx2") return avx2_kernels();
  if (isa == "avx512") return avx512_kernels();
  if (isa == "amx") return amx_kernels();
#endif
#if defined(__aarch64__)
  if (isa == "neon") return neon_kernels();
  if (isa == "i8mm") return i8mm_kernels();
#endif
  CARAT_CHECK(isa == "baseline", "{}", isa);
  return baseline_kernels();
}

}  // namespace carat::cpu
