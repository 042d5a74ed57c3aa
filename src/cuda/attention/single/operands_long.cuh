// Cached rows of 512 as operands of single/long.cuh: keys sixteen positions a warp, values 128
// columns. DIM 128: what single copies of K = V store of the keys.
#pragma once
#include "cuda/attention/single/operands.cuh"

namespace carat::cuda {

// Lane 4 g + t, share: which of four warps. Rows: of sixteen positions, position(share, g, 0) and (.., 1) a
// lane's. keys(): k[i] of columns 64 c + 16 i .., 4 t to 4 t + 3, as mma_f16 takes them. values(): of sixteen
// rows at p, those with lane_of() t, place_of() in order (of_lane() says which); multiply(n, v) for n < 8;
// column(share, 2 n + r, g): which column r of n is.
template <DType T, int DIM = 512>
struct LongOperands {
  using Old = KvOperands<T, DIM>;
  static constexpr int kRow = Old::kRow;
  CARAT_D static int position(int share, int g, int which) { return 16 * share + g + 8 * which; }
  CARAT_D static int lane_of(int position) { return position % 4; }
  CARAT_D static int place_of(int position) { return position / 4; }
  CARAT_D static int of_lane(int lane, int place) { return lane + 4 * place; }
  CARAT_D static int column(int share, int n, int g) { return Old::column(2 * share + n / 8, n % 8, g); }

  struct Rows {
    typename Old::Row row[2];
    CARAT_D Rows(const uint8_t* keys, int share, int g, const KvGrid& grid)
        : row{Old::row(keys + position(share, g, 0) * kRow, 0, grid),
              Old::row(keys + position(share, g, 1) * kRow, 0, grid)} {}
    CARAT_D void keys(int c, int t, uint32_t (&k)[4][4]) const {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        uint32_t b[4][2];
        Old::keys(row[r], c, t, b);
#pragma unroll
        for (int i = 0; i < 4; ++i) k[i][r] = b[i][0], k[i][2 + r] = b[i][1];
      }
    }
  };
  template <class Multiply>
  CARAT_D static void values(const uint8_t* p, int share, int g, int t, const KvGrid& grid,
                             const Multiply& multiply) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t b[8][2];
      Old::values(p, 2 * share + half, g, t, grid, b);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const uint32_t v[4] = {b[2 * n][0], b[2 * n + 1][0], b[2 * n][1], b[2 * n + 1][1]};
        multiply(4 * half + n, v);
      }
    }
  }
};

// Rows at even numbers begin at multiples of 4, the others 2 bytes behind one: a lane has as many of either.
template <int DIM>
struct LongOperands<DType::tq3, DIM> {
  using Old = KvOperands<DType::tq3, DIM>;
  static constexpr int kRow = Old::kRow;
  CARAT_D static int position(int share, int g, int which) { return 8 * g + 2 * share + which; }
  CARAT_D static int lane_of(int position) { return position % 8 / 2; }
  CARAT_D static int place_of(int position) { return position % 2 + position / 8 * 2; }
  CARAT_D static int of_lane(int lane, int place) { return 2 * lane + place % 2 + place / 2 * 8; }
  CARAT_D static int column(int share, int n, int g) {
    return 128 * share + g / 4 * 64 + n / 4 * 16 + g % 4 * 4 + n % 4;
  }

  CARAT_D static uint32_t word(const uint8_t* p, bool odd) {
    return odd ? permute_bytes(u32_at(p - 2), u32_at(p + 2), 0x5432) : u32_at(p);
  }
  // Bits 0 to 3 to bit 2 of a byte each, bits 4 to 7 to bit 6; what else is set is in bits 0, 1, 4 and 5.
  CARAT_D static uint32_t spread(uint32_t bits) {
    return (bits & 0x55) * 0x00010004u + (bits & 0xaa) * 0x00800200u;
  }
  // A nibble for every value: two bits of `low` and above them its third bit.
  CARAT_D static uint32_t codes(uint32_t low, uint32_t thirds) {
    return pick_bits(0x33333333u, low, spread(thirds));
  }
  CARAT_D static uint32_t half_of(uint32_t codes, int i) { return i ? upper_half(codes) : codes; }
  CARAT_D static uint32_t scaled(uint32_t bytes, uint32_t which, uint32_t d) {
    return mul_halves(small_halves(permute_bytes(bytes, kExpand, which)), d);
  }
  CARAT_D static uint32_t looked_up(const KvGrid& grid, uint32_t which) {
    return look_bytes(grid.w[0], grid.w[1], which);
  }

