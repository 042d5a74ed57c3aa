// Picture files made for tests, by the libraries that read them and by hand.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "media/picture.h"
#ifdef CARAT_JPEG
#include <jpeglib.h>
#endif
#ifdef CARAT_PNG
#include <png.h>
#endif
#ifdef CARAT_WEBP
#include <webp/encode.h>
#endif

namespace carat::test {

using File = std::vector<uint8_t>;

inline void append(File& f, const std::string& text) { f.insert(f.end(), text.begin(), text.end()); }
inline void append(File& f, const File& more) { f.insert(f.end(), more.begin(), more.end()); }
inline File bytes(const std::string& text) { return File(text.begin(), text.end()); }
inline std::string little(uint64_t value, int n) {
  std::string s;
  for (int i = 0; i < n; ++i) s += static_cast<char>(value >> 8 * i);
  return s;
}
inline std::string big(uint64_t value, int n) {
  const std::string s = little(value, n);
  return {s.rbegin(), s.rend()};
}

// TIFF block with one entry; type and count as a good orientation has them.
inline std::string tiff(int orientation, bool little_endian = true, int type = 3, int count = 1,
                        int offset = 8) {
  const auto n = [&](uint64_t v, int b) { return little_endian ? little(v, b) : big(v, b); };
  return (little_endian ? "II" : "MM") + n(42, 2) + n(offset, 4) + n(1, 2) + n(0x0112, 2) + n(type, 2) +
         n(count, 4) + n(orientation, 2) + n(0, 2) + n(0, 4);
}

// Blocks of side pixels, each of one colour; colours row by row.
inline Picture blocks(int columns, int rows, int side, const std::vector<uint32_t>& colours) {
  Picture p{columns * side, rows * side, {}};
  for (int y = 0; y < p.height; ++y)
    for (int x = 0; x < p.width; ++x) {
      const uint32_t c = colours[(y / side) * columns + x / side];
      for (const int shift : {16, 8, 0}) p.rgb.push_back(static_cast<uint8_t>(c >> shift));
    }
  return p;
}
inline Picture noise(int width, int height, uint32_t seed = 1) {
  Picture p{width, height, std::vector<uint8_t>(static_cast<size_t>(width) * height * 3)};
  for (uint8_t& b : p.rgb) b = static_cast<uint8_t>((seed = seed * 1664525u + 1013904223u) >> 24);
  return p;
}

#ifdef CARAT_JPEG
struct JpegOptions {
  std::string exif;  // behind "Exif\0\0"
  J_COLOR_SPACE in = JCS_RGB, stored = JCS_YCbCr;
  int channels = 3, quality = 95;
  bool progressive = false;
  std::vector<jpeg_scan_info> scans;
};
inline File jpeg(int width, int height, const std::vector<uint8_t>& data, const JpegOptions& o = {}) {
  jpeg_compress_struct c{};
  jpeg_error_mgr errors;
  c.err = jpeg_std_error(&errors);
  jpeg_create_compress(&c);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&c, &out, &size);
  c.image_width = width, c.image_height = height, c.input_components = o.channels, c.in_color_space = o.in;
  jpeg_set_defaults(&c);
  jpeg_set_colorspace(&c, o.stored);
  jpeg_set_quality(&c, o.quality, TRUE);
  if (o.progressive) jpeg_simple_progression(&c);
  if (!o.scans.empty()) c.scan_info = o.scans.data(), c.num_scans = static_cast<int>(o.scans.size());
  jpeg_start_compress(&c, TRUE);
  if (!o.exif.empty()) {
    const std::string block = std::string("Exif\0\0", 6) + o.exif;
    jpeg_write_marker(&c, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(block.data()),
                      static_cast<unsigned>(block.size()));
  }
  while (c.next_scanline < c.image_height) {
    auto* row = const_cast<JSAMPLE*>(&data[c.next_scanline * static_cast<size_t>(width) * o.channels]);
    jpeg_write_scanlines(&c, &row, 1);
  }
  jpeg_finish_compress(&c);
  jpeg_destroy_compress(&c);
  File file(out, out + size);
  std::free(out);
  return file;
}
inline File jpeg(const Picture& p, const JpegOptions& o = {}) { return jpeg(p.width, p.height, p.rgb, o); }
#endif

