// Packed weights as the tensor cores take them: ldmatrix reads a unit's bytes of sixteen rows straight out of
// a tile in shared memory, and a few instructions make codes of them.
#pragma once
#include <type_traits>

#include "cuda/quant/codes.cuh"
#include "cuda/quant/lattices.cuh"

namespace carat::cuda {

// A step is 64 columns of a block, two groups of 32: group(step, 0) and group(step, 1).
template <DType T>
struct Frags {
  static constexpr bool kGrouped = grouped(T);
  // A byte has codes of two groups or four.
  static constexpr bool kPlanes = T == DType::q2_k || T == DType::q3_k || T == DType::q6_k;
  // A scale for 16 columns; for 32, a byte.
  static constexpr bool kSixteen = kPlanes || T == DType::nvfp4 || T == DType::iq2_xs || T == DType::iq2_s;
  static constexpr bool kScaled = !kGrouped && !kSixteen && !lattice(T);
  static constexpr bool kMins = T == DType::q2_k || T == DType::q4_k || T == DType::q5_k;
  static constexpr bool kSums = kMins || group_mins(T);                 // of activations, for minimums
  static constexpr bool kFifth = T == DType::q5_0 || T == DType::q5_1;  // bits, a word for 32 columns
  static constexpr int kTile = packed_tile(T, 256);
  using Sum = std::conditional_t<kGrouped, float, int32_t>;  // of a block: t, or S of numerics.md

  CARAT_HD static constexpr int group(int step, int e) {
    return kPlanes ? 4 * (step / 2) + step % 2 + 2 * e : 2 * step + e;
  }

  // kGrouped: codes come kTimes as large, so that a bit turned over makes them signed. A product that starts
  // at the bits of kStart is a float, by so much more than the sum without kTimes (below 2^22 with it).
  static constexpr int kTimes = T == DType::q4_0 ? 16 : T == DType::q5_0 ? 8 : 1;
  static constexpr float kStart = 12582912.0f / kTimes;
  CARAT_D static float value(int32_t product) { return as_float(static_cast<uint32_t>(product)) - kStart; }

