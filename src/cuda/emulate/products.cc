// Tensor cores: the lane of a warp that comes last computes the product of all, rows beside each other, so
// that a compiler's vectors do most of it.
#include <array>
#include <bit>

#include "base/error.h"
#include "core/codec.h"
#include "core/kv_codec.h"
#include "cuda/emulate/machine.h"

#define CARAT_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))

namespace carat::cuda {
namespace {

constexpr int kMostColumns = 128, kRows = 16;

struct Scratch {  // fibers have small stacks
  int8_t codes[kMostColumns][32];
  int16_t wide_codes[kMostColumns][32];
  int32_t code_sums[kRows * kMostColumns];
  uint16_t halves[16 * kMostColumns];
  float floats[16 * kMostColumns], float_sums[kRows * kMostColumns];
  double sums[kRows * kMostColumns];
};
constinit thread_local Scratch scratch;

// As f16_to_f32, without a branch or a look-up.
inline float value_of(uint16_t h) {
  const uint32_t low = static_cast<uint32_t>(h & 0x7fff) << 13;
  const float scaled = std::bit_cast<float>(low) * 0x1p112f;
  const uint32_t special = low >= 0x0f800000u ? 0x7f800000u : 0;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special |
                              static_cast<uint32_t>(h & 0x8000) << 16);
}

// sums[row][column] of a's and b's bytes.
CARAT_CLONES void sum_codes(const int16_t (*a)[32], const int16_t (*b)[32], int columns, int32_t* sums) {
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < columns; ++c) {
      int32_t sum = 0;
      for (int k = 0; k < 32; ++k) sum += a[r][k] * b[c][k];
      sums[r * columns + c] = sum;
    }
}

// sums[row][column] of exact products over sixteen, without an order, as tensor cores from sm_90 on make
// them: here in double, where sums of halves' products below 32 are exact. b: by k, then column.
CARAT_CLONES void sum_floats(const float (*a)[16], const float* b, int columns, double* sums) {
  for (int r = 0; r < kRows; ++r) {
    double* const y = sums + r * columns;
    for (int c = 0; c < columns; ++c) y[c] = 0;
    for (int k = 0; k < 16; ++k) {
      const float x = a[r][k];
      for (int c = 0; c < columns; ++c) y[c] += x * b[k * columns + c];
    }
  }
}

// Of wgmma with a in registers: summed in float.
CARAT_CLONES void sum_in_float(const float (*a)[16], const float* b, int columns, float* sums) {
  for (int r = 0; r < kRows; ++r) {
    float* const y = sums + r * columns;
    for (int c = 0; c < columns; ++c) y[c] = 0;
    for (int k = 0; k < 16; ++k) {
      const float x = a[r][k];
      for (int c = 0; c < columns; ++c) y[c] += x * b[k * columns + c];
    }
  }
}

CARAT_CLONES void to_floats(const uint16_t* h, float* f, int n) {
  for (int i = 0; i < n; ++i) f[i] = value_of(h[i]);
}

struct Codes {
  int32_t* c;
  uint32_t a[4], b[2];
};
struct Halves {
  float* c;
  uint32_t a[4], b[2];
};

// Lane 4 g + t has of a's rows g and g + 8 the words t and t + 4.
template <class T, class G>
void take_rows(T (*rows)[4 * 8 / sizeof(T)], const G* given) {
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i)
      std::memcpy(reinterpret_cast<std::byte*>(rows[lane / 4 + i % 2 * 8]) + 4 * (lane % 4) + i / 2 * 16,
                  &given[lane].a[i], 4);
}
// Of b's row g.
template <class T, class G>
void take_columns(T (*rows)[4 * 8 / sizeof(T)], const G* given) {
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 2; ++i)
      std::memcpy(reinterpret_cast<std::byte*>(rows[lane / 4]) + 4 * (lane % 4) + 16 * i, &given[lane].b[i],
                  4);
}

// f(lane's element, sum) for all lanes: of rows g and g + 8 columns 8 j + 2 t and one further.
template <class G, class S, class F>
void hand_out(const G* given, const S* sums, int columns, F f) {
  for (int lane = 0; lane < 32; ++lane)
    for (int k = 0; k < columns / 2; ++k)
      f(given[lane].c[k], sums[(lane / 4 + k % 4 / 2 * 8) * columns + k / 4 * 8 + lane % 4 * 2 + k % 2]);
}