#ifdef CARAT_PNG
// data: packed rows of the given type and depth. extra: sets chunks before the header is written.
inline File png(int width, int height, int type, int depth, const std::vector<uint8_t>& data,
                const std::function<void(png_structp, png_infop)>& extra = {}, bool interlaced = false) {
  File file;
  png_structp w = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(w);
  png_set_write_fn(
      w, &file,
      [](png_structp s, png_bytep b, size_t n) {
        auto* to = static_cast<File*>(png_get_io_ptr(s));
        to->insert(to->end(), b, b + n);
      },
      nullptr);
  png_set_IHDR(w, info, width, height, depth, type, interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, 0,
               0);
  if (extra) extra(w, info);
  png_write_info(w, info);
  std::vector<png_bytep> rows;
  const size_t line = png_get_rowbytes(w, info);
  CARAT_CHECK(data.size() == line * height, "{} {}", data.size(), line);
  for (int y = 0; y < height; ++y) rows.push_back(const_cast<png_bytep>(&data[y * line]));
  png_write_image(w, rows.data());
  png_write_end(w, info);
  png_destroy_write_struct(&w, &info);
  return file;
}
inline File png(const Picture& p) { return png(p.width, p.height, PNG_COLOR_TYPE_RGB, 8, p.rgb); }
inline std::string png_chunk(const std::string& type, const std::string& data) {
  uint32_t crc = 0xffffffffu;
  for (const char ch : type + data) {
    crc ^= static_cast<uint8_t>(ch);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return big(data.size(), 4) + type + data + big(~crc, 4);
}
#endif
// Signature and header alone: what a picture claims.
inline File png_claim(uint32_t width, uint32_t height) {
  std::string ihdr = "IHDR" + big(width, 4) + big(height, 4) + std::string("\x08\x02\0\0\0", 5);
  uint32_t crc = 0xffffffffu;
  for (const char ch : ihdr) {
    crc ^= static_cast<uint8_t>(ch);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return bytes("\x89PNG\r\n\x1a\n" + big(13, 4) + ihdr + big(~crc, 4) + big(10, 4) + "IDAT");
}

#ifdef CARAT_WEBP
inline File webp(int width, int height, const std::vector<uint8_t>& rgba, bool lossless) {
  uint8_t* out = nullptr;
  const size_t n = lossless ? WebPEncodeLosslessRGBA(rgba.data(), width, height, width * 4, &out)
                            : WebPEncodeRGBA(rgba.data(), width, height, width * 4, 95, &out);
  File file(out, out + n);
  WebPFree(out);
  return file;
}
// An animation whose one frame, a lossless picture, stands at (x, y) of a canvas; x and y even.
inline File webp_animation(int width, int height, int x, int y, int frame_width, int frame_height,
                           const File& frame) {
  const std::string chunk(frame.begin() + 12, frame.end());
  const std::string anmf = little(x / 2, 3) + little(y / 2, 3) + little(frame_width - 1, 3) +
                           little(frame_height - 1, 3) + little(100, 3) + little(0, 1) + chunk;
  const std::string body = "WEBPVP8X" + little(10, 4) + little(0x12, 4) + little(width - 1, 3) +
                           little(height - 1, 3) + "ANIM" + little(6, 4) + little(0, 6) + "ANMF" +
                           little(anmf.size(), 4) + anmf;
  return bytes("RIFF" + little(body.size(), 4) + body);
}
#endif

struct GifFrame {
  int left = 0, top = 0, width = 0, height = 0;
  std::vector<uint8_t> indices;  // row by row
  int transparent = -1;
  bool interlaced = false;
  std::string colours;  // a table of its own: 3 bytes each, 2, 4, 8, ... of them
};
// Codes as every encoder may write them, without compression: the table is cleared before it grows.
inline std::string gif_codes(const std::vector<uint8_t>& indices) {
  std::string packed, out;
  uint32_t word = 0;
  int have = 0;
  const auto put = [&](uint32_t code) {
    word |= code << have;
    for (have += 9; have >= 8; have -= 8, word >>= 8) packed += static_cast<char>(word);
  };
  put(256);
  for (size_t i = 0; i < indices.size(); ++i) {
    if (i % 200 == 199) put(256);
    put(indices[i]);
  }
  put(257);
  packed += static_cast<char>(word);
  out += '\x08';
  for (size_t i = 0; i < packed.size(); i += 255) {
    const std::string part = packed.substr(i, 255);
    out += static_cast<char>(part.size()) + part;
  }
  return out + '\0';
}
inline int table_bits(const std::string& colours) {
  int bits = 0;
  while (size_t{6} << bits < colours.size()) ++bits;
  return bits;
}
inline File gif(int width, int height, const std::string& colours, const std::vector<GifFrame>& frames) {
  std::string s = "GIF89a" + little(width, 2) + little(height, 2);
  s += static_cast<char>(colours.empty() ? 0 : 0x80 | table_bits(colours));
  s += std::string(2, '\0') + colours;
  if (frames.size() > 1) s += "!\xff\x0bNETSCAPE2.0\x03\x01" + little(0, 3);
  for (const GifFrame& f : frames) {
    s += "!\xf9\x04" + little(f.transparent >= 0 ? 1 : 0, 1) + little(0, 2) +
         little(f.transparent >= 0 ? f.transparent : 0, 1) + '\0';
    s += ',' + little(f.left, 2) + little(f.top, 2) + little(f.width, 2) + little(f.height, 2);
    s +=
        static_cast<char>((f.interlaced ? 0x40 : 0) | (f.colours.empty() ? 0 : 0x80 | table_bits(f.colours)));
    s += f.colours;
    std::vector<uint8_t> sent;
    const auto rows = [&](int start, int step) {
      for (int y = start; y < f.height; y += step)
        sent.insert(sent.end(), f.indices.begin() + y * f.width, f.indices.begin() + (y + 1) * f.width);
    };
    if (f.interlaced)
      rows(0, 8), rows(4, 8), rows(2, 4), rows(1, 2);
    else
      rows(0, 1);
    s += gif_codes(sent);
  }
  return bytes(s + ';');
}

}  // namespace carat::test
