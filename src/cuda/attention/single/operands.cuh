// Cached rows as operands of products of halves, straight from the bytes in shared memory as they lie in the
// cache: keys by column, values by position. Of sixteen columns or positions that a step adds, which lane has
// which is free: tensor cores from sm_90 on sum sixteen products at once, without an order.
#pragma once
#include "cuda/kv/rows.cuh"

namespace carat::cuda {

CARAT_D uint32_t rotate_right(uint32_t v, int by) { return v >> (by & 31) | v << (-by & 31); }
CARAT_D uint32_t twice_half(uint32_t h) { return permute_bytes(h, 0, 0x1010); }
// Two halves 1024 + a byte, the byte an integer and 128: the integers.
CARAT_D uint32_t small_halves(uint32_t h) { return sub_halves(h, 0x64806480u); }

inline constexpr uint32_t kExpand = 0x64646464u;  // the upper byte of 1024 + a byte

// The eight values of tq3, a byte each, with their signs turned.
struct KvGrid {
  uint32_t w[2];
  CARAT_D KvGrid(DType t, const Tables& tables) : w{} {
    if (t != DType::tq3) return;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      w[i] = u32_at(reinterpret_cast<const uint8_t*>(tables.tq3) + 4 * i) ^ 0x80808080u;
  }
};

// Lane 4 g + t. keys(): of row g, a lane's columns of 64 c .., b[k] those of 64 c + 16 k .., 4 t to 4 t + 3.
// values(): of sixteen rows, at(i) the lane's four, b[n] the halves of column n's two first, then of its two
// last; column(part, n, g): which column that is.
template <DType T, int DIM>
struct KvOperands;

template <int DIM>
struct KvOperands<DType::q8_0, DIM> {
  static constexpr int kRow = DIM / 32 * 34, kTiles = DIM / 64;
  struct Row {
    const uint8_t* p;
  };
  CARAT_D static Row row(const uint8_t* p, int, const KvGrid&) { return {p}; }
  CARAT_D static void keys(const Row& r, int c, int t, uint32_t (&b)[4][2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint8_t* p = r.p + (2 * c + i) * 34;
      const uint32_t d = twice_half(u16_at(p));
      p += 2 + 4 * t;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t w = (i ? u32_at(p + 16 * h) : u32_at_even(p + 16 * h)) ^ 0x80808080u;
        b[2 * i + h][0] = mul_halves(small_halves(permute_bytes(w, kExpand, 0x4140)), d);
        b[2 * i + h][1] = mul_halves(small_halves(permute_bytes(w, kExpand, 0x4342)), d);
      }
    }
  }
  CARAT_D static int at(int i, int t) { return t + 4 * i; }
  CARAT_D static int column(int part, int n, int g) { return part * (DIM / 8) + n / 4 * 32 + 4 * g + n % 4; }
  // p: the first of sixteen rows, part: which of the warps' parts.
  CARAT_D static void values(const uint8_t* p, int part, int g, int t, const KvGrid&,
                             uint32_t (&b)[kTiles][2]) {
    const uint8_t* q = p + t * kRow + part * (kTiles / 4) * 34;
#pragma unroll
    for (int i = 0; i < kTiles / 4; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint8_t *x = q + 8 * h * kRow + i * 34, *y = x + 4 * kRow;
        const uint32_t d = u16_at(x) | u16_at(y) << 16;
        // The parity of a block's number decides how its words lie.
        const bool even = kTiles / 4 == 2 ? i == 0 : part % 2 == 0;
        uint32_t v, w;
        if (even)
          v = u32_at_even(x + 2 + 4 * g), w = u32_at_even(y + 2 + 4 * g);
        else
          v = u32_at(x + 2 + 4 * g), w = u32_at(y + 2 + 4 * g);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const uint32_t two =
              permute_bytes(v, w, static_cast<uint32_t>(k | k << 4 | (4 + k) << 8 | (4 + k) << 12));
          b[4 * i + k][h] = mul_halves(small_halves(and_xor(two, 0x00ff00ffu, 0x64806480u)), d);
        }
      }
  }
};

