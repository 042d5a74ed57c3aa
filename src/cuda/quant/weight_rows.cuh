// A row of a weight in either layout: what a lane knows of 256 columns of it.
#pragma once
#include "cuda/quant/codes.cuh"
#include "cuda/quant/lattices.cuh"
#include "cuda/quant/weights.cuh"

namespace carat::cuda {

template <DType T>
using Constant = std::integral_constant<DType, T>;

// As part(), from a tile of n columns.
CARAT_D Part packed_part(DType t, const uint8_t* tile, int row, int n, int lane) {
  const auto at = [&](int byte) { return tile + (byte / 16) * 512 + 16 * row + byte % 16; };
  const auto word = [](const uint8_t* p) { return u32_at(p); };
  const int h = lane & 3, group = lane >> 2;
  Part o;
  const auto look = [&](auto type) {  // codes of columns 8 h and on of the group
    const int shift = h >> 1 << 4;
    const auto four = [&](int k) { return u32_at(at(16 * group + 8 * (h & 1) + 4 * k)) >> shift; };
    o.low = look_codes<type.value>(four(0)).x, o.high = look_codes<type.value>(four(1)).x;
  };
  if (t == DType::q8_0) {
    o.d = half_at(at(n) + 2 * (lane >> 2));
    o.low = u32_at(at(8 * lane)), o.high = u32_at(at(8 * lane + 4));
  } else if (t == DType::q4_0) {
    o.d = half_at(at(n / 2) + 2 * (lane >> 2));
    nibbles(o, at(16 * (lane >> 2) + 8 * (h & 1)), 4 * (h >> 1), word);
    o.low = minus4(o.low, 0x08080808u), o.high = minus4(o.high, 0x08080808u);
  } else if (t == DType::q6_k) {
    const int half = lane >> 4, j = lane >> 2 & 3;
    o.d = half_at(tile + 13 * 512 + 2 * row);
    o.scale = static_cast<int8_t>(*at(192 + (lane >> 1)));
    nibbles(o, at(64 * half + 8 * h + 32 * (j & 1)), 4 * (j >> 1), word);
    const uint8_t* m = at(128 + 32 * half + 8 * h);
    o.low = minus4(o.low | (u32_at(m) >> 2 * j & 0x03030303u) << 4, 0x20202020u);
    o.high = minus4(o.high | (u32_at(m + 4) >> 2 * j & 0x03030303u) << 4, 0x20202020u);
  } else if (t == DType::q3_k) {
    const int half = lane >> 4, j = lane >> 2 & 3;
    o.d = half_at(tile + 7 * 512 + 2 * row);
    o.scale = static_cast<int8_t>(*at(96 + (lane >> 1)));
    const auto code = [&](int k) {
      return minus4((u32_at(at(32 * half + 8 * h + k)) >> 2 * j & 0x03030303u) |
                        (u32_at(at(64 + 8 * h + k)) >> group & 0x01010101u) << 2,
                    0x04040404u);
    };
    o.low = code(0), o.high = code(4);
  } else if (lattice(t)) {
    const auto of = [&](auto type) {
      const LatticeRow<type.value> words(tile, row);
      o.d = words.factor(), o.scale = lattice_scale<type.value>(words, lane >> 1);
      o.low = lattice_codes<type.value>(words, group, 2 * h);
      o.high = lattice_codes<type.value>(words, group, 2 * h + 1);
    };
    switch (t) {
      case DType::iq2_xxs: of(Constant<DType::iq2_xxs>()); break;
      case DType::iq2_xs: of(Constant<DType::iq2_xs>()); break;
      case DType::iq2_s: of(Constant<DType::iq2_s>()); break;
      case DType::iq3_xxs: of(Constant<DType::iq3_xxs>()); break;
      default: of(Constant<DType::iq3_s>());
    }
  } else if (t == DType::q2_k) {
    const int half = lane >> 4, j = lane >> 2 & 3, both = *at(64 + (lane >> 1));
    const uint8_t* d = tile + 5 * 512 + 4 * row;
    o.d = half_at(d), o.m = half_at(d + 2);
    o.scale = both & 15, o.min = both >> 4;
    o.low = u32_at(at(32 * half + 8 * h)) >> 2 * j & 0x03030303u;
    o.high = u32_at(at(32 * half + 8 * h + 4)) >> 2 * j & 0x03030303u;
  } else if (group_mins(t)) {
    const int scales = 16 * (packed_units(t, n) - 2) + 2 * group;
    o.d = half_at(at(scales)), o.m = half_at(at(scales + 16));
    nibbles(o, at(16 * group + 8 * (h & 1)), 4 * (h >> 1), word);
    if (t == DType::q5_1) {  // bits 4 (h / 2) + j of bytes b: columns 16 (h / 2) + 4 j + b
      const uint32_t bits = u32_at(at(n / 2 + 4 * group)) >> (4 * (h >> 1) + 2 * (h & 1));
      o.low |= (bits & 0x01010101u) << 4, o.high |= (bits >> 1 & 0x01010101u) << 4;
    }
  } else if (t == DType::iq4_nl) {
    o.d = half_at(at(n / 2) + 2 * group);
    look(Constant<DType::iq4_nl>());
  } else if (t == DType::mxfp4) {
    o.d = 0.5f * e8m0_float(tile[n * 16 + 8 * row + group]);
    look(Constant<DType::mxfp4>());
  } else if (t == DType::nvfp4) {
    o.d = half_ue4m3(at(n / 2)[lane >> 1]);
    look(Constant<DType::nvfp4>());
  } else if (t == DType::iq4_xs) {
    const uint8_t* head = tile + 8 * 512 + 8 * row;
    o.d = half_at(head);
    o.scale =
        static_cast<int8_t>(signed_scales(u32_at(head + 4), u16_at(head + 2), group / 4) >> 8 * (group % 4));
    look(Constant<DType::iq4_xs>());
  } else {  // q4_k, q5_k
    const int codes = t == DType::q4_k ? 16 : 48, bit = lane >> 2;
    const uint8_t* head = at(0);
    o.d = half_at(head), o.m = half_at(head + 2);
    k_scales(head + 4, bit, o);
    nibbles(o, at(codes + 32 * (lane >> 3) + 8 * h), lane & 4, word);
    if (t == DType::q5_k) {
      const uint8_t* m = at(16 + 8 * h);
      o.low |= (u32_at(m) >> bit & 0x01010101u) << 4, o.high |= (u32_at(m + 4) >> bit & 0x01010101u) << 4;
    }
  }
  return o;
}

// A row of a weight, in either layout.
struct WeightRow {
  const uint8_t* p;  // the row; packed: its group
  int32_t row;       // -1, or which of the group
};
CARAT_HD WeightRow weight_row(const Tensor& w, int32_t slice, int32_t n) {
  const auto* p = reinterpret_cast<const uint8_t*>(w.data) + slice * w.slice_pitch;
  if (w.packing == kPacked) return {p + n / kGroup * kGroup * w.pitch, n % kGroup};
  return {p + n * w.pitch, -1};
}
// Columns [256 b, 256 b + n) of it.
template <class D>
CARAT_D Part part_of(const D& format, const WeightRow& w, int32_t b, int n, int lane, const Tables& tables) {
  if (w.row < 0) return format(w.p + int64_t{b} * format.bytes(), lane, tables);
  return packed_part(format.type(), w.p + int64_t{b} * packed_tile(format.type(), 256), w.row, n, lane);
}

}  // namespace carat::cuda
