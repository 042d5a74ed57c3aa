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
#ifndef CARAT_BY_ELEMENT
// 16 activations of each of R rows, four of which a dot takes: by their place in memory, or as one of a
// register's four.
template <int R>
struct Xs {
  const int8_t* p;
};
template <int R>
CARAT_SIMD Xs<R> load_xs(const int8_t* p) {
  return {p};
}
template <int R>
CARAT_SIMD VG dot_u(VG acc, VI w, Xs<R> x, int r, int four) {
  return dot_u(acc, w, x.p + r * 64 + 4 * four);
}
template <int R>
CARAT_SIMD VI dot_s(VI acc, VI w, Xs<R> x, int r, int four) {
  return dot_s(acc, w, x.p + r * 64 + 4 * four);
}
#endif
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

// Groups 2t and 2t + 1 of q4_k or q5_k: lines w, their scales the low bytes of `scale`. fifth: the block's
// fifth bits.
template <int R, bool Five>
CARAT_SIMD void k45_quarter(const uint8_t* w, const uint8_t* fifth, int t, VI scale, const int8_t* x,
                            VI* sum) {
  constexpr int step = lines_a_sum < Five ? 31 : 15 > (8);
  const VI m4 = bytes_v(15), bit4 = bytes_v(16);
  const VI s0 = scale_operand(byte_of(scale, 0)), s1 = scale_operand(byte_of(scale, 1));
#pragma GCC unroll 2
  for (int j0 = 0; j0 < 8; j0 += step) {
    VG lo[R], hi[R];
    Xs<R> xl, xh;
    for (int r = 0; r < R; ++r) lo[r] = hi[r] = zero_g();
#pragma GCC unroll 8
    for (int j = j0; j < j0 + step; ++j) {
      if (j % 4 == 0) xl = load_xs<R>(x + 4 * j), xh = load_xs<R>(x + 32 + 4 * j);
      const VI v = line(w + j * 64);
      VI l = andi(v, m4), u = andi(srli16<4>(v), m4);
      if constexpr (Five) {
        const VI q = srl(loadi(fifth + j * 64), 2 * t);
        l = ori(l, andi(slli<4>(q), bit4)), u = ori(u, andi(slli<3>(q), bit4));
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        lo[r] = dot_u(lo[r], l, xl, r, j % 4);
        hi[r] = dot_u(hi[r], u, xh, r, j % 4);
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
#pragma GCC unroll 1  // see prefetch()
  for (int t = 0; t < 4; ++t)
    k45_quarter<R, Five>(w + ((Five ? 12 : 4) + 8 * t) * 64, w + 4 * 64, t,
                         srl(t < 2 ? h.scale[0] : h.scale[1], 16 * (t & 1)), q + 64 * t * ts, sum);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    VI mins = seti(0);
    for (int p = 0; p < 4; ++p) mins = dot16(mins, h.min[p], x.pair32 + (b * 4 + p) * ts + r);
    accumulate(acc + r * 16, x.scale[b * ts + r],
               fnma_exact(h.dmin, to_float(mins), mulf(h.d, to_float(sum[r]))));
  }
}

// Half jj of quarter t = 2n + half of a q6_k block (pack.h): groups 8n + 2jj + half, and + 4. Their scales
// are bytes 2jj of scale0 and scale1; x0, x1: their columns.
template <int R, int jj>
CARAT_SIMD void k6_eighth(const uint8_t* w, VI scale0, VI scale1, const int8_t* x0, const int8_t* x1,
                          VI* sum) {
  constexpr int step = lines_a_sum<63>(4), ahead[] = {0, 2, 4, 5, 7, 9, 10, 12, 13};
  const VI m4 = bytes_v(15), m30 = bytes_v(0x30);
  const VI s0 = scale_operand(srai<24>(slli<24 - 16 * jj>(scale0)));
  const VI s1 = scale_operand(srai<24>(slli<24 - 16 * jj>(scale1)));
  const Xs<R> xl = load_xs<R>(x0), xh = load_xs<R>(x1);
#pragma GCC unroll 2
  for (int i0 = 0; i0 < 4; i0 += step) {
    VG lo[R], hi[R];
    for (int r = 0; r < R; ++r) lo[r] = hi[r] = zero_g();
#pragma GCC unroll 4
    for (int i = i0; i < i0 + step; ++i) {
      for (int k = ahead[4 * jj + i]; k < ahead[4 * jj + i + 1]; ++k) prefetch(w + k * 64);
      const VI v = loadi(w + (4 * jj + i) * 64), h = loadi(w + (8 + i) * 64);
      const VI l = ori(andi(v, m4), andi(jj ? slli16<2>(h) : slli16<4>(h), m30));
      const VI u = ori(andi(srli16<4>(v), m4), andi(jj ? srli16<2>(h) : h, m30));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        lo[r] = dot_u(lo[r], l, xl, r, i);
        hi[r] = dot_u(hi[r], u, xh, r, i);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = add_scaled(add_scaled(sum[r], lo[r], s0), hi[r], s1);
  }
}

template <int R>
CARAT_SIMD void k6_block(const uint8_t* w, const uint8_t* head, const Rounded& x, int64_t b, int ts,
                         float* acc) {
  const VF d = load_f16(head);
  VI sum[R];
  for (int r = 0; r < R; ++r) sum[r] = seti(0);
#pragma GCC unroll 1  // see prefetch()
  for (int t = 0; t < 4; ++t) {
    const int n = t / 2, half = t % 2;
    const uint8_t *p = w + t * kQuarter6, *scales = w + 2 * n * kQuarter6 + 12 * 64;
    const VI s0 = srl(loadi(scales), 8 * half), s1 = srl(loadi(scales + kQuarter6), 8 * half);
    const int8_t* q = x.q + (b * 256 + n * 128) * ts + 16 * half;
    k6_eighth<R, 0>(p, s0, s1, q, q + 64 * ts, sum);
    k6_eighth<R, 1>(p, s0, s1, q + 32, q + 64 * ts + 32, sum);
  }
  VI scales[8];  // pairs of int16
  for (int c = 0; c < 4; ++c) {
    const VI s = loadi(w + c * kQuarter6 + 12 * 64);
    scales[2 * c] = srai16<8>(slli16<8>(s)), scales[2 * c + 1] = srai16<8>(s);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {  // codes are 32 too large
    VI over = seti(0);
    for (int p = 0; p < 8; ++p) over = dot16(over, scales[p], x.pair16 + (b * 8 + p) * ts + r);
    accumulate(acc + r * 16, x.scale[b * ts + r], mulf(d, to_float(subi(sum[r], slli<5>(over)))));
  }
}

// Codes that stand for values in a table: e2m1 (twice the value, 16 added) and iq4.
constexpr uint8_t kE2m1Codes[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};
constexpr bool table_e2m1(DType t) { return t == DType::mxfp4 || t == DType::nvfp4; }
constexpr bool table_iq4(DType t) { return t == DType::iq4_nl || t == DType::iq4_xs; }
template <DType T>
CARAT_SIMD VI code_table() {
  if constexpr (table_e2m1(T))
    return load_table(kE2m1Codes);
  else if constexpr (table_iq4(T))
    return signed_operand(load_table(kIq4Values));
  else
    return seti(0);
}
// The offset of the codes that dots see, log2; -1: none.
template <DType T>
constexpr int code_shift() {
  if (T == DType::q4_0) return 3;
  if (T == DType::q5_0 || table_e2m1(T)) return 4;
  if (T == DType::q4_1 || T == DType::q5_1) return -1;
  return kSignedShift;
}
// Half of 2^(b - 127), b's largest value an infinity; half of an unsigned e4m3, whose largest counts as 0.
CARAT_SIMD VF half_e8m0(VI b) {
  const VF f = to_float(b);
  const VF v =
      select_lt(f, setf(2), mulf(to_float(addi(b, seti(1))), setf(0x1p-128f)), pow2(addi(b, seti(-128))));
  return select_lt(setf(254), f, setf(__builtin_inff()), v);
}
CARAT_SIMD VF half_e4m3(VI b) {
  b = andi(b, seti(127));
  const VF f = to_float(b);
  const VF v = mulf(to_float(ori(andi(b, seti(7)), seti(8))), pow2(addi(srli<3>(b), seti(-11))));
  return select_lt(setf(126), f, setf(0), select_lt(f, setf(8), mulf(f, setf(0x1p-10f)), v));
}

// Sums of one group of 32 with 8 signed bits, or 4 that are iq4's.
template <int R, DType T>
CARAT_SIMD void signed_sums(const uint8_t* w, VI table, const int8_t* x, VI* sum) {
  const VI m4 = bytes_v(15);
  for (int r = 0; r < R; ++r) sum[r] = seti(0);
  if constexpr (T == DType::q8_0) {
    Xs<R> xs;
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      if (j % 4 == 0) xs = load_xs<R>(x + 4 * j);
      const VI v = signed_operand(line(w + j * 64));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] = dot_s(sum[r], v, xs, r, j % 4);
    }
  } else {
    const Xs<R> xl = load_xs<R>(x), xh = load_xs<R>(x + 16);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const VI v = line(w + j * 64);
      const VI l = lookup(table, andi(v, m4)), u = lookup(table, andi(srli16<4>(v), m4));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] = dot_s(dot_s(sum[r], l, xl, r, j), u, xh, r, j);
    }
  }
}

