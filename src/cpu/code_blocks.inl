// A block of a strip unpacked to bytes, once for all rows of a task (codes.inl, mmla.inl).

constexpr int kCodeRows = 5;  // up to 4, one pass that unpacks in registers is as fast

struct alignas(64) CodeBlock {
  uint8_t code[64][64];    // [columns 4 j .. 4 j + 3][output]
  uint32_t scale[16][16];  // [group][output], as scale_operand() has it
  float group_d[16][16];   // where groups have a float
  float d[16], dmin[16];
  uint32_t min[4][16];   // pairs, as in KHead
  float group_m[8][16];  // added, where groups have that
};

constexpr bool codes_with_mins(DType t) { return t == DType::q4_k || t == DType::q5_k; }
constexpr bool codes_scaled(DType t) { return codes_with_mins(t) || t == DType::q6_k; }
constexpr bool codes_known(DType t) {
  return codes_scaled(t) || t == DType::q4_0 || t == DType::q5_0 || table_e2m1(t);
}
constexpr bool groups_with_mins(DType t) { return t == DType::q4_1 || t == DType::q5_1; }
// Lines of a sum: q5_k's 32 columns would not fit into 16 bits.
constexpr int code_lines(DType t) {
  return t == DType::q5_k || t == DType::q6_k || t == DType::nvfp4 ? 4 : 8;
}
// What codes are too large by, log2; -1: nothing.
constexpr int code_centre(DType t) {
  if (t == DType::q6_k) return 5;
  if (t == DType::q4_0) return 3;
  return t == DType::q5_0 || table_e2m1(t) ? 4 : -1;
}

template <bool Five>
CARAT_SIMD void put_k45(const uint8_t* w, CodeBlock& c, int first) {
  const VI m4 = bytes_v(15), bit4 = bytes_v(16);
  const KHead k = k_head(w);
  storef(c.d + first, k.d), storef(c.dmin + first, k.dmin);
  for (int p = 0; p < 4; ++p) storei(c.min[p] + first, k.min[p]);
  for (int g = 0; g < 8; ++g) {
    const VI s = scale_operand(byte_of(k.scale[g / 4], g % 4));
    if constexpr (Five)
      storei(c.scale[2 * g] + first, s), storei(c.scale[2 * g + 1] + first, s);
    else
      storei(c.scale[g] + first, s);
  }
#pragma GCC unroll 1
  for (int t = 0; t < 4; ++t)
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const VI v = line(w + ((Five ? 12 : 4) + 8 * t + j) * 64);
      VI l = andi(v, m4), u = andi(srli16<4>(v), m4);
      if constexpr (Five) {
        const VI q = srl(loadi(w + (4 + j) * 64), 2 * t);
        l = ori(l, andi(slli<4>(q), bit4)), u = ori(u, andi(slli<3>(q), bit4));
      }
      storei(c.code[16 * t + j] + 4 * first, l), storei(c.code[16 * t + 8 + j] + 4 * first, u);
    }
}

CARAT_SIMD void put_k6(const uint8_t* w, const uint8_t* head, CodeBlock& c, int first) {
  const VI m4 = bytes_v(15), m30 = bytes_v(0x30);
  storef(c.d + first, load_f16(head));
#pragma GCC unroll 1
  for (int t = 0; t < 4; ++t) {
    const uint8_t* p = w + t * kQuarter6;
    const VI s = line(p + 12 * 64);
    storei(c.scale[4 * t] + first, scale_operand(srai<24>(slli<24>(s))));
    storei(c.scale[4 * t + 1] + first, scale_operand(srai<24>(slli<16>(s))));
    storei(c.scale[4 * t + 2] + first, scale_operand(srai<24>(slli<8>(s))));
    storei(c.scale[4 * t + 3] + first, scale_operand(srai<24>(s)));
    uint8_t(*code)[64] = c.code + 32 * (t / 2) + 4 * (t % 2);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const VI h = line(p + (8 + i) * 64), v = line(p + i * 64), v1 = line(p + (4 + i) * 64);
      storei(code[i] + 4 * first, ori(andi(v, m4), andi(slli16<4>(h), m30)));
      storei(code[16 + i] + 4 * first, ori(andi(srli16<4>(v), m4), andi(h, m30)));
      storei(code[8 + i] + 4 * first, ori(andi(v1, m4), andi(slli16<2>(h), m30)));
      storei(code[24 + i] + 4 * first, ori(andi(srli16<4>(v1), m4), andi(srli16<2>(h), m30)));
    }
  }
}

