// A tile's row by a lane: products of one or two rows over packed weights.
#pragma once
#include "cuda/matmul/products.cuh"
#include "cuda/quant/codes.cuh"
#include "cuda/quant/lattices.cuh"
#include "cuda/quant/packed.h"

namespace carat::cuda {

// By a warp, to shared memory: codes of one block of `rows` rows, `pitch` bytes apart, and unless null their
// sums by 16, 32 bytes a row.
template <class Copy>
CARAT_D void stage_rows(const Acts& x, int32_t b, int32_t rows, uint8_t* codes, int pitch, uint8_t* sums,
                        int lane, Copy copy16) {
  for (int i = lane; i < rows * 16; i += 32)
    copy16(codes + i / 16 * pitch + 16 * (i % 16),
           x.q + (int64_t{i / 16} * x.blocks + b) * 256 + 16 * (i % 16));
  if (sums)
    for (int i = lane; i < rows * 2; i += 32)
      copy16(sums + 16 * i, x.sums + (int64_t{i / 2} * x.blocks + b) * 16 + 8 * (i % 2));
}
CARAT_D void stage_rows(const Acts& x, int32_t b, int32_t rows, uint8_t* codes, int pitch, uint8_t* sums,
                        int lane) {
  stage_rows(x, b, rows, codes, pitch, sums, lane, [](uint8_t* to, const void* from) {
    *reinterpret_cast<uint4*>(to) = *static_cast<const uint4*>(from);
  });
}

// Rounded activations of one block of 256 columns in shared memory, MT rows: codes, and their sums by 16.
template <int MT>
struct Stage {
  static constexpr int kBytes = MT * (256 + 32);
  uint8_t* p;

  CARAT_D uint4 codes(int m, int unit) const {
    return *reinterpret_cast<const uint4*>(p + m * 256 + 16 * unit);
  }
  CARAT_D uint32_t sums(int m, int word) const {  // two sums of 16 columns
    return *reinterpret_cast<const uint32_t*>(p + MT * 256 + m * 32 + 4 * word);
  }
  CARAT_D void fill(const Acts& x, int32_t b, int32_t rows, int lane) const {
    stage_rows(x, b, rows, p, 256, p + MT * 256, lane);
  }
};

CARAT_D int32_t dot16(const uint4& w, const uint4& a) {
  return dot4(w.w, a.w, dot4(w.z, a.z, dot4(w.y, a.y, dot4(w.x, a.x, 0))));
}
// Of unsigned codes.
CARAT_D int32_t dot16_unsigned(const uint4& w, const uint4& a) {
  return dot4_unsigned(w.w, a.w,
                       dot4_unsigned(w.z, a.z, dot4_unsigned(w.y, a.y, dot4_unsigned(w.x, a.x, 0))));
}
template <class F>
CARAT_HD uint4 each(const uint4& v, F f) {
  return {f(v.x), f(v.y), f(v.z), f(v.w)};
}
CARAT_HD uint4 nibbles_of(const uint4& v, int shift) {
  return each(v, [&](uint32_t w) { return w >> shift & 0x0f0f0f0fu; });
}
// v | bits of high at `shift`, moved to bit `to` of each byte.
CARAT_HD uint4 with_bits(const uint4& v, const uint4& high, int shift, uint32_t mask, int to) {
  const auto add = [&](uint32_t a, uint32_t b) { return a | (b >> shift & mask) << to; };
  return {add(v.x, high.x), add(v.y, high.y), add(v.z, high.z), add(v.w, high.w)};
}
// Sixteen codes, the lower or upper ones of a group, and a fifth bit for each.
CARAT_HD uint4 with_fifth(const uint4& v, uint32_t bits, int half) {
  const auto add = [&](uint32_t w, int i) {
    return w | ((half ? bits >> i : bits << (4 - i)) & 0x10101010u);
  };
  return {add(v.x, 0), add(v.y, 1), add(v.z, 2), add(v.w, 3)};
}
CARAT_HD int32_t byte_of(uint32_t w, int i) { return static_cast<int8_t>(w >> 8 * i); }

// A lane's row of one tile, in registers. dot(): t[m] of the contract, without the activations' scale.
template <DType T>
struct LaneBlock {
  static constexpr int kUnits = packed_units(T, 256), kTail = packed_tail(T);
  static constexpr bool kGrouped = grouped(T);
  uint4 u[kUnits];
  static constexpr int kScaleUnits = T == DType::mxfp4 ? 0 : group_mins(T) ? 2 : 1;  // grouped formats
  float d, dmin;  // q2_k, q3_k, q6_k; lattices' d
  uint2 tail;     // iq4_xs, mxfp4; iq2_xs's scales

