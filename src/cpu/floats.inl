// Products with float weights. The order of a sum is fixed (docs/numerics.md): 16 lanes over k, then the
// lanes pairwise; how many rows and outputs share a pass does not enter.

// 16 columns of 4 bits from column k of a row on, times their scale.
template <DType T>
CARAT_SIMD F16 fours16(const std::byte* row, int64_t k) {
  static_assert(T == DType::mxfp4 || T == DType::nvfp4);
  const std::byte* block = row + k / info(T).elems * info(T).bytes;
  const auto part = static_cast<int>(k % info(T).elems / 16);
  F16 a;
  float half_scale;
  if constexpr (T == DType::mxfp4) {
    half_scale = 0.5f * e8m0_to_f32(static_cast<uint8_t>(block[0]));
    a = floats_of(lookup(load_b16(kE2m1Twice), low_bits(load_b16(block + 1), 4 * part, 15)));
  } else {
    half_scale = 0.5f * ue4m3_to_f32(static_cast<uint8_t>(block[part]));
    uint64_t v;
    __builtin_memcpy(&v, block + 4 + 8 * part, 8);
    constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0f;
    const uint64_t both[2] = {v & kLow, v >> 4 & kLow};
    a = floats_of(lookup(load_b16(kE2m1Twice), load_b16(both)));
  }
  for (VF& x : a.v) x = mulf(x, setf(half_scale));
  return a;
}

template <DType T>
CARAT_SIMD F16 weights16(const std::byte* p) {
  if constexpr (T == DType::fp8) return floats_of_e4m3(load_b16(p));
  F16 a;
  for (int i = 0; i < 16 / W; ++i) {
    if constexpr (T == DType::f32)
      a.v[i] = loadf(reinterpret_cast<const float*>(p + i * W * 4));
    else if constexpr (T == DType::f16)
      a.v[i] = load_f16(p + i * W * 2);
    else
      a.v[i] = load_bf16(p + i * W * 2);
  }
  return a;
}

// 16 columns of a row from column k on.
template <DType T>
CARAT_SIMD F16 weights_at(const std::byte* row, int64_t k) {
  if constexpr (info(T).elems == 1)
    return weights16<T>(row + k * info(T).bytes);
  else
    return fours16<T>(row, k);
}

template <DType T, int R, int N>
CARAT_SIMD void float_pass(const std::byte* w, int64_t pitch, const float* const* x, int64_t cols,
                           float* acc) {
  F16 a[N][R];
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n)
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) a[n][r] = zero16();
  int64_t k = 0;
  for (; k + 16 <= cols; k += 16) {
    F16 xv[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) xv[r] = load16(x[r] + k);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const std::byte* p = w + n * pitch + k / info(T).elems * info(T).bytes;
      prefetch_far(p + N * pitch);  // the same place of the next outputs: rows are too short for less
      const F16 wv = weights_at<T>(w + n * pitch, k);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) a[n][r] = mad16(wv, xv[r], a[n][r]);
    }
  }
  if (info(T).elems == 1 && k < cols) {  // blocks have whole sixteens
    const int64_t left = cols - k;
    for (int n = 0; n < N; ++n) {
      alignas(64) std::byte part[64] = {};
      __builtin_memcpy(part, w + n * pitch + k * info(T).bytes, static_cast<size_t>(left * info(T).bytes));
      const F16 wv = weights16<T>(part);
      for (int r = 0; r < R; ++r) a[n][r] = mad16(wv, load16_part(x[r] + k, left), a[n][r]);
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n)
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) acc[r * 16 + n] = sum16(a[n][r]);
}

template <DType T, int R, int N>
static __attribute__((noinline)) void float_outputs(const Tensor& w, int64_t n0, int outputs,
                                                    const float* const* x, float* acc) {
  int n = 0;
  const std::byte* p = w.data + n0 * w.pitch;
  for (; n + N <= outputs; n += N) float_pass<T, R, N>(p + n * w.pitch, w.pitch, x, w.cols, acc + n);
  for (; n < outputs; ++n) float_pass<T, R, 1>(p + n * w.pitch, w.pitch, x, w.cols, acc + n);
  if constexpr (T == DType::fp8)  // the row's factor, after the sum
    for (n = 0; n < outputs; ++n) {
      const float scale = one_half(p + n * w.pitch + w.cols) * 256;  // floats_of_e4m3 is 256 times too small
      for (int r = 0; r < R; ++r) acc[r * 16 + n] *= scale;
    }
}

// acc [rows][16] = x times rows n0 .. n0 + outputs of w.
template <DType T>
static void float_product(const Tensor& w, int64_t n0, int outputs, const float* const* x, int rows,
                          float* acc) {
  in_passes<kFloatRows>(rows, [&](int r, auto n) {
    float_outputs<T, n, n == 1 ? kFloatOutputs1 : kFloatOutputs>(w, n0, outputs, x + r, acc + r * 16);
  });
}
