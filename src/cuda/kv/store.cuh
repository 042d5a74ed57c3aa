// Writing a head's row in a cache format (core/kv_codec.h), by one warp: from shared memory or registers.
#pragma once
#include "cuda/kv/rows.cuh"

namespace carat::cuda {

CARAT_HD bool finite(float f) { return (as_bits(f) & 0x7f800000u) != 0x7f800000u; }
CARAT_HD void put_half(uint8_t* p, uint32_t h) {
  p[0] = static_cast<uint8_t>(h);
  p[1] = static_cast<uint8_t>(h >> 8);
}
inline constexpr uint32_t kNanHalf = 0x7e00;

CARAT_D float warp_top(float v) {  // the largest magnitude, of finite values
  return as_float(warp_max(as_bits(v) & 0x7fffffffu));
}

// Lane k has value k of the format's grid; formats without one: nothing.
CARAT_D float level_of(DType t, const Tables& tables, int lane) {
  const int k = lane % 16;
  switch (t) {
    case DType::tq4: return tables.tq4[k];
    case DType::tq3: return tables.tq3[k % 8];
    case DType::tq3_0: return tables.tq3_0[k % 8];
    case DType::tbq4: return tables.tbq4[k];
    case DType::tbq3: return tables.tbq3[k % 8];
    default: return 0;
  }
}
// n elements of a head, a lane's k-th being lane + 32 k, in shared memory or in registers. next(): one after
// the other, which a loop may do that stays a loop.
struct MemoryHead {
  static constexpr int kUnroll = 4;
  const float* x;
  int lane;
  CARAT_D float operator()(int k) const { return x[lane + 32 * k]; }
  CARAT_D int count(int32_t n) const { return (n - lane + 31) / 32; }
  CARAT_D float next() {
    const float v = x[lane];
    x += 32;
    return v;
  }
};
template <int EACH>
struct RegisterHead {
  static constexpr int kUnroll = EACH;
  float (&x)[EACH];
  CARAT_D float operator()(int k) const { return x[k]; }
  CARAT_D int count(int32_t) const { return EACH; }
  CARAT_D float next() {
    const float v = x[0];
#pragma unroll
    for (int k = 0; k + 1 < EACH; ++k) x[k] = x[k + 1];
    return v;
  }
};
// How n values go onto a grid of LEVELS, as onto_grid in core/kv_codec.cc: all lanes know it.
template <int LEVELS>
struct OntoGrid {
  float middle[LEVELS - 1], sum = 0, scale;
  bool some;