  CARAT_D void load(const uint8_t* tile, int lane, int n) {
    take(tile, lane, n, [](const uint8_t* p) { return stream_load(p); });
  }
  template <class Get>
  CARAT_D void take(const uint8_t* tile, int lane, int n, Get get) {
    const uint8_t* p = tile + 16 * lane;
    if constexpr (kGrouped) {
      constexpr int kCodes = T == DType::q8_0 ? 16 : 8;
      const int codes = n * kCodes / 256, scales = packed_units(T, n) - kScaleUnits;
#pragma unroll
      for (int i = 0; i < kCodes; ++i)
        if (i < codes) u[i] = get(p + 512 * i);
#pragma unroll
      for (int i = kCodes; i < kUnits - kScaleUnits; ++i)  // fifth bits
        if (codes + i - kCodes < scales) u[i] = get(p + 512 * (codes + i - kCodes));
#pragma unroll
      for (int i = 0; i < kScaleUnits; ++i) u[kUnits - kScaleUnits + i] = get(p + 512 * (scales + i));
    } else {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) u[i] = get(p + 512 * i);
    }
    const uint8_t* behind = tile + 512 * packed_units(T, n) + kTail * lane;
    if constexpr (kTail == 2 || kTail == 4) d = half_at(behind);
    if constexpr (kTail == 4) dmin = half_at(behind + 2);
    if constexpr (kTail == 8) tail = *reinterpret_cast<const uint2*>(behind);
    if constexpr (kTail == 10) tail = {u32_at_even(behind), u32_at_even(behind + 4)};
    if constexpr (lattice(T)) d = lattice_factor<T>(half_at(behind + kTail - 2));
  }

  template <int MT>
  CARAT_D void dot(const Stage<MT>& x, int n, float (&t)[MT]) const {
    if constexpr (kGrouped)
      dot_grouped<MT>(x, n / 32, t);
    else if constexpr (T == DType::q6_k || T == DType::q3_k || T == DType::q2_k)
      dot_sixteen<MT>(x, t);
    else if constexpr (T == DType::iq4_xs)
      dot_scaled<MT>(x, t);
    else if constexpr (lattice(T))
      dot_lattice<MT>(x, t);
    else
      dot_scaled_min<MT>(x, t);
  }

