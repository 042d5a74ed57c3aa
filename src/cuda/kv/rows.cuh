// Rows of the cache formats (core/kv_codec.h), eight elements at a time, and their rotations; written by
// kv/store.cuh.
#pragma once
#include "core/kv_codec.h"
#include "cuda/device/divider.cuh"
#include "cuda/device/step.h"
#include "cuda/quant/bits.cuh"
#include "cuda/quant/tables.h"

namespace carat::cuda {

struct DevKv {  // a KvView with what kernels would else look up
  uint8_t *k, *v;
  int64_t k_page_bytes, v_page_bytes, k_row, v_row;
  int32_t page_tokens, ring_tokens, heads, dim, window;
  DType k_type, v_type;
  Divider page, ring;  // by page_tokens, by ring_tokens (whole pages; 1 if there is no ring)

  CARAT_HD int32_t in_page(int32_t slot) const { return page.rest(slot); }  // a ring is whole pages
  CARAT_HD int32_t in_ring(int32_t slot) const { return ring_tokens ? ring.rest(slot) : slot; }
  CARAT_HD const int32_t* pages_of(const SeqView& s) const { return ring_tokens ? s.ring : s.pages; }
};
inline DevKv dev_kv(const KvView& v) {
  return {reinterpret_cast<uint8_t*>(v.k),
          reinterpret_cast<uint8_t*>(v.v),
          v.k_page_bytes,
          v.v_page_bytes,
          v.spec.k_bytes(),
          v.spec.v_bytes(),
          v.page_tokens,
          v.ring_tokens,
          v.spec.heads,
          v.spec.dim,
          v.spec.window,
          v.spec.k,
          v.spec.v,
          Divider(v.page_tokens),
          v.ring_tokens ? Divider(v.ring_tokens) : Divider()};
}

CARAT_HD int64_t page_of(const DevKv& v, const SeqView& s, int32_t slot) {
  const int32_t nth = v.page.quotient(v.in_ring(slot));
  return v.pages_of(s)[nth];
}
CARAT_HD uint8_t* k_row(const DevKv& v, const SeqView& s, int32_t slot, int32_t head) {
  return v.k + page_of(v, s, slot) * v.k_page_bytes +
         (int64_t{head} * v.page_tokens + v.in_page(slot)) * v.k_row;
}
CARAT_HD uint8_t* v_row(const DevKv& v, const SeqView& s, int32_t slot, int32_t head) {
  return v.v + page_of(v, s, slot) * v.v_page_bytes +
         (int64_t{head} * v.page_tokens + v.in_page(slot)) * v.v_row;
}

// What only some caches have: single copies of K = V, and second copies of protected rows.
struct DevCopies {
  const float* gain;
  int32_t pairs, key_dim;  // key_dim: elements of a stored key
  KvProtect protect;
  uint8_t *k_edge, *v_edge;
  int32_t edge_ring;

