#include "core/kv_codec.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/codec.h"

using namespace carat;

namespace {

std::vector<float> normals(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

std::vector<float> round_trip(DType t, const std::vector<float>& x) {
  std::vector<std::byte> row(static_cast<size_t>(row_bytes(t, static_cast<int64_t>(x.size()))));
  encode_row(t, x.data(), row.data(), static_cast<int64_t>(x.size()));
  std::vector<float> y(x.size());
  decode_row(t, row.data(), y.data(), static_cast<int64_t>(y.size()));
  return y;
}

double squares(const std::vector<float>& x) {
  double s = 0;
  for (const float v : x) s += double{v} * v;
  return s;
}

std::vector<DType> quantized() {
  std::vector<DType> out;
  for (const DType t : kv_formats())
    if (info(t).family != Family::plain) out.push_back(t);
  return out;
}

void put16(std::byte* p, float f) {
  const uint16_t h = f32_to_f16(f);
  std::memcpy(p, &h, 2);
}

}  // namespace

TEST_CASE("cache formats: bits a value") {
  struct Size {
    DType type;
    int64_t d64, d128, d256, d512;
  };
  const Size sizes[] = {
      {DType::fp8, 66, 130, 258, 514}, {DType::q8_0, 68, 136, 272, 544}, {DType::kv4, 36, 72, 144, 288},
      {DType::tq4, 34, 66, 130, 258},  {DType::tq3, 26, 50, 98, 194},    {DType::tq3_0, 28, 56, 112, 224},
      {DType::tbq4, 34, 66, 130, 260}, {DType::tbq3, 26, 50, 98, 196},
  };
  for (const Size& s : sizes) {
    CAPTURE(info(s.type).name);
    CHECK(row_bytes(s.type, 64) == s.d64);
    CHECK(row_bytes(s.type, 128) == s.d128);
    CHECK(row_bytes(s.type, 256) == s.d256);
    CHECK(row_bytes(s.type, 512) == s.d512);
    CHECK(dtype_of_name(info(s.type).name) == s.type);
  }
  CHECK_FALSE(dtype_of_ggml(kNotInFiles).has_value());  // no file brings one in
  CHECK_FALSE(can_encode(DType::tq3));                  // no weights
}

TEST_CASE("rotations keep products and come back") {
  for (const KvRotation r : {KvRotation::head, KvRotation::group128})
    for (const int32_t d : {64, 128, 192, 256, 320, 512}) {
      CAPTURE(d);
      const std::vector<float> a = normals(d, 1), b = normals(d, 2);
      std::vector<float> ra = a, rb = b;
      rotate(r, ra.data(), d);
      rotate(r, rb.data(), d);
      double dot = 0, rotated = 0, moved = 0;
      for (int32_t i = 0; i < d; ++i) {
        dot += double{a[i]} * b[i];
        rotated += double{ra[i]} * rb[i];
        moved += std::abs(a[i] - ra[i]);
      }
      CHECK(rotated == doctest::Approx(dot).epsilon(1e-5));
      CHECK(moved > 0.1 * d);
      rotate_back(r, ra.data(), d);
      for (int32_t i = 0; i < d; ++i) CHECK(ra[i] == doctest::Approx(a[i]).epsilon(1e-5));
    }
}

TEST_CASE("a single outlier spreads over the whole head") {
  for (const KvRotation r : {KvRotation::head, KvRotation::group128}) {
    std::vector<float> x(128, 0.0f);
    x[17] = 8;
    rotate(r, x.data(), 128);
    for (const float v : x) CHECK(std::abs(v) == doctest::Approx(8 / std::sqrt(128.0)));
  }
}

// Expected: spec tables of Lloyd-Max error on the sphere, with the norm kept (tq) or stored plainly (tbq);
// uniform signed-maximum groups of 32 (kv4); q8_0: E[amax^2] / 127^2 / 12 over 32.
TEST_CASE("error on normal vectors is what theory says") {
  struct Row {
    DType type;
    int32_t dim;
    double mse;
  };
  const auto kept = [](double d) { return 2 - 2 * std::sqrt(1 - d); };
  const Row rows[] = {
      {DType::tq4, 256, kept(.00941)},   {DType::tq4, 512, kept(.00946)}, {DType::tq3, 128, kept(.03397)},
      {DType::tq3, 256, kept(.03426)},   {DType::tq3, 512, kept(.03440)}, {DType::tq3_0, 128, kept(.03401)},
      {DType::tq3_0, 512, kept(.03401)}, {DType::tbq3, 256, .03426},      {DType::tbq4, 256, .00941},
      {DType::tbq3, 512, .0343},         {DType::kv4, 256, .0074},        {DType::q8_0, 256, 2.4e-5},
  };
  for (const Row& r : rows) {
    CAPTURE(info(r.type).name);
    CAPTURE(r.dim);
    double error = 0, size = 0;
    for (uint32_t i = 0; i < 300000u / r.dim; ++i) {
      const std::vector<float> x = normals(r.dim, 100 + i), y = round_trip(r.type, x);
      for (int32_t k = 0; k < r.dim; ++k) error += std::pow(double{x[k]} - y[k], 2);
      size += squares(x);
    }
    CHECK(error / size == doctest::Approx(r.mse).epsilon(r.type == DType::q8_0 ? 0.05 : 0.02));
  }
}

TEST_CASE("tq4, tq3 and tq3_0 keep the norm; tbq falls short by its error") {
  for (const int32_t d : {64, 128, 256, 512}) {
    const std::vector<float> x = normals(d, 5);
    for (const DType t : {DType::tq4, DType::tq3, DType::tq3_0})
      CHECK(std::sqrt(squares(round_trip(t, x)) / squares(x)) == doctest::Approx(1).epsilon(0.001));
    CHECK(std::sqrt(squares(round_trip(DType::tbq3, x)) / squares(x)) ==
          doctest::Approx(0.983).epsilon(0.02));
  }
}

TEST_CASE("bit layouts") {
  std::vector<float> y(256);
  {  // tq3_0: 14 bytes for 32 values
    std::byte b[28] = {};
    put16(b, 2), put16(b + 14, 4);
    b[2 + 1] = std::byte{3 << 4};   // value 6: low bits 3
    b[10] = std::byte{1 << 6};      // value 6: high bit
    b[10 + 3] = std::byte{1 << 7};  // value 31: code 4
    decode_row(DType::tq3_0, b, y.data(), 64);
    CHECK(y[6] == doctest::Approx(2 * .190685));
    CHECK(y[31] == doctest::Approx(2 * .021460));
    CHECK(y[0] == doctest::Approx(2 * -.190685));
    CHECK(y[63] == doctest::Approx(4 * -.190685));
  }
  {  // tbq3: value j at bit 3j behind the norm
    std::byte b[98] = {};
    put16(b, 16);
    b[2] = std::byte{0xc0}, b[3] = std::byte{1};  // value 2 = 7, across a byte
    b[2 + 95] = std::byte{0xa0};                  // value 255 = 5
    decode_row(DType::tbq3, b, y.data(), 256);
    CHECK(y[2] == doctest::Approx(2.1520));
    CHECK(y[255] == doctest::Approx(.7560));
    CHECK(y[1] == doctest::Approx(-2.1520));
  }
  {  // tbq4: nibbles in order
    std::byte b[130] = {};
    put16(b, 16);
    b[2] = std::byte{0xf0};
    decode_row(DType::tbq4, b, y.data(), 256);
    CHECK(y[1] == doctest::Approx(2.7326));
    CHECK(y[0] == doctest::Approx(-2.7326));
  }
  {  // kv4: q4_0's bytes
    std::vector<float> x = normals(32, 3), z(32);
    std::byte b[18];
    encode_row(DType::kv4, x.data(), b, 32);
    decode_row(DType::kv4, b, y.data(), 32);
    decode_row(DType::q4_0, b, z.data(), 32);
    for (int i = 0; i < 32; ++i) CHECK(y[i] == z[i]);
  }
  {  // tq4 and tq3: codes first, the scale last
    std::byte b[66] = {};
    b[16 + 3] = std::byte{0xf0};  // second block of 32, value 3 + 16
    put16(b + 64, .5f);
    decode_row(DType::tq4, b, y.data(), 128);
    CHECK(y[32 + 19] == 52);
    CHECK(y[32 + 3] == -52);
    std::byte c[50] = {};
    c[16 + 5] = std::byte{2 << 4};  // value 64 + 32 + 5: low bits 2
    c[32 + (64 + 32) / 8] = std::byte{1 << 5};
    put16(c + 48, .5f);
    decode_row(DType::tq3, c, y.data(), 128);
    CHECK(y[64 + 32 + 5] == 27.5);
    CHECK(y[0] == -44);
  }
}

TEST_CASE("e4m3: every byte comes back, rounding is to the nearest even") {
  for (int i = 0; i < 256; ++i) {
    if ((i & 0x7f) == 0x7f) continue;
    CHECK(f32_to_e4m3(e4m3_to_f32(static_cast<uint8_t>(i))) == i);
  }
  CHECK(e4m3_to_f32(0x7e) == 448);
  CHECK(e4m3_to_f32(0x01) == 0x1p-9f);
  for (int i = 0; i < 0x7e; ++i) {
    const float a = e4m3_to_f32(static_cast<uint8_t>(i)), b = e4m3_to_f32(static_cast<uint8_t>(i + 1)),
                mid = (a + b) / 2;
    CHECK(f32_to_e4m3(mid) == (i % 2 ? i + 1 : i));
    CHECK(f32_to_e4m3(std::nextafter(mid, 0.0f)) == i);
    CHECK(f32_to_e4m3(std::nextafter(mid, 500.0f)) == i + 1);
  }
  CHECK(f32_to_e4m3(1e9f) == 0x7e);
}

TEST_CASE("activations of 4-bit weights: a power of two for every 32 columns, the smallest that holds them") {
  const auto rounded = [](std::vector<float> x, DType w = DType::mxfp4_a8) {
    x.resize(32, 0), x.resize(64, 1);
    std::vector<float> y(64);
    round_to_e4m3(w, x.data(), y.data(), 64);
    return y;
  };
  // With d = 1 and 2 the smallest code stands for 2^-9 and 2^-8.
  CHECK(rounded({448, 0x1p-10f + 0x1p-20f})[1] == 0x1p-9f);
  const float more = std::nextafter(448.0f, 500.0f);
  CHECK(rounded({more, 0x1p-10f + 0x1p-20f})[0] == 448);
  CHECK(rounded({more, 0x1p-10f + 0x1p-20f})[1] == 0);
  CHECK(rounded({more, 0x1p-9f + 0x1p-20f})[1] == 0x1p-8f);
  for (const float top : {1e30f, 3e38f, 1e-29f, 0x1p-100f}) {
    const std::vector<float> y = rounded({top, -top, top / 3}, DType::nvfp4_a8);
    CHECK(std::fabs(y[0] - top) <= top / 16);
    CHECK(y[1] == -y[0]);
    CHECK(std::fabs(y[2] - top / 3) <= top / 48);
    CHECK((y[32] == 1 && y[63] == 1));  // the others have a scale of their own
  }
  CHECK(rounded({0x1p-101f, 0x1p-120f})[0] == 0);
  const std::vector<float> wrong = rounded({1, std::numeric_limits<float>::infinity()});
  CHECK((std::isnan(wrong[0]) && std::isnan(wrong[31]) && wrong[32] == 1));
}

TEST_CASE("any values can be stored: zeros are zeros, what is not finite shows") {
  for (const DType t : quantized()) {
    CAPTURE(info(t).name);
    for (const float v : round_trip(t, std::vector<float>(256, 0.0f))) CHECK(v == 0);
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      std::vector<float> x = normals(256, 9);
      x[7] = bad;
      CHECK(std::isnan(round_trip(t, x)[7]));
    }
    std::vector<float> tiny = normals(256, 4);
    for (float& v : tiny) v *= 1e-30f;
    for (const float v : round_trip(t, tiny)) CHECK(std::isfinite(v));
  }
}