// Sums of one group of 32 of 4 or 5 bits, codes as they stand (or from a table).
template <int R, DType T>
CARAT_SIMD void group_sums(const uint8_t* w, VI table, const int8_t* x, VI* sum) {
  if constexpr (T == DType::q8_0 || table_iq4(T)) {
    signed_sums<R, T>(w, table, x, sum);
  } else {
    constexpr bool five = T == DType::q5_0 || T == DType::q5_1, e2m1 = table_e2m1(T);
    constexpr int before = (T == DType::q4_1 || T == DType::q5_1 ? 1 : 0) + (five ? 1 : 0);  // lines
    const VI m4 = bytes_v(15);
    VG g[R];
    const Xs<R> xl = load_xs<R>(x), xh = load_xs<R>(x + 16);
    for (int r = 0; r < R; ++r) g[r] = zero_g(), sum[r] = seti(0);
    const VI h = five ? line(w + (before - 1) * 64) : m4;
    const auto both = [&](VI v, VI l, VI u, int j) __attribute__((always_inline)) {
      l = ori(andi(v, m4), l), u = ori(andi(srli16<4>(v), m4), u);
      if constexpr (e2m1) l = lookup(table, l), u = lookup(table, u);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) g[r] = dot_u(dot_u(g[r], l, xl, r, j), u, xh, r, j);
      if (!kWideSums && (five || e2m1) && j % 2 == 1)
        for (int r = 0; r < R; ++r) sum[r] = addi(sum[r], sum_g(g[r])), g[r] = zero_g();
    };
    const VI z = seti(0);
    const uint8_t* qs = w + before * 64;
    both(line(qs), five ? bit_to_4<0>(h) : z, five ? bit_to_4<4>(h) : z, 0);
    both(line(qs + 64), five ? bit_to_4<1>(h) : z, five ? bit_to_4<5>(h) : z, 1);
    both(line(qs + 128), five ? bit_to_4<2>(h) : z, five ? bit_to_4<6>(h) : z, 2);
    both(line(qs + 192), five ? bit_to_4<3>(h) : z, five ? bit_to_4<7>(h) : z, 3);
    for (int r = 0; r < R; ++r) sum[r] = addi(sum[r], sum_g(g[r]));
  }
}

