// Odd files, each with its outcome. All are made here.
#include "media/picture.h"

#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/picture_makers.h"

using namespace carat;
using namespace carat::test;

namespace {

std::string refusal(const File& file, const PictureLimits& limits = {}) {
  try {
    const Picture p = decode_picture(file, limits);
    return fmt::format("read: {} x {}", p.width, p.height);
  } catch (const Error& e) {
    CHECK(!e.hint().empty());
    return e.what();
  }
}

// Each block's middle, within what JPEG loses.
[[maybe_unused]] void check_blocks(const Picture& p, int columns, int rows,
                                   const std::vector<uint32_t>& colours, int tolerance = 6) {
  REQUIRE(p.rgb.size() == static_cast<size_t>(p.width) * p.height * 3);
  const int side = p.width / columns;
  REQUIRE(p.width == columns * side);
  REQUIRE(p.height == rows * side);
  for (int y = 0; y < rows; ++y)
    for (int x = 0; x < columns; ++x) {
      const uint8_t* got =
          &p.rgb[3 * (static_cast<size_t>(y * side + side / 2) * p.width + x * side + side / 2)];
      for (const int c : {0, 1, 2}) {
        const int want = colours[y * columns + x] >> (16 - 8 * c) & 255;
        CAPTURE(x);
        CAPTURE(y);
        CHECK(std::abs(got[c] - want) <= tolerance);
      }
    }
}

const std::vector<uint32_t> kSix = {0xc02020, 0x20c020, 0x2020c0, 0xc0c020, 0x20c0c0, 0xc020c0};
[[maybe_unused]] std::vector<uint32_t> pick(const std::vector<int>& order) {
  std::vector<uint32_t> out;
  for (const int i : order) out.push_back(kSix[i]);
  return out;
}

}  // namespace

#ifdef CARAT_JPEG
TEST_CASE("pictures: JPEG turned as EXIF says") {
  const Picture p = blocks(3, 2, 16, kSix);
  // Where the six blocks are seen, by orientation.
  const std::vector<std::vector<int>> seen = {{0, 1, 2, 3, 4, 5}, {2, 1, 0, 5, 4, 3}, {5, 4, 3, 2, 1, 0},
                                              {3, 4, 5, 0, 1, 2}, {0, 3, 1, 4, 2, 5}, {3, 0, 4, 1, 5, 2},
                                              {5, 2, 4, 1, 3, 0}, {2, 5, 1, 4, 0, 3}};
  for (int o = 1; o <= 8; ++o)
    for (const bool little : {true, false}) {
      CAPTURE(o);
      JpegOptions options;
      options.exif = tiff(o, little);
      const File file = jpeg(p, options);
      const Picture got = decode_picture(file);
      check_blocks(got, o > 4 ? 2 : 3, o > 4 ? 3 : 2, pick(seen[o - 1]));
      const PictureInfo info = picture_info(file);
      CHECK(info.width == got.width);
      CHECK(info.height == got.height);
    }
}

TEST_CASE("pictures: malformed EXIF is none") {
  const Picture p = blocks(3, 2, 16, kSix);
  for (const std::string& exif :
       {tiff(0), tiff(9), tiff(6, true, 4), tiff(6, true, 3, 2), tiff(6, true, 3, 1, 4000),
        tiff(6, true, 3, 1, 0x7fffffff), tiff(6).substr(0, 15), tiff(6).substr(0, 9), std::string("II"),
        std::string("junk that is no TIFF"), "II" + little(42, 2) + little(8, 4) + little(65535, 2)}) {
    JpegOptions options;
    options.exif = exif;
    check_blocks(decode_picture(jpeg(p, options)), 3, 2, kSix);
  }
}