template <class From>
void widen(const From (*from)[32], int rows, int16_t (*to)[32]) {
  for (int r = 0; r < rows; ++r)
    for (int k = 0; k < 32; ++k) to[r][k] = from[r][k];
}

void multiply_codes(const Codes* given) {
  int8_t a[kRows][32], b[8][32];
  int16_t wide_a[kRows][32], wide_b[8][32];
  int32_t sums[kRows * 8];
  take_rows(a, given), take_columns(b, given);
  widen(a, kRows, wide_a), widen(b, 8, wide_b);
  sum_codes(wide_a, wide_b, 8, sums);
  hand_out(given, sums, 8, [](int32_t& c, int32_t sum) { c = sum; });
}

template <class ToFloats>
void multiply_halves(const Halves* given, ToFloats to_floats) {
  uint16_t a[kRows][16], b[8][16];
  float x[kRows][16], y[8][16], turned[16 * 8];
  double sums[kRows * 8];
  take_rows(a, given), take_columns(b, given);
  to_floats(a[0], x[0], kRows * 16), to_floats(b[0], y[0], 8 * 16);
  for (int c = 0; c < 8; ++c)
    for (int k = 0; k < 16; ++k) turned[8 * k + c] = y[c][k];
  sum_floats(x, turned, 8, sums);
  hand_out(given, sums, 8, [](float& c, double sum) { c = static_cast<float>(c + sum); });
}

}  // namespace

void mma_s8(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1,
            int32_t start) {
  emulate::publish(Codes{c, {a0, a1, a2, a3}, {b0, b1}}, multiply_codes);
  for (int32_t& v : c) v += start;
}
void mma_s8_half(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0, int32_t start) {
  mma_s8(c, a0, a1, 0, 0, b0, 0, start);
}
void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulate::publish(Halves{c, {a[0], a[1], a[2], a[3]}, {b0, b1}},
                   [](const Halves* given) { multiply_halves(given, to_floats); });
}
void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulate::publish(Halves{c, {a[0], a[1], a[2], a[3]}, {b0, b1}}, [](const Halves* given) {
    multiply_halves(given, [](const uint16_t* h, float* f, int n) {
      for (int i = 0; i < n; ++i) f[i] = bf16_to_f32(h[i]);
    });
  });
}

namespace {

template <int N>
void exchange_matrices(uint32_t (&m)[N], SharedAddress row, bool turned) {
  constexpr size_t kBehind = 32 * sizeof row;  // the lanes' addresses
  const auto rows = [](auto* given) {
    return reinterpret_cast<std::byte*>(const_cast<SharedAddress*>(given)) + kBehind;
  };
  const auto* given = emulate::publish(row, [&](const SharedAddress* from) {
    for (size_t i = 0; i < size_t{8} * N; ++i) {
      CARAT_CHECK(from[i] % 16 == 0);
      std::memcpy(rows(from) + 16 * i, reinterpret_cast<const void*>(from[i]), 16);
    }
  });
  const int g = emulate::lane() / 4, t = emulate::lane() % 4;
  const auto* halves = reinterpret_cast<const uint16_t*>(rows(given));
  for (int i = 0; i < N; ++i) {
    const auto half = [&](int r, int c) { return uint32_t{halves[8 * (8 * i + r) + c]}; };
    m[i] = turned ? half(2 * t, g) | half(2 * t + 1, g) << 16 : half(g, 2 * t) | half(g, 2 * t + 1) << 16;
  }
}

}  // namespace

void load_matrices(uint32_t (&m)[2], SharedAddress row) { exchange_matrices(m, row, false); }
void load_matrices(uint32_t (&m)[4], SharedAddress row) { exchange_matrices(m, row, false); }
void load_turned(uint32_t (&m)[4], SharedAddress row) { exchange_matrices(m, row, true); }
uint32_t pack_halves(float a, float b) { return f32_to_f16(a) | static_cast<uint32_t>(f32_to_f16(b)) << 16; }
uint32_t pack_bf16(float a, float b) { return f32_to_bf16(a) | static_cast<uint32_t>(f32_to_bf16(b)) << 16; }

