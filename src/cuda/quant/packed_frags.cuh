// Packed weights as the tensor cores take them: ldmatrix reads a unit's bytes of sixteen rows straight out of
// a tile in shared memory, a few instructions make codes of them, and a group's integer sums are one product.
#pragma once
#include <type_traits>

#include "cuda/matmul/packed.cuh"

namespace carat::cuda {

// A step is 64 columns of a block, two groups of 32: group(step, 0) and group(step, 1).
template <DType T>
struct Frags {
  static constexpr bool kGrouped = grouped(T);
  static constexpr bool kMins = T == DType::q4_k || T == DType::q5_k;
  static constexpr bool kSixteen = T == DType::q6_k;  // a scale for 16 columns
  static constexpr int kTile = packed_tile(T, 256);
  using Sum = std::conditional_t<kGrouped, float, int32_t>;  // of a block: t, or S of numerics.md

  CARAT_HD static constexpr int group(int step, int e) {
    return kSixteen ? 4 * (step / 2) + step % 2 + 2 * e : 2 * step + e;
  }

  // kGrouped: codes come kTimes as large, so that a bit turned over makes them signed. A product that starts
  // at the bits of kStart is a float, by so much more than the sum without kTimes (below 2^22 with it).
  static constexpr int kTimes = T == DType::q4_0 ? 16 : T == DType::q5_0 ? 8 : 1;
  static constexpr float kStart = 12582912.0f / kTimes;
  CARAT_D static float value(int32_t product) { return as_float(static_cast<uint32_t>(product)) - kStart; }

  // Bytes of a step of rows [row, row + 16), as they lie in the tile of n columns. high: of q5_0 fifth bits
  // of this lane's rows, two groups each; the bits 7 are those of its columns of the upper half.
  struct Raw {
    uint32_t v[T == DType::q8_0 ? 2 : 1][4],
        high[T == DType::q5_0 || T == DType::q5_k || T == DType::q6_k ? 4 : 1];
  };
  CARAT_D static Raw raw(const uint8_t* tile, int row, int step, int lane, int n = 256) {
    const uint8_t* p = tile + (lane / 16) * 512 + (row + lane % 16) * 16;  // two units side by side
    Raw r;
    if constexpr (T == DType::q8_0) {
      load_matrices(r.v[0], shared_address(p + 512 * (4 * step)));
      load_matrices(r.v[1], shared_address(p + 512 * (4 * step + 2)));
    } else if constexpr (T == DType::q6_k) {
      load_matrices(r.v[0], shared_address(p + 512 * (4 * (step / 2) + 2 * (step % 2))));
      load_matrices(r.high, shared_address(p + 512 * (8 + 2 * (step / 2))));
    } else {
      constexpr int kFirst = T == DType::q4_k ? 1 : T == DType::q5_k ? 3 : 0;
      load_matrices(r.v[0], shared_address(p + 512 * (kFirst + 2 * step)));
      if constexpr (T == DType::q5_k) load_matrices(r.high, shared_address(p + 512));
      if constexpr (T == DType::q5_0) {
        const uint8_t* bits = tile + 512 * (n / 32 + step / 2) + 16 * (row + lane / 4) + 8 * (step % 2);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const uint2 two = *reinterpret_cast<const uint2*>(bits + 128 * k);
          r.high[2 * k] = two.x << (3 - lane % 4), r.high[2 * k + 1] = two.y << (3 - lane % 4);
        }
      }
    }
    return r;
  }
  // The codes of group(step, e), as mma's a.
  CARAT_D static void codes(const Raw& r, int step, int e, uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (T == DType::q8_0) {
        a[i] = r.v[e][i];
      } else if constexpr (T == DType::q4_0) {
        const uint32_t w = r.v[0][2 * e + i % 2];
        a[i] = ((i < 2 ? w << 4 : w) & 0xf0f0f0f0u) ^ 0x80808080u;
      } else if constexpr (T == DType::q5_0) {
        const uint32_t w = r.v[0][2 * e + i % 2], bits = r.high[2 * (i % 2) + e];
        a[i] = ((i < 2 ? w << 3 : w >> 1) & 0x78787878u) | (~(i < 2 ? bits << 4 : bits) & 0x80808080u);
      } else {
        a[i] = r.v[0][i] >> 4 * e & 0x0f0f0f0fu;
        if constexpr (T == DType::q6_k)
          a[i] = minus4(a[i] | (r.high[i] >> 2 * (step % 2 + 2 * e) & 0x03030303u) << 4, 0x20202020u);
        if constexpr (T == DType::q5_k) a[i] |= (r.high[i] >> (2 * step + e) & 0x01010101u) << 4;
      }
    }
  }
};

