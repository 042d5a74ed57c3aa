#include "media/picture.h"

#include <algorithm>

#include "base/error.h"
#include "base/file_kind.h"
#include "media/picture_files.h"

namespace carat {
namespace {

const PictureFormat* const kFormats[] = {&kJpeg, &kPng, &kWebp, &kGif};
constexpr std::string_view kConvert = "convert it to JPEG or PNG";

struct Foreign {
  std::string_view bytes;
  size_t at;
  std::string_view name;
};
using namespace std::string_view_literals;
// Boxes of ISO media ("ftyp" at 4) say by their brand what they are.
constexpr Foreign kForeign[] = {
    {"ftypavif"sv, 4, "AVIF"},
    {"ftypavis"sv, 4, "AVIF"},
    {"ftypheic"sv, 4, "HEIC"},
    {"ftypheix"sv, 4, "HEIC"},
    {"ftyphevc"sv, 4, "HEIC"},
    {"ftyphevx"sv, 4, "HEIC"},
    {"ftypmif1"sv, 4, "HEIF"},
    {"ftypmsf1"sv, 4, "HEIF"},
    {"ftyp"sv, 4, "MP4, a video"},
    {"II*\0"sv, 0, "TIFF"},
    {"MM\0*"sv, 0, "TIFF"},
    {"%PDF-"sv, 0, "PDF"},
    {"BM"sv, 0, "BMP"},
    {"\0\0\1\0"sv, 0, "ICO"},
    {"8BPS"sv, 0, "PSD"},
    {"\xff\x0a"sv, 0, "JPEG XL"},
    {"JXL "sv, 4, "JPEG XL"},
    {"jP  \r\n"sv, 4, "JPEG 2000"},
    {"\xff\x4f\xff\x51"sv, 0, "JPEG 2000"},
    {"qoif"sv, 0, "QOI"},
    {"\x1a\x45\xdf\xa3"sv, 0, "WebM, a video"},
};

std::string_view foreign_name(Bytes b) {
  for (const Foreign& f : kForeign)
    if (starts(b, f.bytes, f.at)) return f.name;
  const std::string_view text(reinterpret_cast<const char*>(b.data()), std::min<size_t>(b.size(), 1024));
  if (text.find("<svg") != text.npos) return "SVG";
  const FileKind* kind = foreign_kind(text);
  return kind ? kind->is : std::string_view();
}

const PictureFormat& format_of(Bytes b) {
  if (b.empty()) throw Error("the picture is empty", "send the file's bytes");
  for (const PictureFormat* f : kFormats)
    if (f->is(b)) {
      if (!f->library)
        throw Error(fmt::format("the picture is {}, which this build does not read", f->name),
                    fmt::format("convert it to another format, or build with {}", f->package));
      return *f;
    }
  const std::string_view name = foreign_name(b);
  if (name.empty()) throw Error("the picture is of no format that is known", std::string(kConvert));
  throw Error(fmt::format("the picture is {}, which is not read", name), std::string(kConvert));
}

void check_size(std::string_view format, int64_t width, int64_t height, const PictureLimits& limits) {
  if (width < 1 || height < 1) damaged(format, "it has no pixels");
  if (width > limits.side || height > limits.side)
    throw Error(
        fmt::format("the picture has {} x {} pixels, and a side may have {}", width, height, limits.side),
        "make it smaller");
  if (width * height > limits.pixels)
    throw Error(fmt::format("the picture has {} x {} = {} pixels, and {} are allowed", width, height,
                            width * height, limits.pixels),
                "make it smaller");
}

}  // namespace

void damaged(std::string_view format, std::string_view why) {
  throw Error(fmt::format("the {} picture is damaged or ends too early: {}", format, why),
              "send the whole file, or save it again with another program");
}

PictureInfo picture_info(Bytes bytes, const PictureLimits& limits) {
  const PictureFormat& format = format_of(bytes);
  const Header h = format.header(bytes);
  check_size(format.name, h.width, h.height, limits);
  const bool across = h.orientation > 4;
  return {format.name, across ? h.height : h.width, across ? h.width : h.height, h.animated};
}

Picture decode_picture(Bytes bytes, const PictureLimits& limits) {
  const PictureFormat& format = format_of(bytes);
  const Header h = format.header(bytes);
  check_size(format.name, h.width, h.height, limits);  // before anything is unpacked
  return turned(flattened(format.decode(bytes)), h.orientation);
}

Picture flattened(Pixels&& p) {
  Picture out{p.width, p.height, {}};
  if (p.channels == 4) {
    const size_t n = static_cast<size_t>(p.width) * p.height;
    for (size_t i = 0; i < n; ++i) {  // in place: the result is never ahead of what it reads
      const int a = p.data[4 * i + 3];
      for (size_t c = 0; c < 3; ++c)
        p.data[3 * i + c] = static_cast<uint8_t>((p.data[4 * i + c] * a + 255 * (255 - a) + 127) / 255);
    }
    p.data.resize(3 * n);
  }
  out.rgb = std::move(p.data);
  return out;
}

std::string picture_formats() {
  std::string with, without;
  for (const PictureFormat* f : kFormats) {
    std::string& list = f->library ? with : without;
    if (!list.empty()) list += ", ";
    list += f->library ? fmt::format("{} ({})", f->name, f->library()) : std::string(f->name);
  }
  if (with.empty()) with = "none";
  return without.empty() ? with : fmt::format("{}; not in this build: {}", with, without);
}

}  // namespace carat