TEST_CASE("pictures: JPEG's colours and forms") {
  const Picture p = blocks(3, 2, 16, kSix);
  JpegOptions o;
  o.progressive = true;
  check_blocks(decode_picture(jpeg(p, o)), 3, 2, kSix);
  File with_more = jpeg(p);
  append(with_more, "what cameras hang behind a picture");
  check_blocks(decode_picture(with_more), 3, 2, kSix);
  const Picture odd = decode_picture(jpeg(noise(17, 13)));
  CHECK(odd.width == 17);
  CHECK(odd.rgb.size() == 17 * 13 * 3);
  o = {};
  o.in = o.stored = JCS_GRAYSCALE, o.channels = 1;
  const Picture grey = decode_picture(jpeg(16, 16, std::vector<uint8_t>(256, 77), o));
  CHECK(grey.rgb == std::vector<uint8_t>(256 * 3, 77));
  // Inks, inverted as they are stored: red = c * k / 255.
  std::vector<uint8_t> inks;
  for (int i = 0; i < 256; ++i)
    for (const uint8_t v : {200, 100, 50, 204}) inks.push_back(v);
  o.in = JCS_CMYK, o.channels = 4, o.quality = 100;
  for (const J_COLOR_SPACE stored : {JCS_CMYK, JCS_YCCK}) {
    o.stored = stored;
    check_blocks(decode_picture(jpeg(16, 16, inks, o)), 1, 1, {160u << 16 | 80u << 8 | 40u}, 3);
  }
}

TEST_CASE("pictures: JPEG that is broken, and one that takes its time") {
  const File whole = jpeg(noise(64, 48));
  for (const size_t n : {whole.size() - 2, whole.size() / 2, size_t{200}, size_t{20}, size_t{3}})
    CHECK(refusal(File(whole.begin(), whole.begin() + n)).starts_with("the JPEG picture is damaged"));
  File hole(whole.begin(), whole.begin() + whole.size() / 2);  // it ends as if it were whole
  append(hole, "\xff\xd9");
  CHECK(refusal(hole).starts_with("the JPEG picture is damaged"));
  JpegOptions o;
  o.scans.push_back({3, {0, 1, 2, 0}, 0, 0, 0, 0});
  for (int c = 0; c < 3; ++c)
    for (int k = 1; k < 64; ++k) o.scans.push_back({1, {c, 0, 0, 0}, k, k, 0, 0});
  CHECK(refusal(jpeg(noise(32, 32), o)).find("more than 100 scans") != std::string::npos);
  File claim = whole;  // a header that claims more than it has
  for (size_t i = 0; i + 9 < claim.size(); ++i)
    if (claim[i] == 0xff && claim[i + 1] == 0xc0)
      claim[i + 5] = claim[i + 6] = claim[i + 7] = claim[i + 8] = 0xfe;
  CHECK(refusal(claim) == "the picture has 65278 x 65278 pixels, and a side may have 32768");
}
#endif

#ifdef CARAT_PNG
TEST_CASE("pictures: PNG of every kind, exactly") {
  const Picture p = noise(13, 7);
  CHECK(decode_picture(png(p)).rgb == p.rgb);
  CHECK(decode_picture(png(13, 7, PNG_COLOR_TYPE_RGB, 8, p.rgb, {}, true)).rgb == p.rgb);  // interlaced
  CHECK(decode_picture(png(2, 1, PNG_COLOR_TYPE_GRAY, 8, {9, 200})).rgb == File{9, 9, 9, 200, 200, 200});
  CHECK(decode_picture(png(2, 1, PNG_COLOR_TYPE_GRAY, 1, {0x40})).rgb == File{0, 0, 0, 255, 255, 255});
  CHECK(decode_picture(png(2, 1, PNG_COLOR_TYPE_GRAY, 2, {0x60})).rgb == File{85, 85, 85, 170, 170, 170});
  CHECK(decode_picture(png(2, 1, PNG_COLOR_TYPE_GRAY, 4, {0x1f})).rgb == File{17, 17, 17, 255, 255, 255});
  // 16 bits are rounded, not cut: 0x01ff is nearer to 2 than to 1.
  CHECK(decode_picture(png(1, 1, PNG_COLOR_TYPE_RGB, 16, {1, 255, 255, 0, 128, 128})).rgb ==
        File{2, 254, 128});
}

