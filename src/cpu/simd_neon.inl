// Vectors of 4 lanes: NEON with dot products of bytes (ARMv8.2 dotprod).
#define CARAT_SIMD static inline __attribute__((always_inline))
constexpr int W = 4;
constexpr bool kWideSums = true;
constexpr int kMaxRows = 4;
constexpr int kFloatRows = 2, kFloatOutputs = 2, kFloatOutputs1 = 2;
#define CARAT_NOW(v) asm("" : "+w"(v))
typedef float32x4_t VF;
typedef int32x4_t VI;
typedef int32x4_t VG;

CARAT_SIMD void prefetch(const void* p) {
  __builtin_prefetch(static_cast<const char*>(p) + 1024, 0, 3);
  __builtin_prefetch(static_cast<const char*>(p) + 4096, 0, 2);
}
CARAT_SIMD void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }
CARAT_SIMD int8x16_t bytes_of(VI v) { return vreinterpretq_s8_s32(v); }
CARAT_SIMD uint32x4_t words_of(VI v) { return vreinterpretq_u32_s32(v); }
CARAT_SIMD VI ints_of(uint32x4_t v) { return vreinterpretq_s32_u32(v); }
CARAT_SIMD VF loadf(const float* p) { return vld1q_f32(p); }
CARAT_SIMD void storef(float* p, VF v) { vst1q_f32(p, v); }
CARAT_SIMD VF setf(float f) { return vdupq_n_f32(f); }
CARAT_SIMD VF addf(VF a, VF b) { return vaddq_f32(a, b); }
CARAT_SIMD VF subf(VF a, VF b) { return vsubq_f32(a, b); }
CARAT_SIMD VF mulf(VF a, VF b) { return vmulq_f32(a, b); }
CARAT_SIMD VF divf(VF a, VF b) { return vdivq_f32(a, b); }
CARAT_SIMD VF select_lt(VF a, VF b, VF x, VF y) { return vbslq_f32(vcltq_f32(a, b), x, y); }
CARAT_SIMD VF minf(VF a, VF b) { return select_lt(a, b, a, b); }  // not vminq: a NaN comes from b alone
CARAT_SIMD VF maxf(VF a, VF b) { return select_lt(b, a, a, b); }
CARAT_SIMD VF absf(VF a) { return vabsq_f32(a); }
CARAT_SIMD VF mad(VF a, VF b, VF c) { return vfmaq_f32(c, a, b); }
CARAT_SIMD VF fma_exact(VF a, VF b, VF c) { return vfmaq_f32(c, a, b); }
CARAT_SIMD VF fnma_exact(VF a, VF b, VF c) { return vfmsq_f32(c, a, b); }
CARAT_SIMD VI round_int(VF x) { return vcvtnq_s32_f32(x); }
CARAT_SIMD VF to_float(VI a) { return vcvtq_f32_s32(a); }
CARAT_SIMD VI loadi(const void* p) { return vreinterpretq_s32_u8(vld1q_u8(static_cast<const uint8_t*>(p))); }
CARAT_SIMD VI load_bytes(const uint8_t* p) {
  uint32_t v;
  __builtin_memcpy(&v, p, 4);
  return ints_of(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(v)))));
}
CARAT_SIMD VI load_table(const void* p) { return loadi(p); }
CARAT_SIMD VI lookup(VI table, VI v) {
  return vreinterpretq_s32_s8(vqtbl1q_s8(bytes_of(table), vreinterpretq_u8_s32(v)));
}
CARAT_SIMD void storei(void* p, VI v) { vst1q_u8(static_cast<uint8_t*>(p), vreinterpretq_u8_s32(v)); }
CARAT_SIMD VI seti(int32_t i) { return vdupq_n_s32(i); }
CARAT_SIMD VI addi(VI a, VI b) { return vaddq_s32(a, b); }
CARAT_SIMD VI subi(VI a, VI b) { return vsubq_s32(a, b); }
CARAT_SIMD VI andi(VI a, VI b) { return vandq_s32(a, b); }
CARAT_SIMD VI ori(VI a, VI b) { return vorrq_s32(a, b); }
CARAT_SIMD VI mullo(VI a, VI b) { return vmulq_s32(a, b); }
template <int N>
CARAT_SIMD VI slli(VI a) {
  return ints_of(words_of(a) << N);
}
template <int N>
CARAT_SIMD VI srli(VI a) {
  return ints_of(words_of(a) >> N);
}
CARAT_SIMD VI srl(VI a, int n) { return ints_of(vshlq_u32(words_of(a), vdupq_n_s32(-n))); }
template <int N>
CARAT_SIMD VI srai(VI a) {
  return a >> N;
}
template <int N>
CARAT_SIMD VI slli16(VI a) {
  return vreinterpretq_s32_u16(vreinterpretq_u16_s32(a) << N);
}
template <int N>
CARAT_SIMD VI srli16(VI a) {
  return vreinterpretq_s32_u16(vreinterpretq_u16_s32(a) >> N);
}
template <int N>
CARAT_SIMD VI srai16(VI a) {
  return vreinterpretq_s32_s16(vreinterpretq_s16_s32(a) >> N);
}
CARAT_SIMD VF pow2(VI n) { return vreinterpretq_f32_s32(slli<23>(addi(n, seti(127)))); }
CARAT_SIMD VI minmax(VI v, int lo, int hi) { return vmaxq_s32(vminq_s32(v, seti(hi)), seti(lo)); }
CARAT_SIMD VI maxi(VI a, VI b) { return vmaxq_s32(a, b); }
CARAT_SIMD int32_t max_lane(VI v) { return vmaxvq_s32(v); }
CARAT_SIMD void store_low_bytes(int8_t* to, const int32_t* from) {
  const int16x8_t a = vcombine_s16(vmovn_s32(vld1q_s32(from)), vmovn_s32(vld1q_s32(from + 4)));
  const int16x8_t b = vcombine_s16(vmovn_s32(vld1q_s32(from + 8)), vmovn_s32(vld1q_s32(from + 12)));
  vst1q_s8(to, vcombine_s8(vmovn_s16(a), vmovn_s16(b)));
}
CARAT_SIMD void sums_of_16(const int8_t* q, int32_t* s) {
  const int8x16_t one = vdupq_n_s8(1);
  for (int g = 0; g < 16; g += 4) {
    VI v[4];
    for (int i = 0; i < 4; ++i) v[i] = vdotq_s32(vdupq_n_s32(0), vld1q_s8(q + 16 * (g + i)), one);
    vst1q_s32(s + g, vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3])));
  }
}
CARAT_SIMD VI word(const void* p) { return vld1q_dup_s32(static_cast<const int32_t*>(p)); }
CARAT_SIMD VI dot16(VI acc, VI a, const uint32_t* x) {
  const int16x8_t v = vreinterpretq_s16_s32(a), w = vreinterpretq_s16_s32(word(x));
  return vaddq_s32(acc, vpaddq_s32(vmull_s16(vget_low_s16(v), vget_low_s16(w)), vmull_high_s16(v, w)));
}
CARAT_SIMD VG zero_g() { return vdupq_n_s32(0); }
// Unsigned codes are below 128: the signed dot serves both.
CARAT_SIMD VG dot_u(VG acc, VI w, const int8_t* x) { return vdotq_s32(acc, bytes_of(w), bytes_of(word(x))); }
CARAT_SIMD VI scale_operand(VI s) { return s; }
CARAT_SIMD VI add_scaled(VI sum, VG g, VI scale) { return vmlaq_s32(sum, g, scale); }
CARAT_SIMD VI sum_g(VG g) { return g; }
constexpr int kSignedShift = -1;
CARAT_SIMD VI signed_operand(VI w) { return w; }
CARAT_SIMD VI dot_s(VI acc, VI w, const int8_t* x) { return dot_u(acc, w, x); }
// One load serves 16 columns: broadcasting each four would take as many instructions as the dots themselves.
#define CARAT_BY_ELEMENT 1
template <int R>
struct Xs {
  int8x16_t v[R];
};
template <int R>
CARAT_SIMD Xs<R> load_xs(const int8_t* p) {
  Xs<R> x;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x.v[r] = vld1q_s8(p + r * 64);
  return x;
}
template <int R>
CARAT_SIMD VG dot_u(VG acc, VI w, const Xs<R>& x, int r, int four) {  // four: known where this is compiled
  switch (four) {
    case 0: return vdotq_laneq_s32(acc, bytes_of(w), x.v[r], 0);
    case 1: return vdotq_laneq_s32(acc, bytes_of(w), x.v[r], 1);
    case 2: return vdotq_laneq_s32(acc, bytes_of(w), x.v[r], 2);
    default: return vdotq_laneq_s32(acc, bytes_of(w), x.v[r], 3);
  }
}
template <int R>
CARAT_SIMD VI dot_s(VI acc, VI w, const Xs<R>& x, int r, int four) {
  return dot_u(acc, w, x, r, four);
}
CARAT_SIMD VF load_f16(const void* p) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(static_cast<const uint8_t*>(p))));
}
CARAT_SIMD VF half_of(VI v) { return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(words_of(v)))); }
CARAT_SIMD VF load_bf16(const void* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(static_cast<const uint8_t*>(p))), 16));
}
struct F16 {
  VF v[4];
};
CARAT_SIMD float sum16(const F16& a) {
  const VF s = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t t = vadd_f32(vget_low_f32(s), vget_high_f32(s));
  return vget_lane_f32(t, 0) + vget_lane_f32(t, 1);
}

