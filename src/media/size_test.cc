// Sizes and the resize against the reference's: its table, and two pictures that it scaled
// (tests/data/media).
#include <doctest/doctest.h>

#include "base/error.h"
#include "base/file.h"
#include "media/picture.h"

using namespace carat;

namespace {

Picture stored(const std::string& name, int width, int height) {
  const MappedFile file(std::string(CARAT_TEST_DATA) + "/media/" + name + ".rgb");
  const auto b = file.bytes();
  REQUIRE(b.size() == static_cast<size_t>(width) * height * 3);
  const auto* p = reinterpret_cast<const uint8_t*>(b.data());
  return {width, height, {p, p + b.size()}};
}

size_t differing(const Picture& a, const Picture& b, int& largest) {
  REQUIRE(a.rgb.size() == b.rgb.size());
  size_t n = 0;
  largest = 0;
  for (size_t i = 0; i < a.rgb.size(); ++i) {
    n += a.rgb[i] != b.rgb[i];
    largest = std::max(largest, std::abs(a.rgb[i] - b.rgb[i]));
  }
  return n;
}

void same(const GridSize& got, int height, int width, int tokens) {
  CHECK(got.height == height);
  CHECK(got.width == width);
  CHECK(got.tokens == tokens);
}

}  // namespace

TEST_CASE("media: sizes that Gemma 4's tower sees") {
  struct Row {
    int h, w, to_h, to_w, n280, n70, n1120;
  };
  const Row rows[] = {
      {1, 1, 768, 768, 256, 64, 1089},        {16, 16, 768, 768, 256, 64, 1089},
      {224, 224, 768, 768, 256, 64, 1089},    {1000, 1000, 768, 768, 256, 64, 1089},
      {300, 400, 672, 912, 266, 63, 1064},    {480, 640, 672, 912, 266, 63, 1064},
      {842, 595, 912, 672, 266, 63, 1092},    {1080, 1920, 576, 1056, 264, 66, 1100},
      {2160, 3840, 576, 1056, 264, 66, 1100}, {3, 900, 48, 13440, 280, 70, 579},
      {1, 4000, 48, 13440, 280, 70, 1120},
  };
  for (const Row& r : rows) {
    CAPTURE(r.h);
    CAPTURE(r.w);
    same(gemma_size(r.w, r.h, 280), r.to_h, r.to_w, r.n280);
    CHECK(gemma_size(r.w, r.h, 70).tokens == r.n70);
    CHECK(gemma_size(r.w, r.h, 1120).tokens == r.n1120);
    const GridSize turned = gemma_size(r.h, r.w, 280);  // and lying on their side
    CHECK(turned.tokens == r.n280);
    CHECK(turned.height == r.to_w);
  }
  same(gemma_size(1920, 1080, 1120), 1200, 2112, 1100);
  same(gemma_size(640, 480, 70), 336, 432, 63);
  same(gemma_size(4000, 1, 1120), 48, 53760, 1120);
  for (int w = 1; w < 4000; w += 37)
    for (int h = 1; h < 4000; h += 41)
      for (const int budget : {70, 140, 280, 560, 1120}) {
        const GridSize g = gemma_size(w, h, budget);
        CHECK_MESSAGE((g.tokens > 0 && g.tokens <= budget), w << " x " << h << ": " << g.tokens);
      }
}

TEST_CASE("media: sizes that Qwen3.6's tower sees") {
  const int64_t low = 65'536, high = 16'777'216;
  same(qwen_size(1920, 1080, low, high), 1088, 1920, 34 * 60);
  same(qwen_size(640, 480, low, high), 480, 640, 300);
  same(qwen_size(80, 1024, low, high), 1024, 64, 64);  // 2.5 rounds to 2, as Python's round
  same(qwen_size(112, 1024, low, high), 1024, 128, 128);
  same(qwen_size(10, 10, low, high), 256, 256, 64);
  same(qwen_size(10'000, 10'000, low, high), 4096, 4096, 128 * 128);
  same(qwen_size(60, 150, 1024, 2560, 8), 80, 32, 40);  // the golden's
  CHECK_THROWS_WITH(qwen_size(2010, 10, low, high), doctest::Contains("200 times"));
}

TEST_CASE("media: the resize gives the reference's bytes") {
  const Picture in = stored("gemma4_110x240", 110, 240), want = stored("gemma4_60x144", 60, 144);
  const GridSize size = gemma_size(in.width, in.height, 70, 4, 3);
  CHECK(size.width == 60);
  CHECK(size.height == 144);
  CHECK(size.tokens == 60);
  int largest = 0;
  CHECK(want.rgb.size() == 25'920);
  CHECK(differing(resize(in, size.width, size.height), want, largest) == 0);
  CHECK(differing(resize(in, size.width, size.height, Resize::pillow), want, largest) == 104);
  CHECK(largest == 1);
  const Picture small = stored("qwen_60x150", 60, 150);
  CHECK(differing(resize(small, 32, 80), stored("qwen_32x80", 32, 80), largest) == 0);
}

TEST_CASE("media: what a resize must leave alone") {
  const Picture in = stored("qwen_60x150", 60, 150);
  CHECK(resize(in, 60, 150).rgb == in.rgb);
  const Picture grey{7, 5, std::vector<uint8_t>(7 * 5 * 3, 119)};
  for (const auto& [w, h] : {std::pair{1, 1}, {48, 48}, {3, 900}, {7, 2}})
    for (const uint8_t b : resize(grey, w, h).rgb) CHECK(b == 119);
  const Picture wide = resize(Picture{1, 1, {1, 2, 3}}, 768, 768);
  CHECK(wide.rgb.size() == 768 * 768 * 3);
  CHECK(wide.rgb[3 * 1000 + 2] == 3);
}