template <int DIM>
struct KvOperands<DType::kv4, DIM> {
  static constexpr int kRow = DIM / 32 * 18, kTiles = DIM / 64;
  struct Row {
    const uint8_t* p;
  };
  CARAT_D static Row row(const uint8_t* p, int, const KvGrid&) { return {p}; }
  CARAT_D static uint32_t low(uint32_t x, uint32_t d) {
    return mul_halves(sub_halves(and_or(x, 0x000f000fu, 0x64006400u), 0x64086408u), d);
  }
  CARAT_D static uint32_t high(uint32_t x, uint32_t d) {  // (1024 + 16 code) / 16 - 72
    return mul_halves(fma_halves(and_or(x, 0x00f000f0u, 0x64006400u), 0x2c002c00u, 0xd480d480u), d);
  }
  CARAT_D static void keys(const Row& r, int c, int t, uint32_t (&b)[4][2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint8_t* p = r.p + (2 * c + i) * 18;
      const uint32_t d = twice_half(u16_at(p));
      p += 2 + 4 * t;
      const uint32_t w = i ? u32_at(p) : u32_at_even(p);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint32_t two = permute_bytes(w, 0, k ? 0x4342 : 0x4140);
        b[2 * i][k] = low(two, d), b[2 * i + 1][k] = high(two, d);
      }
    }
  }
  CARAT_D static int at(int i, int t) { return t + 4 * i; }
  CARAT_D static int column(int part, int n, int g) {
    return part * (DIM / 8) + n / 4 * 32 + n / 2 % 2 * 16 + 2 * g + n % 2;
  }
  CARAT_D static void values(const uint8_t* p, int part, int g, int t, const KvGrid&,
                             uint32_t (&b)[kTiles][2]) {
    const uint8_t* q = p + t * kRow + part * (kTiles / 4) * 18;
#pragma unroll
    for (int i = 0; i < kTiles / 4; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint8_t *x = q + 8 * h * kRow + i * 18, *y = x + 4 * kRow;
        const uint32_t d = u16_at(x) | u16_at(y) << 16, v = u16_at(x + 2 + 2 * g), w = u16_at(y + 2 + 2 * g);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const uint32_t two = permute_bytes(v, w, k ? 0x5511 : 0x4400);
          b[4 * i + k][h] = low(two, d), b[4 * i + 2 + k][h] = high(two, d);
        }
      }
  }
};

