// Products with packed weights (pack.h): R activation rows times a strip of 16 outputs, one block of 256
// columns at a time. Lanes are outputs. acc: [R][16], the running sums; w points at the first of W outputs
// within each line.

CARAT_SIMD VI byte_of(VI v, int i) {
  switch (i) {
    case 0: return andi(v, seti(255));
    case 1: return andi(srli<8>(v), seti(255));
    case 2: return andi(srli<16>(v), seti(255));
    default: return srli<24>(v);
  }
}
CARAT_SIMD VI bytes_v(uint32_t b) { return seti(static_cast<int32_t>(b * 0x01010101u)); }
CARAT_SIMD VI line(const uint8_t* p) {
  prefetch(p);
  return loadi(p);
}
// Lines that may be dotted before 16-bit sums overflow.
template <int Max>
constexpr int lines_a_sum(int lines) {
  if (kWideSums) return lines;
  const int n = 32767 / (2 * 127 * Max);
  return n < lines ? n : lines;
}
// acc = fma(scale_a, t, acc)
CARAT_SIMD void accumulate(float* acc, float scale_a, VF t) {
  storef(acc, fma_exact(setf(scale_a), t, loadf(acc)));
}

// d, dmin, scales and mins of q4_k and q5_k: byte i of scale[h] is the scale of group 4 h + i.
struct KHead {
  VF d, dmin;
  VI scale[2], min[4];  // min: pairs of int16, groups (0,2) (1,3) (4,6) (5,7)
};
CARAT_SIMD KHead k_head(const uint8_t* w) {
  KHead h;
  const VI dd = line(w), a = line(w + 64), b = line(w + 128), c = line(w + 192);
  h.d = half_of(dd);
  h.dmin = half_of(srli<16>(dd));
  const VI m6 = bytes_v(63), m4 = bytes_v(15), high = bytes_v(0x30), even = seti(0x00ff00ff);
  h.scale[0] = andi(a, m6);
  h.scale[1] = ori(andi(c, m4), andi(srli<2>(a), high));
  const VI m0 = andi(b, m6), m1 = ori(andi(srli<4>(c), m4), andi(srli<2>(b), high));
  h.min[0] = andi(m0, even), h.min[1] = andi(srli<8>(m0), even);
  h.min[2] = andi(m1, even), h.min[3] = andi(srli<8>(m1), even);
  return h;
}

// Bit g of every byte of h as bit 4.
template <int g>
CARAT_SIMD VI bit_to_4(VI h) {
  if constexpr (g < 4)
    return andi(slli<4 - g>(h), bytes_v(16));
  else
    return andi(srli<g - 4>(h), bytes_v(16));
}