// Scales of a row of a tile, from its unit of them.
template <DType T>
struct RowScales {
  static constexpr int unit(int n) {  // which
    return Frags<T>::kGrouped ? packed_units(T, n) - 1 : Frags<T>::kMins ? 0 : 12;
  }
  CARAT_D static uint32_t factors(const uint8_t* p, int step) { return u32_at(p + 4 * step); }  // two halves
  CARAT_D static int32_t scale16(const uint8_t* p, int k) {  // q6_k, 16 columns each
    return static_cast<int8_t>(p[k]);
  }
  // q4_k, q5_k: scales of groups 0 .. 3 and 4 .. 7, a byte each.
  CARAT_D static uint2 scales(const uint8_t* p) {
    const uint4 h = *reinterpret_cast<const uint4*>(p);
    return {h.y & 0x3f3f3f3fu, (h.w & 0x0f0f0f0fu) | (h.y >> 2 & 0x30303030u)};
  }
  // Minimums of groups 4 t .. 4 t + 3, zeros from t = 2 on.
  CARAT_D static uint32_t mins(const uint8_t* p, int t) {
    const uint4 h = *reinterpret_cast<const uint4*>(p);
    const uint32_t low = h.z & 0x3f3f3f3fu, high = (h.w >> 4 & 0x0f0f0f0fu) | (h.z >> 2 & 0x30303030u);
    return t == 0 ? low : t == 1 ? high : 0;
  }
};

// Sums of four groups of 32 columns (eight of 16: v) as two digits of a byte: sum = low + 128 high.
CARAT_D void sum_digits(const uint4& v, uint32_t& low, uint32_t& high) {
  const auto twice = [](uint32_t w) { return static_cast<uint32_t>(dot2_low(w, 0x0202u, 0)); };
  const uint32_t s0 = twice(v.x), s1 = twice(v.y), s2 = twice(v.z), s3 = twice(v.w);
  // Bytes 0 hold twice the low digit, bytes 1 the high one.
  const uint32_t first = permute_bytes(s0, s1, 0x5140), last = permute_bytes(s2, s3, 0x5140);
  low = permute_bytes(first, last, 0x5410) >> 1 & 0x7f7f7f7fu;
  high = permute_bytes(first, last, 0x7632);
}

// One block of both sides in shared memory: tiles of 32 outputs one after the other, codes, and their sums
// (q4_k, q5_k), a row `pitch` and `sum_pitch` bytes from the next.
inline constexpr int kRowPitch = 256 + 16;  // eight rows' words fall into different banks
struct BlockAt {
  const uint8_t *tiles, *codes, *sums;
  int pitch = kRowPitch, sum_pitch = 32;
};

// b of mma for rows 8 j + .., 32 columns.
template <int NJ>
CARAT_D void load_rows(const uint8_t* codes, int pitch, int lane, uint32_t (&b)[NJ][2]) {
  const uint8_t* row = codes + lane % 8 * pitch + lane / 8 % 2 * 16;
  if constexpr (NJ == 1) {
    load_matrices(b[0], shared_address(row));
  } else {
    row += lane / 16 * 8 * pitch;
#pragma unroll
    for (int j = 0; j < NJ; j += 2) {
      uint32_t four[4];
      load_matrices(four, shared_address(row + 8 * j * pitch));
      b[j][0] = four[0], b[j][1] = four[1], b[j + 1][0] = four[2], b[j + 1][1] = four[3];
    }
  }
}

