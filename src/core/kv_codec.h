// Formats of KV caches: how a head's vector of one token is stored, and in which domain.
//
// A format owns its rotation. What is stored is the rotated vector; queries are rotated by the format of K,
// and what attention returns is rotated back by the format of V (Zandieh et al., TurboQuant, arXiv
// 2504.19874; docs/numerics.md). decode_row and encode_row work in the stored domain.
//
//   fp8    e4m3 codes [d], f16 scale. One scale a row: a page's scale would have to change when a later
//          token is larger, so stored bytes would depend on neighbours
//   q8_0   blocks of 32: f16 scale, int8 codes; not rotated
//   kv4    rotated; blocks of 32 as q4_0: f16 scale (signed maximum / -8), nibbles i and i + 16
//   tq4    rotated; nibbles [d/2] in blocks of 32 as q4_0, f16 scale: Lloyd-Max grid, norm kept
//   tq3    rotated; low two bits [d/4] (64 values in 16 bytes: byte i holds i, i+16, i+32, i+48), high
//          bits [d/8] in order, f16 scale
//   tq3_0  "turbo3": rotation of 128 (64) with two sign vectors; blocks of 32: f16 norm, low two bits in
//          order, high bits in order
//   tbq3   groups of 256 (128, 64 in smaller heads): f16 norm, a stream of 3-bit codes
//   tbq4   groups of 256: f16 norm, nibbles in order
#pragma once
#include <cstdint>
#include <span>

#include "core/dtype.h"

namespace carat {

enum class KvRotation : uint8_t {
  none,
  head,     // H D / sqrt(n): one sign vector, then a Hadamard transform over the whole head
  group128  // D2 H D1 / sqrt(n) over groups of 128, in heads of 64 over 64
};
constexpr KvRotation rotation_of(DType t) {
  switch (t) {
    case DType::kv4:
    case DType::tq4:
    case DType::tq3:
    case DType::tbq4:
    case DType::tbq3: return KvRotation::head;
    case DType::tq3_0: return KvRotation::group128;
    default: return KvRotation::none;
  }
}
// One head's vector into the stored domain and back, in place. The transforms are orthogonal: products of two
// rotated vectors are those of the vectors.
void rotate(KvRotation r, float* x, int32_t dim);
void rotate_back(KvRotation r, float* x, int32_t dim);

// One copy of K = V (KvSpec::pairs). The elements of a key that its position rotates, and the two parts of a
// query: what meets the stored values ([dim], keys being values times gain) and what meets those elements
// ([2 * pairs]), each rotated as its format wants it.
void rotary_part(const float* key, int32_t dim, int32_t pairs, float* part);
void split_query(DType k, DType v, const float* gain, const float* q, int32_t dim, int32_t pairs,
                 float* by_value, float* by_key);

// What a KV cache may be stored as, most precise first; the first names are those of --cache-type-k.
std::span<const DType> kv_formats();
bool is_kv_format(DType t);

// A row of a cache format. Any values: what is not finite decodes to NaN.
void encode_kv(DType type, const float* x, std::byte* row, int64_t dim);
void decode_kv(DType type, const std::byte* row, float* y, int64_t dim);

float e4m3_to_f32(uint8_t b);
uint8_t f32_to_e4m3(float f);  // round to nearest even; beyond 448: 448
// A row of activations as products with weights of type w see it, which round it: y = d e4m3(x / d). fp8_a8:
// d = max |x| / 448; others, 32 columns at a time: d the smallest power of two with max |x| <= 448 d. Zeros
// where max |x| is below 2^-100, NaN where a number is not finite. y may be x.
void round_to_e4m3(DType w, const float* x, float* y, int64_t n);

// The grids of tq4 and tq3 in integers: Lloyd-Max values of a normal distribution to 0.05 % in error.
inline constexpr int8_t kTq4Grid[16] = {-104, -79, -62, -48, -36, -25, -15, -5,
                                        5,    15,  25,  36,  48,  62,  79,  104};
inline constexpr int8_t kTq3Grid[8] = {-88, -55, -31, -10, 10, 31, 55, 88};
// Published grids: tq3_0 for unit vectors of 128, tbq for unit variance.
inline constexpr float kTq30Grid[8] = {-.190685f, -.117832f, -.065717f, -.021460f,
                                       .021460f,  .065717f,  .117832f,  .190685f};
inline constexpr float kTbq3Grid[8] = {-2.1520f, -1.3440f, -.7560f, -.2451f,
                                       .2451f,   .7560f,   1.3440f, 2.1520f};
inline constexpr float kTbq4Grid[16] = {-2.7326f, -2.0690f, -1.6180f, -1.2562f, -.9424f, -.6568f,
                                        -.3881f,  -.1284f,  .1284f,   .3881f,   .6568f,  .9424f,
                                        1.2562f,  1.6180f,  2.0690f,  2.7326f};

}  // namespace carat
