// Products of many rows where byte dots add into 16 bits: a block of a strip is unpacked once for all rows of
// a task. An activation serves all 16 outputs at once, and where codes are too large for a group's sum the
// sums begin at minus what they stand too high (they wrap; only their end must fit).

constexpr int kCodeRows = 5;  // up to 4, one pass that unpacks in registers is as fast
constexpr int kCodePass = 4;  // rows whose sums stay in registers
constexpr int kHalves = 16 / W;

struct alignas(64) CodeBlock {
  uint8_t code[64][64];    // [columns 4 j .. 4 j + 3][output]
  uint32_t scale[16][16];  // [group][output], twice as int16
  float group_d[16][16];   // where groups have a float
  float d[16], dmin[16];
  uint32_t min[4][16];  // pairs, as in KHead
};

constexpr bool codes_with_mins(DType t) { return t == DType::q4_k || t == DType::q5_k; }
constexpr bool codes_scaled(DType t) { return codes_with_mins(t) || t == DType::q6_k; }
constexpr bool codes_known(DType t) {
  return codes_scaled(t) || t == DType::q4_0 || t == DType::q5_0 || table_e2m1(t);
}
// Lines of a sum: q5_k's 32 columns would not fit.
constexpr int code_lines(DType t) {
  return t == DType::q5_k || t == DType::q6_k || t == DType::nvfp4 ? 4 : 8;
}
// What codes are too large by, log2; -1: nothing.
constexpr int code_centre(DType t) {
  return codes_with_mins(t) ? -1 : t == DType::q6_k ? 5 : t == DType::q4_0 ? 3 : 4;
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

// A group of 32 of q4_0, q5_0, mxfp4.
template <DType T>
CARAT_SIMD void put_group(const uint8_t* w, const uint8_t* head, CodeBlock& c, int group, int first) {
  constexpr bool five = T == DType::q5_0;
  const VI m4 = bytes_v(15), table = code_table<T>(), h = five ? line(w) : m4;
  uint8_t(*code)[64] = c.code + 8 * group;
  const auto put = [&](auto j) __attribute__((always_inline)) {
    const VI v = line(w + (five + j) * 64);
    VI l = andi(v, m4), u = andi(srli16<4>(v), m4);
    if constexpr (five) l = ori(l, bit_to_4<j>(h)), u = ori(u, bit_to_4<4 + j>(h));
    if constexpr (table_e2m1(T)) l = lookup(table, l), u = lookup(table, u);
    storei(code[j] + 4 * first, l), storei(code[4 + j] + 4 * first, u);
  };
  put(std::integral_constant<int, 0>());
  put(std::integral_constant<int, 1>());
  put(std::integral_constant<int, 2>());
  put(std::integral_constant<int, 3>());
  storef(c.group_d[group] + first, T == DType::mxfp4 ? half_e8m0(load_bytes(head)) : load_f16(head));
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

// What the sum of `group` begins at: minus the sums of its columns times what the codes are too large by.
template <DType T>
CARAT_SIMD VG code_start(const Rounded& x, int64_t b, int ts, int group, int r) {
  constexpr int centre = code_centre(T), per = code_lines(T) / 4;
  if constexpr (centre < 0) {
    return zero_g();
  } else {
    const uint32_t* minus = x.lane16 + (b * 16 + group * per) * ts + r;
    return slli16<centre>(per == 1 ? word(minus) : addi16(word(minus), word(minus + ts)));
  }
}

// R rows of a tile of ts rows times one block.
template <int R, DType T>
static __attribute__((noinline)) void code_rows(const CodeBlock& c, int groups, const Rounded& x, int64_t b,
                                                int ts, float* acc) {
  constexpr int lines = code_lines(T);
  VI sum[R][kHalves];
  VF t[R][kHalves];
  for (int r = 0; r < R; ++r)
    for (int h = 0; h < kHalves; ++h) sum[r][h] = seti(0), t[r][h] = setf(0.0f);
  const int8_t* q = x.q + b * 256 * ts;
#pragma GCC unroll 1
  for (int g = 0; g < groups; ++g) {
    const uint8_t* w = c.code[g * lines];
    const int8_t* column = q + g * lines / 16 * 64 * ts + g * lines % 16 * 4;
    VG dot[R][kHalves];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      dot[r][0] = code_start<T>(x, b, ts, g, r);
      for (int h = 1; h < kHalves; ++h) dot[r][h] = dot[r][0];
    }
#pragma GCC unroll 8
    for (int j = 0; j < lines; ++j) {
      VI v[kHalves];
      for (int h = 0; h < kHalves; ++h) v[h] = loadi(w + j * 64 + h * W * 4);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const VI a = word(column + r * 64 + 4 * j);
        for (int h = 0; h < kHalves; ++h) dot[r][h] = dot_v(dot[r][h], v[h], a);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      for (int h = 0; h < kHalves; ++h) {
        if constexpr (codes_scaled(T))
          sum[r][h] = add_scaled(sum[r][h], dot[r][h], loadi(c.scale[g] + h * W));
        else
          t[r][h] = fma_exact(loadf(c.group_d[g] + h * W), to_float(sum_g(dot[r][h])), t[r][h]);
      }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    for (int h = 0; h < kHalves; ++h) {
      if constexpr (codes_scaled(T)) t[r][h] = mulf(loadf(c.d + h * W), to_float(sum[r][h]));
      if constexpr (codes_with_mins(T)) {
        VI mins = seti(0);
        for (int p = 0; p < 4; ++p)
          mins = dot16(mins, loadi(c.min[p] + h * W), x.pair32 + (b * 4 + p) * ts + r);
        t[r][h] = fnma_exact(loadf(c.dmin + h * W), to_float(mins), t[r][h]);
      }
      accumulate(acc + r * 16 + h * W, x.scale[b * ts + r], t[r][h]);
    }
}

template <DType T>
static void codes_product(const uint8_t* strip, int64_t cols, const Rounded& x, int rows, float* acc,
                          CodeBlock& c) {
  for (int64_t b = 0; b * 256 < cols; ++b) {
    const int groups = put_codes<T>(strip, cols, b, c);
    for (int m = 0; m < rows; m += kTileRows) {
      const int ts = rows - m < kTileRows ? rows - m : kTileRows;
      const Rounded tile = x.at(m);
      in_passes<kCodePass>(
          ts, [&](int r, auto n) { code_rows<n, T>(c, groups, tile.row(r), b, ts, acc + (m + r) * 16); });
    }
  }
}

// acc [rows][16] = x times one strip of a type that codes_known().
static void codes_strip(DType type, const uint8_t* strip, int64_t cols, const Rounded& x, int rows,
                        float* acc, CodeBlock& c) {
  for (int i = 0; i < rows * 16; i += W) storef(acc + i, setf(0.0f));
  switch (type) {
    case DType::q4_k: return codes_product<DType::q4_k>(strip, cols, x, rows, acc, c);
    case DType::q5_k: return codes_product<DType::q5_k>(strip, cols, x, rows, acc, c);
    case DType::q6_k: return codes_product<DType::q6_k>(strip, cols, x, rows, acc, c);
    case DType::q4_0: return codes_product<DType::q4_0>(strip, cols, x, rows, acc, c);
    case DType::q5_0: return codes_product<DType::q5_0>(strip, cols, x, rows, acc, c);
    case DType::mxfp4: return codes_product<DType::mxfp4>(strip, cols, x, rows, acc, c);
    default: return codes_product<DType::nvfp4>(strip, cols, x, rows, acc, c);
  }
}