TEST_CASE("pictures: transparency over white") {
  const auto over = [](int c, int a) { return static_cast<uint8_t>((c * a + 255 * (255 - a) + 127) / 255); };
  const std::vector<uint8_t> rgba = {10, 20, 30, 0, 10, 20, 30, 255, 200, 100, 0, 128, 0, 0, 0, 1};
  File want;
  for (size_t i = 0; i < rgba.size(); ++i)
    if (i % 4 < 3) want.push_back(over(rgba[i], rgba[i | 3]));
  CHECK(want[0] == 255);
  CHECK(want[3] == 10);
  CHECK(decode_picture(png(4, 1, PNG_COLOR_TYPE_RGBA, 8, rgba)).rgb == want);
  CHECK(decode_picture(png(1, 1, PNG_COLOR_TYPE_GRAY_ALPHA, 8, {40, 51})).rgb == File(3, over(40, 51)));
  png_color palette[2] = {{10, 20, 30}, {200, 100, 0}};
  CHECK(decode_picture(png(2, 1, PNG_COLOR_TYPE_PALETTE, 1, {0x40}, [&](png_structp w, png_infop i) {
          png_set_PLTE(w, i, palette, 2);
        })).rgb == File{10, 20, 30, 200, 100, 0});
  CHECK(decode_picture(png(2, 1, PNG_COLOR_TYPE_PALETTE, 8, {0, 1}, [&](png_structp w, png_infop i) {
          png_set_PLTE(w, i, palette, 2);
          png_byte alpha[2] = {0, 128};
          png_set_tRNS(w, i, alpha, 2, nullptr);
        })).rgb == File{255, 255, 255, over(200, 128), over(100, 128), over(0, 128)});
  CHECK(decode_picture(png(2, 1, PNG_COLOR_TYPE_RGB, 8, {1, 2, 3, 4, 5, 6}, [](png_structp w, png_infop i) {
          png_color_16 clear{0, 1, 2, 3, 0};
          png_set_tRNS(w, i, nullptr, 0, &clear);
        })).rgb == File{255, 255, 255, 4, 5, 6});
  CHECK(decode_picture(png(2, 1, PNG_COLOR_TYPE_GRAY, 16, {1, 2, 1, 3}, [](png_structp w, png_infop i) {
          png_color_16 clear{0, 0, 0, 0, 0x0102};
          png_set_tRNS(w, i, nullptr, 0, &clear);
        })).rgb == File{255, 255, 255, 1, 1, 1});
}

TEST_CASE("pictures: PNG's EXIF, before the pixels and behind them; animations") {
  const Picture p = blocks(3, 2, 2, kSix);
  const File plain = png(p);
  const std::string exif = png_chunk("eXIf", tiff(6));
  File before(plain.begin(), plain.begin() + 33), behind(plain.begin(), plain.end() - 12);
  append(before, exif);
  append(before, File(plain.begin() + 33, plain.end()));
  append(behind, exif);
  append(behind, File(plain.end() - 12, plain.end()));
  for (const File& file : {before, behind}) {
    check_blocks(decode_picture(file), 2, 3, pick({3, 0, 4, 1, 5, 2}), 0);
    CHECK(picture_info(file).width == 4);
  }
  File animated(plain.begin(), plain.begin() + 33);
  append(animated, png_chunk("acTL", big(2, 4) + big(0, 4)));
  append(animated, File(plain.begin() + 33, plain.end()));
  CHECK(picture_info(animated).animated);
  CHECK_FALSE(picture_info(plain).animated);
  CHECK(decode_picture(animated).rgb == p.rgb);
}

