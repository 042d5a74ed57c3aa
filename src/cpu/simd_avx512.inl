// Vectors of 16 lanes: AVX-512 F, BW, VL, DQ, VNNI.
#define CARAT_SIMD static inline __attribute__((always_inline))
constexpr int W = 16;
constexpr bool kWideSums = true;
constexpr int kMaxRows = 8;
constexpr int kFloatRows = 4, kFloatOutputs = 4, kFloatOutputs1 = 8;
#define CARAT_NOW(v) static_cast<void>(v)  // see simd_avx2.inl; measured there
typedef __m512 VF;
typedef __m512i VI;
typedef __m512i VG;

// Weights lie in the order in which they are read, so running past the end of a strip is reading ahead into
// the next. One core, one row, weights in memory: on Zen 4 hints for L1 cost more than they bring (q6_k 15 to
// 17-21 GB/s without, q8_0 17 to 20, q5_0 14 to 20). On Xeons with AMX near hints pay, beside what the
// machine asks for by itself, and it does so for loads that come back within 2 KB: so loops go through
// quarters of blocks, not unrolled, and hints ascend without a gap (two cores, q4_k 30.8 to 32.4 GB/s,
// q6_k 27.2 to 31.2; one more hint a page, further ahead, takes a fifth of what plain reads reach).
CARAT_SIMD void prefetch(const void* p) {
#ifdef CARAT_AMX
  _mm_prefetch(static_cast<const char*>(p) + 1536, _MM_HINT_T0);
  _mm_prefetch(static_cast<const char*>(p) + 4096, _MM_HINT_T1);
#else
  _mm_prefetch(static_cast<const char*>(p) + 8192, _MM_HINT_T1);
#endif
}
CARAT_SIMD void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
CARAT_SIMD VF loadf(const float* p) { return _mm512_loadu_ps(p); }
CARAT_SIMD void storef(float* p, VF v) { _mm512_storeu_ps(p, v); }
CARAT_SIMD VF setf(float f) { return _mm512_set1_ps(f); }
CARAT_SIMD VF addf(VF a, VF b) { return _mm512_add_ps(a, b); }
CARAT_SIMD VF subf(VF a, VF b) { return _mm512_sub_ps(a, b); }
CARAT_SIMD VF mulf(VF a, VF b) { return _mm512_mul_ps(a, b); }
CARAT_SIMD VF divf(VF a, VF b) { return _mm512_div_ps(a, b); }
CARAT_SIMD VF select_lt(VF a, VF b, VF x, VF y) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
CARAT_SIMD VF minf(VF a, VF b) { return _mm512_min_ps(a, b); }
CARAT_SIMD VF maxf(VF a, VF b) { return _mm512_max_ps(a, b); }
CARAT_SIMD VF absf(VF a) { return _mm512_abs_ps(a); }
CARAT_SIMD VF mad(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }
CARAT_SIMD VF fma_exact(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }
CARAT_SIMD VF fnma_exact(VF a, VF b, VF c) { return _mm512_fnmadd_ps(a, b, c); }
CARAT_SIMD VI round_int(VF x) { return _mm512_cvtps_epi32(x); }
CARAT_SIMD VF to_float(VI a) { return _mm512_cvtepi32_ps(a); }
CARAT_SIMD VI loadi(const void* p) { return _mm512_loadu_si512(p); }
CARAT_SIMD VI load_bytes(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// 16 bytes, and what they hold at the indices (0 .. 15) in v's bytes.
CARAT_SIMD VI load_table(const void* p) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
CARAT_SIMD VI lookup(VI table, VI v) { return _mm512_shuffle_epi8(table, v); }
CARAT_SIMD void storei(void* p, VI v) { _mm512_storeu_si512(p, v); }
CARAT_SIMD VI seti(int32_t i) { return _mm512_set1_epi32(i); }
CARAT_SIMD VI addi(VI a, VI b) { return _mm512_add_epi32(a, b); }
CARAT_SIMD VI subi(VI a, VI b) { return _mm512_sub_epi32(a, b); }
CARAT_SIMD VI andi(VI a, VI b) { return _mm512_and_si512(a, b); }
CARAT_SIMD VI ori(VI a, VI b) { return _mm512_or_si512(a, b); }
CARAT_SIMD VI mullo(VI a, VI b) { return _mm512_mullo_epi32(a, b); }
template <int N>
CARAT_SIMD VI slli(VI a) {
  return _mm512_slli_epi32(a, N);
}
template <int N>
CARAT_SIMD VI srli(VI a) {
  return _mm512_srli_epi32(a, N);
}
CARAT_SIMD VI srl(VI a, int n) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n)); }
template <int N>
CARAT_SIMD VI srai(VI a) {
  return _mm512_srai_epi32(a, N);
}
template <int N>
CARAT_SIMD VI slli16(VI a) {
  return _mm512_slli_epi16(a, N);
}
template <int N>
CARAT_SIMD VI srli16(VI a) {
  return _mm512_srli_epi16(a, N);
}
template <int N>
CARAT_SIMD VI srai16(VI a) {
  return _mm512_srai_epi16(a, N);
}
CARAT_SIMD VF pow2(VI n) { return _mm512_castsi512_ps(slli<23>(addi(n, seti(127)))); }
CARAT_SIMD VI minmax(VI v, int lo, int hi) {
  return _mm512_max_epi32(_mm512_min_epi32(v, seti(hi)), seti(lo));
}
CARAT_SIMD VI maxi(VI a, VI b) { return _mm512_max_epi32(a, b); }
CARAT_SIMD int32_t max_lane(VI v) { return _mm512_reduce_max_epi32(v); }
// The low bytes of 16 dwords.
CARAT_SIMD void store_low_bytes(int8_t* to, const int32_t* from) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(loadi(from)));
}
// Sums of 16 groups of 16 bytes.
CARAT_SIMD void sums_of_16(const int8_t* q, int32_t* s) {
  const VI ones = _mm512_set1_epi8(1);
  VI part[4];
  for (int i = 0; i < 4; ++i) {  // lane 4 l + j: groups 4 i + l
    const VI v = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, loadi(q + 64 * i));
    const VI w = addi(v, _mm512_shuffle_epi32(v, _MM_PERM_CDAB));
    part[i] = addi(w, _mm512_shuffle_epi32(w, _MM_PERM_BADC));
  }
  const VI even = _mm512_mask_blend_epi32(0x2222, part[0], part[1]);
  const VI odd = _mm512_mask_blend_epi32(0x8888, part[2], part[3]);
  const VI order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  storei(s, _mm512_permutexvar_epi32(order, _mm512_mask_blend_epi32(0xcccc, even, odd)));
}
CARAT_SIMD VI word(const void* p) {
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}
// The activation dword is a broadcast memory operand; from the intrinsic g++ makes a load and a broadcast of
// it.
struct Word {
  int32_t v;
} __attribute__((packed, may_alias));
CARAT_SIMD VI dot16(VI acc, VI a, const uint32_t* x) {
  asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(a), "m"(*reinterpret_cast<const Word*>(x)));
  return acc;
}
CARAT_SIMD VG zero_g() { return _mm512_setzero_si512(); }
CARAT_SIMD VG dot_u(VG acc, VI w, const int8_t* x) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*reinterpret_cast<const Word*>(x)));
  return acc;
}
CARAT_SIMD VI scale_operand(VI s) { return s; }
CARAT_SIMD VI add_scaled(VI sum, VG g, VI scale) { return addi(sum, mullo(g, scale)); }
CARAT_SIMD VI sum_g(VG g) { return g; }
constexpr int kSignedShift = 7;  // signed codes + 128, so 128 * sum(a) must be taken off
CARAT_SIMD VI signed_operand(VI w) { return _mm512_xor_si512(w, _mm512_set1_epi8(-128)); }
CARAT_SIMD VI dot_s(VI acc, VI w, const int8_t* x) { return dot_u(acc, w, x); }
CARAT_SIMD VF load_f16(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
CARAT_SIMD VF half_of(VI v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }  // the low f16 of each lane
CARAT_SIMD VF load_bf16(const void* p) {
  return _mm512_castsi512_ps(
      slli<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)))));
}
struct F16 {
  VF v[1];
};
CARAT_SIMD float sum16(const F16& a) {
  const __m256 s = _mm256_add_ps(_mm512_castps512_ps256(a.v[0]), _mm512_extractf32x8_ps(a.v[0], 1));
  const __m128 h = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  const __m128 t = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}

