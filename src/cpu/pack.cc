#include "cpu/pack.h"

#include <algorithm>
#include <cstring>

#include "base/file.h"

namespace carat::cpu {
namespace {

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

uint32_t spread_fifth(uint32_t qh) {
  uint32_t out = 0;
  for (int e = 0; e < 32; ++e) out |= (qh >> e & 1) << fifth_bit(e);
  return out;
}

}  // namespace

int64_t packed_bytes(const Tensor& host) {
  return int64_t{host.slices} * ((host.rows + kStripRows - 1) / kStripRows) *
         strip_bytes(host.type, host.cols);
}

Tensor packed_view(const Tensor& host, std::byte* data) {
  Tensor t = host;
  t.data = data;
  t.packing = kPackedStrips;
  t.pitch = strip_bytes(host.type, host.cols) / kStripRows;
  t.slice_pitch = (host.rows + kStripRows - 1) / kStripRows * strip_bytes(host.type, host.cols);
  return t;
}

void pack_strip(const Tensor& host, const Tensor& packed, int32_t slice, int64_t strip) {
  const DType type = host.type;
  const int64_t size = strip_bytes(type, host.cols), blocks = host.cols / info(type).elems;
  const int lines = pack_shape(type).lines,
            rows = static_cast<int>(std::min<int64_t>(kStripRows, host.rows - strip * kStripRows));
  const Source src = source(type);
  const size_t scale = static_cast<size_t>(pack_shape(type).head / kStripRows);  // bytes
  std::byte* head = packed.data + slice * packed.slice_pitch + strip * size;
  std::byte* out = head + head_bytes(type, host.cols);
  if (rows < kStripRows) std::memset(head, 0, static_cast<size_t>(size));
  const std::byte* in = host.data + slice * host.slice_pitch + strip * kStripRows * host.pitch;
  for (int64_t b = 0; b < blocks; ++b, in += info(type).bytes, out += lines * 64) {
    for (int i = 0; i < lines; ++i)
      for (int r = 0; r < rows; ++r) {
        uint32_t v;
        std::memcpy(&v, in + r * host.pitch + src.first + 4 * i, 4);
        if (i == src.spread) v = spread_fifth(v);
        std::memcpy(out + 64 * strip_line(type, i) + 4 * r, &v, 4);
      }
    for (int r = 0; scale > 0 && r < rows; ++r)
      std::memcpy(head + 16 * scale * b + scale * r, in + r * host.pitch + src.d, scale);
  }
}

void pack_strips(const Tensor& host, const Tensor& packed, int64_t first, int64_t last) {
  const int64_t per_slice = (host.rows + kStripRows - 1) / kStripRows;
  for (int64_t i = first; i < last;) {
    const auto slice = static_cast<int32_t>(i / per_slice);
    const int64_t begin = i % per_slice, end = std::min(per_slice, begin + last - i);
    for (int64_t s = begin; s < end; ++s) pack_strip(host, packed, slice, s);
    const int64_t rows = std::min<int64_t>(host.rows, end * kStripRows) - begin * kStripRows;
    release_mapped(host.data + slice * host.slice_pitch + begin * kStripRows * host.pitch,
                   static_cast<size_t>(rows * host.pitch));
    i += end - begin;
  }
}

}  // namespace carat::cpu
