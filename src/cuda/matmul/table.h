// Which kernel computes a product: a pure function of what is multiplied and what the device can do, tested
// without a device. Kernels are bound to what they need (warpgroups' products, bulk copies, shared memory),
// so a new generation takes those that it can run.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace carat::cuda {

enum class Product : uint8_t { matmul, gate_up, experts };
enum class Kernel : uint8_t {
  any_format,    // a warp an output: gate and up in two formats, other floats, too little shared memory
  f32_rows,      // float weights with f32 sums: few rows by warps, many through shared memory
  float_rows,    // bf16, f16 and fp8 on the tensor cores, few rows (float/rows.cu)
  float_tiles,   // the same, many rows (float/tiles.cu)
  float_wide,    // the same, wgmma (float/wide.cuh)
  scaled_tiles,  // weights of 4 bits over rows in e4m3, block-scaled mma.sync (float/scaled_tiles.cu)
  int8_tiles,    // many rows of gate and up in two block formats (tiles.cu)
  packed_few,    // packed weights, few rows: packed/stream.cuh, packed/stream_rows.cuh,
                 // packed/rows.cuh by shared memory
  packed_tiles,  // packed weights, many rows, mma.sync (packed/tiles.cuh)
  packed_wide,   // packed weights, many rows, wgmma (wide/tiles.cuh)
};
const char* name_of(Kernel k);
// Packed weights that warpgroups multiply. Not those with a float minimum for 32 columns: they would gain
// little.
constexpr bool goes_wide(DType t) {
  return info(t).family == Family::block && t != DType::q4_1 && t != DType::q5_1;
}

struct ProductShape {
  Product op = Product::matmul;
  DType type = DType::f32;  // of all weights
  bool packed = false;      // in the device's own layout
  bool aligned =
      true;          // float weights: rows begin at multiples of 16 bytes, columns in eights (fp8: sixteens)
  int32_t rows = 1;  // of the step's bucket; of experts: those that an expert gets on average
  int32_t step_rows = 1;  // of experts: of the step's bucket
  int32_t outputs = 0, cols = 0;
};
struct Generation {
  int32_t capability = 80;    // 86: compute capability 8.6
  int64_t shared = 99 << 10;  // bytes a block may have
  // What runs only on 9.0 (sm_90a is no part of later generations), and what from 9.0 on does.
  bool warpgroup_products() const { return capability / 10 == 9; }
  bool bulk_copies() const { return capability >= 90; }
  // mma.sync with a scale for every 32 columns of both sides. 10.0 has it as tcgen05 alone.
  bool block_scaled_products() const { return capability / 10 == 12; }
};
// What is to be said where kernels have been compiled for an older generation (86: 8.6) than the device's, so
// that those that need bulk copies are no use there. "": nothing.
std::string older_code(const std::string& name, const Generation& device, int code);

// Choices that are not the rule: to measure them, and to run what another generation would.
struct Forced {
  bool float_mma = false;    // all weights in bf16 and f16 (fp8 always) on the tensor cores: few outputs, too
  bool float_f32 = false;    // none of them
  bool float_tiles = false;  // many rows of them without wgmma; with FP8 activations without tensor cores
  bool packed_tiles = false;  // packed weights: from 33 rows on by tiles, as devices without bulk copies
  int32_t generation = 0;     // 80, 121: nothing that a device of 8.0, of 12.1 has not; 0: the device's own
  int32_t shared = 0;         // KiB of shared memory that a block may have at the most; 0: the device's own
  bool unified = false;       // weights come and memory is counted as where it is the host's
  int32_t float_rows = 0;     // so many rows of float weights by the kernel of few rows; 0: the rule
  int32_t wide_rows = 0;      // packed weights: so many rows (or of an expert) and more by warpgroups
};
Forced& forced();  // the process's
// By name: float-mma, float-f32, float-rows=N, float-tiles, wide-rows=N, packed-tiles, sm_80, sm_121,
// shared=N, unified. Error for another one.
void force_kernels(const std::vector<std::string>& names);

// How many rows the kernels of few rows take of packed weights (the band: with bulk copies), of float
// weights, of experts, and of experts in floats (docs/lab/2026-11-27-float-experts.md).
inline constexpr int32_t kFewRows = 32, kBandRows = 64, kFewFloatRows = 128, kFewExpertRows = 16,
                         kFewFloatExpertRows = 8;
// Rows from which warpgroups are faster, of products of so many weights (kLargeBytes: of twice as many, in
// q8_0, whose kernels of few rows are slow from 9 on), and of an expert on average
// (docs/lab/2026-11-27-many-rows.md, 2026-11-28-block-formats.md).
inline constexpr int32_t kWideFrom = 33, kLargeWideFrom = 17, kLargeBytesWideFrom = 9, kExpertsWideFrom = 16;
inline constexpr int64_t kLargeWeights = int64_t{1} << 24;
// Of small float weights, where warpgroups would multiply the others (docs/lab/2026-11-28-wide-floats.md).
inline constexpr int32_t kFewSmallFloatRows = 31;
// Float weights: up to so many rows are split in registers; products of so few outputs (routers) stay in f32.
inline constexpr int32_t kFewSplitRows = 8, kRouterOutputs = 128;
inline constexpr int64_t kFloatWideShared = 150 << 10;  // three stages of float/wide.cuh
inline constexpr int64_t kScaledShared = 64 << 10;      // two stages of float/scaled_tiles.cu, and its head
// Bytes of shared memory that warpgroups need for two stages, the least that pays.
int64_t wide_shared(DType type);

// Rows below which no product goes by warpgroups.
int32_t least_wide_rows(const Forced& forced);
Kernel choose(const ProductShape& shape, const Generation& device, const Forced& forced = {});

}  // namespace carat::cuda
