// A cached row as floats: packed formats are unpacked in registers, 16 or 32 values at a time. The values are
// those of decode_row (core/kv_codec.h), products of the same two factors.

CARAT_SIMD VF spread_half(const void* p) { return setf(one_half(p)); }

// 16 int8 times one scale.
CARAT_SIMD void store_codes(float* y, B16 code, VF scale) {
  const F16 v = floats_of(code);
  for (int i = 0; i < 16 / W; ++i) storef(y + i * W, mulf(v.v[i], scale));
}

static void load_q8_0(const std::byte* p, int32_t dim, float* y) {
  for (int32_t i = 0; i < dim; i += 32, p += 34) {
    const VF scale = spread_half(p);
    store_codes(y + i, load_b16(p + 2), scale);
    store_codes(y + i + 16, load_b16(p + 18), scale);
  }
}
static void load_fp8(const std::byte* p, int32_t dim, float* y) {
  const VF scale = setf(one_half(p + dim) * 256);  // floats_of_e4m3 is 256 times too small
  for (int32_t i = 0; i < dim; i += 16) {
    const F16 v = floats_of_e4m3(load_b16(p + i));
    for (int k = 0; k < 16 / W; ++k) storef(y + i + k * W, mulf(v.v[k], scale));
  }
}
CARAT_SIMD void unpack_nibbles(const std::byte* p, B16 grid, VF scale, float* y) {
  const B16 b = load_b16(p);
  store_codes(y, lookup(grid, bits_of<0, 15>(b)), scale);
  store_codes(y + 16, lookup(grid, bits_of<4, 15>(b)), scale);
}
static void load_kv4(const std::byte* p, int32_t dim, float* y) {
  alignas(16) static constexpr int8_t kSteps[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
  const B16 grid = load_b16(kSteps);
  for (int32_t i = 0; i < dim; i += 32, p += 18) unpack_nibbles(p + 2, grid, spread_half(p), y + i);
}
static void load_tq4(const std::byte* p, int32_t dim, float* y) {
  const B16 grid = load_b16(kTq4Grid);
  const VF scale = spread_half(p + dim / 2);
  for (int32_t i = 0; i < dim; i += 32) unpack_nibbles(p + i / 2, grid, scale, y + i);
}
static void load_tq3(const std::byte* p, int32_t dim, float* y) {
  alignas(16) int8_t twice[16];
  __builtin_memcpy(twice, kTq3Grid, 8);
  __builtin_memcpy(twice + 8, kTq3Grid, 8);
  const B16 grid = load_b16(twice);
  const std::byte* high = p + dim / 4;
  const VF scale = spread_half(high + dim / 8);
  for (int32_t i = 0; i < dim; i += 64, high += 8) {
    const B16 low = load_b16(p + i / 4);
    uint16_t h[4];
    __builtin_memcpy(h, high, 8);
    store_codes(y + i, lookup(grid, add_fours(bits_of<0, 3>(low), h[0])), scale);
    store_codes(y + i + 16, lookup(grid, add_fours(bits_of<2, 3>(low), h[1])), scale);
    store_codes(y + i + 32, lookup(grid, add_fours(bits_of<4, 3>(low), h[2])), scale);
    store_codes(y + i + 48, lookup(grid, add_fours(bits_of<6, 3>(low), h[3])), scale);
  }
}

// One row of dim elements as floats, padded with zeros to d.
static void load_kv(DType type, const std::byte* p, int32_t dim, int32_t d, float* y, float* raw) {
  if (dim == d) switch (type) {
      case DType::f32: __builtin_memcpy(y, p, static_cast<size_t>(dim) * 4); return;
      case DType::f16:
        for (int32_t i = 0; i < d; i += W) storef(y + i, load_f16(p + i * 2));
        return;
      case DType::bf16:
        for (int32_t i = 0; i < d; i += W) storef(y + i, load_bf16(p + i * 2));
        return;
      case DType::q8_0: return load_q8_0(p, dim, y);
      case DType::fp8: return load_fp8(p, dim, y);
      case DType::kv4: return load_kv4(p, dim, y);
      case DType::tq4: return load_tq4(p, dim, y);
      case DType::tq3: return load_tq3(p, dim, y);
      default: break;
    }
  decode_row(type, p, raw, dim);
  for (int32_t i = 0; i < d; ++i) y[i] = i < dim ? raw[i] : 0.0f;
}