  // Bytes of a step of rows [row, row + 16), as they lie in the tile of n columns. high: of q5_0 fifth bits
  // of this lane's rows, two groups each; the bits 7 are those of its columns of the upper half.
  struct Raw {
    const uint8_t* tile;  // of lattices, and the lane's row of it
    int row, t;
    uint32_t v[T == DType::q8_0 ? 2 : 1][4], high[kFifth || T == DType::q5_k || kPlanes ? 4 : 1];
  };
  CARAT_D static Raw raw(const uint8_t* tile, int row, int step, int lane, int n = 256) {
    const uint8_t* p = tile + (lane / 16) * 512 + (row + lane % 16) * 16;  // two units side by side
    Raw r;
    if constexpr (lattice(T)) {
      r.tile = tile, r.row = row + lane / 4, r.t = lane % 4;
    } else if constexpr (T == DType::q8_0) {
      load_matrices(r.v[0], shared_address(p + 512 * (4 * step)));
      load_matrices(r.v[1], shared_address(p + 512 * (4 * step + 2)));
    } else if constexpr (T == DType::q6_k) {
      load_matrices(r.v[0], shared_address(p + 512 * (4 * (step / 2) + 2 * (step % 2))));
      load_matrices(r.high, shared_address(p + 512 * (8 + 2 * (step / 2))));
    } else if constexpr (kPlanes) {
      load_matrices(r.v[0], shared_address(p + 512 * (2 * (step / 2))));
      if constexpr (T == DType::q3_k) load_matrices(r.high, shared_address(p + 512 * 4));
    } else {
      constexpr int kFirst = T == DType::q4_k ? 1 : T == DType::q5_k ? 3 : 0;
      load_matrices(r.v[0], shared_address(p + 512 * (kFirst + 2 * step)));
      if constexpr (T == DType::q5_k) load_matrices(r.high, shared_address(p + 512));
      if constexpr (kFifth) {
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
      if constexpr (lattice(T)) {
        a[i] = lattice_codes<T>(LatticeRow<T>(r.tile, r.row + i % 2 * 8), group(step, e), r.t + i / 2 * 4);
      } else if constexpr (coded(T)) {
        const uint2 c = look_codes<T>(r.v[0][2 * e + i % 2]);
        a[i] = i < 2 ? c.x : c.y;
      } else if constexpr (T == DType::q8_0) {
        a[i] = r.v[e][i];
      } else if constexpr (T == DType::q4_0) {
        const uint32_t w = r.v[0][2 * e + i % 2];
        a[i] = ((i < 2 ? w << 4 : w) & 0xf0f0f0f0u) ^ 0x80808080u;
      } else if constexpr (T == DType::q4_1) {
        a[i] = r.v[0][2 * e + i % 2] >> (i < 2 ? 0 : 4) & 0x0f0f0f0fu;
      } else if constexpr (T == DType::q5_1) {
        const uint32_t w = r.v[0][2 * e + i % 2] >> (i < 2 ? 0 : 4), bits = r.high[2 * (i % 2) + e];
        a[i] = (w & 0x0f0f0f0fu) | ((i < 2 ? bits << 1 : bits >> 3) & 0x10101010u);
      } else if constexpr (T == DType::q5_0) {
        const uint32_t w = r.v[0][2 * e + i % 2], bits = r.high[2 * (i % 2) + e];
        a[i] = ((i < 2 ? w << 3 : w >> 1) & 0x78787878u) | (~(i < 2 ? bits << 4 : bits) & 0x80808080u);
      } else if constexpr (T == DType::q2_k || T == DType::q3_k) {
        a[i] = r.v[0][i] >> 2 * (step % 2 + 2 * e) & 0x03030303u;
        if constexpr (T == DType::q3_k)
          a[i] = minus4(a[i] | (r.high[i] >> group(step, e) & 0x01010101u) << 2, 0x04040404u);
      } else {
        a[i] = r.v[0][i] >> 4 * e & 0x0f0f0f0fu;
        if constexpr (T == DType::q6_k)
          a[i] = minus4(a[i] | (r.high[i] >> 2 * (step % 2 + 2 * e) & 0x03030303u) << 4, 0x20202020u);
        if constexpr (T == DType::q5_k) a[i] |= (r.high[i] >> (2 * step + e) & 0x01010101u) << 4;
      }
    }
  }
};

// Scales of a row of a tile, from its unit of them or what it has behind the units.
template <DType T>
struct RowScales {
  static constexpr int kBytes = packed_tail(T) == 8 ? 8 : 16;  // of a row
  static constexpr int at(int n) {                             // of the first, in a tile of n columns
    if (T == DType::q4_k || T == DType::q5_k) return 0;
    return 512 * (packed_units(T, n) - (kBytes == 8 ? 0 : group_mins(T) ? 2 : 1));
  }
  // Of a step's groups.
  CARAT_D static uint32_t factors(const uint8_t* p, int step) {
    return T == DType::mxfp4 ? u16_at(p + 2 * step) : u32_at(p + 4 * step);
  }
  CARAT_D static float factor(uint32_t factors, int i) {  // the i-th of them
    if constexpr (T == DType::mxfp4)
      return 0.5f * e8m0_float(factors >> 8 * i & 255);
    else if constexpr (T == DType::nvfp4)
      return half_ue4m3(factors >> 8 * i & 255);
    else
      return half_float(factors >> 16 * i & 0xffffu);
  }
  CARAT_D static int32_t scale16(const uint8_t* p, int k) {  // q2_k, q3_k, q6_k, 16 columns each
    return T == DType::q2_k ? p[k] & 15 : static_cast<int8_t>(p[k]);
  }
  // q4_k, q5_k, iq4_xs: scales of groups 0 .. 3 and 4 .. 7, a byte each.
  CARAT_D static uint2 scales(const uint8_t* p) {
    if constexpr (T == DType::iq4_xs) {
      const uint2 v = *reinterpret_cast<const uint2*>(p);
      return {signed_scales(v.y, v.x >> 16, 0), signed_scales(v.y, v.x >> 16, 1)};
    }
    const uint4 h = *reinterpret_cast<const uint4*>(p);
    return {h.y & 0x3f3f3f3fu, (h.w & 0x0f0f0f0fu) | (h.y >> 2 & 0x30303030u)};
  }
  // q2_k, q4_k, q5_k: minimums for sums 2 t and 2 t + 1 of sixteen columns (e = 1: of 8 further) as halves,
  // as mma_f16's a has them. q4_k and q5_k have one for two sums.
  CARAT_D static uint32_t min_halves(const uint8_t* p, int e, int t) {
    uint32_t both;
    if constexpr (T == DType::q2_k) {
      const uint32_t two = u16_at(p + 8 * e + 2 * t) >> 4;
      both = (two & 15) | (two & 0xf00) << 8;
    } else {
      const uint4 h = *reinterpret_cast<const uint4*>(p);
      const uint32_t four = e == 0 ? h.z & 0x3f3f3f3fu : (h.w >> 4 & 0x0f0f0f0fu) | (h.z >> 2 & 0x30303030u);
      both = (four >> 8 * t & 255) * 0x10001u;
    }
    return sub_halves(both | 0x64006400u, 0x64006400u);
  }
};

}  // namespace carat::cuda
