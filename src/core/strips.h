// Weights as the CPU places them, for whoever reads or writes them: dwords transposed over 16 rows.
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

namespace carat {

constexpr uint8_t kPackedStrips = 1;  // Tensor::packing
constexpr int kStripRows = 16;        // weight rows (outputs) that are computed side by side

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
constexpr int64_t head_bytes(DType t, int64_t cols) {
  return (cols / info(t).elems * pack_shape(t).head + 63) / 64 * 64;
}
constexpr int64_t strip_bytes(DType t, int64_t cols) {
  return head_bytes(t, cols) + cols / info(t).elems * pack_shape(t).lines * 64;
}
// Where dword i of a file block stands among the lines.
constexpr int strip_line(DType t, int i) {
  if (t != DType::q6_k) return i;
  if (i >= 48) return 13 * (i - 48) + 12;
  const bool low = i < 32;  // ql: 16 n + 8 jj + 4 half + j; qh: 8 n + 4 half + j
  const int n = low ? i / 16 : (i - 32) / 8, half = i / 4 % 2;
  return 13 * (2 * n + half) + (low ? i / 8 % 2 * 4 : 8) + i % 4;
}
// Where the fifth bit of element e stands in its dword: of e = 16 h + 4 j + b it is bit 4 h + j of byte b, so
// that one shift serves the four elements of a dword.
constexpr int fifth_bit(int e) { return 8 * (e % 4) + 4 * (e / 16) + e % 16 / 4; }

}  // namespace carat