// use(i, j, k, t of numerics.md without the activations' scale) of outputs 16 i + g + k / 2 * 8 and rows
// 8 j + 2 t + k % 2, where lane = 4 g + t; n columns.
template <DType T, int MI, int NJ, class Use>
CARAT_D void block_sums(const BlockAt& at, int n, int lane, Use use) {
  using F = Frags<T>;
  const int g = lane / 4, t = lane % 4;
  using S = RowScales<T>;
  const uint8_t* units = at.tiles + 512 * S::unit(n) + 16 * g;                      // of scales
  const auto unit = [&](int i) { return units + i / 4 * F::kTile + i % 4 * 128; };  // of row 8 i + g
  uint2 scales[2 * MI];
  if constexpr (F::kMins) {
#pragma unroll
    for (int i = 0; i < 2 * MI; ++i) scales[i] = S::scales(unit(i));
  }
  typename F::Sum s[MI][NJ][4];
#pragma unroll
  for (int i = 0; i < MI; ++i)
#pragma unroll
    for (int j = 0; j < NJ; ++j)
#pragma unroll
      for (int k = 0; k < 4; ++k) s[i][j][k] = 0;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    if (F::kGrouped && 64 * step >= n) break;
    typename F::Raw raw[MI];
#pragma unroll
    for (int i = 0; i < MI; ++i) raw[i] = F::raw(at.tiles + i / 2 * F::kTile, i % 2 * 16, step, lane, n);
    uint32_t factors[2 * MI];
    if constexpr (F::kGrouped) {
#pragma unroll
      for (int i = 0; i < 2 * MI; ++i) factors[i] = S::factors(unit(i), step);
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int group = F::group(step, e);
      if (F::kGrouped && 32 * group >= n) break;
      uint32_t b[NJ][2];
      load_rows<NJ>(at.codes + 32 * group, at.pitch, lane, b);
#pragma unroll
      for (int i = 0; i < MI; ++i) {
        uint32_t a[4];
        F::codes(raw[i], step, e, a);
        int32_t c[NJ][4], c2[NJ][4];
#pragma unroll
        for (int j = 0; j < NJ; ++j) {
          if constexpr (F::kSixteen) {
            mma_s8_half(c[j], a[0], a[1], b[j][0]);
            mma_s8_half(c2[j], a[2], a[3], b[j][1]);
          } else {
            mma_s8(c[j], a[0], a[1], a[2], a[3], b[j][0], b[j][1],
                   F::kGrouped ? static_cast<int32_t>(as_bits(F::kStart)) : 0);
          }
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int row = 2 * i + k / 2;
          if constexpr (F::kGrouped) {
            const float f = half_float(factors[row] >> 16 * e & 0xffffu);
#pragma unroll
            for (int j = 0; j < NJ; ++j) s[i][j][k] = fmaf(f, F::value(c[j][k]), s[i][j][k]);
          } else if constexpr (F::kSixteen) {
            const int32_t f = S::scale16(unit(row), 2 * group), f2 = S::scale16(unit(row), 2 * group + 1);
#pragma unroll
            for (int j = 0; j < NJ; ++j) s[i][j][k] += f * c[j][k] + f2 * c2[j][k];
          } else {
            const int32_t f = (step < 2 ? scales[row].x : scales[row].y) >> 8 * (group % 4) & 255;
#pragma unroll
            for (int j = 0; j < NJ; ++j) s[i][j][k] += f * c[j][k];
          }
        }
      }
    }
  }
  uint32_t low[NJ], high[NJ];
  if constexpr (F::kMins) {
#pragma unroll
    for (int j = 0; j < NJ; ++j)
      sum_digits(*reinterpret_cast<const uint4*>(at.sums + (8 * j + g) * at.sum_pitch + t % 2 * 16), low[j],
                 high[j]);
  }
