// Formats against the reference vectors (tests/data/quant): bytes to floats bit by bit, and the integer view.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "core/codec.h"
#include "core/int_block.h"

using namespace carat;

namespace {

constexpr int kRows = 4, kCols = 1024;

std::string upper(DType t) {
  std::string s(info(t).name);
  for (char& c : s) c = static_cast<char>(std::toupper(c));
  return s;
}
std::string file(const std::string& name) { return std::string(CARAT_TEST_DATA) + "/quant/" + name; }
bool exists(const std::string& name) { return std::ifstream(file(name)).good(); }

template <class T>
std::vector<T> load(const std::string& name) {
  const std::string bytes = read_file(file(name));
  std::vector<T> v(bytes.size() / sizeof(T));
  std::memcpy(v.data(), bytes.data(), v.size() * sizeof(T));
  return v;
}

// The vector files of a type: without and with column weights, as far as they exist.
std::vector<std::string> stems(DType t) {
  std::vector<std::string> out;
  for (const char* variant : {"", ".imat"})
    if (exists(upper(t) + variant + ".bin")) out.push_back(upper(t) + variant);
  return out;
}

template <class F>
void each_type(Family family, F f) {
  for (int i = 0; i < kDTypeCount; ++i)
    if (kDTypes[i].family == family) f(static_cast<DType>(i));
}

// Bytes as they come: any pattern is a valid row of any block format.
std::vector<std::byte> random_bytes(size_t n, uint32_t seed) {
  std::vector<std::byte> v(n);
  uint64_t s = seed * 0x9e3779b97f4a7c15ull + 1;
  for (auto& b : v) {
    s ^= s << 13, s ^= s >> 7, s ^= s << 17;
    b = static_cast<std::byte>(s >> 32);
  }
  return v;
}

}  // namespace

TEST_CASE("f16: every pattern has its value and comes back") {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const auto half = static_cast<uint16_t>(h);
    const float f = f16_to_f32(half);
    const int e = h >> 10 & 31, m = h & 1023;
    if (e == 31 && m) {
      REQUIRE(std::isnan(f));
      REQUIRE(f32_to_f16(f) == (h | 0x200));  // quiet, payload and sign kept
      continue;
    }
    const double value = e == 31 ? INFINITY : e ? std::ldexp(1024 + m, e - 25) : std::ldexp(m, -24);
    REQUIRE(f == static_cast<float>(h & 0x8000 ? -value : value));
    REQUIRE(std::signbit(f) == (h >= 0x8000));
    REQUIRE(f32_to_f16(f) == h);
  }
}

TEST_CASE("f16: between neighbours the nearer wins, ties go to even") {
  for (uint32_t h = 0; h < 0x7bff; ++h) {
    const float a = f16_to_f32(static_cast<uint16_t>(h)), b = f16_to_f32(static_cast<uint16_t>(h + 1));
    const float middle = (a + b) / 2;  // exact
    REQUIRE(f32_to_f16(middle) == (h & 1 ? h + 1 : h));
    REQUIRE(f32_to_f16(std::nextafter(middle, a)) == h);
    REQUIRE(f32_to_f16(-std::nextafter(middle, b)) == ((h + 1) | 0x8000));
  }
  CHECK(f32_to_f16(65519.996f) == 0x7bff);
  CHECK(f32_to_f16(65520.0f) == 0x7c00);
  CHECK(f32_to_f16(-3e38f) == 0xfc00);
  CHECK(f32_to_f16(1e-40f) == 0);
  CHECK(f32_to_f16(-0.0f) == 0x8000);
}

