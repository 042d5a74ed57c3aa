#include "cpu/pack.h"

#include <algorithm>
#include <cstring>

#include "base/file.h"

namespace carat::cpu {
namespace {

constexpr int kRows = 16;

// Offsets in a file block: the scale that goes to the head, and the first of the dwords; which dword holds
// fifth bits (-1: none).
struct Source {
  int d, first, spread = -1;
};
constexpr Source source(DType t) {
  switch (t) {
    case DType::q6_k: return {208, 0};
    case DType::q3_k: return {108, 0};
    case DType::q4_0:
    case DType::iq4_nl:
    case DType::q8_0: return {0, 2};
    case DType::q5_0: return {0, 2, 0};
    case DType::q5_1: return {0, 0, 1};
    case DType::mxfp4: return {0, 1};
    default: return {0, 0};
  }
}

// Bit e of the element e = 16 h + 4 j + b moves to bit 4 h + j of byte b: one shift then serves the four
// elements of a dword.
uint32_t spread_fifth(uint32_t qh) {
  uint32_t out = 0;
  for (int e = 0; e < 32; ++e) out |= (qh >> e & 1) << (8 * (e % 4) + 4 * (e / 16) + e % 16 / 4);
  return out;
}

// Where dword i of a file block stands among the lines.
constexpr int place(DType t, int i) {
  if (t != DType::q6_k) return i;
  if (i >= 48) return 13 * (i - 48) + 12;
  const bool low = i < 32;  // ql: 16 n + 8 jj + 4 half + j; qh: 8 n + 4 half + j
  const int n = low ? i / 16 : (i - 32) / 8, half = i / 4 % 2;
  return 13 * (2 * n + half) + (low ? i / 8 % 2 * 4 : 8) + i % 4;
}

}  // namespace

int64_t packed_bytes(const Tensor& host) {
  return int64_t{host.slices} * ((host.rows + kRows - 1) / kRows) * strip_bytes(host.type, host.cols);
}

Tensor packed_view(const Tensor& host, std::byte* data) {
  Tensor t = host;
  t.data = data;
  t.packing = kPackedStrips;
  t.pitch = strip_bytes(host.type, host.cols) / kRows;
  t.slice_pitch = (host.rows + kRows - 1) / kRows * strip_bytes(host.type, host.cols);
  return t;
}

void pack_strip(const Tensor& host, const Tensor& packed, int32_t slice, int64_t strip) {
  const DType type = host.type;
  const int64_t size = strip_bytes(type, host.cols), blocks = host.cols / info(type).elems;
  const int lines = pack_shape(type).lines,
            rows = static_cast<int>(std::min<int64_t>(kRows, host.rows - strip * kRows));
  const Source src = source(type);
  const size_t scale = static_cast<size_t>(pack_shape(type).head / kRows);  // bytes
  std::byte* head = packed.data + slice * packed.slice_pitch + strip * size;
  std::byte* out = head + head_bytes(type, host.cols);
  if (rows < kRows) std::memset(head, 0, static_cast<size_t>(size));
  const std::byte* in = host.data + slice * host.slice_pitch + strip * kRows * host.pitch;
  for (int64_t b = 0; b < blocks; ++b, in += info(type).bytes, out += lines * 64) {
    for (int i = 0; i < lines; ++i)
      for (int r = 0; r < rows; ++r) {
        uint32_t v;
        std::memcpy(&v, in + r * host.pitch + src.first + 4 * i, 4);
        if (i == src.spread) v = spread_fifth(v);
        std::memcpy(out + 64 * place(type, i) + 4 * r, &v, 4);
      }
    for (int r = 0; scale > 0 && r < rows; ++r)
      std::memcpy(head + 16 * scale * b + scale * r, in + r * host.pitch + src.d, scale);
  }
}

void pack_strips(const Tensor& host, const Tensor& packed, int64_t first, int64_t last) {
  const int64_t per_slice = (host.rows + kRows - 1) / kRows;
  for (int64_t i = first; i < last;) {
    const auto slice = static_cast<int32_t>(i / per_slice);
    const int64_t begin = i % per_slice, end = std::min(per_slice, begin + last - i);
    for (int64_t s = begin; s < end; ++s) pack_strip(host, packed, slice, s);
    const int64_t rows = std::min<int64_t>(host.rows, end * kRows) - begin * kRows;
    release_mapped(host.data + slice * host.slice_pitch + begin * kRows * host.pitch,
                   static_cast<size_t>(rows * host.pitch));
    i += end - begin;
  }
}

}  // namespace carat::cpu
