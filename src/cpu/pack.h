// The layout of placed weights: dwords transposed over 16 rows.
//
// Take the same block of 16 rows, view each as dwords, transpose: a line of 64 bytes is dword i of rows n ..
// n + 15. Same size, same content, only the order (the high bits of q5_0 and q5_1 are permuted within their
// dword). A line with its nibbles masked is at once the operand of VPDPBUSD (lanes = outputs, no horizontal
// sums) and a row of an AMX tile.
//
//   type   lines a block                  head
//   q2_k   21: 4 scales, 16 qs, d|dmin
//   q3_k   27: 8 hmask, 16 qs, 3 scales   the f16 d of a block's 16 rows (110 bytes are 27.5 dwords)
//   q4_k   36: d|dmin, 3 scales, 32 qs
//   q5_k   44: d|dmin, 3 scales, 8 qh, 32 qs
//   q6_k   52: 4 x 13, below              d
//   iq4_xs 34: d|scales_h, scales_l, 32 qs
//   q4_0    4: qs                         d
//   q4_1    5: d|m, 4 qs
//   q5_0    5: qh, 4 qs                   d
//   q5_1    6: d|m, qh, 4 qs
//   q8_0    8: qs                         d
//   iq4_nl  4: qs                         d
//   mxfp4   4: qs                         the scale bytes
//   nvfp4   9: scales, 8 qs
//
// q6_k's lines stand as they are read: quarter 2n + half holds 8 of ql, 4 of qh, with the columns c of half n
// for which c / 16 % 2 = half, and one of scales.
//
// A strip is [head: 16 or 32 bytes a block, padded to 64][blocks][lines]; strips follow one another. Rows
// beyond the last are zeros. Tensor::pitch becomes strip bytes / 16, so that row_range() at multiples of 16
// still works.
#pragma once
#include "core/dtype.h"

namespace carat::cpu {

constexpr uint8_t kPackedStrips = 1;  // Tensor::packing

struct PackShape {
  int32_t lines = 0, head = 0;  // per block: lines of 64 bytes; bytes in the head of a strip
};
constexpr PackShape pack_shape(DType t) {
  switch (t) {
    case DType::q4_k: return {36, 0};
    case DType::q5_k: return {44, 0};
    case DType::q6_k: return {52, 32};
    case DType::q4_0: return {4, 32};
    case DType::q5_0: return {5, 32};
    case DType::q8_0: return {8, 32};
    case DType::q4_1: return {5, 0};
    case DType::q5_1: return {6, 0};
    case DType::iq4_nl: return {4, 32};
    case DType::mxfp4: return {4, 16};
    case DType::nvfp4: return {9, 0};
    case DType::iq4_xs: return {34, 0};
    case DType::q2_k: return {21, 0};
    case DType::q3_k: return {27, 32};
    default: return {};
  }
}
constexpr int kQuarter6 = 13 * 64;  // bytes of a quarter of a q6_k block
constexpr int64_t head_bytes(DType t, int64_t cols) {
  return (cols / info(t).elems * pack_shape(t).head + 63) / 64 * 64;
}
constexpr int64_t strip_bytes(DType t, int64_t cols) {
  return head_bytes(t, cols) + cols / info(t).elems * pack_shape(t).lines * 64;
}
constexpr bool can_pack(const Tensor& t) { return pack_shape(t.type).lines > 0 && t.packing == 0; }

// The packed tensor over `data` (slices * strips * strip_bytes bytes); the bytes are written by pack_strip().
Tensor packed_view(const Tensor& host, std::byte* data);
int64_t packed_bytes(const Tensor& host);
// Strip s of slice i of `packed` from the rows of `host`.
void pack_strip(const Tensor& host, const Tensor& packed, int32_t slice, int64_t strip);

// Strips [first, last) of all slices, counted through, and lets go of the file behind them.
void pack_strips(const Tensor& host, const Tensor& packed, int64_t first, int64_t last);

}  // namespace carat::cpu