namespace {
template <class F>
uint32_t by_halves(F f) {
  const auto at = [](uint32_t x, int shift) { return value_of(static_cast<uint16_t>(x >> shift)); };
  return pack_halves(f([&](uint32_t x) { return at(x, 0); }), f([&](uint32_t x) { return at(x, 16); }));
}
}  // namespace
uint32_t sub_halves(uint32_t a, uint32_t b) {
  return by_halves([&](auto at) { return at(a) - at(b); });
}
uint32_t mul_halves(uint32_t a, uint32_t b) {
  return by_halves([&](auto at) { return at(a) * at(b); });
}
uint32_t fma_halves(uint32_t a, uint32_t b, uint32_t c) {  // products are exact, sums in double too
  return by_halves([&](auto at) { return static_cast<float>(static_cast<double>(at(a) * at(b)) + at(c)); });
}

// Of the warpgroup's 64 rows each warp has 16; columns are rows of b, and lanes have half as many values.
void wide_mma_codes(int32_t* c, int n, const uint32_t (&a)[4], uint64_t b, bool is_signed, bool first) {
  CARAT_CHECK(b % 32 == 0 && 2 * n <= kMostColumns);
  emulate::publish(Codes{c, {a[0], a[1], a[2], a[3]}, {}}, [&](const Codes* given) {
    int8_t x[kRows][32];
    int16_t wide_x[kRows][32];
    auto& y = scratch.codes;
    auto& wide_y = scratch.wide_codes;
    int32_t* const sums = scratch.code_sums;
    take_rows(x, given);
    if (is_signed)
      widen(x, kRows, wide_x);
    else
      widen(reinterpret_cast<const uint8_t(*)[32]>(x), kRows, wide_x);
    for (int r = 0; r < 2 * n; ++r)
      for (uint64_t i = 0; i < 32; i += 16) {
        const uint64_t at = b + 128 * static_cast<uint64_t>(r) + i;
        std::memcpy(y[r] + i, reinterpret_cast<const void*>(at ^ (at >> 7 & 7) << 4), 16);
      }
    widen(y, 2 * n, wide_y);
    sum_codes(wide_x, wide_y, 2 * n, sums);
    if (first)
      hand_out(given, sums, 2 * n, [](int32_t& v, int32_t sum) { v = sum; });
    else
      hand_out(given, sums, 2 * n, [](int32_t& v, int32_t sum) { v += sum; });
  });
}

void wide_mma_f16_of(float* c, int n, const uint32_t (&a)[4], uint64_t b) {
  CARAT_CHECK(b % 16 == 0 && 2 * n <= kMostColumns);
  emulate::publish(Halves{c, {a[0], a[1], a[2], a[3]}, {}}, [&](const Halves* given) {
    uint16_t x[kRows][16];
    float wide_x[kRows][16];
    uint16_t* const y = scratch.halves;
    float *const wide_y = scratch.floats, *const sums = scratch.float_sums;
    take_rows(x, given);
    to_floats(x[0], wide_x[0], kRows * 16);
    const auto* from = reinterpret_cast<const uint16_t*>(b);
    for (int r = 0; r < 2 * n; ++r)
      for (int k = 0; k < 16; ++k)
        y[2 * n * k + r] = from[128 * (r / 8) + 64 * (k / 8) + 8 * (r % 8) + k % 8];
    to_floats(y, wide_y, 16 * 2 * n);
    sum_in_float(wide_x, wide_y, 2 * n, sums);
    hand_out(given, sums, 2 * n, [](float& v, float sum) { v = sum; });
  });
}