// 16 bytes: codes of a cached row.
typedef uint8x16_t B16;
CARAT_SIMD B16 load_b16(const void* p) { return vld1q_u8(static_cast<const uint8_t*>(p)); }
template <int Shift, int Mask>
CARAT_SIMD B16 bits_of(B16 b) {
  return vandq_u8(b >> Shift, vdupq_n_u8(Mask));
}
CARAT_SIMD B16 low_bits(B16 b, int shift, int8_t mask) {
  return vandq_u8(vshlq_u8(b, vdupq_n_s8(static_cast<int8_t>(-shift))),
                  vdupq_n_u8(static_cast<uint8_t>(mask)));
}
CARAT_SIMD B16 lookup(B16 table, B16 index) { return vqtbl1q_u8(table, index); }
CARAT_SIMD B16 add_fours(B16 b, uint16_t where) {
  const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  const uint8x16_t bytes =
      vcombine_u8(vdup_n_u8(static_cast<uint8_t>(where)), vdup_n_u8(static_cast<uint8_t>(where >> 8)));
  return vorrq_u8(b, vandq_u8(vtstq_u8(bytes, bit), vdupq_n_u8(4)));
}
CARAT_SIMD float one_half(const void* p) {
  uint16_t h;
  __builtin_memcpy(&h, p, 2);
  return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0);
}
CARAT_SIMD F16 floats_of(B16 b) {
  const int16x8_t l = vmovl_s8(vget_low_s8(vreinterpretq_s8_u8(b))),
                  h = vmovl_high_s8(vreinterpretq_s8_u8(b));
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(l))), vcvtq_f32_s32(vmovl_high_s16(l)),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(h))), vcvtq_f32_s32(vmovl_high_s16(h))}};
}
CARAT_SIMD F16 floats_of_e4m3(B16 b) {  // 2^-8 times the value
  F16 y;
  for (int i = 0; i < 2; ++i) {
    const uint16x8_t w = i ? vmovl_high_u8(b) : vmovl_u8(vget_low_u8(b));
    const uint16x8_t h = vorrq_u16(vshlq_n_u16(vandq_u16(w, vdupq_n_u16(0x80)), 8),
                                   vshlq_n_u16(vandq_u16(w, vdupq_n_u16(0x7f)), 7));
    y.v[2 * i] = vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(h)));
    y.v[2 * i + 1] = vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(h)));
  }
  return y;
}
