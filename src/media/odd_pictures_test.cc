// The table of odd picture files in docs/media.md: every file is made here, read, and its line compared.
#include <doctest/doctest.h>

#include "base/file.h"
#include "media/picture.h"
#include "tests/picture_makers.h"

#if defined(CARAT_JPEG) && defined(CARAT_PNG) && defined(CARAT_WEBP)
using namespace carat;
using namespace carat::test;

namespace {

struct Odd {
  std::string name;
  File file;
};
using Odds = std::vector<Odd>;

File part(const File& f, size_t n) { return File(f.begin(), f.begin() + static_cast<std::ptrdiff_t>(n)); }
// A chunk behind the header, before the pixels.
File with_chunk(const File& plain, const std::string& type, const std::string& data) {
  File out = part(plain, 33);
  append(out, png_chunk(type, data));
  out.insert(out.end(), plain.begin() + 33, plain.end());
  return out;
}
Picture picture() { return blocks(3, 2, 16, {0xc02020, 0x20c020, 0x2020c0, 0xc0c020, 0x20c0c0, 0xc020c0}); }

void add_jpegs(Odds& out) {
  const Picture p = picture();
  const File plain = jpeg(p);
  const auto add = [&](const char* name, const JpegOptions& o) { out.push_back({name, jpeg(p, o)}); };
  out.push_back({"JPEG, baseline", plain});
  JpegOptions o;
  o.progressive = true;
  add("JPEG, progressive", o);
  o = {};
  for (const int turn : {2, 3, 6, 8}) {
    o.exif = tiff(turn, turn != 8);
    add(fmt::format("JPEG, EXIF orientation {}", turn).c_str(), o);
  }
  o.exif = tiff(6, true, 3, 1, 0x7fffffff);
  add("JPEG, EXIF that points outside", o);
  o = {};
  o.in = o.stored = JCS_GRAYSCALE, o.channels = 1;
  out.push_back({"JPEG, grey", jpeg(16, 16, std::vector<uint8_t>(256, 77), o)});
  o.in = JCS_CMYK, o.channels = 4;
  for (const auto& [stored, name] : {std::pair{JCS_CMYK, "CMYK"}, std::pair{JCS_YCCK, "YCCK"}}) {
    o.stored = stored;
    out.push_back({fmt::format("JPEG, {}", name), jpeg(16, 16, std::vector<uint8_t>(1024, 200), o)});
  }
  out.push_back({"JPEG, 1 x 1", jpeg(noise(1, 1))});
  File more = plain;
  append(more, "what cameras hang behind a picture");
  out.push_back({"JPEG with bytes behind its end", more});
  out.push_back({"JPEG, its second half missing", part(plain, plain.size() / 2)});
  File hole = part(plain, plain.size() / 2);
  append(hole, "\xff\xd9");
  out.push_back({"JPEG with a hole, but an end", hole});
  o = {};
  o.scans.push_back({3, {0, 1, 2, 0}, 0, 0, 0, 0});
  for (int c = 0; c < 3; ++c)
    for (int k = 1; k < 64; ++k) o.scans.push_back({1, {c, 0, 0, 0}, k, k, 0, 0});
  out.push_back({"JPEG of 190 scans", jpeg(noise(32, 32), o)});
}

void add_pngs(Odds& out) {
  const Picture p = picture();
  const File plain = png(p);
  out.push_back({"PNG, 8 bits", plain});
  out.push_back({"PNG, interlaced", png(8, 8, PNG_COLOR_TYPE_RGB, 8, noise(8, 8).rgb, {}, true)});
  out.push_back(
      {"PNG, 16 bits (0x01c0 is 2 of 255)", png(1, 1, PNG_COLOR_TYPE_RGB, 16, {1, 0xc0, 1, 0xc0, 1, 0xc0})});
  out.push_back({"PNG, 1 bit, grey", png(8, 1, PNG_COLOR_TYPE_GRAY, 1, {0x80})});
  out.push_back({"PNG, black, transparent", png(1, 1, PNG_COLOR_TYPE_RGB_ALPHA, 8, {0, 0, 0, 0})});
  out.push_back({"PNG, grey, half transparent", png(1, 1, PNG_COLOR_TYPE_GRAY_ALPHA, 8, {100, 128})});
  out.push_back(
      {"PNG, palette with tRNS", png(2, 1, PNG_COLOR_TYPE_PALETTE, 8, {0, 1}, [](png_structp w, png_infop i) {
         const png_color colours[] = {{10, 20, 30}, {40, 50, 60}};
         png_set_PLTE(w, i, colours, 2);
         const png_byte clear[] = {0};
         png_set_tRNS(w, i, clear, 1, nullptr);
       })});
  out.push_back({"PNG, eXIf orientation 6", with_chunk(plain, "eXIf", tiff(6))});
  out.push_back({"APNG, two frames", with_chunk(plain, "acTL", big(2, 4) + big(0, 4))});
  out.push_back(
      {"PNG, text that unpacks to 100 MB",
       with_chunk(plain, "zTXt", std::string("a\0\0", 3) + "\x78\x9c" + std::string(100'000, '\0'))});
  out.push_back({"PNG, 30000 x 1", png(Picture{30'000, 1, std::vector<uint8_t>(90'000, 5)})});
  out.push_back({"PNG, 1 x 4000", png(Picture{1, 4'000, std::vector<uint8_t>(12'000, 5)})});
  out.push_back({"PNG, its last third missing", part(plain, plain.size() * 2 / 3)});
  File flipped = plain;
  flipped[plain.size() / 2] ^= 1;
  out.push_back({"PNG, one bit flipped", flipped});
  out.push_back({"PNG that claims 0 x 10", png_claim(0, 10)});
  out.push_back({"PNG that claims 30000 x 30000", png_claim(30'000, 30'000)});
  out.push_back({"PNG that claims 2000000000 x 1", png_claim(2'000'000'000, 1)});
}

void add_others(Odds& out) {
  std::vector<uint8_t> clear(32 * 32 * 4, 0), even;
  for (int i = 0; i < 32 * 32; ++i) even.insert(even.end(), {200, 100, 50, 255});
  const File lossy = webp(32, 32, even, false);
  out.push_back({"WebP, lossy", lossy});
  out.push_back({"WebP, lossless, transparent", webp(32, 32, clear, true)});
  out.push_back({"WebP, animated", webp_animation(40, 36, 2, 4, 32, 32, webp(32, 32, even, true))});
  out.push_back({"WebP, its second half missing", part(lossy, lossy.size() / 2)});
  const std::string two = "\x0a\x14\x1e\xc8\x64\x32";
  GifFrame f{0, 0, 8, 8, std::vector<uint8_t>(64, 1), -1, false, {}};
  const File plain = gif(8, 8, two, {f});
  out.push_back({"GIF", plain});
  GifFrame woven = f;
  woven.interlaced = true, woven.transparent = 1;
  out.push_back({"GIF, interlaced, transparent", gif(8, 8, two, {woven})});
  out.push_back({"GIF, animated", gif(8, 8, two, {f, f})});
  out.push_back({"GIF whose frame is larger than its screen", gif(2, 3, two, {f})});
  out.push_back({"GIF, no colours", gif(8, 8, {}, {f})});
  out.push_back({"GIF, its end missing", part(plain, plain.size() - 4)});
  using namespace std::string_literals;
  const std::string box = "\0\0\0\x18"s;
  for (const auto& [name, start] : std::initializer_list<std::pair<const char*, std::string>>{
           {"HEIC", box + "ftypheic"},
           {"AVIF", box + "ftypavif"},
           {"MP4", box + "ftypisom"},
           {"TIFF", "II*\0"s},
           {"BMP, named picture.png", "BM\x36\0"s},
           {"ICO", "\0\0\1\0"s},
           {"JPEG XL", "\xff\x0a"s},
           {"SVG", "<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'/>"},
           {"PDF", "%PDF-1.7\n"},
           {"a web page (an address that needs a login)", "<!DOCTYPE html><html><body>Log in</body></html>"},
           {"text", "This is no picture, it is a text."}})
    out.push_back({name, bytes(start.size() < 24 ? start + std::string(24, '\0') : start)});
  File random = noise(20, 20, 7).rgb;
  random[0] = 'x';
  out.push_back({"random bytes", random});
  out.push_back({"nothing", {}});
}

std::string outcome(const File& file) {
  try {
    const PictureInfo info = picture_info(file);
    const Picture p = decode_picture(file);
    CHECK(p.width == info.width);
    CHECK(p.height == info.height);
    const GridSize grid = gemma_size(p.width, p.height, 280);
    const bool exact = info.format == "PNG" || info.format == "GIF";
    const std::string first =
        exact ? fmt::format(", begins with #{:02x}{:02x}{:02x}", p.rgb[0], p.rgb[1], p.rgb[2]) : "";
    return fmt::format("{} x {}{}{}; read as {} x {}, {} tokens", p.width, p.height,
                       info.animated ? ", first frame" : "", first, grid.width, grid.height, grid.tokens);
  } catch (const Error& e) {
    CHECK(!e.hint().empty());
    const std::string what = e.what();  // behind it stands what the library says
    const size_t end = what.find("ends too early: ");
    return "**refused**: " + (end == what.npos ? what : what.substr(0, end) + "ends too early");
  }
}

}  // namespace

TEST_CASE("pictures: odd files become what docs/media.md says") {
  Odds all;
  add_jpegs(all), add_pngs(all), add_others(all);
  CHECK(all.size() >= 40);
  std::string table = "| file | outcome |\n| --- | --- |\n";
  for (const Odd& o : all) table += fmt::format("| {} | {} |\n", o.name, outcome(o.file));
  const std::string page = read_file("docs/media.md", size_t{1} << 20);
  const bool same = page.find(table) != page.npos;
  INFO("docs/media.md should have:\n" << table);
  CHECK(same);
}
#endif