// Groups 2t and 2t + 1 of q4_k or q5_k.
template <int R, bool Five, int t>
CARAT_SIMD void k45_quarter(const uint8_t* w, const KHead& h, const int8_t* x, VI* sum) {
  constexpr int first = Five ? 12 : 4, step = lines_a_sum < Five ? 31 : 15 > (8);
  const VI m4 = bytes_v(15);
  const VI s0 = scale_operand(byte_of(h.scale[t / 2], 2 * (t & 1)));
  const VI s1 = scale_operand(byte_of(h.scale[t / 2], 2 * (t & 1) + 1));
#pragma GCC unroll 2
  for (int j0 = 0; j0 < 8; j0 += step) {
    VG lo[R], hi[R];
    for (int r = 0; r < R; ++r) lo[r] = hi[r] = zero_g();
#pragma GCC unroll 8
    for (int j = j0; j < j0 + step; ++j) {
      const VI v = line(w + (first + 8 * t + j) * 64);
      VI l = andi(v, m4), u = andi(srli16<4>(v), m4);
      if constexpr (Five) {
        const VI q = loadi(w + (4 + j) * 64);
        l = ori(l, bit_to_4<2 * t>(q)), u = ori(u, bit_to_4<2 * t + 1>(q));
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        lo[r] = dot_u(lo[r], l, x + r * 64 + 4 * j);
        hi[r] = dot_u(hi[r], u, x + r * 64 + 32 + 4 * j);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = add_scaled(add_scaled(sum[r], lo[r], s0), hi[r], s1);
  }
}

template <int R, bool Five>
CARAT_SIMD void k45_block(const uint8_t* w, const Rounded& x, int64_t b, int ts, float* acc) {
  if constexpr (Five)
    for (int i = 4; i < 12; ++i) prefetch(w + i * 64);
  const KHead h = k_head(w);
  VI sum[R];
  for (int r = 0; r < R; ++r) sum[r] = seti(0);
  const int8_t* q = x.q + b * 256 * ts;
  k45_quarter<R, Five, 0>(w, h, q, sum);
  k45_quarter<R, Five, 1>(w, h, q + 64 * ts, sum);
  k45_quarter<R, Five, 2>(w, h, q + 128 * ts, sum);
  k45_quarter<R, Five, 3>(w, h, q + 192 * ts, sum);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    VI mins = seti(0);
    for (int p = 0; p < 4; ++p) mins = dot16(mins, h.min[p], x.pair32 + (b * 4 + p) * ts + r);
    accumulate(acc + r * 16, x.scale[b * ts + r],
               fnma_exact(h.dmin, to_float(mins), mulf(h.d, to_float(sum[r]))));
  }
}

// Sub-blocks jj and jj + 2 of half n of q6_k.
template <int R, int n, int jj>
CARAT_SIMD void k6_quarter(const uint8_t* w, const int8_t* x, int ts, VI* sum) {
  constexpr int step = lines_a_sum<63>(4);
  const VI m4 = bytes_v(15), m30 = bytes_v(0x30);
  const int8_t *x0 = x + 2 * n * 64 * ts + 32 * jj, *x1 = x0 + 64 * ts;
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const VI sc = loadi(w + (48 + 2 * n) * 64),
             sd = loadi(w + (49 + 2 * n) * 64);  // groups 8n..8n+3, 8n+4..8n+7
    constexpr int g = 2 * jj;
    const VI s0 = scale_operand(half ? srai<24>(slli<16 - 8 * g>(sc)) : srai<24>(slli<24 - 8 * g>(sc)));
    const VI s1 = scale_operand(half ? srai<24>(slli<16 - 8 * g>(sd)) : srai<24>(slli<24 - 8 * g>(sd)));
#pragma GCC unroll 2
    for (int i0 = 4 * half; i0 < 4 * half + 4; i0 += step) {
      VG lo[R], hi[R];
      for (int r = 0; r < R; ++r) lo[r] = hi[r] = zero_g();
#pragma GCC unroll 4
      for (int i = i0; i < i0 + step; ++i) {
        const VI v = line(w + (16 * n + 8 * jj + i) * 64);
        const VI h = jj ? loadi(w + (32 + 8 * n + i) * 64) : line(w + (32 + 8 * n + i) * 64);
        const VI l = ori(andi(v, m4), andi(jj ? slli16<2>(h) : slli16<4>(h), m30));
        const VI u = ori(andi(srli16<4>(v), m4), andi(jj ? srli16<2>(h) : h, m30));
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          lo[r] = dot_u(lo[r], l, x0 + r * 64 + 4 * i);
          hi[r] = dot_u(hi[r], u, x1 + r * 64 + 4 * i);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] = add_scaled(add_scaled(sum[r], lo[r], s0), hi[r], s1);
    }
  }
}

template <int R>
CARAT_SIMD void k6_block(const uint8_t* w, const uint8_t* head, const Rounded& x, int64_t b, int ts,
                         float* acc) {
  for (int i = 48; i < 52; ++i) prefetch(w + i * 64);
  const VF d = load_f16(head);
  VI sum[R];
  for (int r = 0; r < R; ++r) sum[r] = seti(0);
  const int8_t* q = x.q + b * 256 * ts;
  k6_quarter<R, 0, 0>(w, q, ts, sum);
  k6_quarter<R, 0, 1>(w, q, ts, sum);
  k6_quarter<R, 1, 0>(w, q, ts, sum);
  k6_quarter<R, 1, 1>(w, q, ts, sum);
  VI scales[8];  // pairs of int16
  for (int c = 0; c < 4; ++c) {
    const VI s = loadi(w + (48 + c) * 64);
    scales[2 * c] = srai16<8>(slli16<8>(s)), scales[2 * c + 1] = srai16<8>(s);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {  // codes are 32 too large
    VI over = seti(0);
    for (int p = 0; p < 8; ++p) over = dot16(over, scales[p], x.pair16 + (b * 8 + p) * ts + r);
    accumulate(acc + r * 16, x.scale[b * ts + r], mulf(d, to_float(subi(sum[r], slli<5>(over)))));
  }
}

// Sums of one group of 32 of q4_0, q5_0 or q8_0, codes as they stand.
template <int R, DType T>
CARAT_SIMD void group_sums(const uint8_t* w, const int8_t* x, VI* sum) {
  const VI m4 = bytes_v(15);
  if constexpr (T == DType::q8_0) {
    for (int r = 0; r < R; ++r) sum[r] = seti(0);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const VI v = signed_operand(line(w + j * 64));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] = dot_s(sum[r], v, x + r * 64 + 4 * j);
    }
  } else {
    constexpr bool five = T == DType::q5_0;
    VG g[R];
    for (int r = 0; r < R; ++r) g[r] = zero_g(), sum[r] = seti(0);
    const VI h = five ? line(w) : m4;
    const auto both = [&](VI v, VI l, VI u, int j) __attribute__((always_inline)) {
      l = ori(andi(v, m4), l), u = ori(andi(srli16<4>(v), m4), u);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        g[r] = dot_u(dot_u(g[r], l, x + r * 64 + 4 * j), u, x + r * 64 + 16 + 4 * j);
      if (!kWideSums && five && j % 2 == 1)
        for (int r = 0; r < R; ++r) sum[r] = addi(sum[r], sum_g(g[r])), g[r] = zero_g();
    };
    const VI z = seti(0);
    const uint8_t* qs = w + (five ? 64 : 0);
    both(line(qs), five ? bit_to_4<0>(h) : z, five ? bit_to_4<4>(h) : z, 0);
    both(line(qs + 64), five ? bit_to_4<1>(h) : z, five ? bit_to_4<5>(h) : z, 1);
    both(line(qs + 128), five ? bit_to_4<2>(h) : z, five ? bit_to_4<6>(h) : z, 2);
    both(line(qs + 192), five ? bit_to_4<3>(h) : z, five ? bit_to_4<7>(h) : z, 3);
    for (int r = 0; r < R; ++r) sum[r] = addi(sum[r], sum_g(g[r]));
  }
}

