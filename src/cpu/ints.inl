// Products with quantized weights in their file layout, any format: 16 rows of a block are unpacked
// (core/int_block.h) into the order of packed strips, once for all activation rows of a task.

struct IntStrip {
  alignas(64) int8_t q[64][16][4];                 // [column / 4][row][column % 4]
  alignas(64) int32_t scale[16][16], min[16][16];  // [group][row]
  alignas(64) float group_d[16][16], group_m[16][16];
  alignas(64) float d[16], dmin[16];
  IntKind kind;
  int groups, group;
};

static void unpack_strip(const Tensor& w, int64_t n0, int rows, int64_t first, int n, IntStrip& s) {
  IntBlock b;
  if (rows < 16) __builtin_memset(static_cast<void*>(&s), 0, sizeof s);
  for (int r = 0; r < rows; ++r) {
    unpack(w.type, w.data + (n0 + r) * w.pitch, first, n, b);
    for (int k = 0; k < n; k += 4) __builtin_memcpy(s.q[k / 4][r], b.q + k, 4);
    s.d[r] = b.d, s.dmin[r] = b.dmin;
    const bool scaled = b.kind == IntKind::scaled || b.kind == IntKind::scaled_min;
    const bool mins = b.kind == IntKind::scaled_min, shifts = b.kind == IntKind::grouped_min;
    for (int g = 0; g < n / b.group; ++g) {
      if (scaled)
        s.scale[g][r] = b.scale[g];
      else
        s.group_d[g][r] = b.group_d[g];
      if (mins) s.min[g][r] = b.min[g];
      if (shifts) s.group_m[g][r] = b.group_m[g];
    }
  }
  s.kind = b.kind, s.group = b.group, s.groups = n / b.group;
}

// One block: R rows times lanes h .. h + W.
template <int R>
CARAT_SIMD void int_block_rows(const IntStrip& s, int h, const Rounded& x, int64_t b, int ts, float* acc) {
  const int per = s.group / 4;
  const int32_t* minus = s.group == 16 ? x.minus16 + b * 16 * ts : x.minus32 + b * 8 * ts;
  const bool scaled = s.kind == IntKind::scaled || s.kind == IntKind::scaled_min;
  VI whole[R], mins[R];
  VF t[R];
  for (int r = 0; r < R; ++r) whole[r] = mins[r] = seti(0), t[r] = setf(0.0f);
  for (int g = 0; g < s.groups; ++g) {
    VI sum[R];
    for (int r = 0; r < R; ++r) sum[r] = seti(0);
    for (int j = g * per; j < (g + 1) * per; ++j) {
      const VI v = signed_operand(loadi(s.q[j][h]));
      const int8_t* q = x.q + (b * 256 + j / 16 * 64) * ts + j % 16 * 4;
      for (int r = 0; r < R; ++r) sum[r] = dot_s(sum[r], v, q + r * 64);
    }
    for (int r = 0; r < R; ++r) {
      const VI m = seti(minus[g * ts + r]);
      if constexpr (kSignedShift >= 0)
        sum[r] = addi(sum[r], slli < kSignedShift < 0 ? 0 : kSignedShift > (m));
      if (scaled) {
        whole[r] = addi(whole[r], mullo(sum[r], loadi(&s.scale[g][h])));
        if (s.kind == IntKind::scaled_min) mins[r] = subi(mins[r], mullo(m, loadi(&s.min[g][h])));
      } else {
        t[r] = fma_exact(loadf(&s.group_d[g][h]), to_float(sum[r]), t[r]);
        if (s.kind == IntKind::grouped_min)
          t[r] = fma_exact(loadf(&s.group_m[g][h]), to_float(subi(seti(0), m)), t[r]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    if (scaled) t[r] = mulf(loadf(s.d + h), to_float(whole[r]));
    if (s.kind == IntKind::scaled_min) t[r] = fnma_exact(loadf(s.dmin + h), to_float(mins[r]), t[r]);
    accumulate(acc + r * 16 + h, x.scale[b * ts + r], t[r]);
  }
}

template <int R>
static __attribute__((noinline)) void int_rows(const IntStrip& s, const Rounded& x, int64_t b, int ts,
                                               float* acc) {
  for (int h = 0; h < 16; h += W) int_block_rows<R>(s, h, x, b, ts, acc);
}

// acc [rows][16] = x times rows n0 .. n0 + outputs of w.
static void int_product(const Tensor& w, int64_t n0, int outputs, const Rounded& x, int rows, float* acc,
                        IntStrip& s) {
  for (int i = 0; i < rows * 16; ++i) acc[i] = 0;
  for (int64_t b = 0; b * 256 < w.cols; ++b) {
    const int64_t left = w.cols - b * 256;
    unpack_strip(w, n0, outputs, b * 256, static_cast<int>(left < 256 ? left : 256), s);
    for (int m = 0; m < rows; m += kTileRows) {
      const int ts = rows - m < kTileRows ? rows - m : kTileRows;
      const Rounded tile = x.at(m);
      in_passes<kMaxRows>(ts, [&](int r, auto n) { int_rows<n>(s, tile.row(r), b, ts, acc + (m + r) * 16); });
    }
  }
}