// A group of 32 of formats with a float a group.
template <DType T>
CARAT_SIMD void put_group(const uint8_t* w, const uint8_t* head, CodeBlock& c, int group, int first) {
  constexpr bool five = T == DType::q5_0 || T == DType::q5_1, mins = groups_with_mins(T);
  const VI m4 = bytes_v(15), table = code_table<T>(), h = five ? line(w + mins * 64) : m4;
  uint8_t(*code)[64] = c.code + 8 * group;
  const auto put = [&](auto j) __attribute__((always_inline)) {
    if constexpr (T == DType::q8_0) {
      storei(code[j] + 4 * first, line(w + j * 64));
      storei(code[4 + j] + 4 * first, line(w + (4 + j) * 64));
      return;
    }
    const VI v = line(w + (mins + five + j) * 64);
    VI l = andi(v, m4), u = andi(srli16<4>(v), m4);
    if constexpr (five) l = ori(l, bit_to_4<j>(h)), u = ori(u, bit_to_4<4 + j>(h));
    if constexpr (table_e2m1(T) || table_iq4(T)) l = lookup(table, l), u = lookup(table, u);
    storei(code[j] + 4 * first, l), storei(code[4 + j] + 4 * first, u);
  };
  put(std::integral_constant<int, 0>());
  put(std::integral_constant<int, 1>());
  put(std::integral_constant<int, 2>());
  put(std::integral_constant<int, 3>());
  if constexpr (mins) {
    const VI dm = line(w);
    storef(c.group_d[group] + first, half_of(dm)), storef(c.group_m[group] + first, half_of(srli<16>(dm)));
  } else {
    storef(c.group_d[group] + first, T == DType::mxfp4 ? half_e8m0(load_bytes(head)) : load_f16(head));
  }
}
// 64 columns of nvfp4, from group `group` on.
CARAT_SIMD void put_nvfp4(const uint8_t* w, CodeBlock& c, int group, int first) {
  const VI m4 = bytes_v(15), table = code_table<DType::nvfp4>(), scales = line(w);
#pragma GCC unroll 4
  for (int s = 0; s < 4; ++s) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const VI v = line(w + (1 + 2 * s + j) * 64);
      uint8_t(*code)[64] = c.code + 4 * (group + s) + j;
      storei(code[0] + 4 * first, lookup(table, andi(v, m4)));
      storei(code[2] + 4 * first, lookup(table, andi(srli16<4>(v), m4)));
    }
    storef(c.group_d[group + s] + first, half_e4m3(byte_of(scales, s)));
  }
}

// Block b of a strip; returns how many sums a row has.
template <DType T>
static __attribute__((noinline)) int put_codes(const uint8_t* strip, int64_t cols, int64_t b, CodeBlock& c) {
  constexpr int elems = info(T).elems, bytes = pack_shape(T).lines * 64;
  const int64_t block = b * 256 / elems, left = cols / elems - block;
  const int n = static_cast<int>(left < 256 / elems ? left : 256 / elems);
  const uint8_t* w = strip + head_bytes(T, cols) + block * bytes;
  for (int h = 0; h < 16; h += W) {
    const uint8_t *p = w + 4 * h, *head = strip + (block * 16 + h) * (pack_shape(T).head / 16);
    if constexpr (codes_with_mins(T))
      put_k45<T == DType::q5_k>(p, c, h);
    else if constexpr (T == DType::q6_k)
      put_k6(p, head, c, h);
    else
      for (int i = 0; i < n; ++i) {
        if constexpr (T == DType::nvfp4)
          put_nvfp4(p + i * bytes, c, 4 * i, h);
        else
          put_group<T>(p + i * bytes, head + i * pack_shape(T).head, c, i, h);
      }
  }
  return n * elems / 4 / code_lines(T);
}