template <int DIM>
struct KvOperands<DType::tq3, DIM> {
  static constexpr int kRow = DIM / 4 + DIM / 8 + 2, kTiles = DIM / 64;
  static constexpr int kThird = DIM / 4, kScale = DIM / 4 + DIM / 8;
  struct Row {
    const uint8_t* p;
    uint32_t low[2], high[2];  // bytes of the eight values, times the row's scale
    uint32_t fit;              // words at even addresses out of those around them
  };
  CARAT_D static uint32_t word(const uint8_t* p, uint32_t fit) {
    return look_bytes(u32_at(p), u32_at(p + 4), fit);
  }
  CARAT_D static Row row(const uint8_t* p, int, const KvGrid& grid) {
    const bool odd = reinterpret_cast<uintptr_t>(p) & 2;
    Row r{p - (odd ? 2 : 0), {}, {}, odd ? 0x5432u : 0x3210u};
    const uint32_t d = twice_half(u16_at(p + kScale));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t v = grid.w[i], x = mul_halves(small_halves(permute_bytes(v, kExpand, 0x4140)), d),
                     y = mul_halves(small_halves(permute_bytes(v, kExpand, 0x4342)), d);
      r.low[i] = permute_bytes(x, y, 0x6420), r.high[i] = permute_bytes(x, y, 0x7531);
    }
    return r;
  }
  // Third bits of columns 0 .. 3 and, four further, of those 32 behind: a nibble of a byte's each.
  CARAT_D static void keys(const Row& r, int c, int t, uint32_t (&b)[4][2]) {
    const uint32_t w = word(r.p + 16 * c + 4 * t, r.fit);
    const uint8_t* third = r.p + kThird + 8 * c;
    const uint32_t x = word(third, r.fit) >> 4 * t, y = word(third + 4, r.fit) >> 4 * t;
#pragma unroll
    for (int k = 0; k < 2; ++k) {  // steps k and k + 2
      const uint32_t m = x >> 16 * k & 15, n = y >> 16 * k & 15;
      const uint32_t codes =
          (w >> 2 * k & 0x33333333u) | (m * 0x00810204u & 0x04040404u) | (n * 0x08102040u & 0x40404040u);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t which = codes >> 16 * j, low = look_bytes(r.low[0], r.low[1], which),
                       high = look_bytes(r.high[0], r.high[1], which);
        b[k][j] = permute_bytes(low, high, 0x6240), b[k + 2][j] = permute_bytes(low, high, 0x7351);
      }
    }
  }
  CARAT_D static int at(int i, int t) { return 2 * t + i % 2 * 8 + i / 2; }
  CARAT_D static int column(int part, int n, int g) {
    return kTiles == 8 ? part * 64 + n / 2 * 16 + 2 * g + n % 2 : part / 2 * 64 + part % 2 * 8 + n * 16 + g;
  }
  // Codes of two rows, a byte each, and their third bits, nibble by nibble: halves of steps k of 16 columns.
  CARAT_D static void pair(uint32_t codes, uint32_t even, uint32_t odd, uint32_t d, uint32_t t0, uint32_t t1,
                           uint32_t (&h)[4]) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t v = look_bytes(t0, t1, pick_bits(0x3333u, codes >> 2 * k, (k ? odd : even) << 2));
      h[k] = mul_halves(small_halves(permute_bytes(v, kExpand, 0x4240)), d);
      h[k + 2] = mul_halves(small_halves(permute_bytes(v, kExpand, 0x4341)), d);
    }
  }
  CARAT_D static void values(const uint8_t* p, int part, int g, int t, const KvGrid& grid,
                             uint32_t (&b)[kTiles][2]) {
    const uint32_t t0 = grid.w[0], t1 = grid.w[1];
    const int group = kTiles == 8 ? part : part / 2, shift = kTiles == 8 ? 2 * g : 8 * (part % 2) + g;
    constexpr uint32_t kMask = kTiles == 8 ? 0x00030003u : 0x00010001u;
#pragma unroll
    for (int h = 0; h < 2; ++h) {  // two rows at even numbers, then two at odd ones
      const uint8_t *x = p + (2 * t + h) * kRow, *y = x + 8 * kRow;
      const auto third = [&](const uint8_t* row, int i) {
        const uint8_t* q = row + kThird + 8 * group + 4 * i;
        return h ? u32_at_even(q) : u32_at(q);
      };
      const uint32_t bits = (rotate_right(third(x, 0), shift) & kMask) |
                            (rotate_right(third(x, 1), shift - 4) & kMask << 4) |
                            (rotate_right(third(y, 0), shift - 8) & kMask << 8) |
                            (rotate_right(third(y, 1), shift - 12) & kMask << 12);
      const uint32_t d = u16_at(x + kScale) | u16_at(y + kScale) << 16;
      uint32_t out[4];
      if constexpr (kTiles == 8) {
        const uint32_t codes =
            permute_bytes(u16_at(x + 16 * group + 2 * g), u16_at(y + 16 * group + 2 * g), 0x5140);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t z = bits >> j & 0x11111111u;
          pair(codes >> 16 * j, z, z >> 16, d, t0, t1, out);
#pragma unroll
          for (int k = 0; k < 4; ++k) b[2 * k + j][h] = out[k];
        }
      } else {
        const int byte = 16 * group + 8 * (part % 2) + g;
        pair(x[byte] | uint32_t{y[byte]} << 8, bits, bits >> 16, d, t0, t1, out);
#pragma unroll
        for (int k = 0; k < 4; ++k) b[k][h] = out[k];
      }
    }
  }
};

}  // namespace carat::cuda