  CARAT_HD bool any() const { return pairs || protect.any(); }
};
inline DevCopies dev_copies(const KvView& v) {
  return {v.gain,
          v.spec.pairs,
          v.spec.key_dim(),
          v.spec.protect,
          reinterpret_cast<uint8_t*>(v.k_edge),
          reinterpret_cast<uint8_t*>(v.v_edge),
          v.edge_ring};
}
CARAT_HD int64_t edge_row(const DevKv& v, const DevCopies& c, const SeqView& s, int32_t slot, int32_t head) {
  const int32_t sinks = c.protect.sinks, at = slot < sinks ? slot : sinks + (slot - sinks) % c.edge_ring;
  return (int64_t{s.slot} * (sinks + c.edge_ring) + at) * v.heads + head;
}
CARAT_HD uint8_t* k_edge_row(const DevKv& v, const DevCopies& c, const SeqView& s, int32_t slot,
                             int32_t head) {
  return c.k_edge + edge_row(v, c, s, slot, head) * (2 * c.key_dim);
}
CARAT_HD uint8_t* v_edge_row(const DevKv& v, const DevCopies& c, const SeqView& s, int32_t slot,
                             int32_t head) {
  return c.v_edge + edge_row(v, c, s, slot, head) * (2 * v.dim);
}

CARAT_HD float e4m3_float(uint32_t b) {
  if ((b & 0x7f) == 0x7f) return as_float(0x7fc00000u);
  const float f = as_float((b & 0x7f) << 20) * 1.329227995784916e36f;  // 2^120
  return as_float((b >> 7 << 31) | as_bits(f));
}

// The two formats of a cache: known to the compiler, or looked up.
template <DType K, DType V>
struct KvKinds {
  static constexpr DType k(const DevKv&) { return K; }
  static constexpr DType v(const DevKv&) { return V; }
  static constexpr bool kHalves = K == DType::f16 && V == DType::f16;
};
struct AnyKvKinds {
  CARAT_HD static DType k(const DevKv& kv) { return kv.k_type; }
  CARAT_HD static DType v(const DevKv& kv) { return kv.v_type; }
  static constexpr bool kHalves = false;
};

// Elements 8 i .. 8 i + 7 of a row of dim as they are stored, any format but f32. Rows stand at even
// addresses.
struct Packed8 {
  uint32_t w[4];  // halves; else a scale, with a third bit of each code above it, and codes
};
CARAT_HD Packed8 kv_fetch8(DType t, const uint8_t* row, int32_t dim, int32_t i) {
  const auto coded = [](const uint8_t* scale, const uint8_t* codes) {
    return Packed8{{u16_at(scale), u32_at_even(codes), u32_at_even(codes + 4), 0}};
  };
  switch (t) {
    case DType::f16:
    case DType::bf16: {
      const uint4 four = *reinterpret_cast<const uint4*>(row + 16 * i);  // dim is a multiple of 8
      return {{four.x, four.y, four.z, four.w}};
    }
    case DType::q8_0: return coded(row + i / 4 * 34, row + i / 4 * 34 + 2 + i % 4 * 8);
    case DType::fp8: return coded(row + dim, row + 8 * i);
    case DType::kv4: return coded(row + i / 4 * 18, row + i / 4 * 18 + 2 + i % 2 * 8);
    case DType::tq4: return coded(row + dim / 2, row + i / 4 * 16 + i % 2 * 8);
    case DType::tq3: {  // byte j of a group of 64 holds j, j + 16, j + 32, j + 48
      Packed8 p = coded(row + dim / 4 + dim / 8, row + i / 8 * 16 + i % 2 * 8);
      p.w[0] |= uint32_t{row[dim / 4 + i]} << 16;
      return p;
    }
    case DType::tq3_0: {
      const uint8_t* b = row + i / 4 * 14;
      return {{u16_at(b) | uint32_t{b[10 + i % 4]} << 16, u16_at(b + 2 + i % 4 * 2), 0, 0}};
    }
    case DType::tbq4:
    case DType::tbq3: {
      const int bits = t == DType::tbq4 ? 4 : 3, g = 8 * i / 256;
      const uint8_t* b = row + g * (2 + 32 * bits);
      Packed8 p{{u16_at(b), 0, 0, 0}};
      b += 2 + (i - 32 * g) * bits;  // eight codes are `bits` bytes
      for (int k = 0; k < bits; ++k) p.w[1] |= uint32_t{b[k]} << 8 * k;
      return p;
    }
    default: return {{0, 0, 0, 0}};
  }
}
CARAT_HD void kv_decode8(DType t, const Packed8& p, int32_t dim, int32_t i, const Tables& tables,
                         float (&y)[8]) {
  const float d = half_float(p.w[0] & 0xffff);
  const uint32_t third = p.w[0] >> 16;
  const auto byte = [&](int k, int shift) { return p.w[1 + k / 4] >> (8 * (k % 4) + shift); };
  switch (t) {
    case DType::f16:
    case DType::bf16:
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const uint32_t h = p.w[k / 2] >> 16 * (k % 2) & 0xffff;
        y[k] = t == DType::f16 ? half_float(h) : bf16_float(h);
      }
      return;
    case DType::q8_0:
#pragma unroll
      for (int k = 0; k < 8; ++k) y[k] = d * static_cast<float>(static_cast<int8_t>(byte(k, 0)));
      return;
    case DType::fp8:
#pragma unroll
      for (int k = 0; k < 8; ++k) y[k] = d * e4m3_float(byte(k, 0) & 255);
      return;
    case DType::kv4:
#pragma unroll
      for (int k = 0; k < 8; ++k)
        y[k] = d * static_cast<float>(static_cast<int32_t>(byte(k, 4 * (i % 4 / 2)) & 15) - 8);
      return;
    case DType::tq4:
#pragma unroll
      for (int k = 0; k < 8; ++k) y[k] = d * static_cast<float>(tables.tq4[byte(k, 4 * (i % 4 / 2)) & 15]);
      return;
    case DType::tq3:
#pragma unroll
      for (int k = 0; k < 8; ++k)
        y[k] = d * static_cast<float>(tables.tq3[(byte(k, 2 * (i % 8 / 2)) & 3) | (third >> k & 1) << 2]);
      return;
    case DType::tq3_0:
#pragma unroll
      for (int k = 0; k < 8; ++k) y[k] = d * tables.tq3_0[(p.w[1] >> 2 * k & 3) | (third >> k & 1) << 2];
      return;
    case DType::tbq4:
    case DType::tbq3: {
      const int32_t left = dim - 8 * i / 256 * 256, m = left < 256 ? left : 256;
      const float unit = d / sqrtf(static_cast<float>(m));
#pragma unroll
      for (int k = 0; k < 8; ++k)
        y[k] =
            unit * (t == DType::tbq4 ? tables.tbq4[p.w[1] >> 4 * k & 15] : tables.tbq3[p.w[1] >> 3 * k & 7]);
      return;
    }
    default:
      for (int k = 0; k < 8; ++k) y[k] = as_float(0x7fc00000u);
  }
}
// The same rounded to halves, in few instructions where values are small integers times a half: the product
// of the two is rounded once, too.
CARAT_D uint4 kv_halves8(DType t, const Packed8& p, int32_t dim, int32_t i, const Tables& tables) {
  // Four bytes, each a value plus `bias` - 1024, a half.
  const uint32_t d = permute_bytes(p.w[0], 0, 0x1010);
  const auto scaled = [&](uint32_t x, uint32_t y, uint32_t bias) {
    const auto two = [&](uint32_t v, uint32_t which) {
      return mul_halves(sub_halves(permute_bytes(v, 0x64646464u, which), bias), d);
    };
    return uint4{two(x, 0x4140), two(x, 0x4342), two(y, 0x4140), two(y, 0x4342)};
  };
  const auto nibbles = [](uint32_t bytes) {  // four bytes below 16 to what permute_bytes wants
    return permute_bytes(bytes | bytes >> 4, 0, 0x4420);
  };
  const auto words = [](const int8_t* table, int k) {
    return u32_at(reinterpret_cast<const uint8_t*>(table) + 4 * k);
  };
  constexpr uint32_t kSigned = 0x64806480u, kFlip = 0x80808080u;
  switch (t) {
    case DType::f16: return uint4{p.w[0], p.w[1], p.w[2], p.w[3]};
    case DType::q8_0: return scaled(p.w[1] ^ kFlip, p.w[2] ^ kFlip, kSigned);
    case DType::kv4: {
      const int shift = 4 * (i % 4 / 2);
      return scaled(p.w[1] >> shift & 0x0f0f0f0fu, p.w[2] >> shift & 0x0f0f0f0fu, 0x64086408u);
    }
    case DType::tq4: {
      const int shift = 4 * (i % 4 / 2);
      uint32_t v[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint32_t code = p.w[1 + k] >> shift & 0x0f0f0f0fu, which = nibbles(code & 0x07070707u),
                       upper = (code >> 3 & 0x01010101u) * 255;
        v[k] = (permute_bytes(words(tables.tq4, 0), words(tables.tq4, 1), which) & ~upper) |
               (permute_bytes(words(tables.tq4, 2), words(tables.tq4, 3), which) & upper);
      }
      return scaled(v[0] ^ kFlip, v[1] ^ kFlip, kSigned);
    }
    case DType::tq3: {
      const int shift = 2 * (i % 8 / 2);
      uint32_t v[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint32_t code = (p.w[1 + k] >> shift & 0x03030303u) | spread4(p.w[0] >> (16 + 4 * k) & 15) << 2;
        v[k] = permute_bytes(words(tables.tq3, 0), words(tables.tq3, 1), nibbles(code));
      }
      return scaled(v[0] ^ kFlip, v[1] ^ kFlip, kSigned);
    }
    default: {
      float x[8];
      kv_decode8(t, p, dim, i, tables, x);
      return uint4{pack_halves(x[0], x[1]), pack_halves(x[2], x[3]), pack_halves(x[4], x[5]),
                   pack_halves(x[6], x[7])};
    }
  }
}
CARAT_HD void kv_load8(DType t, const uint8_t* row, int32_t dim, int32_t i, const Tables& tables,
                       float (&y)[8]) {
  if (t == DType::f32)
    for (int k = 0; k < 8; ++k) y[k] = reinterpret_cast<const float*>(row)[8 * i + k];
  else
    kv_decode8(t, kv_fetch8(t, row, dim, i), dim, i, tables, y);
}
// The same of a row whose size is no multiple of 8, which only formats without blocks have: zeros behind its
// end.
CARAT_HD void kv_load_end(DType t, const uint8_t* row, int32_t dim, int32_t i, float (&y)[8]) {
  for (int k = 0; k < 8; ++k) {
    const int32_t e = 8 * i + k;
    y[k] = e >= dim           ? 0
           : t == DType::f32  ? reinterpret_cast<const float*>(row)[e]
           : t == DType::f16  ? half_float(u16_at(row + 2 * e))
           : t == DType::bf16 ? bf16_float(u16_at(row + 2 * e))
                              : half_float(u16_at(row + dim)) * e4m3_float(row[e]);
  }
}
CARAT_HD uint32_t float_half(float f) {  // as f32_to_f16
  const uint32_t v = as_bits(f), magnitude = v & 0x7fffffffu, sign = v >> 16 & 0x8000;
  if (magnitude > 0x7f800000u) return sign | 0x7e00 | (magnitude >> 13 & 0x3ff);
  if (magnitude >= 0x47800000u) return sign | 0x7c00;
  if (magnitude < 0x38800000u) return sign | (as_bits(as_float(magnitude) + 0.5f) - 0x3f000000u);
  return sign | (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000u) >> 13;
}
CARAT_HD uint32_t float_bf16(float f) {
  const uint32_t v = as_bits(f);
  if ((v & 0x7fffffffu) > 0x7f800000u) return v >> 16 | 0x40;
  return (v + 0x7fff + (v >> 16 & 1)) >> 16;
}
CARAT_HD uint32_t float_e4m3(float f) {
  const uint32_t sign = as_bits(f) >> 24 & 0x80;
  const float a = fabsf(f);
  if (!(a < 464)) return sign | (a != a ? 0x7f : 0x7e);
  if (a < 0.015625f) return sign | (as_bits(a + 16384.0f) - as_bits(16384.0f));
  const uint32_t m = as_bits(a);
  return sign | (m + 0x7ffff + (m >> 20 & 1) - (120u << 23)) >> 20;
}

