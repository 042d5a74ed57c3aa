// Products of many rows where one instruction multiplies two rows by two outputs over eight columns (SMMLA of
// i8mm). Sums are exact, so they are the bits of all other ways.

constexpr int kMmlaRows = 8;  // of a pass: four pairs, whose sums with eight outputs stay in registers

constexpr bool mmla_knows(DType t) {
  return codes_known(t) || groups_with_mins(t) || t == DType::q8_0 || t == DType::iq4_nl;
}

// Lines of four columns become, in the place of two, eight columns of outputs 0, 1, then of 2, 3 and so on.
static void pair_lines(CodeBlock& c, int lines) {
  for (int j = 0; j < lines; j += 2) {
    VI a[4], b[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) a[i] = loadi(c.code[j] + 16 * i), b[i] = loadi(c.code[j + 1] + 16 * i);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      storei(c.code[j] + 32 * i, vzip1q_s32(a[i], b[i]));
      storei(c.code[j] + 32 * i + 16, vzip2q_s32(a[i], b[i]));
    }
  }
}

// Outputs first .. first + 7 of up to 2 * P rows (the last may be missing: it is computed twice), one block.
template <int P, DType T>
static __attribute__((noinline)) void mmla_rows(const CodeBlock& c, int first, int groups, const Rounded& x,
                                                int64_t b, int ts, int rows, float* acc) {
  constexpr int lines = code_lines(T), centre = code_centre(T);
  VI sum[2 * P][2];
  VF t[2 * P][2];
#pragma GCC unroll 8
  for (int r = 0; r < 2 * P; ++r)
    for (int k = 0; k < 2; ++k) sum[r][k] = seti(0), t[r][k] = setf(0.0f);
  const int8_t* q = x.q + b * 256 * ts;
  const int32_t* minus = lines == 4 ? x.minus16 + b * 16 * ts : x.minus32 + b * 8 * ts;
  const int64_t last = 64 * (rows - 1);
#pragma GCC unroll 1
  for (int g = 0; g < groups; ++g) {
    const uint8_t* w = c.code[g * lines] + 8 * first;
    const int8_t* column = q + g * lines / 16 * 64 * ts + g * lines % 16 * 4;
    VI dot[P][4];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
      for (int i = 0; i < 4; ++i) dot[p][i] = seti(0);
#pragma GCC unroll 4
    for (int j = 0; j < lines; j += 2) {
      VI v[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) v[i] = loadi(w + j * 64 + 16 * i);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const int8_t *a = column + p * 128 + 4 * j, *a1 = p + 1 < P ? a + 64 : column + last + 4 * j;
        const int8x16_t both = vcombine_s8(vld1_s8(a), vld1_s8(a1));
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) dot[p][i] = vmmlaq_s32(dot[p][i], both, bytes_of(v[i]));
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < 2 * P; ++r) {
      const int64_t row = r < rows ? r : rows - 1;
#pragma GCC unroll 2
      for (int k = 0; k < 2; ++k) {
        const int64x2_t d0 = vreinterpretq_s64_s32(dot[r / 2][2 * k]),
                        d1 = vreinterpretq_s64_s32(dot[r / 2][2 * k + 1]);
        VI s = vreinterpretq_s32_s64(r % 2 ? vzip2q_s64(d0, d1) : vzip1q_s64(d0, d1));
        if constexpr (centre >= 0) s = addi(s, slli < centre < 0 ? 0 : centre > (seti(minus[g * ts + row])));
        const int at = first + 4 * k;
        if constexpr (codes_scaled(T))
          sum[r][k] = add_scaled(sum[r][k], s, loadi(c.scale[g] + at));
        else
          t[r][k] = fma_exact(loadf(c.group_d[g] + at), to_float(s), t[r][k]);
        if constexpr (groups_with_mins(T))
          t[r][k] =
              fma_exact(loadf(c.group_m[g] + at), setf(static_cast<float>(-minus[g * ts + row])), t[r][k]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < 2 * P; ++r) {
    if (r >= rows) break;
#pragma GCC unroll 2
    for (int k = 0; k < 2; ++k) {
      const int at = first + 4 * k;
      if constexpr (codes_scaled(T)) t[r][k] = mulf(loadf(c.d + at), to_float(sum[r][k]));
      if constexpr (codes_with_mins(T)) {
        VI mins = seti(0);
        for (int p = 0; p < 4; ++p) mins = dot16(mins, loadi(c.min[p] + at), x.pair32 + (b * 4 + p) * ts + r);
        t[r][k] = fnma_exact(loadf(c.dmin + at), to_float(mins), t[r][k]);
      }
      accumulate(acc + r * 16 + at, x.scale[b * ts + r], t[r][k]);
    }
  }
}

template <DType T>
static void mmla_product(const uint8_t* strip, int64_t cols, const Rounded& x, int rows, float* acc,
                         CodeBlock& c) {
  for (int64_t b = 0; b * 256 < cols; ++b) {
    const int groups = put_codes<T>(strip, cols, b, c);
    pair_lines(c, groups * code_lines(T));
    for (int m = 0; m < rows; m += kTileRows) {
      const int ts = rows - m < kTileRows ? rows - m : kTileRows;
      const Rounded tile = x.at(m);
      for (int r = 0; r < ts; r += kMmlaRows) {
        const int n = ts - r < kMmlaRows ? ts - r : kMmlaRows;
        last_pass<kMmlaRows / 2>(r, (n + 1) / 2, [&](int, auto pairs) {
          for (int h = 0; h < 16; h += 8)
            mmla_rows<pairs, T>(c, h, groups, tile.row(r), b, ts, n, acc + (m + r) * 16);
        });
      }
    }
  }
}

// acc [rows][16] = x times one strip of a type that mmla_knows().
static void mmla_strip(DType type, const uint8_t* strip, int64_t cols, const Rounded& x, int rows, float* acc,
                       CodeBlock& c) {
  for (int i = 0; i < rows * 16; i += W) storef(acc + i, setf(0.0f));
  switch (type) {
    case DType::q4_k: return mmla_product<DType::q4_k>(strip, cols, x, rows, acc, c);
    case DType::q5_k: return mmla_product<DType::q5_k>(strip, cols, x, rows, acc, c);
    case DType::q6_k: return mmla_product<DType::q6_k>(strip, cols, x, rows, acc, c);
    case DType::q4_0: return mmla_product<DType::q4_0>(strip, cols, x, rows, acc, c);
    case DType::q5_0: return mmla_product<DType::q5_0>(strip, cols, x, rows, acc, c);
    case DType::q4_1: return mmla_product<DType::q4_1>(strip, cols, x, rows, acc, c);
    case DType::q5_1: return mmla_product<DType::q5_1>(strip, cols, x, rows, acc, c);
    case DType::q8_0: return mmla_product<DType::q8_0>(strip, cols, x, rows, acc, c);
    case DType::iq4_nl: return mmla_product<DType::iq4_nl>(strip, cols, x, rows, acc, c);
    case DType::mxfp4: return mmla_product<DType::mxfp4>(strip, cols, x, rows, acc, c);
    default: return mmla_product<DType::nvfp4>(strip, cols, x, rows, acc, c);
  }
}