TEST_CASE("pictures: PNG that is broken, and bombs") {
  const File whole = png(noise(40, 30));
  for (const size_t n : {whole.size() - 13, whole.size() / 2, size_t{33}, size_t{20}, size_t{8}})
    CHECK(refusal(File(whole.begin(), whole.begin() + n)).starts_with("the PNG picture is damaged"));
  File flipped = whole;
  flipped[whole.size() / 2] ^= 1;
  CHECK(refusal(flipped).starts_with("the PNG picture is damaged"));
  CHECK(refusal(png_claim(0, 10)).starts_with("the PNG picture is damaged"));
  CHECK(refusal(png_claim(30'000, 30'000)) ==
        "the picture has 30000 x 30000 = 900000000 pixels, and 64000000 are allowed");
  CHECK(refusal(png_claim(2'000'000'000, 1)) ==
        "the picture has 2000000000 x 1 pixels, and a side may have 32768");
  CHECK(refusal(whole, {1000, 100}) == "the picture has 40 x 30 = 1200 pixels, and 1000 are allowed");
  CHECK(refusal(png(Picture{30'000, 1, std::vector<uint8_t>(90'000, 5)})) == "read: 30000 x 1");
  // Text that unpacks to 100 MB: left out or refused, but never unpacked.
  File text(whole.begin(), whole.begin() + 33);
  append(text, png_chunk("zTXt", std::string("a\0\0", 3) + "\x78\x9c" + std::string(100'000, '\0')));
  append(text, File(whole.begin() + 33, whole.end()));
  CHECK(refusal(text) == "read: 40 x 30");
}
#endif

#ifdef CARAT_WEBP
TEST_CASE("pictures: WebP") {
  std::vector<uint8_t> rgba;
  for (int i = 0; i < 20 * 10; ++i)
    for (const int v : {i, 255 - i, 7 * i & 255, i % 3 == 0 ? 0 : 255})
      rgba.push_back(static_cast<uint8_t>(v));
  const File lossless = webp(20, 10, rgba, true);
  const Picture got = decode_picture(lossless);
  CHECK(got.width == 20);
  CHECK(got.rgb[0] == 255);  // transparent
  CHECK(got.rgb[3] == 1);
  CHECK(got.rgb[4] == 254);
  std::vector<uint8_t> even;
  for (int i = 0; i < 32 * 32; ++i) even.insert(even.end(), {200, 100, 50, 255});
  const File lossy = webp(32, 32, even, false);
  check_blocks(decode_picture(lossy), 1, 1, {0xc86432});
  for (const File* f : {&lossless, &lossy})
    CHECK(refusal(File(f->begin(), f->begin() + f->size() / 2)).starts_with("the WebP picture is damaged"));
  CHECK(refusal(bytes("RIFF" + little(16, 4) + "WEBPVP8 ")).starts_with("the WebP picture is damaged"));
  const File animation = webp_animation(40, 36, 2, 4, 32, 32, webp(32, 32, even, true));
  CHECK(picture_info(animation).animated);
  const Picture first = decode_picture(animation);
  CHECK(first.width == 40);
  CHECK(first.rgb[0] == 255);
  const uint8_t* inside = &first.rgb[3 * (4 * 40 + 2)];
  CHECK(File(inside, inside + 3) == File{200, 100, 50});
  CHECK(first.rgb[3 * (4 * 40 + 1)] == 255);
  CHECK(refusal(webp_animation(33, 36, 2, 4, 32, 32, webp(32, 32, even, true)))
            .starts_with("the WebP picture is damaged"));
}
#endif

TEST_CASE("pictures: GIF") {
  const std::string four = "\x0a\x14\x1e\xc8\x64" + std::string(1, '\0') + "\x01\x02\x03\x32\x3c\x46";
  GifFrame f{0, 0, 5, 9, {}, -1, false, {}};
  for (int i = 0; i < 45; ++i) f.indices.push_back(static_cast<uint8_t>((i * 7 + i / 5) & 3));
  Picture want{5, 9, {}};
  for (const uint8_t i : f.indices)
    for (int c = 0; c < 3; ++c) want.rgb.push_back(static_cast<uint8_t>(four[3 * i + c]));
  const File plain = gif(5, 9, four, {f});
  CHECK(decode_picture(plain).rgb == want.rgb);
  CHECK_FALSE(picture_info(plain).animated);
  GifFrame other = f;
  other.interlaced = true;
  CHECK(decode_picture(gif(5, 9, four, {other})).rgb == want.rgb);
  other = f, other.colours = four;
  CHECK(decode_picture(gif(5, 9, {}, {other})).rgb == want.rgb);
  CHECK(decode_picture(gif(2, 3, four, {f})).rgb == want.rgb);  // the screen grows
  other = f, other.transparent = 1;
  const Picture clear = decode_picture(gif(5, 9, four, {other}));
  for (size_t i = 0; i < f.indices.size(); ++i)
    CHECK(clear.rgb[3 * i] == (f.indices[i] == 1 ? 255 : want.rgb[3 * i]));
  const File animated = gif(8, 9, four, {f, other});
  CHECK(picture_info(animated).animated);
  const Picture first = decode_picture(animated);
  CHECK(first.rgb[0] == want.rgb[0]);
  CHECK(first.rgb[3 * 5] == 255);  // no frame is there
  CHECK(refusal(gif(5, 9, {}, {f})) == "the GIF picture is damaged or ends too early: a colour is missing");
  for (const size_t n : {plain.size() - 4, plain.size() - 20, size_t{30}, size_t{20}, size_t{6}})
    CHECK(refusal(File(plain.begin(), plain.begin() + n)).starts_with("the GIF picture is damaged"));
  GifFrame big{0, 0, 300, 200, std::vector<uint8_t>(60'000, 3), -1, false, {}};
  CHECK(decode_picture(gif(300, 200, four, {big})).rgb[3 * 59'999] == 0x32);
  CHECK(refusal(gif(65'535, 65'535, four, {f})) ==
        "the picture has 65535 x 65535 pixels, and a side may have 32768");
}

TEST_CASE("pictures: GIF as encoders compress it") {
  // 10 x 10 of a published example: 4 colours, white, red, blue, black.
  const std::string_view text(
      "GIF89a\x0a\0\x0a\0\x91\0\0\xff\xff\xff\xff\0\0\0\0\xff\0\0\0!\xf9\x04\0\0\0\0\0,"
      "\0\0\0\0\x0a\0\x0a\0\0\x02\x16"
      "\x8c\x2d\x99\x87\x2a\x1c\xdc\x33\xa0\x02\x75\xec\x95\xfa\xa8\xde\x60\x8c\x04\x91\x4c\x01\0;",
      69);
  const Picture p = decode_picture(File(text.begin(), text.end()));
  const char* rows[] = {"rrrrrbbbbb", "rrrrrbbbbb", "rrrrrbbbbb", "rrrwwwwbbb", "rrrwwwwbbb",
                        "bbbwwwwrrr", "bbbwwwwrrr", "bbbbbrrrrr", "bbbbbrrrrr", "bbbbbrrrrr"};
  for (int y = 0; y < 10; ++y)
    for (int x = 0; x < 10; ++x) {
      const uint8_t* c = &p.rgb[3 * (10 * y + x)];
      const char got = c[0] && c[2] ? 'w' : c[0] ? 'r' : c[2] ? 'b' : 'k';
      CHECK(got == rows[y][x]);
    }
}

TEST_CASE("pictures: what is no picture is named") {
  struct Case {
    std::string start, name;
  };
  using namespace std::string_literals;
  const Case cases[] = {
      {"\0\0\0\x18"
       "ftypheic"s,
       "HEIC"},
      {"\0\0\0\x18"
       "ftypmif1"s,
       "HEIF"},
      {"\0\0\0\x18"
       "ftypavif"s,
       "AVIF"},
      {"\0\0\0\x18"
       "ftypisom"s,
       "MP4"},
      {"II*\0"s, "TIFF"},
      {"MM\0*"s, "TIFF"},
      {"%PDF-1.7\n"s, "PDF"},
      {"BM\x36\0"s, "BMP"},
      {"\0\0\x01\0"s, "ICO"},
      {"8BPS"s, "PSD"},
      {"\xff\x0a"s, "JPEG XL"},
      {"\0\0\0\x0cJXL "s, "JPEG XL"},
      {"\0\0\0\x0cjP  \r\n"s, "JPEG 2000"},
      {"\x1a\x45\xdf\xa3"s, "WebM"},
      {"<?xml version=\"1.0\"?><svg xmlns="s, "SVG"},
      {"<svg width=\"3\">"s, "SVG"},
      {"<!DOCTYPE html><html>"s, "web page"},
      {"PK\x03\x04"s, "ZIP"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const std::string said = refusal(bytes(c.start + std::string(64, 'x')));
    CHECK(said.find(c.name) != std::string::npos);
    CHECK(said.find("is not read") != std::string::npos);
  }
  CHECK(refusal({}) == "the picture is empty");
  CHECK(refusal(bytes("some words")) == "the picture is of no format that is known");
  CHECK(picture_formats().find("GIF") != std::string::npos);
}