// ---- rotations
// -------------------------------------------------------------------------------------------------

CARAT_HD int32_t rotation_group(KvRotation r, int32_t dim) {
  if (r == KvRotation::group128) return dim % 128 == 0 ? 128 : 64;
  const int32_t two = dim & -dim;
  return two < 512 ? two : 512;
}

// As rotate() and rotate_back() of core/kv_codec.h, a head of up to 32 EACH elements in a warp: element
// lane + 32 k is v[k]. What the rotation needs is known before the head is.
template <int EACH>
struct Rotation {
  int32_t n = 0;                   // elements at a time, a power of two; 0: none
  uint32_t before = 0, after = 0;  // bit k: v[k] changes its sign

  CARAT_D Rotation(KvRotation r, bool back, int32_t dim, const Tables& tables, int lane) {
    if (r == KvRotation::none) return;
    n = rotation_group(r, dim);
    const bool head = r == KvRotation::head;
    const float *first = head   ? tables.sign
                         : back ? tables.sign2
                                : tables.sign1,
                *last = head   ? tables.sign
                        : back ? tables.sign1
                               : tables.sign2;
    float f[EACH], l[EACH];
#pragma unroll
    for (int k = 0; k < EACH; ++k)
      f[k] = first[(lane + 32 * k) & (n - 1)], l[k] = last[(lane + 32 * k) & (n - 1)];
#pragma unroll
    for (int k = 0; k < EACH; ++k) before |= uint32_t{f[k] < 0} << k, after |= uint32_t{l[k] < 0} << k;
    if (head) (back ? before : after) = 0;
  }
  // 1 / sqrt(n) without a division behind the head's last sum.
  CARAT_D float scale() const {
    const int bits = log2_of(n);
    const float s = as_float(static_cast<uint32_t>(127 - bits / 2) << 23);
    return bits % 2 ? s * (1 / sqrtf(2.0f)) : s;
  }
  CARAT_D static float signed_by(float v, uint32_t signs, int k) {
    return as_float(as_bits(v) ^ (signs << (31 - k) & 0x80000000u));
  }
  CARAT_D void turn(float (&v)[EACH], int lane) const {
    if (n == 0) return;
#pragma unroll
    for (int k = 0; k < EACH; ++k) v[k] = signed_by(v[k], before, k);
#pragma unroll 1
    for (int h = 1; h < 32; h *= 2)
#pragma unroll
      for (int k = 0; k < EACH; ++k) {
        const float other = shuffle_xor(v[k], h);
        v[k] = lane & h ? other - v[k] : v[k] + other;
      }
#pragma unroll
    for (int d = 1; d < EACH; d *= 2) {
      if (32 * d >= n) break;
#pragma unroll
      for (int k = 0; k < EACH; ++k) {
        if (k & d) continue;
        const float a = v[k], b = v[k + d];
        v[k] = a + b, v[k + d] = a - b;
      }
    }
    const float s = scale();
#pragma unroll
    for (int k = 0; k < EACH; ++k) v[k] = signed_by(v[k] * s, after, k);
  }
};

constexpr KvRotation device_rotation(DType t) { return rotation_of(t); }

}  // namespace carat::cuda