TEST_CASE("bf16: every pattern comes back; rounding is to even") {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = bf16_to_f32(static_cast<uint16_t>(h));
    const bool nan = (h & 0x7f80) == 0x7f80 && (h & 0x7f);
    REQUIRE(std::isnan(f) == nan);
    REQUIRE(f32_to_bf16(f) == (nan ? h | 0x40 : h));
    if ((h & 0x7fff) >= 0x7f80) continue;
    REQUIRE(f32_to_bf16(std::bit_cast<float>(h << 16 | 0x7fff)) == h);
    REQUIRE(f32_to_bf16(std::bit_cast<float>(h << 16 | 0x8000)) == h + (h & 1));
    REQUIRE(f32_to_bf16(std::bit_cast<float>(h << 16 | 0x8001)) == h + 1);
  }
  CHECK(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST_CASE("decode_row: bit-exact on the reference rows of every format") {
  int files = 0;
  const auto check = [&](DType t) {
    for (const std::string& stem : stems(t)) {
      CAPTURE(stem);
      const auto bytes = load<std::byte>(stem + ".bin");
      const auto want = load<float>(stem + ".f32");
      REQUIRE(bytes.size() == static_cast<size_t>(kRows * row_bytes(t, kCols)));
      std::vector<float> got(kCols);
      int wrong = 0;
      for (int r = 0; r < kRows; ++r) {
        decode_row(t, bytes.data() + r * row_bytes(t, kCols), got.data(), kCols);
        for (int k = 0; k < kCols; ++k) wrong += got[k] != want[r * kCols + k];
      }
      CHECK(wrong == 0);
      ++files;
    }
  };
  each_type(Family::plain, check);
  each_type(Family::block, check);
  CHECK(files == 35);
}

TEST_CASE("decode_row: plain integers and doubles") {
  const int8_t a[] = {-128, 0, 127};
  const int64_t b[] = {-(int64_t{1} << 40), 3, (int64_t{1} << 24) + 1};
  const double c[] = {0.1, -1e-3, 2};
  float y[3];
  decode_row(DType::i8, reinterpret_cast<const std::byte*>(a), y, 3);
  CHECK((y[0] == -128 && y[1] == 0 && y[2] == 127));
  decode_row(DType::i64, reinterpret_cast<const std::byte*>(b), y, 3);
  CHECK((y[0] == -0x1p40f && y[1] == 3 && y[2] == 0x1p24f));
  decode_row(DType::f64, reinterpret_cast<const std::byte*>(c), y, 3);
  CHECK((y[0] == 0.1f && y[1] == -1e-3f && y[2] == 2));
}

TEST_CASE("unpack: any bytes, any offset; values agree with decode_row") {
  each_type(Family::block, [](DType t) {
    CAPTURE(info(t).name);
    const auto bytes =
        random_bytes(static_cast<size_t>(row_bytes(t, kCols)) + 1, static_cast<uint32_t>(t) + 1);
    const std::byte* row = bytes.data() + 1;  // no alignment is promised
    std::vector<float> y(kCols);
    decode_row(t, row, y.data(), kCols);
    int wrong = 0;
    for (int step : {int{info(t).elems}, kIntBlock})
      for (int first = 0; first < kCols; first += step) {
        IntBlock b;
        unpack(t, row, first, step, b);
        REQUIRE(b.n == step);
        REQUIRE(b.group == int_group(t));
        REQUIRE(b.kind == int_kind(t));
        for (int k = 0; k < step; ++k) {
          const float v = block_value(b, k);
          wrong += v != y[first + k] && !(std::isnan(v) && std::isnan(y[first + k]));
        }
      }
    CHECK(wrong == 0);
  });
}

TEST_CASE("block_dot: the reference rows times rounded activations") {
  const auto x = load<float>("act.f32");
  std::vector<int8_t> a(kCols);
  float da[kCols / kIntBlock];
  for (int i = 0; i < kCols / kIntBlock; ++i)
    quantize_act(x.data() + i * kIntBlock, kIntBlock, a.data() + i * kIntBlock, da[i]);
  each_type(Family::block, [&](DType t) {
    for (const std::string& stem : stems(t)) {
      const auto bytes = load<std::byte>(stem + ".bin");
      const auto w = load<float>(stem + ".f32");
      for (int r = 0; r < kRows; ++r)
        for (int i = 0; i < kCols / kIntBlock; ++i) {
          IntBlock b;
          unpack(t, bytes.data() + r * row_bytes(t, kCols), i * kIntBlock, kIntBlock, b);
          double want = 0, norm = 1e-300;
          for (int k = 0; k < kIntBlock; ++k) {
            const double p = double{w[r * kCols + i * kIntBlock + k]} * a[i * kIntBlock + k];
            want += p;
            norm += std::fabs(p);
          }
          // Decoded weights are rounded once where there are mins; the integer sums are not.
          CHECK(std::fabs(block_dot(b, a.data() + i * kIntBlock) - want) <= 3e-7 * norm + 1e-37);
        }
    }
  });
}

TEST_CASE("quantize_act: half a step, zeros, ties, and what is not finite") {
  const auto x = load<float>("act.f32");
  int8_t q[kIntBlock];
  float d;
  for (int first = 0; first < kCols; first += kIntBlock) {
    quantize_act(x.data() + first, kIntBlock, q, d);
    float amax = 0;
    int top = 0;
    for (int k = 0; k < kIntBlock; ++k) {
      amax = std::max(amax, std::fabs(x[first + k]));
      top = std::max(top, std::abs(int{q[k]}));
      CHECK(std::fabs(x[first + k] - d * q[k]) <= d * 0.50001f);
    }
    CHECK(d == amax / 127);
    CHECK(top == 127);
  }
  const float ties[] = {127, 0.5f, 1.5f, -2.5f, -127, -0.0f};
  quantize_act(ties, 6, q, d);
  CHECK(d == 1);
  CHECK((q[0] == 127 && q[1] == 0 && q[2] == 2 && q[3] == -2 && q[4] == -127 && q[5] == 0));
  const float tiny[] = {1e-40f, -1e-35f, 0};
  quantize_act(tiny, 3, q, d);
  CHECK((d == 0 && q[0] == 0 && q[1] == 0));
  for (float bad : {INFINITY, -INFINITY, NAN}) {
    const float values[] = {1, bad, 2};
    quantize_act(values, 3, q, d);
    CHECK((std::isnan(d) && q[0] == 0 && q[1] == 0 && q[2] == 0));
  }
  const float huge[] = {3.4e38f, -3.4e38f, 1e38f};
  quantize_act(huge, 3, q, d);
  CHECK((q[0] == 127 && q[1] == -127 && q[2] == 37));
}

TEST_CASE("encode_row: exact types and q8_0 give the reference bytes") {
  const auto x = load<float>("input.f32");
  for (DType t : {DType::f16, DType::bf16, DType::q8_0}) {
    CAPTURE(info(t).name);
    const auto want = load<std::byte>(upper(t) + ".bin");
    std::vector<std::byte> got(want.size());
    for (int r = 0; r < kRows; ++r)
      encode_row(t, x.data() + r * kCols, got.data() + r * row_bytes(t, kCols), kCols);
    CHECK(got == want);
  }
  const auto act = load<float>("act.f32");
  const auto want = load<std::byte>("act.Q8_0.bin");
  std::vector<std::byte> got(want.size());
  encode_row(DType::q8_0, act.data(), got.data(), kCols);
  CHECK(got == want);
}