  template <class Head>
  CARAT_D OntoGrid(float level, float unit, const Head& x, int32_t n) {
#pragma unroll
    for (int k = 0; k + 1 < LEVELS; ++k) middle[k] = 0.5f * (shuffle(level, k) + shuffle(level, k + 1));
#pragma unroll(Head::kUnroll)
    for (int k = 0; k < x.count(n); ++k) sum = fmaf(x(k), x(k), sum);
    sum = warp_sum_f(sum);
    some = finite(sum) && sum >= 1e-20f;
    scale = some ? unit * sqrtf(static_cast<float>(n) / sum) : 0;
  }
  CARAT_D int code(float x) const {
    int c = 0;
#pragma unroll
    for (int k = 0; k + 1 < LEVELS; ++k) c += some && x * scale > middle[k];
    return c;
  }
  // The stored scale. coded: this lane's sum of squares of what the codes stand for.
  CARAT_D uint32_t stored(bool kept, float coded) const {
    coded = warp_sum_f(coded);
    if (!finite(sum)) return kNanHalf;
    if (!some) return 0;
    return float_half(kept ? sqrtf(sum / coded) : sqrtf(sum));
  }
};
// Codes are complete after the next sync_warp; returns the scale.
template <int LEVELS>
CARAT_D uint32_t onto_grid(float level, float unit, bool kept, const float* x, int32_t n, uint8_t* code,
                           int lane) {
  const OntoGrid<LEVELS> grid(level, unit, MemoryHead{x, lane}, n);
  float coded = 0;
#pragma unroll 4
  for (int32_t i = lane; i < n; i += 32) {
    const int c = grid.code(x[i]);
    code[i] = static_cast<uint8_t>(c);
    const float v = shuffle(level, c);
    coded = fmaf(v, v, coded);
  }
  return grid.stored(kept, coded);
}
// Codes go from lane to lane and not through memory: 64 at a time, byte j of sixteen has j, j + 16, j + 32
// and j + 48.
template <class Head>
CARAT_D void encode_tq3(Head x, uint8_t* row, int32_t n, float level, int lane) {
  const OntoGrid<8> grid(level, 40.9f, x, n);
  float coded = 0;
#pragma unroll 1
  for (int32_t i = 0; i < n; i += 64) {
    const int c = grid.code(x.next()), e = grid.code(x.next());
    const float v = shuffle(level, c), w = shuffle(level, e);
    coded = fmaf(w, w, fmaf(v, v, coded));
    const int32_t low = (c & 3) | (e & 3) << 4, codes = low | shuffle_xor(low, 16) << 2;
    const uint32_t thirds = ballot(c > 3), more = ballot(e > 3);
    if (lane < 16) row[i / 4 + lane] = static_cast<uint8_t>(codes);
    if (lane < 4)
      *reinterpret_cast<uint16_t*>(row + n / 4 + i / 8 + 2 * lane) =
          static_cast<uint16_t>((lane < 2 ? thirds : more) >> 16 * (lane % 2));
  }
  const uint32_t d = grid.stored(true, coded);
  if (lane == 0) put_half(row + n / 4 + n / 8, d);
}

// q8_0 and kv4, n elements of x in shared memory: a lane has eight of a block's 32, so that all blocks of a
// head are written at once. also: null, or where the same bytes go, too.
template <DType T>
CARAT_D void encode_blocks(const float* x, int32_t n, uint8_t* row, uint8_t* also, int lane) {
  static_assert(T == DType::q8_0 || T == DType::kv4);
  constexpr int kBlock = T == DType::q8_0 ? 34 : 18;
#pragma unroll 1
  for (int32_t first = 0; first < n; first += 256) {
    const bool some = first + 8 * lane < n;
    const int32_t block = (first / 32 + lane / 4) * kBlock;
    float v[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = some ? x[first + 8 * lane + k] : 0;
    const auto size = [&](int k) { return as_bits(v[k]) & 0x7fffffffu; };
    uint32_t most = size(0);
    float top = v[0];  // the first of them
#pragma unroll
    for (int k = 1; k < 8; ++k)
      if (size(k) > most) most = size(k), top = v[k];
#pragma unroll
    for (int m = 1; m < 4; m *= 2) {
      const uint32_t other = shuffle_xor(most, m);
      const float theirs = shuffle_xor(top, m);
      if (other > most || (other == most && (lane & m))) most = other, top = theirs;
    }
    const bool all = most < 0x7f800000u;  // are finite
    const auto put = [&](int32_t at, uint32_t two) {
      if (!some) return;
      *reinterpret_cast<uint16_t*>(row + block + at) = static_cast<uint16_t>(two);
      if (also) *reinterpret_cast<uint16_t*>(also + block + at) = static_cast<uint16_t>(two);
    };
    const float d = T == DType::q8_0 ? as_float(most) / 127 : top / -8;
    float inv = d != 0 ? 1 / d : 0;
    if (!finite(inv)) inv = 0;
    if (lane % 4 == 0) put(0, all ? float_half(d) : kNanHalf);
    uint32_t codes[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      uint32_t c;
      if constexpr (T == DType::q8_0)
        c = static_cast<uint8_t>(
            static_cast<int8_t>(fminf(fmaxf(all ? roundf(v[k] * inv) : 0, -127.0f), 127.0f)));
      else
        c = all ? static_cast<uint32_t>(fminf(fmaxf(v[k] * inv + 8.5f, 0.0f), 15.0f)) : 8;
      codes[k / 4] |= c << 8 * (k % 4);
    }
    if constexpr (T == DType::kv4) {  // element 16 further in a byte's upper half
#pragma unroll
      for (int i = 0; i < 2; ++i) codes[i] |= shuffle_xor(codes[i], 2) << 4;
      if (lane & 2) continue;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) put(2 + 8 * (lane % 4) + 2 * i, codes[i / 2] >> 16 * (i % 2));
  }
}

CARAT_D void encode_fp8(const float* x, uint8_t* row, int32_t n, int lane) {
  float amax = 0;
  bool all = true;
  for (int32_t i = lane; i < n; i += 32) amax = fmaxf(amax, fabsf(x[i])), all = all && finite(x[i]);
  all = warp_max(all ? 0u : 1u) == 0;
  amax = warp_top(amax);
  const uint32_t stored = all ? float_half(amax / 448) : kNanHalf;
  const float d = half_float(stored), inv = d > 0 && finite(1 / d) ? 1 / d : 0;
  for (int32_t i = lane; i < n; i += 32) row[i] = static_cast<uint8_t>(all ? float_e4m3(x[i] * inv) : 0);
  if (lane == 0) put_half(row + n, stored);
}

// Nibbles of blocks of 32: byte i holds i and i + 16.
CARAT_D void pack_nibbles(const uint8_t* code, uint8_t* p, int32_t n, int lane) {
  for (int32_t j = lane; j < n / 2; j += 32) {
    const uint8_t* c = code + j / 16 * 32 + j % 16;
    p[j] = static_cast<uint8_t>(c[0] | c[16] << 4);
  }
}
CARAT_D uint8_t third_bits(const uint8_t* c) {  // the third bit of eight codes
  uint32_t v = 0;
  for (int k = 0; k < 8; ++k) v |= (c[k] >> 2 & 1u) << k;
  return static_cast<uint8_t>(v);
}

CARAT_D void encode_grid(DType t, const float* x, uint8_t* code, uint8_t* row, int32_t n, float level,
                         int lane) {
  if (t == DType::tq3) return encode_tq3(MemoryHead{x, lane}, row, n, level, lane);
  if (t == DType::tq4) {
    const uint32_t d = onto_grid<16>(level, 38.16f, true, x, n, code, lane);
    sync_warp();
    pack_nibbles(code, row, n, lane);
    if (lane == 0) put_half(row + n / 2, d);
    sync_warp();
    return;
  }
  if (t == DType::tq3_0) {
    const int32_t group = n % 128 == 0 ? 128 : 64;
    for (int32_t g = 0; g < n; g += group) {
      const uint32_t d = onto_grid<8>(level, 0.08838834764831845f, true, x + g, group, code, lane);
      sync_warp();
      for (int32_t j = lane; j < group / 32 * 14; j += 32) {
        const int32_t b = j / 14, k = j % 14;
        const uint8_t* c = code + 32 * b;
        uint8_t v;
        if (k < 2)
          v = static_cast<uint8_t>(d >> 8 * k);
        else if (k < 10)
          v = static_cast<uint8_t>((c[4 * k - 8] & 3) | (c[4 * k - 7] & 3) << 2 | (c[4 * k - 6] & 3) << 4 |
                                   (c[4 * k - 5] & 3) << 6);
        else
          v = third_bits(c + 8 * (k - 10));
        row[(g / 32 + b) * 14 + k] = v;
      }
      sync_warp();
    }
    return;
  }
  const int bits = t == DType::tbq4 ? 4 : 3;
  for (int32_t g = 0; g < n; g += 256) {
    const int32_t m = n - g < 256 ? n - g : 256;
    const uint32_t d = bits == 4 ? onto_grid<16>(level, 1.0f, false, x + g, m, code, lane)
                                 : onto_grid<8>(level, 1.0f, false, x + g, m, code, lane);
    sync_warp();
    if (lane == 0) put_half(row, d);
    for (int32_t j = lane; j < m * bits / 8; j += 32) {
      uint32_t v = 0;
      for (int k = 0; k < 8; ++k) v |= (code[(8 * j + k) / bits] >> (8 * j + k) % bits & 1u) << k;
      row[2 + j] = static_cast<uint8_t>(v);
    }
    row += 2 + m * bits / 8;
    sync_warp();
  }
}

// `level`: level_of() this format. Loops stay loops: this code is not in the cache of instructions.
CARAT_D void kv_store(DType t, const float* x, uint8_t* code, uint8_t* row, int32_t n, float level,
                      int lane) {
  switch (t) {
    case DType::f32:
      for (int32_t i = lane; i < n; i += 32) reinterpret_cast<float*>(row)[i] = x[i];
      return;
    case DType::f16:
      for (int32_t i = lane; i < n; i += 32)
        reinterpret_cast<uint16_t*>(row)[i] = static_cast<uint16_t>(float_half(x[i]));
      return;
    case DType::bf16:
      for (int32_t i = lane; i < n; i += 32)
        reinterpret_cast<uint16_t*>(row)[i] = static_cast<uint16_t>(float_bf16(x[i]));
      return;
    case DType::q8_0: return encode_blocks<DType::q8_0>(x, n, row, nullptr, lane);
    case DType::kv4: return encode_blocks<DType::kv4>(x, n, row, nullptr, lane);
    case DType::fp8: return encode_fp8(x, row, n, lane);
    default: return encode_grid(t, x, code, row, n, level, lane);
  }
}

}  // namespace carat::cuda