// Both by each lane for itself.
void wide_mma_parts_of(float* c, int n, const uint32_t (&a)[4], uint64_t b, bool bf16, bool adds) {
  CARAT_CHECK(b % 32 == 0);
  const auto value = [&](uint32_t v) {
    return bf16 ? bf16_to_f32(static_cast<uint16_t>(v)) : value_of(static_cast<uint16_t>(v));
  };
  const Halves* given = emulate::publish(Halves{c, {a[0], a[1], a[2], a[3]}, {}});
  const int g = emulate::lane() / 4, t = emulate::lane() % 4;
  float w[2][16];  // of outputs g and g + 8
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 2; ++k)
      w[k][i] = value(given[4 * g + i % 8 / 2].a[i / 8 * 2 + k] >> i % 2 * 16 & 0xffff);
  for (int k = 0; k < n; ++k) {
    const uint64_t row = b + 128 * static_cast<uint64_t>(k / 4 * 8 + 2 * t + k % 2);
    double sum = 0;
    for (uint64_t i = 0; i < 16; ++i) {
      const uint64_t at = row + 2 * i;
      sum += w[k % 4 / 2][i] * value(*reinterpret_cast<const uint16_t*>(at ^ (at >> 7 & 7) << 4));
    }
    c[k] = static_cast<float>((adds ? c[k] : 0) + sum);
  }
}
void wide_mma_e4m3_of(float* c, int n, uint64_t a, uint64_t b, bool adds) {
  CARAT_CHECK(a % 32 == 0 && b % 32 == 0);
  static const auto values = [] {
    std::array<float, 256> v;
    for (size_t i = 0; i < v.size(); ++i) v[i] = e4m3_to_f32(static_cast<uint8_t>(i));
    return v;
  }();
  const auto code = [](uint64_t p) {
    return values[*reinterpret_cast<const uint8_t*>(p ^ (p >> 7 & 7) << 4)];
  };
  const auto g = static_cast<uint64_t>(emulate::lane() / 4), t = static_cast<uint64_t>(emulate::lane() % 4);
  for (int k = 0; k < n; ++k) {
    const uint64_t out = a + 128 * (threadIdx.x / 32 % 4 * 16 + g + static_cast<uint64_t>(k % 4 / 2) * 8);
    const uint64_t row = b + 128 * (static_cast<uint64_t>(k / 4) * 8 + 2 * t + static_cast<uint64_t>(k % 2));
    double sum = 0;
    for (uint64_t i = 0; i < 32; ++i) sum += code(out + i) * code(row + i);
    c[k] = static_cast<float>((adds ? c[k] : 0) + sum);
  }
}

namespace {
// a: sixteen rows; b: element k of row r at b + 128 r + 2 k, or turned.
void multiply_tiles(const Halves* given, const uint16_t (*a)[16], uint64_t b, int columns, bool turned) {
  float wide_a[kRows][16];
  uint16_t* const y = scratch.halves;
  float* const wide_y = scratch.floats;
  double* const sums = scratch.sums;
  for (uint64_t k = 0; k < 16; ++k)
    for (uint64_t c = 0; c < static_cast<uint64_t>(columns); ++c) {
      const uint64_t at = b + (turned ? 128 * k + 2 * c : 128 * c + 2 * k);
      y[static_cast<uint64_t>(columns) * k + c] = *reinterpret_cast<const uint16_t*>(at ^ (at >> 7 & 7) << 4);
    }
  to_floats(a[0], wide_a[0], kRows * 16);
  to_floats(y, wide_y, 16 * columns);
  sum_floats(wide_a, wide_y, columns, sums);
  hand_out(given, sums, columns, [](float& v, double sum) { v = static_cast<float>(v + sum); });
}
}  // namespace

void wide_mma_tiles(float* c, int columns, uint64_t a, uint64_t b, bool turned) {
  emulate::publish(Halves{c, {}, {}}, [&](const Halves* given) {
    uint16_t x[kRows][16];
    const uint64_t first = emulate::thread_index().x / 32 % 4 * kRows;
    for (uint64_t r = 0; r < kRows; ++r)
      for (uint64_t i = 0; i < 32; i += 16) {
        const uint64_t at = a + 128 * (first + r) + i;
        std::memcpy(reinterpret_cast<std::byte*>(x[r]) + i,
                    reinterpret_cast<const void*>(at ^ (at >> 7 & 7) << 4), 16);
      }
    multiply_tiles(given, x, b, columns, turned);
  });
}
void wide_mma_tiles(float* c, int columns, const uint32_t (&a)[4], uint64_t b) {
  emulate::publish(Halves{c, {a[0], a[1], a[2], a[3]}, {}}, [&](const Halves* given) {
    uint16_t x[kRows][16];
    take_rows(x, given);
    multiply_tiles(given, x, b, columns, true);
  });
}

}  // namespace carat::cuda
