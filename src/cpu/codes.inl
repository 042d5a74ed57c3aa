// Products of many rows where byte dots add into 16 bits. An activation serves all 16 outputs at once, and
// where codes are too large for a group's sum the sums begin at minus what they stand too high (they wrap;
// only their end must fit).

constexpr int kCodePass = 4;  // rows whose sums stay in registers
constexpr int kHalves = 16 / W;

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
