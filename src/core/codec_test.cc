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

namespace {

// Sum of w * (x - y)^2; the reference vectors are compared by it, row by row.
double squared_error(const float* x, const float* y, const float* w, int n) {
  double e = 0;
  for (int k = 0; k < n; ++k) e += (w ? w[k] : 1.0) * (double{x[k]} - y[k]) * (double{x[k]} - y[k]);
  return e;
}

}  // namespace

TEST_CASE("encode_row: no row is worse than the reference quantizer's") {
  const auto x = load<float>("input.f32"), w = load<float>("imatrix.f32");
  each_type(Family::block, [&](DType t) {
    if (!can_encode(t)) return;
    for (const bool weighted : {false, true}) {
      const std::string stem = upper(t) + (weighted && exists(upper(t) + ".imat.f32") ? ".imat" : "");
      const auto reference = load<float>(stem + ".f32");
      std::vector<std::byte> row(static_cast<size_t>(row_bytes(t, kCols)));
      std::vector<float> y(kCols);
      for (int r = 0; r < kRows; ++r) {
        const float* in = x.data() + r * kCols;
        encode_row(t, in, row.data(), kCols, weighted ? std::span<const float>(w) : std::span<const float>());
        decode_row(t, row.data(), y.data(), kCols);
        const double ours = squared_error(in, y.data(), weighted ? w.data() : nullptr, kCols);
        const double theirs =
            squared_error(in, reference.data() + r * kCols, weighted ? w.data() : nullptr, kCols);
        CAPTURE(stem);
        CAPTURE(r);
        CAPTURE(ours / theirs);
        CHECK(ours <= theirs);
      }
    }
  });
}

namespace {

std::vector<float> written(DType t, const std::vector<float>& x, std::span<const float> w = {}) {
  std::vector<std::byte> row(static_cast<size_t>(row_bytes(t, static_cast<int64_t>(x.size()))));
  std::vector<float> y(x.size());
  encode_row(t, x.data(), row.data(), static_cast<int64_t>(x.size()), w);
  decode_row(t, row.data(), y.data(), static_cast<int64_t>(x.size()));
  return y;
}

}  // namespace

TEST_CASE("encode_row: zeros and constants survive, column weights are obeyed") {
  const auto gauss = load<float>("input.f32");
  each_type(Family::block, [&](DType t) {
    if (!can_encode(t)) return;
    CAPTURE(info(t).name);
    for (const float v : written(t, std::vector<float>(256, 0.0f))) REQUIRE(v == 0);
    for (const float c : {1.0f, -1.0f, 0.02f, -300.0f})
      for (const float v : written(t, std::vector<float>(256, c)))
        REQUIRE(std::fabs(v - c) <= 0.2f * std::fabs(c));
    for (const float v : written(t, std::vector<float>(256, 1e-38f))) REQUIRE(std::fabs(v) < 1e-7f);
    if (t == DType::q8_0) return;
    // One column of every 32 matters a thousand times more than the others; then only these; then none.
    const std::vector<float> x(gauss.begin(), gauss.begin() + 512);
    std::vector<float> w(512, 1.0f);
    for (size_t k = 0; k < w.size(); k += 32) w[k] = 1000;
    CHECK(squared_error(x.data(), written(t, x, w).data(), w.data(), 512) <
          squared_error(x.data(), written(t, x).data(), w.data(), 512));
    for (size_t k = 0; k < w.size(); ++k) w[k] = k % 32 ? 0.0f : 1.0f;
    CHECK(squared_error(x.data(), written(t, x, w).data(), w.data(), 512) <
          squared_error(x.data(), written(t, x).data(), w.data(), 512));
    CHECK(written(t, x, std::vector<float>(512, 0.0f)) == written(t, x));
  });
}

TEST_CASE("encode_row: what cannot be written is refused, never mangled") {
  std::vector<float> x(256, 0.5f);
  std::vector<std::byte> row(2048);
  std::vector<float> y(256);
  each_type(Family::block, [&](DType t) {
    CAPTURE(info(t).name);
    for (const float bad : {INFINITY, -INFINITY, NAN, 3e38f}) {
      x[77] = bad;
      if (t == DType::q8_0) {  // caches hold what the model computed: the block shows it
        encode_row(t, x.data(), row.data(), 256);
        decode_row(t, row.data(), y.data(), 256);
        CHECK(!std::isfinite(y[77]));
        CHECK(std::fabs(y[0] - 0.5f) < 0.01f);
      } else {
        CHECK_THROWS_AS(encode_row(t, x.data(), row.data(), 256), Error);
      }
    }
    x[77] = 0.5f;
    if (!can_encode(t)) CHECK_THROWS_AS(encode_row(t, x.data(), row.data(), 256), Error);
    if (!can_encode(t) || t == DType::q8_0) return;
    for (const float bad : {-1.0f, INFINITY, NAN}) {
      std::vector<float> w(256, 1.0f);
      w[3] = bad;
      CHECK_THROWS_AS(encode_row(t, x.data(), row.data(), 256, w), Error);
    }
  });
}

TEST_CASE("encode_row: floats of every magnitude stay within reach of what they were") {
  each_type(Family::block, [](DType t) {
    if (!can_encode(t)) return;
    CAPTURE(info(t).name);
    const auto bits = random_bytes(256 * 4 * 40, static_cast<uint32_t>(t) + 100);
    for (int round = 0; round < 40; ++round) {
      std::vector<float> x(256), w(256);
      std::memcpy(x.data(), bits.data() + round * 1024, 1024);
      const int widest = round % 10;  // exponents spread over 2^0 .. 2^-81 below the top
      float amax = 0;
      for (size_t k = 0; k < x.size(); ++k) {
        int e = 0;
        const float m = std::isfinite(x[k]) ? std::frexp(x[k], &e) : 0.5f;
        x[k] = std::ldexp(m, 10 - (std::abs(e) % (1 + widest * widest)));
        w[k] = std::ldexp(1.0f, e % 20);
        amax = std::max(amax, std::fabs(x[k]));
      }
      for (const bool weighted : {false, true}) {
        const auto y = written(t, x, weighted ? std::span<const float>(w) : std::span<const float>());
        for (size_t k = 0; k < x.size(); ++k) REQUIRE(std::fabs(y[k]) <= 2 * amax);
        if (!weighted)
          CHECK(squared_error(x.data(), y.data(), nullptr, 256) <
                squared_error(x.data(), std::vector<float>(256).data(), nullptr, 256));
      }
    }
  });
}