  struct Rows {
    const uint8_t* p;                // the first of two
    uint32_t low[2][2], high[2][2];  // bytes of the eight values, times each row's scale
    CARAT_D Rows(const uint8_t* keys, int share, int g, const KvGrid& values)
        : p(keys + position(share, g, 0) * kRow) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t d = twice_half(u16_at(p + r * kRow + Old::kScale));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t x = scaled(values.w[i], 0x4140, d), y = scaled(values.w[i], 0x4342, d);
          low[r][i] = permute_bytes(x, y, 0x6420), high[r][i] = permute_bytes(x, y, 0x7531);
        }
      }
    }
    CARAT_D void keys(int c, int t, uint32_t (&k)[4][4]) const {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint8_t *row = p + r * kRow, *third = row + Old::kThird + 8 * c;
        const uint32_t lows = word(row + 16 * c + 4 * t, r);
        // Columns of steps 0 and 2 in byte 0, 1 and 3 in byte 2.
        const uint32_t thirds = pick_bits(0x0f0f0f0fu, rotate_right(word(third, r), 4 * t),
                                          rotate_right(word(third + 4, r), 4 * t - 4));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t which = codes(lows >> 2 * i, thirds >> 16 * i);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const uint32_t v = look_bytes(low[r][0], low[r][1], half_of(which, h)),
                           w = look_bytes(high[r][0], high[r][1], half_of(which, h));
            k[i][2 * h + r] = permute_bytes(v, w, 0x6240), k[i + 2][2 * h + r] = permute_bytes(v, w, 0x7351);
          }
        }
      }
    }
  };
  // Codes of two rows, by which sixteen of 64 columns: nibbles of one and the other in turns.
  CARAT_D static void pair(const uint8_t* x, int group, int j, uint32_t (&which)[4]) {
    const uint8_t* y = x + kRow;
    const uint32_t v = word(x + 16 * group + 4 * j, false), w = word(y + 16 * group + 4 * j, true);
    const uint32_t low[2] = {pick_bits(0x0f0f0f0fu, v, w << 4), pick_bits(0x0f0f0f0fu, v >> 4, w)};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint8_t* third = x + Old::kThird + 8 * group + 4 * k;
      const uint32_t thirds = pick_bits(0x0f0f0f0fu, rotate_right(word(third, false), 4 * j),
                                        rotate_right(word(third + kRow, true), 4 * j - 4));
#pragma unroll
      for (int i = 0; i < 2; ++i) which[2 * k + i] = codes(low[k] >> 2 * i, thirds >> 16 * i);
    }
  }
  template <class Multiply>
  CARAT_D static void values(const uint8_t* p, int share, int g, int t, const KvGrid& grid,
                             const Multiply& multiply) {
    uint32_t which[2][4], d[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint8_t* x = p + (2 * t + 8 * h) * kRow;
      d[h] = u16_at(x + Old::kScale) | u16_at(x + kRow + Old::kScale) << 16;
      pair(x, 2 * share + g / 4, g % 4, which[h]);
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      uint32_t v[4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t bytes = looked_up(grid, half_of(which[h][n / 2], n % 2));
        v[2 * h] = scaled(bytes, 0x4140, d[h]), v[2 * h + 1] = scaled(bytes, 0x4342, d[h]);
      }
      multiply(n, v);
    }
  }
};

}  // namespace carat::cuda
