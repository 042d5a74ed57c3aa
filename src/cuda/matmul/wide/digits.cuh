// Codes times their groups' scales as bytes, in registers: what warpgroups multiply (wide/block.cuh).
#pragma once
#include "cuda/matmul/lane_block.cuh"
#include "cuda/quant/packed_frags.cuh"

namespace carat::cuda {

// A warp's 16 outputs of a block of 256 columns. A code times its scale is 256 high + low, the upper digit
// signed, the lower not; of q2_k (0 .. 45) and q3_k it is one signed byte.
template <DType T>
struct Digits {
  using F = Frags<T>;
  using S = RowScales<T>;
  static constexpr int kDigits = T == DType::q2_k || T == DType::q3_k ? 1 : 2;
  static constexpr int kRawSteps = kDigits == 1 ? 2 : 1;  // whose codes are in the same bytes
  // The digits' value is so many times the weight's. q3_k's -124 .. 128 fit a signed byte only times -1:
  // where S is 0, t is -0, and the row's sum, which begins with 0, is the same.
  static constexpr float kTimes = T == DType::q4_k ? 16.0f : T == DType::q3_k ? -1.0f : 1.0f;
  static constexpr bool kLooked = T == DType::iq4_xs || lattice(T);  // codes come signed, out of a table
  // Codes are so much too large (kLooked: with their sign bits turned over), so that none is below 0.
  static constexpr uint32_t kOver = T == DType::q3_k ? 4 : T == DType::q6_k ? 32 : kLooked ? 128 : 0;
  // Of rows g and g + 8, a byte a scale. Those of q6_k stay in shared memory.
  uint32_t scales[2][kDigits == 1 ? 4 : 2];
  const uint8_t* units[2];

  CARAT_D void start(const uint8_t* tile, int row, int lane) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      units[k] = tile + S::at(256) + S::kBytes * (row + 8 * k + lane / 4);
      if constexpr (kDigits == 1) {
        const auto w = *reinterpret_cast<const uint4*>(units[k]);
        const uint32_t mask = T == DType::q2_k ? 0x0f0f0f0fu : 0xffffffffu;
        scales[k][0] = w.x & mask, scales[k][1] = w.y & mask, scales[k][2] = w.z & mask,
        scales[k][3] = w.w & mask;
      } else if constexpr (F::kScaled) {
        const uint2 w = S::scales(units[k]);
        scales[k][0] = w.x, scales[k][1] = w.y;
      }
    }
  }
  // Of group(step, e) as a of wide_mma, the lower digit first.
  CARAT_D void make(const typename F::Raw& r, int step, int e, uint32_t (&digits)[kDigits][4]) const {
    if constexpr (kDigits == 1)
      make_one(r, step, e, digits[0]);
    else
      make_two(r, step, e, digits[0], digits[1]);
  }
  // Factors of rows g and g + 8, and minimums as a of wide_mma_f16.
  CARAT_D void finish(const uint8_t* tile, int row, int lane, float (&of)[2], float (&least)[2],
                      uint32_t (&mins)[4]) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint8_t* d = units[k];
      if constexpr (F::kPlanes)
        d = tile + 512 * packed_units(T, 256) + packed_tail(T) * (row + 8 * k + lane / 4);
      if constexpr (lattice(T)) {
        of[k] = LatticeRow<T>(tile, row + 8 * k + lane / 4).factor();
      } else if constexpr (F::kMins) {
        const uint32_t w = u32_at(d);
        of[k] = half_float(w & 0xffffu) * (1 / kTimes), least[k] = -half_float(w >> 16);
#pragma unroll
        for (int e = 0; e < 2; ++e) mins[k + 2 * e] = S::min_halves(units[k], e, lane % 4);
      } else {
        of[k] = half_at(d) * (1 / kTimes);
      }
    }
  }

 private:
  // Of a's word i in group(step, e).
  CARAT_D int32_t scale(int i, int step, int e) const {
    const int group = F::group(step, e), at = F::kSixteen ? 2 * group + i / 2 : group;
    if constexpr (T == DType::q6_k) return S::scale16(units[i % 2], at);
    const uint32_t w = scales[i % 2][at / 4];
    return kOver > 0 ? byte_of(w, at % 4) : static_cast<int32_t>(w >> 8 * (at % 4) & 255);
  }
  // Four bytes at once: none of their products, made positive where they can be below 0, reaches the next.
  CARAT_D void make_one(const typename F::Raw& r, int step, int e, uint32_t (&digit)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t c = r.v[0][i] >> 2 * (step % 2 + 2 * e) & 0x03030303u;
      if constexpr (T == DType::q3_k) c |= (r.high[i] >> F::group(step, e) & 0x01010101u) << 2;
      const auto factor = static_cast<uint32_t>(scale(i, step, e));
      if constexpr (T == DType::q3_k)
        digit[i] = ((0x80u + kOver * factor) * 0x01010101u - c * factor) ^ 0x80808080u;
      else
        digit[i] = c * factor;
    }
  }
  // Even columns and odd ones, two halves of a word at once.
  CARAT_D void make_two(const typename F::Raw& r, int step, int e, uint32_t (&low)[4],
                        uint32_t (&high)[4]) const {
    uint32_t factor[4], plus[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (T == DType::q4_k) {  // codes of e = 1 stay sixteen times as large: others' scales, too
        const int group = F::group(step, e), shift = 8 * (group % 4) - (e == 0 ? 4 : 0);
        const uint32_t w = scales[i % 2][group / 4];
        factor[i] = e == 0 ? (shift < 0 ? w << 4 : w >> shift) & 0xff0 : w >> shift & 255;
      } else if constexpr (lattice(T)) {
        const int sixteen = 2 * F::group(step, e) + (F::kSixteen ? i / 2 : 0);
        factor[i] =
            static_cast<uint32_t>(lattice_scale<T>(LatticeRow<T>(r.tile, r.row + i % 2 * 8), sixteen));
      } else {
        factor[i] = static_cast<uint32_t>(scale(i, step, e));
      }
      plus[i] = kOver > 0 ? (0x8000u - kOver * factor[i]) * 0x10001u : 0;  // both halves stay above 0
    }
    uint32_t codes[4];
    if constexpr (kLooked) F::codes(r, step, e, codes);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t even, odd;
      if constexpr (T == DType::q4_k) {
        const uint32_t mask = e == 0 ? 0x000f000fu : 0x00f000f0u;
        even = r.v[0][i] & mask, odd = r.v[0][i] >> 8 & mask;
      } else {
        uint32_t c = kLooked ? codes[i] ^ 0x80808080u : r.v[0][i] >> 4 * e & 0x0f0f0f0fu;
        if constexpr (T == DType::q6_k) c |= (r.high[i] >> 2 * (step % 2 + 2 * e) & 0x03030303u) << 4;
        if constexpr (T == DType::q5_k) c |= (r.high[i] >> (2 * step + e) & 0x01010101u) << 4;
        even = c & 0x00ff00ffu, odd = c >> 8 & 0x00ff00ffu;
      }
      even = even * factor[i] + plus[i], odd = odd * factor[i] + plus[i];
      low[i] = permute_bytes(even, odd, 0x6240), high[i] = permute_bytes(even, odd, 0x7351);
      if constexpr (kOver > 0) high[i] ^= 0x80808080u;
    }
  }
};

}  // namespace carat::cuda
