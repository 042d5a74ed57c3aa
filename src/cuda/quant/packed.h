// Weights as kernels of few rows want them: groups of 32 rows side by side, so that a lane has one row and a
// warp's loads of 16 bytes a lane are one piece of memory. As many bytes as in the file (q3_k, iq3_s: 4 more
// in 110), the last group's missing rows apart.
//   matrix [group of 32 rows][256 columns], one tile each; Tensor::pitch is a group's bytes / 32, so
//          that row_range() at multiples of 32 works
//   tile   [unit][32 rows][16 bytes], then [32 rows][packed_tail() bytes]
//   units  q4_k, q5_k, q6_k: the block's bytes in the file's order; q2_k, q3_k: bits 0 and 1, q3_k's bits 2,
//          scales (a byte each); the others: the codes of 32 columns each, then fifth bits (a word for 32,
//          spread over its bytes by fifth_bit()), scales unless they are the tail, minimums (q4_1, q5_1).
//          Word i of 4 bits: columns 4 i .. 4 i + 3 and 16 + 4 i .. 16 + 4 i + 3, lower and upper bits of its
//          bytes; of table codes (coded()) a half word each, column by column
//          Lattices (iq2_*, iq3_*): the block's bytes behind d, in the file's order
//   tail   q6_k, q3_k, lattices: d (behind iq2_xs's scales); q2_k: d and dmin; iq4_xs: the block's first 8
//          bytes; mxfp4: scales of 32 columns
#pragma once
#include "core/dtype.h"
#include "cuda/device/rt.h"

namespace carat::cuda {

inline constexpr uint8_t kPacked = 1;  // Tensor::packing
// Experts in bf16 become f16, this many times their values: halves have 11 bits where bf16 has 8, and
// products with them take 22 bits of an activation (docs/numerics.md). 2^-20 is still exact; of what is
// smaller, and weighs nothing, a part is lost.
inline constexpr uint8_t kBf16AsF16 = 2;
inline constexpr int32_t kBf16Scale = 64;
inline constexpr int32_t kGroup = 32;  // rows

constexpr bool coded(DType t) {  // a code of 4 bits names an entry of a table
  return t == DType::iq4_nl || t == DType::iq4_xs || t == DType::mxfp4 || t == DType::nvfp4;
}
constexpr bool lattice(DType t) {  // magnitudes of 4 or 8 columns out of a code book, signs beside
  return t == DType::iq2_xxs || t == DType::iq2_xs || t == DType::iq2_s || t == DType::iq3_xxs ||
         t == DType::iq3_s;
}
constexpr bool group_mins(DType t) { return t == DType::q4_1 || t == DType::q5_1; }  // a float minimum, too
constexpr bool grouped(DType t) {  // a float scale for 32 columns, nvfp4: 16
  return t == DType::q4_0 || t == DType::q5_0 || t == DType::q8_0 || group_mins(t) ||
         (coded(t) && t != DType::iq4_xs);
}
// Units of 16 bytes that a row has in a tile of n columns (256, or a multiple of 32 at a row's end).
constexpr int packed_units(DType t, int n) {
  switch (t) {
    case DType::q4_0:
    case DType::iq4_nl:
    case DType::nvfp4: return n / 32 + 1;
    case DType::mxfp4:
    case DType::iq4_xs: return n / 32;
    case DType::q5_0: return n / 32 + (n + 127) / 128 + 1;
    case DType::q4_1: return n / 32 + 2;
    case DType::q5_1: return n / 32 + (n + 127) / 128 + 2;
    case DType::q8_0: return n / 16 + 1;
    case DType::iq2_xxs:
    case DType::iq2_xs: return 4;
    case DType::q2_k:
    case DType::iq2_s: return 5;
    case DType::iq3_xxs: return 6;
    case DType::iq3_s: return 7;
    case DType::q3_k: return 7;
    case DType::q4_k: return 9;
    case DType::q5_k: return 11;
    case DType::q6_k: return 13;
    default: return 0;
  }
}
constexpr bool packs(DType t) { return packed_units(t, 256) > 0; }  // all block formats
constexpr int packed_tail(DType t) {  // bytes that a row has behind a tile's units
  switch (t) {
    case DType::q3_k:
    case DType::q6_k: return 2;
    case DType::q2_k: return 4;
    case DType::mxfp4:
    case DType::iq4_xs: return 8;
    case DType::iq2_xs: return 10;
    default: return lattice(t) ? 2 : 0;
  }
}
constexpr int packed_tile(DType t, int n) {  // bytes
  return kGroup * (16 * packed_units(t, n) + packed_tail(t));
}
constexpr int64_t packed_group(DType t, int32_t cols) {  // bytes
  const int32_t rest = cols % 256;
  return int64_t{cols / 256} * packed_tile(t, 256) + (rest ? packed_tile(t, rest) : 0);
}
constexpr int32_t groups_of(int32_t rows) { return (rows + kGroup - 1) / kGroup; }

// The generation that kernels here are compiled for (compiled_for()).
int kernels_code();
// Groups [first, first + count) of `packed`, from the file's rows [32 first, rows) that lie at `raw` on the
// device.
void pack_rows(const Launcher& l, const Tensor& packed, int32_t slice, const std::byte* raw,
               int64_t raw_pitch, int32_t first, int32_t count);
// The same of `slices` slices, from what the host has placed in strips (core/strips.h): that of group `first`
// lies at `strips` on the device, slices slice_pitch bytes apart.
void repack_strips(const Launcher& l, const Tensor& packed, int32_t slice, int32_t slices, int32_t first,
                   int32_t count, const std::byte* strips, int64_t slice_pitch);
// n weights in bf16 at p, on the device, become f16 times kBf16Scale. False: one of them is 1,024 or more or
// not a number; nothing has changed. scratch: a word on the device.
bool bf16_to_f16(const Launcher& l, std::byte* p, int64_t n, uint32_t* scratch);
// `t` as place for weights of its shape at `data`, and its bytes.
inline Tensor packed_at(Tensor t, std::byte* data) {
  t.data = data;
  t.packing = kPacked;
  t.pitch = packed_group(t.type, t.cols) / kGroup;
  t.slice_pitch = t.pitch * kGroup * groups_of(t.rows);
  return t;
}

}  // namespace carat::cuda
