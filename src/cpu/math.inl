// exp, tanh and the activations on whole vectors. Tails are padded and take the same code, so that an
// element's value does not depend on where it stands; and every instruction set gives the same bits, as GPUs
// do (cuda/device/activate.cuh).

// e^x, relative error below 2e-7; 0 below -87.3, clamped above 88.3.
CARAT_SIMD VF exp_v(VF x) {
  const VF lo = setf(-87.3f), hi = setf(88.3f);
  const VF y = minf(hi, maxf(lo, x));  // in this order a NaN stays one
  const VI n = round_int(mulf(y, setf(1.44269504f)));
  const VF nf = to_float(n);
  VF r = fma_exact(nf, setf(-0.693359375f), y);
  r = fma_exact(nf, setf(2.12194440e-4f), r);  // ln 2 in two parts (Cody and Waite)
  VF p = setf(1.0f / 5040);
  p = fma_exact(p, r, setf(1.0f / 720));
  p = fma_exact(p, r, setf(1.0f / 120));
  p = fma_exact(p, r, setf(1.0f / 24));
  p = fma_exact(p, r, setf(1.0f / 6));
  p = fma_exact(p, r, setf(0.5f));
  p = fma_exact(p, r, setf(1.0f));
  p = fma_exact(p, r, setf(1.0f));
  return select_lt(x, lo, setf(0.0f), mulf(p, pow2(n)));
}

// e^x of one number. C libraries differ in the last bit of their float functions, not in what is left of
// their double ones after rounding: so machines agree.
static inline float exp_of(float x) { return static_cast<float>(std::exp(double{x})); }

// tanh x: odd series near 0 (where 1 - 2 / (e^2x + 1) cancels), else by exp; relative error below 5e-7.
CARAT_SIMD VF tanh_v(VF x) {
  const VF a = absf(x), s = mulf(x, x);
  VF p = setf(-0.00886323552f);
  p = fma_exact(p, s, setf(0.0218694885f));
  p = fma_exact(p, s, setf(-0.0539682540f));
  p = fma_exact(p, s, setf(0.133333333f));
  p = fma_exact(p, s, setf(-0.333333333f));
  const VF small = fma_exact(mulf(p, s), x, x);
  const VF e = exp_v(mulf(setf(2.0f), minf(setf(12.0f), a)));
  const VF big = subf(setf(1.0f), divf(setf(2.0f), addf(e, setf(1.0f))));
  return select_lt(a, setf(0.25f), small, select_lt(x, setf(0.0f), subf(setf(0.0f), big), big));
}

CARAT_SIMD VF sigmoid_v(VF x) { return divf(setf(1.0f), addf(setf(1.0f), exp_v(subf(setf(0.0f), x)))); }

CARAT_SIMD VF activate_v(Act act, VF x) {
  switch (act) {
    case Act::none: return x;
    case Act::silu: return mulf(x, sigmoid_v(x));
    case Act::gelu_tanh: {  // 0.5 x (1 + tanh u) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
      const VF u = mulf(x, fma_exact(mulf(x, x), setf(0.0713548162726f), setf(1.59576912161f)));
      return mulf(x, sigmoid_v(u));
    }
    case Act::sigmoid: return sigmoid_v(x);
    case Act::gelu: {  // rare: one number after the other
      float t[W];
      storef(t, x);
      for (float& v : t) v = static_cast<float>(0.5 * v * (1 + std::erf(v * 0.7071067811865476)));
      return loadf(t);
    }
  }
  return x;
}

// f(first row, how many) for rows in passes of R and one of what is left. How many is a constant to f: rows
// one by one would each cost a pass over the weights (three took longer than four). What f calls is not
// inlined: side by side with that for other numbers, eight rows of bf16 took a tenth longer.
template <int R, typename F>
static void last_pass(int first, int rows, F f) {
  if (rows == R)
    f(first, std::integral_constant<int, R>());
  else if constexpr (R > 1)
    last_pass<R - 1>(first, rows, f);
}
template <int R, typename F>
static void in_passes(int rows, F f) {
  for (int r = 0; r < rows; r += R) last_pass<R>(r, rows - r < R ? rows - r : R, f);
}

CARAT_SIMD F16 zero16() {
  F16 a;
  for (int i = 0; i < 16 / W; ++i) a.v[i] = setf(0.0f);
  return a;
}
// 16 floats; fewer: the rest zeros.
CARAT_SIMD F16 load16(const float* p) {
  F16 a;
  for (int i = 0; i < 16 / W; ++i) a.v[i] = loadf(p + i * W);
  return a;
}
static inline F16 load16_part(const float* p, int64_t n) {
  float t[16] = {};
  __builtin_memcpy(t, p, static_cast<size_t>(n) * 4);
  return load16(t);
}
CARAT_SIMD void store16(float* p, const F16& a) {
  for (int i = 0; i < 16 / W; ++i) storef(p + i * W, a.v[i]);
}
CARAT_SIMD F16 mad16(const F16& a, const F16& b, F16 c) {
  for (int i = 0; i < 16 / W; ++i) c.v[i] = mad(a.v[i], b.v[i], c.v[i]);
  return c;
}