// Halves, then quarters, of x and of y added, side by side.
CARAT_SIMD VF add_halves(VF x, VF y) {
  return addf(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
}
CARAT_SIMD VF add_quarters(VF x, VF y) {
  return addf(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
}
// Queries 0 .. 3 of key n, in quarters.
CARAT_SIMD VF quarters_of(const F16 (&a)[4][4], int n) {
  return add_quarters(add_halves(a[0][n].v[0], a[1][n].v[0]), add_halves(a[2][n].v[0], a[3][n].v[0]));
}
// to[i * stride + n] = sum16(a[i][n]), all sixteen at once: the same additions, in lanes.
CARAT_SIMD void sums16(const F16 (&a)[4][4], float* to, int stride) {
  const VF k0 = quarters_of(a, 0), k1 = quarters_of(a, 1), k2 = quarters_of(a, 2), k3 = quarters_of(a, 3);
  const VF p = addf(_mm512_shuffle_ps(k0, k1, 0x44), _mm512_shuffle_ps(k0, k1, 0xee));
  const VF q = addf(_mm512_shuffle_ps(k2, k3, 0x44), _mm512_shuffle_ps(k2, k3, 0xee));
  const VF sums = addf(_mm512_shuffle_ps(p, q, 0x88), _mm512_shuffle_ps(p, q, 0xdd));
  _mm_storeu_ps(to, _mm512_castps512_ps128(sums));
  _mm_storeu_ps(to + stride, _mm512_extractf32x4_ps(sums, 1));
  _mm_storeu_ps(to + 2 * stride, _mm512_extractf32x4_ps(sums, 2));
  _mm_storeu_ps(to + 3 * stride, _mm512_extractf32x4_ps(sums, 3));
}

// 16 bytes: codes of a cached row.
typedef __m128i B16;
CARAT_SIMD B16 load_b16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
template <int Shift, int Mask>
CARAT_SIMD B16 bits_of(B16 b) {
  return _mm_and_si128(_mm_srli_epi16(b, Shift), _mm_set1_epi8(Mask));
}
CARAT_SIMD B16 low_bits(B16 b, int shift, int8_t mask) {
  return _mm_and_si128(_mm_srl_epi16(b, _mm_cvtsi32_si128(shift)), _mm_set1_epi8(mask));
}
CARAT_SIMD B16 lookup(B16 table, B16 index) { return _mm_shuffle_epi8(table, index); }
CARAT_SIMD float one_half(const void* p) {
  uint16_t h;
  __builtin_memcpy(&h, p, 2);
  return _cvtsh_ss(h);
}
CARAT_SIMD __m256i e4m3_halves(B16 b) {  // as f16 of 2^-8 times the value
  const __m256i w = _mm256_cvtepu8_epi16(b);
  return _mm256_or_si256(_mm256_slli_epi16(_mm256_and_si256(w, _mm256_set1_epi16(0x80)), 8),
                         _mm256_slli_epi16(_mm256_and_si256(w, _mm256_set1_epi16(0x7f)), 7));
}
CARAT_SIMD B16 add_fours(B16 b, uint16_t where) { return _mm_mask_add_epi8(b, where, b, _mm_set1_epi8(4)); }
CARAT_SIMD F16 floats_of(B16 b) { return {{_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b))}}; }
CARAT_SIMD F16 floats_of_e4m3(B16 b) { return {{_mm512_cvtph_ps(e4m3_halves(b))}}; }