 private:
  CARAT_D static uint32_t word_of(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
  }
  // Of 32 columns, of nvfp4 16.
  CARAT_D float scale(int g) const {
    if constexpr (T == DType::mxfp4) return 0.5f * e8m0_float((g < 4 ? tail.x : tail.y) >> 8 * (g % 4) & 255);
    if constexpr (T == DType::nvfp4) return half_ue4m3(word_of(u[kUnits - 1], g / 4) >> 8 * (g % 4) & 255);
    return half_of(u[kUnits - kScaleUnits], g);
  }
  CARAT_D static float half_of(const uint4& v, int i) {
    const uint32_t w = word_of(v, i / 2);
    return half_float(i % 2 ? w >> 16 : w & 0xffffu);
  }
  // Codes of 32 columns: the first sixteen, the others.
  CARAT_D void codes_of(int g, uint4& low, uint4& high) const {
    if constexpr (T == DType::q8_0) {
      low = u[2 * g], high = u[2 * g + 1];
    } else if constexpr (coded(T)) {
      const uint2 c0 = look_codes<T>(u[g].x), c1 = look_codes<T>(u[g].y), c2 = look_codes<T>(u[g].z),
                  c3 = look_codes<T>(u[g].w);
      low = {c0.x, c1.x, c2.x, c3.x}, high = {c0.y, c1.y, c2.y, c3.y};
    } else {
      low = nibbles_of(u[g], 0), high = nibbles_of(u[g], 4);
    }
    if constexpr (T == DType::q5_0 || T == DType::q5_1) {
      const uint32_t fifth = word_of(u[8 + g / 4], g % 4);
      low = with_fifth(low, fifth, 0), high = with_fifth(high, fifth, 1);
    }
  }
  template <int MT>
  CARAT_D void dot_grouped(const Stage<MT>& x, int groups, float (&t)[MT]) const {
#pragma unroll
    for (int m = 0; m < MT; ++m) t[m] = 0;
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      if (g >= groups) break;
      uint4 low, high;
      codes_of(g, low, high);
      if constexpr (T == DType::nvfp4) {
        const float f = scale(2 * g), f2 = scale(2 * g + 1);
#pragma unroll
        for (int m = 0; m < MT; ++m) {
          t[m] = fmaf(f, static_cast<float>(dot16(low, x.codes(m, 2 * g))), t[m]);
          t[m] = fmaf(f2, static_cast<float>(dot16(high, x.codes(m, 2 * g + 1))), t[m]);
        }
        continue;
      }
      const float f = scale(g);
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        int32_t s = dot16(low, x.codes(m, 2 * g)) + dot16(high, x.codes(m, 2 * g + 1));
        if constexpr (T == DType::q4_0) s = dot2_low(x.sums(m, g), 0xf8f8u, s);  // codes are 8 too large
        if constexpr (T == DType::q5_0) s = dot2_low(x.sums(m, g), 0xf0f0u, s);  // 16
        t[m] = fmaf(f, static_cast<float>(s), t[m]);
        if constexpr (group_mins(T))
          t[m] =
              fmaf(half_of(u[kUnits - 1], g), static_cast<float>(dot2_low(x.sums(m, g), 0x0101u, 0)), t[m]);
      }
    }
  }
  // Sixteen columns' codes of q2_k, of q6_k, 32 too large, and of q3_k, 4.
  CARAT_D uint4 sixteen(int k) const {
    const int h = k / 8, j = k % 8 / 2, half = k % 2;
    [[maybe_unused]] const auto two = [&](uint32_t w) { return w >> 2 * j & 0x03030303u; };
    if constexpr (T == DType::q2_k)
      return each(u[2 * h + half], two);
    else if constexpr (T == DType::q3_k)
      return with_bits(each(u[2 * h + half], two), u[4 + half], 4 * h + j, 0x01010101u, 2);
    else
      return with_bits(nibbles_of(u[4 * h + 2 * (j & 1) + half], 4 * (j >> 1)), u[8 + 2 * h + half], 2 * j,
                       0x03030303u, 4);
  }
  template <int MT>
  CARAT_D void dot_sixteen(const Stage<MT>& x, float (&t)[MT]) const {
    constexpr int32_t kOver = T == DType::q3_k ? 4 : 32;
    constexpr bool kMins = T == DType::q2_k;
    int32_t s[MT], over[MT];  // over: of the minimums, or what codes that are too large give
    const uint4 &both = u[kUnits - 1], sc = kMins ? nibbles_of(both, 0) : both,
                mn = kMins ? nibbles_of(both, 4) : both;
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      over[m] = dot2_high(x.sums(m, 1), mn.x, dot2_low(x.sums(m, 0), mn.x, 0));
      over[m] = dot2_high(x.sums(m, 3), mn.y, dot2_low(x.sums(m, 2), mn.y, over[m]));
      over[m] = dot2_high(x.sums(m, 5), mn.z, dot2_low(x.sums(m, 4), mn.z, over[m]));
      over[m] = dot2_high(x.sums(m, 7), mn.w, dot2_low(x.sums(m, 6), mn.w, over[m]));
      s[m] = kMins ? 0 : -kOver * over[m];
    }
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      const uint4 c = sixteen(k);
      const int32_t f = byte_of(word_of(sc, k / 4), k % 4);
#pragma unroll
      for (int m = 0; m < MT; ++m) s[m] += f * dot16(c, x.codes(m, k));
    }
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      t[m] = d * static_cast<float>(s[m]);
      if constexpr (kMins) t[m] = fmaf(-dmin, static_cast<float>(over[m]), t[m]);
    }
  }
  struct Words {  // lattices.cuh
    const LaneBlock& block;
    CARAT_D uint32_t word(int i) const {
      return i < 4 * kUnits ? word_of(block.u[i / 4 % kUnits], i % 4) : i % 2 ? block.tail.y : block.tail.x;
    }
  };
  template <int MT>
  CARAT_D void dot_lattice(const Stage<MT>& x, float (&t)[MT]) const {
    const Words words{*this};
    int32_t s[MT] = {};
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      const uint4 c = lattice_sixteen<T>(words, k / 2, k % 2);
      const int32_t f = lattice_scale<T>(words, k);
#pragma unroll
      for (int m = 0; m < MT; ++m) s[m] += f * dot16(c, x.codes(m, k));
    }