// sum - offset * sum(a), if the codes have an offset.
template <DType T>
CARAT_SIMD VI centred(VI sum, int32_t minus) {
  constexpr int shift = code_shift<T>();
  if constexpr (shift >= 0)
    return addi(sum, slli<shift>(seti(minus)));
  else
    return sum;
}

// Groups [g0, g0 + n) of one block of 256: w, head at group g0.
template <int R, DType T>
CARAT_SIMD void groups_block(const uint8_t* w, const uint8_t* head, int n, const Rounded& x, int64_t b,
                             int ts, float* acc) {
  constexpr bool mins = T == DType::q4_1 || T == DType::q5_1;
  const VI table = code_table<T>();
  VF t[R];
  for (int r = 0; r < R; ++r) t[r] = setf(0.0f);
  for (int i = 0; i < n; ++i) {
    VI sum[R];
    const uint8_t* p = w + i * pack_shape(T).lines * 64;
    group_sums<R, T>(p, table, x.q + (b * 256 + (i >> 1) * 64) * ts + (i & 1) * 32, sum);
    VF d, m = setf(0);
    if constexpr (mins) {
      const VI dm = line(p);
      d = half_of(dm), m = half_of(srli<16>(dm));
    } else if constexpr (T == DType::mxfp4) {
      d = half_e8m0(load_bytes(head + i * 16));
    } else {
      d = load_f16(head + i * 32);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const int32_t minus = x.minus32[(b * 8 + i) * ts + r];
      t[r] = fma_exact(d, to_float(centred<T>(sum[r], minus)), t[r]);
      if constexpr (mins) t[r] = fma_exact(m, setf(static_cast<float>(-minus)), t[r]);
    }
  }
  for (int r = 0; r < R; ++r) accumulate(acc + r * 16, x.scale[b * ts + r], t[r]);
}

