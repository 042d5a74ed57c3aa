// Second copies of protected rows (KvProtect) as operands of single/long.cuh: read where they are, since a
// row reads few.
#pragma once
#include "cuda/attention/single/heads.cuh"

namespace carat::cuda {

// Whether a row at p reads second copies of some position of the tile.
CARAT_D bool protects_some(const KvProtect& protect, int32_t tile, int32_t p) {
  const int32_t begin = tile * kKvTile;
  return protect.covers(p, begin) || protect.covers(p, begin + kKvTile - 1);
}
// Of position p, or null: the row does not read it there.
CARAT_D const uint8_t* second_row(const AttentionPart& a, const DevStep* s, const SinglePlace& place,
                                  int32_t p, bool values) {
  if (p < place.first || p > place.last || !a.copies.protect.covers(place.last, p)) return nullptr;
  const int32_t slot = slot_seen(s, place.row, p);
  return values ? v_edge_row(a.kv, a.copies, *place.seq, slot, place.kv_head)
                : k_edge_row(a.kv, a.copies, *place.seq, slot, place.kv_head);
}

// As LongOperands::Rows.
struct SecondRows {
  const uint8_t* row[2];
  CARAT_D void keys(int c, int t, uint32_t (&k)[4][4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 four =
            row[r] ? *reinterpret_cast<const uint2*>(row[r] + 2 * (64 * c + 16 * i + 4 * t)) : uint2{0, 0};
        k[i][r] = four.x, k[i][2 + r] = four.y;
      }
  }
};

// As Operands::values(), of sixteen positions from p on.
template <class Operands, class Multiply>
CARAT_D void second_values(const AttentionPart& a, const DevStep* s, const SinglePlace& place, int32_t p,
                           int share, int g, int t, const Multiply& multiply) {
  const uint16_t* row[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    row[i] = reinterpret_cast<const uint16_t*>(second_row(a, s, place, p + Operands::of_lane(t, i), true));
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    uint32_t v[4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int column = Operands::column(share, 2 * n + r, g);
      const auto value = [&](int i) { return row[i] ? uint32_t{row[i][column]} : 0; };
      v[r] = value(0) | value(1) << 16, v[2 + r] = value(2) | value(3) << 16;
    }
    multiply(n, v);
  }
}

}  // namespace carat::cuda
