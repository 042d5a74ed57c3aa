// PNG by libpng. Its errors leave by longjmp, so no object with a destructor lives in a frame that it
// crosses.
#include "media/picture_files.h"
#ifdef CARAT_PNG
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace carat {
namespace {

constexpr png_alloc_size_t kMostChunkBytes = 8 << 20;
constexpr png_uint_32 kMostChunks = 1000;

struct Reader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  Bytes left;
  char why[200] = "";
};

void on_error(png_structp png, png_const_charp what) {
  auto& r = *static_cast<Reader*>(png_get_error_ptr(png));
  std::snprintf(r.why, sizeof r.why, "%s", what);
  png_longjmp(png, 1);
}
void on_warning(png_structp, png_const_charp) {}
void on_read(png_structp png, png_bytep to, size_t n) {
  auto& r = *static_cast<Reader*>(png_get_io_ptr(png));
  if (n > r.left.size()) png_error(png, "it ends too early");
  std::memcpy(to, r.left.data(), n);
  r.left = r.left.subspan(n);
}

void open(Reader& r) {
  r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning);
  r.info = r.png ? png_create_info_struct(r.png) : nullptr;
  if (!r.info) {
    std::snprintf(r.why, sizeof r.why, "no memory");
    return;
  }
  if (setjmp(png_jmpbuf(r.png))) return;
  png_set_read_fn(r.png, &r, on_read);
  png_set_user_limits(r.png, PNG_UINT_31_MAX,
                      PNG_UINT_31_MAX);  // check_size says what is too large, with numbers
  png_set_chunk_malloc_max(r.png, kMostChunkBytes);
  png_set_chunk_cache_max(r.png, kMostChunks);
  png_read_info(r.png, r.info);
}

// Sets how rows come: 8 bits, RGB or RGBA.
int prepare(Reader& r) {
  if (setjmp(png_jmpbuf(r.png))) return 0;
  png_set_expand(r.png);  // palettes, 1 to 4 bits, transparent colours
  png_set_scale_16(r.png);
  png_set_gray_to_rgb(r.png);
  png_set_interlace_handling(r.png);
  png_read_update_info(r.png, r.info);
  return png_get_channels(r.png, r.info);
}

void decode_into(Reader& r, png_bytepp rows) {
  if (setjmp(png_jmpbuf(r.png))) return;
  png_read_image(r.png, rows);
  png_read_end(r.png, r.info);
}

struct Open {
  explicit Open(Bytes b) {
    r.left = b;
    open(r);
    try {
      check();
    } catch (...) {
      close();
      throw;
    }
  }
  ~Open() { close(); }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;
  void check() const {
    if (r.why[0]) damaged("PNG", r.why);
  }
  void close() { png_destroy_read_struct(&r.png, &r.info, nullptr); }
  Reader r;
};

// An eXIf chunk may also stand behind the pixels: chunks are walked for it, and for what makes an animation.
int orientation_of(Bytes b, bool& animated) {
  int orientation = 1;
  for (size_t at = 8; at + 12 <= b.size();) {
    const size_t n = static_cast<size_t>(b[at]) << 24 | b[at + 1] << 16 | b[at + 2] << 8 | b[at + 3];
    if (n > b.size() - at - 12) break;
    if (starts(b, "acTL", at + 4)) animated = true;
    if (starts(b, "eXIf", at + 4)) orientation = exif_orientation(b.subspan(at + 8, n));
    at += 12 + n;
  }
  return orientation;
}

Header header(Bytes b) {
  Open file(b);
  Header h{static_cast<int>(png_get_image_width(file.r.png, file.r.info)),
           static_cast<int>(png_get_image_height(file.r.png, file.r.info)), 1, false};
  h.orientation = orientation_of(b, h.animated);
  return h;
}

Pixels decode(Bytes b) {
  Open file(b);
  Reader& r = file.r;
  Pixels p{static_cast<int>(png_get_image_width(r.png, r.info)),
           static_cast<int>(png_get_image_height(r.png, r.info)),
           prepare(r),
           {}};
  file.check();
  const size_t line = static_cast<size_t>(p.width) * p.channels;
  CARAT_CHECK((p.channels == 3 || p.channels == 4) && png_get_rowbytes(r.png, r.info) == line, "{}",
              p.channels);
  p.data.resize(line * p.height);
  std::vector<png_bytep> rows(p.height);
  for (int y = 0; y < p.height; ++y) rows[y] = &p.data[y * line];
  decode_into(r, rows.data());
  file.check();
  return p;
}

std::string library() { return std::string("libpng ") + png_get_libpng_ver(nullptr); }

}  // namespace
}  // namespace carat
#endif

namespace carat {
const PictureFormat kPng = {"PNG",       [](Bytes b) { return starts(b, "\x89PNG\r\n\x1a\n"); },
#ifdef CARAT_PNG
                            header,      decode,
                            library,
#else
                            nullptr,     nullptr,
                            nullptr,
#endif
                            "libpng-dev"};
}  // namespace carat