// n blocks of 64 of nvfp4: four groups of 16, in which a byte holds columns i and i + 8.
template <int R>
CARAT_SIMD void nvfp4_block(const uint8_t* w, int n, const Rounded& x, int64_t b, int ts, float* acc) {
  const VI table = code_table<DType::nvfp4>(), m4 = bytes_v(15);
  VF t[R];
  for (int r = 0; r < R; ++r) t[r] = setf(0.0f);
  for (int i = 0; i < n; ++i, w += 9 * 64) {
    const VI scales = line(w);
    const int8_t* q = x.q + (b * 256 + i * 64) * ts;
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      VG g[R];
      const Xs<R> xs = load_xs<R>(q + 16 * s);
      for (int r = 0; r < R; ++r) g[r] = zero_g();
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        const VI v = line(w + (1 + 2 * s + j) * 64);
        const VI l = lookup(table, andi(v, m4)), u = lookup(table, andi(srli16<4>(v), m4));
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) g[r] = dot_u(dot_u(g[r], l, xs, r, j), u, xs, r, 2 + j);
      }
      const VF d = half_e4m3(byte_of(scales, s));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const int32_t minus = x.minus16[(b * 16 + i * 4 + s) * ts + r];
        t[r] = fma_exact(d, to_float(centred<DType::nvfp4>(sum_g(g[r]), minus)), t[r]);
      }
    }
  }
  for (int r = 0; r < R; ++r) accumulate(acc + r * 16, x.scale[b * ts + r], t[r]);
}

template <int R>
CARAT_SIMD void iq4_xs_block(const uint8_t* w, const Rounded& x, int64_t b, int ts, float* acc) {
  const VI table = code_table<DType::iq4_xs>(), first = line(w), low = line(w + 64);
  VI whole[R];
  for (int r = 0; r < R; ++r) whole[r] = seti(0);
  const VI high = srli<16>(first), even = andi(low, bytes_v(15)), odd = andi(srli<4>(low), bytes_v(15));
#pragma GCC unroll 1             // see prefetch()
  for (int p = 0; p < 4; ++p) {  // pairs of groups
    const VI h = srl(high, 4 * p);
    const VI s0 = addi(ori(byte_of(srl(even, 8 * p), 0), slli<4>(andi(h, seti(3)))), seti(-32));
    const VI s1 = addi(ori(byte_of(srl(odd, 8 * p), 0), slli<2>(andi(h, seti(12)))), seti(-32));
    VI sum[R];
    for (int half = 0; half < 2; ++half) {
      const int g = 2 * p + half;
      signed_sums<R, DType::iq4_xs>(w + (2 + 4 * g) * 64, table, x.q + (b * 256 + p * 64) * ts + half * 32,
                                    sum);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        whole[r] = addi(
            whole[r], mullo(centred<DType::iq4_xs>(sum[r], x.minus32[(b * 8 + g) * ts + r]), half ? s1 : s0));
    }
  }
  const VF d = half_of(first);
  for (int r = 0; r < R; ++r) accumulate(acc + r * 16, x.scale[b * ts + r], mulf(d, to_float(whole[r])));
}

// Bit g of every byte of h as bit 2.
template <int g>
CARAT_SIMD VI bit_to_2(VI h) {
  if constexpr (g < 2)
    return andi(slli<2 - g>(h), bytes_v(4));
  else
    return andi(srli<g - 2>(h), bytes_v(4));
}

