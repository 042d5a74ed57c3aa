#include "cuda/matmul/table.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "cuda/quant/packed.h"

namespace carat::cuda {
namespace {

bool floats(DType t) { return info(t).family != Family::block; }

bool four_bits(DType t) { return t == DType::mxfp4_a8 || t == DType::nvfp4_a8; }

Kernel choose_float(const ProductShape& s, const Generation& device, const Forced& forced) {
  if (four_bits(s.type)) {  // any_format: over rows that were rounded before
    const bool scaled = s.aligned && device.block_scaled_products() && device.shared >= kScaledShared &&
                        forced.generation != 80 && !forced.float_tiles;
    return scaled ? Kernel::scaled_tiles : Kernel::any_format;
  }
  if (s.type == DType::fp8_a8) {  // or fp8 over rows that were rounded before
    const bool wide = s.aligned && forced.generation == 0 && !forced.float_tiles &&
                      device.warpgroup_products() && device.shared >= kFloatWideShared;
    return wide ? Kernel::float_wide : Kernel::any_format;
  }
  const bool fp8 = s.type == DType::fp8, halves = s.type == DType::bf16 || s.type == DType::f16 || fp8;
  // bf16's 16 bits of an activation are too few for mixtures: a golden's logits leave their tolerance, so
  // their experts come as f16.
  const bool usual = fp8 || (s.op == Product::experts ? s.type == DType::f16 : s.outputs > kRouterOutputs);
  if (halves && s.aligned && !forced.float_f32 && (usual || forced.float_mma)) {
    const bool experts = s.op == Product::experts;
    const bool wide = forced.generation == 0 && !forced.float_tiles && device.warpgroup_products() &&
                      device.shared >= kFloatWideShared;
    const bool large = int64_t{s.outputs} * s.cols >= kLargeWeights;
    const int32_t few = forced.float_rows > 0 ? forced.float_rows
                        : experts             ? kFewFloatExpertRows
                        : !wide               ? kFewFloatRows
                        : large               ? kFewSplitRows
                                              : kFewSmallFloatRows;
    if ((experts ? s.step_rows : s.rows) <= few) return Kernel::float_rows;
    return wide ? Kernel::float_wide : Kernel::float_tiles;
  }
  const bool own =
      s.type == DType::bf16 ? s.op != Product::experts : s.type == DType::f32 && s.op == Product::matmul;
  return own ? Kernel::f32_rows : Kernel::any_format;
}

}  // namespace

const char* name_of(Kernel k) {
  switch (k) {
    case Kernel::any_format: return "any_format";
    case Kernel::f32_rows: return "f32_rows";
    case Kernel::float_rows: return "float_rows";
    case Kernel::float_tiles: return "float_tiles";
    case Kernel::float_wide: return "float_wide";
    case Kernel::scaled_tiles: return "scaled_tiles";
    case Kernel::int8_tiles: return "int8_tiles";
    case Kernel::packed_few: return "packed_few";
    case Kernel::packed_tiles: return "packed_tiles";
    case Kernel::packed_wide: return "packed_wide";
  }
  return "";
}

std::string older_code(const std::string& name, const Generation& device, int code) {
  if (!device.bulk_copies() || code >= 90) return {};
  return fmt::format(
      "{} has compute capability {}.{}, but this program's kernels are made for {}.{}: it decodes "
      "slower than it could. Hint: build with -DCARAT_CUDA_ARCHITECTURES={}a-real (./start on that machine "
      "does), or take a "
      "release for GPUs",
      name, device.capability / 10, device.capability % 10, code / 10, code % 10, device.capability);
}

int newest_code() { return forced().generation > 0 ? forced().generation : 1 << 30; }

Forced& forced() {
  static Forced choices;
  return choices;
}

void force_kernels(const std::vector<std::string>& names) {
  Forced f;
  for (const std::string& name : names) {
    if (name == "float-mma")
      f.float_mma = true;
    else if (name == "float-f32")
      f.float_f32 = true;
    else if (name.starts_with("float-rows=") && std::atoi(name.c_str() + 11) > 0)
      f.float_rows = std::atoi(name.c_str() + 11);
    else if (name.starts_with("wide-rows=") && std::atoi(name.c_str() + 10) > 0)
      f.wide_rows = std::atoi(name.c_str() + 10);
    else if (name == "float-tiles")
      f.float_tiles = true;
    else if (name == "packed-tiles")
      f.packed_tiles = true;
    else if (name == "unified")
      f.unified = true;
    else if (name == "sm_80")
      f.generation = 80;
    else if (name == "sm_121")
      f.generation = 121, f.shared = 99;
    else if (name.starts_with("shared=") && std::atoi(name.c_str() + 7) >= 48)
      f.shared = std::atoi(name.c_str() + 7);
    else
      throw Error(
          fmt::format("no kernel choice is called \"{}\"", name),
          "name some of float-mma, float-f32, float-rows=N, float-tiles, wide-rows=N, packed-tiles, sm_80, "
          "sm_121, shared=N (KiB), unified");
  }
  forced() = f;
}

// 128 rows of 256 codes and, for minimums, of 16 sums as halves, 128 outputs' tiles, in multiples of 1024,
// and the head.
int64_t wide_shared(DType type) {
  const bool sums = type == DType::q2_k || type == DType::q4_k || type == DType::q5_k;
  const int64_t stage = 128 * 256 + 4 * packed_tile(type, 256) + (sums ? 128 * 32 : 0) + 128 * 4;
  return 4096 + 2 * ((stage + 1023) / 1024 * 1024);
}

int32_t least_wide_rows(const Forced& forced) {
  return forced.wide_rows > 0 ? forced.wide_rows : std::min({kWideFrom, kLargeWideFrom, kLargeBytesWideFrom});
}

namespace {
int32_t wide_from(const ProductShape& s, const Forced& forced) {
  if (forced.wide_rows > 0) return forced.wide_rows;
  if (s.op == Product::experts) return kExpertsWideFrom;
  // Codes that are looked up for two digits each pay from more rows on.
  const bool looked_up = s.type == DType::iq4_xs || lattice(s.type);
  const int64_t weights = int64_t{s.outputs} * s.cols;
  if (looked_up || weights < kLargeWeights) return kWideFrom;
  return s.type == DType::q8_0 && weights >= 2 * kLargeWeights ? kLargeBytesWideFrom : kLargeWideFrom;
}
}  // namespace

Kernel choose(const ProductShape& s, const Generation& device, const Forced& forced) {
  if (floats(s.type)) return choose_float(s, device, forced);
  if (!s.packed) {
    const bool many = s.rows > kFewExpertRows && s.op != Product::experts;
    return many ? Kernel::int8_tiles : Kernel::any_format;
  }
  const bool wide = device.warpgroup_products() && forced.generation == 0 && !forced.packed_tiles &&
                    goes_wide(s.type) && s.rows >= wide_from(s, forced) &&
                    device.shared >= wide_shared(s.type);
  if (wide && s.op != Product::experts) return Kernel::packed_wide;
  const bool bulk = device.bulk_copies() && forced.generation != 80;
  const int32_t few = s.op == Product::experts       ? kFewExpertRows
                      : bulk && !forced.packed_tiles ? kBandRows
                                                     : kFewRows;
  if ((s.op == Product::experts ? s.step_rows : s.rows) <= few) return Kernel::packed_few;
  return wide ? Kernel::packed_wide : Kernel::packed_tiles;
}

}  // namespace carat::cuda
