// Numbers as two bf16 parts for AMX: high + low are a half exactly, a float to 16 bits. A product is high
// high + high low + low high, added by the tiles in f32 in this order, 32 columns at a time.

constexpr int kValueColumns = 32;  // of one weigh_values

struct alignas(64) Parts {  // of one tile: 16 rows of 16 pairs, the first of a pair in the low half
  uint32_t high[16][16], low[16][16];
};

// Pairs (a, b) in two parts. Exact: of 16 bits or less, so that there is nothing to round.
template <bool Exact>
CARAT_SIMD void put_parts(Parts& to, unsigned row, VF a, VF b) {
  const VI top = seti(static_cast<int32_t>(0xffff0000)), half = seti(Exact ? 0 : 0x8000);
  const VI ah = andi(_mm512_castps_si512(a), top), bh = andi(_mm512_castps_si512(b), top);
  const VI al = addi(_mm512_castps_si512(subf(a, _mm512_castsi512_ps(ah))), half),
           bl = addi(_mm512_castps_si512(subf(b, _mm512_castsi512_ps(bh))), half);
  storei(to.high[row], ori(srli<16>(ah), bh));
  storei(to.low[row], ori(srli<16>(al), andi(bl, top)));
}
// Pairs of integers below 128, which have no low part.
CARAT_SIMD void put_codes(Parts& to, unsigned row, VF a, VF b) {
  storei(to.high[row], ori(srli<16>(_mm512_castps_si512(a)), _mm512_castps_si512(b)));
}
CARAT_SIMD void transpose(const uint32_t (*from)[16], uint32_t (*m)[16]) {
  VI a[16], b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) a[i] = loadi(from[i]);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // quarters j of a[4 u + i] are rows 4 j + i
    const VI x = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88), y = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd),
             u = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88),
             v = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
    storei(m[i], _mm512_shuffle_i32x4(x, u, 0x88));
    storei(m[i + 8], _mm512_shuffle_i32x4(x, u, 0xdd));
    storei(m[i + 4], _mm512_shuffle_i32x4(y, v, 0x88));
    storei(m[i + 12], _mm512_shuffle_i32x4(y, v, 0xdd));
  }
}
CARAT_SIMD void transpose(Parts& p) {
  transpose(p.high, p.high);
  transpose(p.low, p.low);
}

// ---- products: c[i][j] += sum over steps of a[i] b[j]

struct TileRun {  // tiles, and how far it is to the next tile and to the next step
  const Parts* p;
  int64_t tile, step;
  const Parts& at(int i, int s) const { return p[i * tile + s * step]; }
};
#define CARAT_LOAD(reg, x) _tile_loadd(reg, x, 64)

// a: of 64 keys; b: of 16 queries; c [64][16]. first: c is not there yet.
template <bool Codes>
static __attribute__((noinline)) void add_scores(TileRun a, TileRun b, int steps, bool first, float* c) {
  CARAT_FENCE();
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    CARAT_LOAD(0, c);
    CARAT_LOAD(1, c + 256);
    CARAT_LOAD(2, c + 512);
    CARAT_LOAD(3, c + 768);
  }
  for (int s = 0; s < steps; ++s) {
    const Parts &a0 = a.at(0, s), &a1 = a.at(1, s), &a2 = a.at(2, s), &a3 = a.at(3, s), &b0 = b.at(0, s);
    CARAT_LOAD(6, b0.high);
    CARAT_LOAD(7, b0.low);
#define CARAT_FOUR(part, with) \
  CARAT_LOAD(4, a0.part);      \
  _tile_dpbf16ps(0, 4, with);  \
  CARAT_LOAD(5, a1.part);      \
  _tile_dpbf16ps(1, 5, with);  \
  CARAT_LOAD(4, a2.part);      \
  _tile_dpbf16ps(2, 4, with);  \
  CARAT_LOAD(5, a3.part);      \
  _tile_dpbf16ps(3, 5, with)
    CARAT_FOUR(high, 6);
    CARAT_FOUR(high, 7);
    if constexpr (!Codes) {
      CARAT_FOUR(low, 6);
    }
#undef CARAT_FOUR
  }
  _tile_stored(0, c, 64);
  _tile_stored(1, c + 256, 64);
  _tile_stored(2, c + 512, 64);
  _tile_stored(3, c + 768, 64);
  CARAT_FENCE();
}

// a: weights of 16 T queries; b: of kValueColumns = 32 columns; c [16 T][32], rows of `stride` floats.
template <int T, bool Codes>
static __attribute__((noinline)) void weigh_values(TileRun a, TileRun b, int steps, float* c,
                                                   int64_t stride) {
  CARAT_FENCE();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int s = 0; s < steps; ++s) {
    const Parts &a0 = a.at(0, s), &a1 = a.at(T - 1, s), &b0 = b.at(0, s), &b1 = b.at(1, s);
#define CARAT_FOUR(of_a, of_b) \
  CARAT_LOAD(4, a0.of_a);      \
  CARAT_LOAD(6, b0.of_b);      \
  _tile_dpbf16ps(0, 4, 6);     \
  CARAT_LOAD(7, b1.of_b);      \
  _tile_dpbf16ps(1, 4, 7);     \
  if constexpr (T == 2) {      \
    CARAT_LOAD(5, a1.of_a);    \
    _tile_dpbf16ps(2, 5, 6);   \
    _tile_dpbf16ps(3, 5, 7);   \
  }
    CARAT_FOUR(high, high)
    if constexpr (!Codes) {
      CARAT_FOUR(high, low)
    }
    CARAT_FOUR(low, high)
#undef CARAT_FOUR
  }
  _tile_stored(0, c, stride * 4);
  _tile_stored(1, c + 16, stride * 4);
  if constexpr (T == 2) {
    _tile_stored(2, c + 16 * stride, stride * 4);
    _tile_stored(3, c + 16 * stride + 16, stride * 4);
  }
  CARAT_FENCE();
}
#undef CARAT_LOAD