// Columns 128 n + 64 jj .. + 63 of q2_k or q3_k: two bits of 8 lines, in groups of 16. scale[c]: bytes of
// groups 4c .. 4c + 3; q2_k's in the low nibbles, q3_k's times four.
template <int R, bool Three, int n, int jj>
CARAT_SIMD void k23_quarter(const uint8_t* w, const VI* scale, const int8_t* x, VI* sum) {
  constexpr int first = Three ? 8 : 4, g = 4 * (jj & 1);
  const VI m2 = bytes_v(3), sc = scale[2 * n + jj];
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    VI s0, s1;  // of groups 8n + 4jj + half and + 2
    if constexpr (Three) {
      s0 = half ? srai<26>(slli<16>(sc)) : srai<26>(slli<24>(sc));
      s1 = half ? srai<26>(sc) : srai<26>(slli<8>(sc));
    } else {
      s0 = andi(byte_of(sc, half), seti(15)), s1 = andi(byte_of(sc, 2 + half), seti(15));
    }
    s0 = scale_operand(s0), s1 = scale_operand(s1);
    VG lo[R], hi[R];
    const Xs<R> xl = load_xs<R>(x + 16 * half), xh = load_xs<R>(x + 32 + 16 * half);
    for (int r = 0; r < R; ++r) lo[r] = hi[r] = zero_g();
#pragma GCC unroll 4
    for (int i = 4 * half; i < 4 * half + 4; ++i) {
      const uint8_t* p = w + (first + 8 * n + i) * 64;
      const VI v = jj ? loadi(p) : line(p);
      VI l = andi(srli16<g>(v), m2), u = andi(srli16<g + 2>(v), m2);
      if constexpr (Three) {
        const VI h = n || jj ? loadi(w + i * 64) : line(w + i * 64);
        l = ori(l, bit_to_2<4 * n + 2 * jj>(h)), u = ori(u, bit_to_2<4 * n + 2 * jj + 1>(h));
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        lo[r] = dot_u(lo[r], l, xl, r, i % 4);
        hi[r] = dot_u(hi[r], u, xh, r, i % 4);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = add_scaled(add_scaled(sum[r], lo[r], s0), hi[r], s1);
  }
}

template <int R, bool Three>
CARAT_SIMD void k23_block(const uint8_t* w, const uint8_t* head, const Rounded& x, int64_t b, int ts,
                          float* acc) {
  VI scale[4], pairs[8];  // pairs: int16 factors of the sums in pair16
  if constexpr (Three) {
    const VI s0 = line(w + 24 * 64), s1 = line(w + 25 * 64), s2 = line(w + 26 * 64);
    const VI m4 = bytes_v(15), high = bytes_v(0x30), top = bytes_v(0x20);
    scale[0] = ori(andi(s0, m4), andi(slli<4>(s2), high));
    scale[1] = ori(andi(s1, m4), andi(slli<2>(s2), high));
    scale[2] = ori(andi(srli<4>(s0), m4), andi(s2, high));
    scale[3] = ori(andi(srli<4>(s1), m4), andi(srli<2>(s2), high));
    for (int c = 0; c < 4; ++c) {  // scale - 32 as six bits of two's complement, at the top of its byte
      scale[c] = slli<2>(ori(andi(scale[c], bytes_v(31)), subi(top, andi(scale[c], top))));
      pairs[2 * c] = srai16<8>(slli16<8>(scale[c])), pairs[2 * c + 1] = srai16<8>(scale[c]);
    }
  } else {
    const VI even = seti(0x000f000f);
    for (int c = 0; c < 4; ++c) {
      scale[c] = line(w + c * 64);
      pairs[2 * c] = andi(srli<4>(scale[c]), even), pairs[2 * c + 1] = andi(srli<12>(scale[c]), even);
    }
  }
  VI sum[R];
  for (int r = 0; r < R; ++r) sum[r] = seti(0);
  const int8_t* q = x.q + b * 256 * ts;
  k23_quarter<R, Three, 0, 0>(w, scale, q, sum);
  k23_quarter<R, Three, 0, 1>(w, scale, q + 64 * ts, sum);
  k23_quarter<R, Three, 1, 0>(w, scale, q + 128 * ts, sum);
  k23_quarter<R, Three, 1, 1>(w, scale, q + 192 * ts, sum);
  VF d, dmin = setf(0);
  if constexpr (Three) {
    d = load_f16(head);
  } else {
    const VI dd = line(w + 20 * 64);
    d = half_of(dd), dmin = half_of(srli<16>(dd));
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    VI other = seti(0);  // q3_k: codes are 4 too large, and the factors are 4 times the scales
    for (int p = 0; p < 8; ++p) other = dot16(other, pairs[p], x.pair16 + (b * 8 + p) * ts + r);
    const VF t = Three ? mulf(d, to_float(subi(sum[r], other)))
                       : fnma_exact(dmin, to_float(other), mulf(d, to_float(sum[r])));
    accumulate(acc + r * 16, x.scale[b * ts + r], t);
  }
}

// R rows of a tile of ts rows times one strip.
template <int R, DType T>
static __attribute__((noinline)) void strip_rows(const uint8_t* strip, int64_t cols, const Rounded& x, int ts,
                                                 float* acc) {
  constexpr int lines = pack_shape(T).lines, elems = info(T).elems;
  for (int i = 0; i < R * 16; ++i) acc[i] = 0;
  const uint8_t* w = strip + head_bytes(T, cols);
  for (int64_t b = 0; b * 256 < cols; ++b) {
    const int64_t first = b * 256 / elems;
    for (int h = 0; h < 16; h += W) {
      const uint8_t *p = w + first * lines * 64 + 4 * h,
                    *head = strip + (first * 16 + h) * (pack_shape(T).head / 16);
      if constexpr (T == DType::q4_k || T == DType::q5_k)
        k45_block<R, T == DType::q5_k>(p, x, b, ts, acc + h);
      else if constexpr (T == DType::q6_k)
        k6_block<R>(p, head, x, b, ts, acc + h);
      else if constexpr (T == DType::q2_k || T == DType::q3_k)
        k23_block<R, T == DType::q3_k>(p, head, x, b, ts, acc + h);
      else if constexpr (T == DType::iq4_xs)
        iq4_xs_block<R>(p, x, b, ts, acc + h);
      else if constexpr (T == DType::nvfp4)
        nvfp4_block<R>(p, static_cast<int>(cols / 64 - first < 4 ? cols / 64 - first : 4), x, b, ts, acc + h);
      else
        groups_block<R, T>(p, head, static_cast<int>(cols / 32 - first < 8 ? cols / 32 - first : 8), x, b, ts,
                           acc + h);
    }
  }
}

// All rows of a tile.
template <DType T>
static void strip_tile(const uint8_t* strip, int64_t cols, const Rounded& x, int rows, float* acc) {
  in_passes<kMaxRows>(rows,
                      [&](int r, auto n) { strip_rows<n, T>(strip, cols, x.row(r), rows, acc + r * 16); });
}

static void strip_any(DType type, const uint8_t* strip, int64_t cols, const Rounded& x, int rows,
                      float* acc) {
  switch (type) {
    case DType::q4_k: return strip_tile<DType::q4_k>(strip, cols, x, rows, acc);
    case DType::q5_k: return strip_tile<DType::q5_k>(strip, cols, x, rows, acc);
    case DType::q6_k: return strip_tile<DType::q6_k>(strip, cols, x, rows, acc);
    case DType::q4_0: return strip_tile<DType::q4_0>(strip, cols, x, rows, acc);
    case DType::q5_0: return strip_tile<DType::q5_0>(strip, cols, x, rows, acc);
    case DType::q4_1: return strip_tile<DType::q4_1>(strip, cols, x, rows, acc);
    case DType::q5_1: return strip_tile<DType::q5_1>(strip, cols, x, rows, acc);
    case DType::q2_k: return strip_tile<DType::q2_k>(strip, cols, x, rows, acc);
    case DType::q3_k: return strip_tile<DType::q3_k>(strip, cols, x, rows, acc);
    case DType::iq4_nl: return strip_tile<DType::iq4_nl>(strip, cols, x, rows, acc);
    case DType::iq4_xs: return strip_tile<DType::iq4_xs>(strip, cols, x, rows, acc);
    case DType::mxfp4: return strip_tile<DType::mxfp4>(strip, cols, x, rows, acc);
    case DType::nvfp4: return strip_tile<DType::nvfp4>(strip, cols, x, rows, acc);
    default: return strip_tile<DType::q8_0>(strip, cols, x, rows, acc);
  }
}

// What the machine's byte dots give where nothing waits for memory: 12 sums, weights in a register,
// activations broadcast from the first cache, each for 16 outputs as in products.
constexpr int64_t kDotTestOps = int64_t{kDotTestRounds} * 12 * W * 4 * 2;
[[maybe_unused]] static void run_dot_test(const Step&, const void*, int64_t, Worker& worker) {
  alignas(64) int8_t x[64] = {1, 2, 3, 4, 5, 6, 7, 8};
  const VI w = bytes_v(3);
  VG sum[12];
#pragma GCC unroll 12
  for (VG& s : sum) s = zero_g();
  for (int i = 0; i < kDotTestRounds; ++i) {
    asm volatile("" : : "r"(x) : "memory");  // x must be read again
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) sum[j] = dot_u(sum[j], w, x + 4 * (j / (16 / W)));
  }
  VI all = seti(0);
#pragma GCC unroll 12
  for (const VG& s : sum) all = addi(all, sum_g(s));
  storei(worker.scratch, all);
}
