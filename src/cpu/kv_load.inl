// A cached row as floats: at(c) are columns c to c + 15, unpacked in registers. The values are those of
// decode_row (core/kv_codec.h), products of the same two factors.
// kExact: values of at most 16 bits. kCodes: code(c) are integers below 128, which times scale_of(row) are
// the values.

#define CARAT_AT inline __attribute__((always_inline))
CARAT_SIMD VF spread_half(const void* p) { return setf(one_half(p)); }
CARAT_SIMD F16 times(F16 v, VF scale) {
  for (int i = 0; i < 16 / W; ++i) v.v[i] = mulf(v.v[i], scale);
  return v;
}

struct Values {
  static constexpr bool kCodes = false;
  static float scale_of(const std::byte*, int32_t) { return 1; }
};
struct Codes {
  static constexpr bool kCodes = true;
};
struct FloatRow : Values {
  static constexpr bool kExact = false;
  const std::byte* p;
  FloatRow(const std::byte* row, int32_t) : p(row) {}
  CARAT_AT F16 at(uint32_t c) const { return load16(reinterpret_cast<const float*>(p) + c); }
};
struct HalfRow : Values {
  static constexpr bool kExact = true;
  const std::byte* p;
  HalfRow(const std::byte* row, int32_t) : p(row) {}
  CARAT_AT F16 at(uint32_t c) const {
    F16 v;
    for (int i = 0; i < 16 / W; ++i) v.v[i] = load_f16(p + 2 * c + 2 * W * i);
    return v;
  }
};
struct Bf16Row : Values {
  static constexpr bool kExact = true;
  const std::byte* p;
  Bf16Row(const std::byte* row, int32_t) : p(row) {}
  CARAT_AT F16 at(uint32_t c) const {
    F16 v;
    for (int i = 0; i < 16 / W; ++i) v.v[i] = load_bf16(p + 2 * c + 2 * W * i);
    return v;
  }
};
struct Q8Row : Values {
  static constexpr bool kExact = false;
  const std::byte* p;
  Q8Row(const std::byte* row, int32_t) : p(row) {}
  CARAT_AT F16 at(uint32_t c) const {
    const std::byte* block = p + c / 32 * 34;
    return times(floats_of(load_b16(block + 2 + c % 32)), spread_half(block));
  }
};
struct Fp8Row : Values {
  static constexpr bool kExact = false;
  const std::byte* p;
  VF scale;
  Fp8Row(const std::byte* row, int32_t dim)
      : p(row), scale(setf(one_half(row + dim) * 256)) {}  // floats_of_e4m3 is 256 times too small
  CARAT_AT F16 at(uint32_t c) const { return times(floats_of_e4m3(load_b16(p + c)), scale); }
};
// Codes of 32 columns: the low halves of bytes, then the high ones.
CARAT_SIMD F16 nibbles(const std::byte* p, const int8_t* steps, uint32_t c) {
  const B16 b = load_b16(p);
  return floats_of(lookup(load_b16(steps), c % 32 ? bits_of<4, 15>(b) : bits_of<0, 15>(b)));
}
alignas(16) constexpr int8_t kKv4Steps[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
struct Kv4Row : Values {
  static constexpr bool kExact = false;
  const std::byte* p;
  Kv4Row(const std::byte* row, int32_t) : p(row) {}
  CARAT_AT F16 at(uint32_t c) const {
    const std::byte* block = p + c / 32 * 18;
    return times(nibbles(block + 2, kKv4Steps, c), spread_half(block));
  }
};
struct Tq4Row : Codes {
  static constexpr bool kExact = false;
  const std::byte* p;
  VF scale;
  Tq4Row(const std::byte* row, int32_t dim) : p(row), scale(setf(scale_of(row, dim))) {}
  static float scale_of(const std::byte* row, int32_t dim) { return one_half(row + dim / 2); }
  CARAT_AT F16 code(uint32_t c) const { return nibbles(p + c / 32 * 16, kTq4Grid, c); }
  CARAT_AT F16 at(uint32_t c) const { return times(code(c), scale); }
};
struct Twice {  // for a lookup by 16 bytes
  alignas(16) int8_t v[16];
  constexpr Twice() : v() {
    for (int i = 0; i < 16; ++i) v[i] = kTq3Grid[i % 8];
  }
};
constexpr Twice kTq3Twice;
// 64 columns are four pairs of bits in each of 16 bytes, and their third bits elsewhere.
struct Tq3Row : Codes {
  static constexpr bool kExact = false;
  const std::byte *p, *third;
  VF scale;
  Tq3Row(const std::byte* row, int32_t dim) : p(row), third(row + dim / 4), scale(setf(scale_of(row, dim))) {}
  static float scale_of(const std::byte* row, int32_t dim) { return one_half(row + dim / 4 + dim / 8); }
  CARAT_AT F16 code(uint32_t c) const {
    uint16_t high;
    __builtin_memcpy(&high, third + c / 8, 2);
    const B16 two = low_bits(load_b16(p + c / 64 * 16), static_cast<int>(c % 64 / 8), 3);
    return floats_of(lookup(load_b16(kTq3Twice.v), add_fours(two, high)));
  }
  CARAT_AT F16 at(uint32_t c) const { return times(code(c), scale); }
};
template <class R>
struct RowKind {
  using Row = R;
};
// use(RowKind<...>) for a type that has a reader; else false.
template <class F>
CARAT_SIMD bool with_row(DType type, F use) {
  switch (type) {
    case DType::f32: return use(RowKind<FloatRow>()), true;
    case DType::f16: return use(RowKind<HalfRow>()), true;
    case DType::bf16: return use(RowKind<Bf16Row>()), true;
    case DType::q8_0: return use(RowKind<Q8Row>()), true;
    case DType::fp8: return use(RowKind<Fp8Row>()), true;
    case DType::kv4: return use(RowKind<Kv4Row>()), true;
    case DType::tq4: return use(RowKind<Tq4Row>()), true;
    case DType::tq3: return use(RowKind<Tq3Row>()), true;
    default: return false;
  }
}

// One row of dim elements as floats, padded with zeros to d.
static void load_kv(DType type, const std::byte* p, int32_t dim, int32_t d, float* y, float* raw) {
  const bool done = dim == d && with_row(type, [&](auto kind) {
                      const typename decltype(kind)::Row row(p, dim);
                      for (uint32_t c = 0; c < static_cast<uint32_t>(d); c += 16) store16(y + c, row.at(c));
                    });
  if (done) return;
  decode_row(type, p, raw, dim);
  for (int32_t i = 0; i < d; ++i) y[i] = i < dim ? raw[i] : 0.0f;
}
