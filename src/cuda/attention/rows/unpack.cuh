// Sixty-four columns of a packed row in shared memory as halves: the bits of kv_halves8(), in fewer loads.
#pragma once
#include "cuda/attention/single/operands.cuh"

namespace carat::cuda {

// Four bytes as two halves each: a value times d, bytes biased by 128.
CARAT_D uint2 scaled_bytes(uint32_t v, uint32_t d) {
  return {mul_halves(small_halves(permute_bytes(v, kExpand, 0x4140)), d),
          mul_halves(small_halves(permute_bytes(v, kExpand, 0x4342)), d)};
}
// Words of a block that begins two bytes behind a multiple of four: v and the one behind it.
CARAT_D uint32_t between(uint32_t v, uint32_t behind) { return permute_bytes(v, behind, 0x5432); }

// put(u, v) for u < 8: columns 8 u .. 8 u + 7. p: of 64 columns that begin a pair of blocks.
template <class Put>
CARAT_D void unpack64_q8_0(const uint8_t* p, const Put& put) {
  const auto* w = reinterpret_cast<const uint32_t*>(p);
  uint32_t now = w[0];
  const uint32_t first = twice_half(now);
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const uint32_t next = w[2 * u + 1], last = w[2 * u + 2];
    const uint2 x = scaled_bytes(between(now, next) ^ 0x80808080u, first),
                y = scaled_bytes(between(next, last) ^ 0x80808080u, first);
    put(u, uint4{x.x, x.y, y.x, y.y});
    now = last;
  }
  const uint32_t second = twice_half(now >> 16);
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const uint2 x = scaled_bytes(w[9 + 2 * u] ^ 0x80808080u, second),
                y = scaled_bytes(w[10 + 2 * u] ^ 0x80808080u, second);
    put(4 + u, uint4{x.x, x.y, y.x, y.y});
  }
}
template <class Put>
CARAT_D void unpack64_kv4(const uint8_t* p, const Put& put) {
  using Codes = KvOperands<DType::kv4, 512>;
  const auto* w = reinterpret_cast<const uint32_t*>(p);
  // Sixteen bytes of a block: columns 8 h .. of the lower and 16 + 8 h .. of the upper halves of eight.
  const auto eight = [&](int u, uint32_t v, uint32_t next, uint32_t d) {
    const uint32_t a = permute_bytes(v, 0, 0x4140), b = permute_bytes(v, 0, 0x4342),
                   c = permute_bytes(next, 0, 0x4140), e = permute_bytes(next, 0, 0x4342);
    put(u, uint4{Codes::low(a, d), Codes::low(b, d), Codes::low(c, d), Codes::low(e, d)});
    put(u + 2, uint4{Codes::high(a, d), Codes::high(b, d), Codes::high(c, d), Codes::high(e, d)});
  };
  const uint32_t w0 = w[0], w1 = w[1], w2 = w[2], first = twice_half(w0);
  eight(0, between(w0, w1), between(w1, w2), first);
  const uint32_t w3 = w[3], w4 = w[4], second = twice_half(w4 >> 16);
  eight(1, between(w2, w3), between(w3, w4), first);
  eight(4, w[5], w[6], second);
  eight(5, w[7], w[8], second);
}
template <class Put>
CARAT_D void unpack64_tq3(const uint8_t* row, int32_t dim, int32_t unit, const Tables& tables,
                          const Put& put) {
  const uint8_t *codes = row + 2 * unit, *third = row + dim / 4 + unit;
  const uint32_t d = u16_at(row + dim / 4 + dim / 8);
  const uint32_t c[4] = {u32_at_even(codes), u32_at_even(codes + 4), u32_at_even(codes + 8),
                         u32_at_even(codes + 12)};
  const uint32_t t[2] = {u32_at_even(third), u32_at_even(third + 4)};
#pragma unroll
  for (int u = 0; u < 8; ++u) {
    const Packed8 one{{d | (t[u / 4] >> 8 * (u % 4) & 255) << 16, c[u % 2 * 2], c[u % 2 * 2 + 1], 0}};
    put(u, kv_halves8(DType::tq3, one, dim, u, tables));
  }
}

// Columns 8 unit .. 8 unit + 63 of a row of `dim` columns; zeros behind its end. unit: a multiple of eight.
template <class Put>
CARAT_D void kv_unpack64(DType type, const uint8_t* row, int32_t dim, int32_t unit, const Tables& tables,
                         const Put& put) {
  if (dim % 64 == 0) {
    if (8 * unit < dim) {
      if (type == DType::q8_0) return unpack64_q8_0(row + unit / 4 * 34, put);
      if (type == DType::kv4) return unpack64_kv4(row + unit / 4 * 18, put);
      if (type == DType::tq3) return unpack64_tq3(row, dim, unit, tables, put);
    }
  }
#pragma unroll 1
  for (int u = 0; u < 8; ++u)
    put(u, 8 * (unit + u) < dim ? kv_halves8(type, kv_fetch8(type, row, dim, unit + u), dim, unit + u, tables)
                                : uint4{0, 0, 0, 0});
}

}  // namespace carat::cuda
