// Vectors of 8 lanes: AVX2, FMA, F16C.
#define CARAT_SIMD static inline __attribute__((always_inline))
constexpr int W = 8;
constexpr bool kWideSums = false;  // dot_u adds into 16 bits: scale before they overflow
constexpr int kMaxRows = 4;
constexpr int kFloatRows = 2, kFloatOutputs = 2, kFloatOutputs1 = 4;
// A value that is to be in a register here. Left to itself g++ 12 makes all byte products of a loop before it
// adds them, and has no registers for that; and it reads a float again for each product in which it is.
#define CARAT_NOW(v) asm("" : "+x"(v))
typedef __m256 VF;
typedef __m256i VI;
typedef __m256i VG;

CARAT_SIMD void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p) + 1024, _MM_HINT_T0);
  _mm_prefetch(static_cast<const char*>(p) + 4096, _MM_HINT_T1);
}
CARAT_SIMD void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
CARAT_SIMD VF loadf(const float* p) { return _mm256_loadu_ps(p); }
CARAT_SIMD void storef(float* p, VF v) { _mm256_storeu_ps(p, v); }
CARAT_SIMD VF setf(float f) { return _mm256_set1_ps(f); }
CARAT_SIMD VF addf(VF a, VF b) { return _mm256_add_ps(a, b); }
CARAT_SIMD VF subf(VF a, VF b) { return _mm256_sub_ps(a, b); }
CARAT_SIMD VF mulf(VF a, VF b) { return _mm256_mul_ps(a, b); }
CARAT_SIMD VF divf(VF a, VF b) { return _mm256_div_ps(a, b); }
CARAT_SIMD VF select_lt(VF a, VF b, VF x, VF y) {
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
CARAT_SIMD VF minf(VF a, VF b) { return _mm256_min_ps(a, b); }
CARAT_SIMD VF maxf(VF a, VF b) { return _mm256_max_ps(a, b); }
CARAT_SIMD VF absf(VF a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
CARAT_SIMD VF mad(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
CARAT_SIMD VF fma_exact(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
CARAT_SIMD VF fnma_exact(VF a, VF b, VF c) { return _mm256_fnmadd_ps(a, b, c); }
CARAT_SIMD VI round_int(VF x) { return _mm256_cvtps_epi32(x); }
CARAT_SIMD VF to_float(VI a) { return _mm256_cvtepi32_ps(a); }
CARAT_SIMD VI loadi(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
CARAT_SIMD VI load_bytes(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
// 16 bytes, and what they hold at the indices (0 .. 15) in v's bytes.
CARAT_SIMD VI load_table(const void* p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
CARAT_SIMD VI lookup(VI table, VI v) { return _mm256_shuffle_epi8(table, v); }
CARAT_SIMD void storei(void* p, VI v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
CARAT_SIMD VI seti(int32_t i) { return _mm256_set1_epi32(i); }
CARAT_SIMD VI addi(VI a, VI b) { return _mm256_add_epi32(a, b); }
CARAT_SIMD VI subi(VI a, VI b) { return _mm256_sub_epi32(a, b); }
CARAT_SIMD VI andi(VI a, VI b) { return _mm256_and_si256(a, b); }
CARAT_SIMD VI ori(VI a, VI b) { return _mm256_or_si256(a, b); }
CARAT_SIMD VI mullo(VI a, VI b) { return _mm256_mullo_epi32(a, b); }
template <int N>
CARAT_SIMD VI slli(VI a) {
  return _mm256_slli_epi32(a, N);
}
template <int N>
CARAT_SIMD VI srli(VI a) {
  return _mm256_srli_epi32(a, N);
}
CARAT_SIMD VI srl(VI a, int n) { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(n)); }
template <int N>
CARAT_SIMD VI srai(VI a) {
  return _mm256_srai_epi32(a, N);
}
template <int N>
CARAT_SIMD VI slli16(VI a) {
  return _mm256_slli_epi16(a, N);
}
template <int N>
CARAT_SIMD VI srli16(VI a) {
  return _mm256_srli_epi16(a, N);
}
template <int N>
CARAT_SIMD VI srai16(VI a) {
  return _mm256_srai_epi16(a, N);
}
CARAT_SIMD VF pow2(VI n) { return _mm256_castsi256_ps(slli<23>(addi(n, seti(127)))); }
CARAT_SIMD VI minmax(VI v, int lo, int hi) {
  return _mm256_max_epi32(_mm256_min_epi32(v, seti(hi)), seti(lo));
}
CARAT_SIMD VI maxi(VI a, VI b) { return _mm256_max_epi32(a, b); }
CARAT_SIMD int32_t max_lane(VI v) {
  const __m128i a = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  const __m128i b = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}
// The low bytes of 16 dwords that hold signed bytes.
CARAT_SIMD void store_low_bytes(int8_t* to, const int32_t* from) {
  const VI w = _mm256_permute4x64_epi64(_mm256_packs_epi32(loadi(from), loadi(from + 8)), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}
// Minus the sums of bytes 4 i, 4 i + 1 and of 4 i + 2, 4 i + 3 of 16 groups of 16, as two int16.
CARAT_SIMD void minus_lanes_of_16(const int8_t* q, uint32_t* s) {
  const VI one = _mm256_set1_epi8(1);
  for (int g = 0; g < 16; g += 2) {
    VI v = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_maddubs_epi16(one, loadi(q + 16 * g)));
    v = _mm256_add_epi16(v, _mm256_shuffle_epi32(v, 0x4e));
    v = _mm256_add_epi16(v, _mm256_shuffle_epi32(v, 0xb1));
    s[g] = static_cast<uint32_t>(_mm256_extract_epi32(v, 0));
    s[g + 1] = static_cast<uint32_t>(_mm256_extract_epi32(v, 4));
  }
}
// Sums of 16 groups of 16 bytes.
CARAT_SIMD void sums_of_16(const int8_t* q, int32_t* s) {
  const VI order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int h = 0; h < 2; ++h) {
    VI v[4];  // two groups each, in four lanes
    for (int i = 0; i < 4; ++i)
      v[i] = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), loadi(q + 128 * h + 32 * i)),
                               _mm256_set1_epi16(1));
    const VI sums = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    storei(s + 8 * h, _mm256_permutevar8x32_epi32(sums, order));
  }
}
CARAT_SIMD VI word(const void* p) {
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm256_set1_epi32(v);
}
CARAT_SIMD VI dot16(VI acc, VI a, const uint32_t* x) { return addi(acc, _mm256_madd_epi16(a, word(x))); }
CARAT_SIMD VG zero_g() { return _mm256_setzero_si256(); }
CARAT_SIMD VI addi16(VI a, VI b) { return _mm256_add_epi16(a, b); }
CARAT_SIMD VG dot_v(VG acc, VI w, VI x) {
  acc = addi16(acc, _mm256_maddubs_epi16(w, x));
  CARAT_NOW(acc);
  return acc;
}
CARAT_SIMD VG dot_u(VG acc, VI w, const int8_t* x) { return dot_v(acc, w, word(x)); }
CARAT_SIMD VI scale_operand(VI s) { return ori(andi(s, seti(0xffff)), slli<16>(s)); }
CARAT_SIMD VI add_scaled(VI sum, VG g, VI scale) { return addi(sum, _mm256_madd_epi16(g, scale)); }
CARAT_SIMD VI sum_g(VG g) { return _mm256_madd_epi16(g, _mm256_set1_epi16(1)); }
constexpr int kSignedShift = -1;
CARAT_SIMD VI signed_operand(VI w) { return w; }
CARAT_SIMD VI dot_s(VI acc, VI w, const int8_t* x) {  // |a| <= 127: two products of at most 128 * 127 fit
  const VI p = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(word(x), w));
  acc = addi(acc, _mm256_madd_epi16(p, _mm256_set1_epi16(1)));
  CARAT_NOW(acc);
  return acc;
}
CARAT_SIMD VF load_f16(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
CARAT_SIMD VF half_of(VI v) {  // the low f16 of each lane
  v = andi(v, seti(0xffff));
  return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(v, v), 8)));
}
CARAT_SIMD VF load_bf16(const void* p) {
  return _mm256_castsi256_ps(
      slli<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))));
}
struct F16 {
  VF v[2];
};
CARAT_SIMD float sum16(const F16& a) {
  const __m256 s = _mm256_add_ps(a.v[0], a.v[1]);
  const __m128 h = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  const __m128 t = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
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
CARAT_SIMD B16 add_fours(B16 b, uint16_t where) {
  const __m128i bit = _mm_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m128i bytes = _mm_shuffle_epi8(_mm_set1_epi16(static_cast<int16_t>(where)),
                                         _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
  return _mm_or_si128(b, _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(bytes, bit), bit), _mm_set1_epi8(4)));
}
CARAT_SIMD F16 floats_of(B16 b) {
  return {{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
           _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)))}};
}
CARAT_SIMD F16 floats_of_e4m3(B16 b) {
  const __m256i h = e4m3_halves(b);
  return {{_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))}};
}
