// Vectors of 4 lanes in plain C++ (compiler vector types): any machine. No fused multiply-add except where
// the result's bits ask for one.
#define CARAT_SIMD static inline __attribute__((always_inline))
constexpr int W = 4;
constexpr bool kWideSums = true;  // dot_u adds into 32 bits
constexpr int kMaxRows = 2;       // rows per pass of the integer kernels
constexpr int kFloatRows = 2, kFloatOutputs = 2, kFloatOutputs1 = 2;
#define CARAT_NOW(v) static_cast<void>(v)  // see simd_avx2.inl; measured there
typedef float VF __attribute__((vector_size(16)));
typedef int32_t VI __attribute__((vector_size(16)));
typedef uint32_t VU __attribute__((vector_size(16)));
typedef int16_t VS __attribute__((vector_size(16)));
typedef uint16_t VT __attribute__((vector_size(16)));
using VG = VI;  // a group's running dot

template <class V>
CARAT_SIMD V load_as(const void* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
CARAT_SIMD void prefetch(const void*) {}
CARAT_SIMD void prefetch_far(const void*) {}
CARAT_SIMD VF loadf(const float* p) { return load_as<VF>(p); }
CARAT_SIMD void storef(float* p, VF v) { __builtin_memcpy(p, &v, sizeof v); }
CARAT_SIMD VF setf(float f) { return VF{f, f, f, f}; }
CARAT_SIMD VF addf(VF a, VF b) { return a + b; }
CARAT_SIMD VF subf(VF a, VF b) { return a - b; }
CARAT_SIMD VF mulf(VF a, VF b) { return a * b; }
CARAT_SIMD VF divf(VF a, VF b) { return a / b; }
CARAT_SIMD VF select_lt(VF a, VF b, VF x, VF y) {  // a < b ? x : y
  const VI m = a < b;
  return (VF)(((VI)x & m) | ((VI)y & ~m));
}
CARAT_SIMD VF minf(VF a, VF b) { return select_lt(a, b, a, b); }
CARAT_SIMD VF maxf(VF a, VF b) { return select_lt(b, a, a, b); }
CARAT_SIMD VF absf(VF a) { return (VF)((VI)a & 0x7fffffff); }
CARAT_SIMD VF mad(VF a, VF b, VF c) { return a * b + c; }
CARAT_SIMD VF fma_exact(VF a, VF b, VF c) {
  return VF{std::fma(a[0], b[0], c[0]), std::fma(a[1], b[1], c[1]), std::fma(a[2], b[2], c[2]),
            std::fma(a[3], b[3], c[3])};
}
CARAT_SIMD VF fnma_exact(VF a, VF b, VF c) { return fma_exact(-a, b, c); }
CARAT_SIMD VI round_int(VF x) {  // |x| < 2^22; nearest even
  const VF magic = setf(12582912.0f);
  return (VI)(x + magic) - (VI)magic;
}
CARAT_SIMD VF to_float(VI a) { return __builtin_convertvector(a, VF); }
CARAT_SIMD VF pow2(VI n) { return (VF)((n + 127) << 23); }
CARAT_SIMD VI loadi(const void* p) { return load_as<VI>(p); }
CARAT_SIMD VI load_bytes(const uint8_t* p) { return VI{p[0], p[1], p[2], p[3]}; }
// 16 bytes, and what they hold at the indices (0 .. 15) in v's bytes.
CARAT_SIMD VI load_table(const void* p) { return load_as<VI>(p); }
CARAT_SIMD VI lookup(VI table, VI v) {
  uint8_t t[16], i[16];
  __builtin_memcpy(t, &table, 16), __builtin_memcpy(i, &v, 16);
  for (uint8_t& b : i) b = t[b];
  return load_as<VI>(i);
}
CARAT_SIMD void storei(void* p, VI v) { __builtin_memcpy(p, &v, sizeof v); }
CARAT_SIMD VI seti(int32_t i) { return VI{i, i, i, i}; }
CARAT_SIMD VI addi(VI a, VI b) { return (VI)((VU)a + (VU)b); }
CARAT_SIMD VI subi(VI a, VI b) { return (VI)((VU)a - (VU)b); }
CARAT_SIMD VI andi(VI a, VI b) { return a & b; }
CARAT_SIMD VI ori(VI a, VI b) { return a | b; }
CARAT_SIMD VI mullo(VI a, VI b) { return (VI)((VU)a * (VU)b); }
template <int N>
CARAT_SIMD VI slli(VI a) {
  return (VI)((VU)a << N);
}
template <int N>
CARAT_SIMD VI srli(VI a) {
  return (VI)((VU)a >> N);
}
CARAT_SIMD VI srl(VI a, int n) { return (VI)((VU)a >> n); }
template <int N>
CARAT_SIMD VI srai(VI a) {
  return a >> N;
}
template <int N>
CARAT_SIMD VI slli16(VI a) {
  return (VI)((VT)a << N);
}
template <int N>
CARAT_SIMD VI srli16(VI a) {
  return (VI)((VT)a >> N);
}
template <int N>
CARAT_SIMD VI srai16(VI a) {
  return (VI)((VS)a >> N);
}
CARAT_SIMD VI minmax(VI v, int lo, int hi) {
  const VI a = seti(lo), b = seti(hi), over = v > b, under = v < a;
  v = (b & over) | (v & ~over);
  return (a & under) | (v & ~under);
}
CARAT_SIMD VI maxi(VI a, VI b) {
  const VI m = a > b;
  return (a & m) | (b & ~m);
}
CARAT_SIMD int32_t max_lane(VI v) {
  alignas(64) int32_t lanes[W];
  storei(lanes, v);
  int32_t top = lanes[0];
  for (int i = 1; i < W; ++i) top = lanes[i] > top ? lanes[i] : top;
  return top;
}
// The low bytes of 16 dwords.
CARAT_SIMD void store_low_bytes(int8_t* to, const int32_t* from) {
  for (int i = 0; i < 16; ++i) to[i] = static_cast<int8_t>(from[i]);
}
// Sums of 16 groups of 16 bytes.
CARAT_SIMD void sums_of_16(const int8_t* q, int32_t* s) {
  for (int g = 0; g < 16; ++g) {
    s[g] = 0;
    for (int i = 0; i < 16; ++i) s[g] += q[16 * g + i];
  }
}
CARAT_SIMD int32_t word(const void* p) {
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return v;
}
CARAT_SIMD VI pairs(VI a, VI b) {  // sums of two int16 products in each lane
#if defined(__SSE2__)
  return (VI)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  return (VI)((VU)(slli<16>(a) >> 16) * (VU)(slli<16>(b) >> 16) + (VU)(a >> 16) * (VU)(b >> 16));
#endif
}
CARAT_SIMD VI dot16(VI acc, VI a, const uint32_t* x) { return addi(acc, pairs(a, seti(word(x)))); }
CARAT_SIMD VI dot_bytes(VI acc, VI even, VI odd, const int8_t* x) {
  const VI v = seti(word(x));
  return addi(acc, addi(pairs(even, srai16<8>(slli16<8>(v))), pairs(odd, srai16<8>(v))));
}
CARAT_SIMD VG zero_g() { return VI{}; }
CARAT_SIMD VG dot_u(VG acc, VI w, const int8_t* x) {  // unsigned codes
  return dot_bytes(acc, w & 0x00ff00ff, srli16<8>(w), x);
}
CARAT_SIMD VI scale_operand(VI s) { return s; }
CARAT_SIMD VI add_scaled(VI sum, VG g, VI scale) { return addi(sum, mullo(g, scale)); }
CARAT_SIMD VI sum_g(VG g) { return g; }
constexpr int kSignedShift = -1;  // signed codes need no offset
CARAT_SIMD VI signed_operand(VI w) { return w; }
CARAT_SIMD VI dot_s(VI acc, VI w, const int8_t* x) {
  return dot_bytes(acc, srai16<8>(slli16<8>(w)), srai16<8>(w), x);
}
CARAT_SIMD VF load_f16(const void* p) {
  uint16_t h[4];
  __builtin_memcpy(h, p, 8);
  return VF{f16_to_f32(h[0]), f16_to_f32(h[1]), f16_to_f32(h[2]), f16_to_f32(h[3])};
}
CARAT_SIMD VF half_of(VI v) {  // the low f16 of each lane
  return VF{f16_to_f32(static_cast<uint16_t>(v[0])), f16_to_f32(static_cast<uint16_t>(v[1])),
            f16_to_f32(static_cast<uint16_t>(v[2])), f16_to_f32(static_cast<uint16_t>(v[3]))};
}
CARAT_SIMD VF load_bf16(const void* p) {
  uint16_t h[4];
  __builtin_memcpy(h, p, 8);
  return (VF)VU{uint32_t{h[0]} << 16, uint32_t{h[1]} << 16, uint32_t{h[2]} << 16, uint32_t{h[3]} << 16};
}
struct F16 {
  VF v[4];
};
CARAT_SIMD float sum16(const F16& a) {
  const VF s = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
  return (s[0] + s[2]) + (s[1] + s[3]);
}

// 16 bytes: codes of a cached row.
struct B16 {
  uint8_t b[16];
};
CARAT_SIMD B16 load_b16(const void* p) {
  B16 r;
  __builtin_memcpy(r.b, p, 16);
  return r;
}
template <int Shift, int Mask>
CARAT_SIMD B16 bits_of(B16 r) {
  for (uint8_t& b : r.b) b = static_cast<uint8_t>(b >> Shift & Mask);
  return r;
}
CARAT_SIMD B16 low_bits(B16 r, int shift, int8_t mask) {
  for (uint8_t& b : r.b) b = static_cast<uint8_t>(b >> shift & mask);
  return r;
}
CARAT_SIMD B16 lookup(B16 table, B16 index) {
  for (uint8_t& b : index.b) b = table.b[b];
  return index;
}
CARAT_SIMD B16 add_fours(B16 r, uint16_t where) {
  for (int i = 0; i < 16; ++i) r.b[i] = static_cast<uint8_t>(r.b[i] + (where >> i & 1) * 4);
  return r;
}
CARAT_SIMD float one_half(const void* p) {
  uint16_t h;
  __builtin_memcpy(&h, p, 2);
  return f16_to_f32(h);
}
CARAT_SIMD F16 floats_of(B16 r) {
  F16 y;
  for (int i = 0; i < 16; ++i) y.v[i / 4][i % 4] = static_cast<int8_t>(r.b[i]);
  return y;
}
CARAT_SIMD F16 floats_of_e4m3(B16 r) {  // 2^-8 times the value
  F16 y;
  for (int i = 0; i < 16; ++i) y.v[i / 4][i % 4] = e4m3_to_f32(r.b[i]) * 0x1p-8f;
  return y;
}