#pragma unroll
    for (int m = 0; m < MT; ++m) t[m] = d * static_cast<float>(s[m]);
  }
  template <int MT>
  CARAT_D void dot_scaled(const Stage<MT>& x, float (&t)[MT]) const {
    int32_t s[MT] = {};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t scales = signed_scales(tail.y, tail.x >> 16, k);
#pragma unroll
      for (int g = 4 * k; g < 4 * k + 4; ++g) {
        uint4 low, high;
        codes_of(g, low, high);
        const int32_t f = byte_of(scales, g % 4);
#pragma unroll
        for (int m = 0; m < MT; ++m)
          s[m] += f * (dot16(low, x.codes(m, 2 * g)) + dot16(high, x.codes(m, 2 * g + 1)));
      }
    }
    const float of = half_float(tail.x & 0xffffu);
#pragma unroll
    for (int m = 0; m < MT; ++m) t[m] = of * static_cast<float>(s[m]);
  }
  template <int MT>
  CARAT_D void dot_scaled_min(const Stage<MT>& x, float (&t)[MT]) const {
    const uint32_t y = u[0].y, z = u[0].z, w = u[0].w;
    const uint32_t sc[2] = {y & 0x3f3f3f3fu, (w & 0x0f0f0f0fu) | (y >> 2 & 0x30303030u)};
    const uint32_t mn[2] = {z & 0x3f3f3f3fu, (w >> 4 & 0x0f0f0f0fu) | (z >> 2 & 0x30303030u)};
    int32_t s[MT], low[MT];
#pragma unroll
    for (int m = 0; m < MT; ++m) s[m] = low[m] = 0;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      // Each minimum twice: groups are two sums of 16 wide.
      const uint32_t twice0 = permute_bytes(mn[k], 0, 0x1100), twice1 = permute_bytes(mn[k], 0, 0x3322);
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        low[m] = dot2_high(x.sums(m, 4 * k + 1), twice0, dot2_low(x.sums(m, 4 * k), twice0, low[m]));
        low[m] = dot2_high(x.sums(m, 4 * k + 3), twice1, dot2_low(x.sums(m, 4 * k + 2), twice1, low[m]));
      }
    }
    constexpr int kCodes = T == DType::q4_k ? 1 : 3;
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      const uint4 &v0 = u[kCodes + g / 2 * 2], &v1 = u[kCodes + g / 2 * 2 + 1];
      const int32_t f = byte_of(sc[g / 4], g % 4);
      if (T == DType::q4_k && g % 2) {  // sixteen times the upper codes: a shift of the sum, not of them
        const auto upper = [](uint32_t v) { return v & 0xf0f0f0f0u; };
        const uint4 c0 = each(v0, upper), c1 = each(v1, upper);
#pragma unroll
        for (int m = 0; m < MT; ++m)
          s[m] +=
              f * ((dot16_unsigned(c0, x.codes(m, 2 * g)) + dot16_unsigned(c1, x.codes(m, 2 * g + 1))) >> 4);
        continue;
      }
      uint4 c0 = nibbles_of(v0, 4 * (g % 2)), c1 = nibbles_of(v1, 4 * (g % 2));
      if constexpr (T == DType::q5_k)
        c0 = with_bits(c0, u[1], g, 0x01010101u, 4), c1 = with_bits(c1, u[2], g, 0x01010101u, 4);
#pragma unroll
      for (int m = 0; m < MT; ++m)
        s[m] += f * (dot16(c0, x.codes(m, 2 * g)) + dot16(c1, x.codes(m, 2 * g + 1)));
    }
    const float of = half_float(u[0].x & 0xffffu), least = half_float(u[0].x >> 16);
#pragma unroll
    for (int m = 0; m < MT; ++m)
      t[m] = fmaf(-least, static_cast<float>(low[m]), of * static_cast<float>(s[m]));
  }
};

}  // namespace carat::cuda