#pragma unroll
  for (int i = 0; i < MI; ++i) {
    float2 d[2];
    uint32_t mins[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if constexpr (F::kSixteen) {
        d[k].x = half_at(at.tiles + i / 2 * F::kTile + 13 * 512 + 2 * (i % 2 * 16 + 8 * k + g));
      } else if constexpr (F::kMins) {
        const uint32_t w = u32_at(unit(2 * i + k));
        d[k] = {half_float(w & 0xffffu), half_float(w >> 16)};
        mins[k] = S::mins(unit(2 * i + k), t);
      }
    }
#pragma unroll
    for (int j = 0; j < NJ; ++j) {
      int32_t least[4], most[4];
      if constexpr (F::kMins) {
        mma_s8_half(least, mins[0], mins[1], low[j]);
        mma_s8_half(most, mins[0], mins[1], high[j]);
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if constexpr (F::kGrouped) {
          use(i, j, k, s[i][j][k]);
        } else {
          float v = d[k / 2].x * static_cast<float>(s[i][j][k]);
          if constexpr (F::kMins) v = fmaf(-d[k / 2].y, static_cast<float>(least[k] + 128 * most[k]), v);
          use(i, j, k, v);
        }
      }
    }
  }
}

// A tile in a warp's registers on its way to shared memory, as it is.
template <DType T>
struct LaneTile {
  static constexpr int kUnits = packed_units(T, 256);
  uint4 u[kUnits];
  uint16_t d;  // q6_k

  CARAT_D void load(const uint8_t* tile, int lane, int n) {
    const int units = packed_units(T, n);
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      if (i < units) u[i] = stream_load(tile + 512 * i + 16 * lane);
    if constexpr (T == DType::q6_k) d = *reinterpret_cast<const uint16_t*>(tile + 512 * kUnits + 2 * lane);
  }
  CARAT_D void store(uint8_t* tile, int lane, int n) const {
    const int units = packed_units(T, n);
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      if (i < units) *reinterpret_cast<uint4*>(tile + 512 * i + 16 * lane) = u[i];
    if constexpr (T == DType::q6_k) *reinterpret_cast<uint16_t*>(tile + 512 * kUnits + 2 * lane) = d;
  }
};

// LaneTasks (packed.cuh) for MT rows at once on the tensor cores.
template <DType T, int MT>
struct TensorTasks {
  using Weights = LaneTile<T>;
  static constexpr int kCodes = Frags<T>::kTile, kSums = kCodes + MT * kRowPitch, kBytes = kSums + MT * 32;

  template <class At, class From, class Block>
  CARAT_D static void run(const Tasks& tasks, float* left, uint8_t* memory, LaneTile<T>& w, int32_t rows,
                          At at, From from, Block block) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    uint8_t* mine = memory + warp * kBytes;
    for (int32_t task = warp; task < tasks.count; task += tasks.warps) {
      const int n = at(task).n;
      w.store(mine, lane, n);
      stage_rows(from(task), block(task), rows, mine + kCodes, kRowPitch,
                 Frags<T>::kMins ? mine + kSums : nullptr, lane);
      sync_warp();
      if (const int32_t next = task + tasks.warps; next < tasks.count) {
        const TileAt tile = at(next);
        w.load(tile.tile, lane, tile.n);
      }
      float* to = left + task * MT * 32 + g;
      block_sums<T, 2, MT / 8>(
          {mine, mine + kCodes, mine + kSums}, n, lane,
          [&](int i, int j, int k, float v) { to[(8 * j + 2 * t + k % 2) * 32 + 16 * i + k / 2 * 8] = v; });
      sync_warp();
    }
  }
};

}  // namespace carat::cuda