// Groups [g0, g0 + n) of one block of 256: w, head at group g0.
template <int R, DType T>
CARAT_SIMD void groups_block(const uint8_t* w, const uint8_t* head, int n, const Rounded& x, int64_t b,
                             int ts, float* acc) {
  constexpr int shift = T == DType::q4_0   ? 3
                        : T == DType::q5_0 ? 4
                                           : kSignedShift;  // offset of the codes, log2
  VF t[R];
  for (int r = 0; r < R; ++r) t[r] = setf(0.0f);
  for (int i = 0; i < n; ++i) {
    VI sum[R];
    group_sums<R, T>(w + i * pack_shape(T).lines * 64, x.q + (b * 256 + (i >> 1) * 64) * ts + (i & 1) * 32,
                     sum);
    const VF d = load_f16(head + i * 32);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      if constexpr (shift >= 0)
        sum[r] = addi(sum[r], slli < shift < 0 ? 0 : shift > (seti(x.minus32[(b * 8 + i) * ts + r])));
      t[r] = fma_exact(d, to_float(sum[r]), t[r]);
    }
  }
  for (int r = 0; r < R; ++r) accumulate(acc + r * 16, x.scale[b * ts + r], t[r]);
}

// R rows of a tile of ts rows times one strip.
template <int R, DType T>
static void strip_rows(const uint8_t* strip, int64_t cols, const Rounded& x, int ts, float* acc) {
  constexpr int lines = pack_shape(T).lines, elems = info(T).elems;
  for (int i = 0; i < R * 16; ++i) acc[i] = 0;
  const uint8_t* w = strip + head_bytes(T, cols);
  for (int64_t b = 0; b * 256 < cols; ++b) {
    const int64_t first = b * 256 / elems;
    for (int h = 0; h < 16; h += W) {
      const uint8_t *p = w + first * lines * 64 + 4 * h, *head = strip + first * 32 + 2 * h;
      if constexpr (T == DType::q4_k || T == DType::q5_k)
        k45_block<R, T == DType::q5_k>(p, x, b, ts, acc + h);
      else if constexpr (T == DType::q6_k)
        k6_block<R>(p, head, x, b, ts, acc + h);
      else
        groups_block<R, T>(p, head, static_cast<int>(cols / 32 - first < 8 ? cols / 32 - first : 8), x, b, ts,
                           acc + h);
    }
  }
}

// All rows of a tile, in passes of 8, 4, 2 and 1.
template <DType T>
static void strip_tile(const uint8_t* strip, int64_t cols, const Rounded& x, int rows, float* acc) {
  for (int r = 0; r < rows;) {
    const int left = rows - r;
    if (kMaxRows >= 8 && left >= 8)
      strip_rows<kMaxRows, T>(strip, cols, x.row(r), rows, acc + r * 16), r += kMaxRows;
    else if (kMaxRows >= 4 && left >= 4)
      strip_rows < kMaxRows<4 ? kMaxRows : 4, T>(strip, cols, x.row(r), rows, acc + r * 16), r += 4;
    else if (left >= 2)
      strip_rows<2, T>(strip, cols, x.row(r), rows, acc + r * 16), r += 2;
    else
      strip_rows<1, T>(strip, cols, x.row(r), rows, acc + r * 16), r += 1;
  }
}

static void strip_any(DType type, const uint8_t* strip, int64_t cols, const Rounded& x, int rows,
                      float* acc) {
  switch (type) {
    case DType::q4_k: return strip_tile<DType::q4_k>(strip, cols, x, rows, acc);
    case DType::q5_k: return strip_tile<DType::q5_k>(strip, cols, x, rows, acc);
    case DType::q6_k: return strip_tile<DType::q6_k>(strip, cols, x, rows, acc);
    case DType::q4_0: return strip_tile<DType::q4_0>(strip, cols, x, rows, acc);
    case DType::q5_0: return strip_tile<DType::q5_0>(strip, cols, x, rows, acc);
    default: return strip_tile<DType::q8_0>(strip, cols, x, rows, acc);
  }
}
