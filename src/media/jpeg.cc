// JPEG by libjpeg-turbo. Its errors leave by longjmp, so no object with a destructor lives in a frame that it
// crosses.
#include "media/picture_files.h"
#ifdef CARAT_JPEG
#include <csetjmp>
#include <cstdio>

#include <jpeglib.h>
// Behind jpeglib.h, which it needs.
#include <jerror.h>

#include "base/error.h"

namespace carat {
namespace {

constexpr int kMostScans = 100;  // more are an attack on the clock: each is a pass over the whole picture

struct Reader {
  jpeg_error_mgr errors;  // first: libjpeg's pointer to it is one to this
  jpeg_decompress_struct cinfo;
  jpeg_progress_mgr progress;
  std::jmp_buf out;
  char why[JMSG_LENGTH_MAX] = "";
};

Reader& reader(j_common_ptr c) { return *reinterpret_cast<Reader*>(c->err); }

void on_error(j_common_ptr c) {
  Reader& r = reader(c);
  if (!r.why[0]) r.errors.format_message(c, r.why);
  std::longjmp(r.out, 1);
}
// A warning means that pixels were made up, but for two: bytes between segments that are skipped, and a
// version number.
void on_message(j_common_ptr c, int level) {
  if (level >= 0 || c->err->msg_code == JWRN_EXTRANEOUS_DATA || c->err->msg_code == JWRN_JFIF_MAJOR) return;
  on_error(c);
}
void on_progress(j_common_ptr c) {
  Reader& r = reader(c);
  if (r.cinfo.input_scan_number <= kMostScans) return;
  std::snprintf(r.why, sizeof r.why, "more than %d scans", kMostScans);
  std::longjmp(r.out, 1);
}

void open(Reader& r, Bytes b) {
  r.cinfo.err = jpeg_std_error(&r.errors);
  r.errors.error_exit = on_error;
  r.errors.emit_message = on_message;
  r.errors.output_message = [](j_common_ptr) {};
  if (setjmp(r.out)) return;
  jpeg_create_decompress(&r.cinfo);
  r.progress.progress_monitor = on_progress;
  r.cinfo.progress = &r.progress;
  jpeg_save_markers(&r.cinfo, JPEG_APP0 + 1, 0xFFFF);
  jpeg_mem_src(&r.cinfo, b.data(), b.size());
  jpeg_read_header(&r.cinfo, TRUE);
  r.cinfo.out_color_space =
      r.cinfo.jpeg_color_space == JCS_CMYK || r.cinfo.jpeg_color_space == JCS_YCCK ? JCS_CMYK : JCS_RGB;
}

void decode_into(Reader& r, uint8_t* to, size_t line) {
  if (setjmp(r.out)) return;
  jpeg_start_decompress(&r.cinfo);
  while (r.cinfo.output_scanline < r.cinfo.output_height) {
    JSAMPROW row = to + r.cinfo.output_scanline * line;
    jpeg_read_scanlines(&r.cinfo, &row, 1);
  }
  jpeg_finish_decompress(&r.cinfo);
}

// Destroys what libjpeg holds, on every way out.
struct Open {
  explicit Open(Bytes b) : r() {
    open(r, b);
    if (!r.why[0]) return;
    close();
    check();
  }
  ~Open() { close(); }
  void close() { jpeg_destroy_decompress(&r.cinfo); }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;
  void check() const {
    if (r.why[0]) damaged("JPEG", r.why);
  }
  Reader r;
};

int orientation(const jpeg_decompress_struct& c) {
  for (const jpeg_marker_struct* m = c.marker_list; m; m = m->next) {
    const Bytes b(m->data, m->data_length);
    if (m->marker == JPEG_APP0 + 1 && starts(b, std::string_view("Exif\0\0", 6)))
      return exif_orientation(b.subspan(6));
  }
  return 1;
}

Header header(Bytes b) {
  const Open file(b);
  const auto& c = file.r.cinfo;
  return {static_cast<int>(c.image_width), static_cast<int>(c.image_height), orientation(c), false};
}

// CMYK as programs that write JPEG store it, inverted: ink of 0 is 255.
void inks_to_rgb(Pixels& p) {
  for (size_t i = 0, n = p.data.size() / 4; i < n; ++i) {
    const int k = p.data[4 * i + 3];
    for (size_t c = 0; c < 3; ++c)
      p.data[3 * i + c] = static_cast<uint8_t>((p.data[4 * i + c] * k + 127) / 255);
  }
  p.data.resize(p.data.size() / 4 * 3);
  p.channels = 3;
}

Pixels decode(Bytes b) {
  Open file(b);
  const auto& c = file.r.cinfo;
  const bool inks = c.out_color_space == JCS_CMYK;
  Pixels p{static_cast<int>(c.image_width), static_cast<int>(c.image_height), inks ? 4 : 3, {}};
  const size_t line = static_cast<size_t>(p.width) * p.channels;
  p.data.resize(line * p.height);
  decode_into(file.r, p.data.data(), line);
  file.check();
  if (inks) inks_to_rgb(p);
  return p;
}

#define CARAT_TEXT(x) CARAT_TEXT_(x)
#define CARAT_TEXT_(x) #x
std::string library() {
#ifdef LIBJPEG_TURBO_VERSION
  return "libjpeg-turbo " CARAT_TEXT(LIBJPEG_TURBO_VERSION);
#else
  return fmt::format("libjpeg {}", JPEG_LIB_VERSION);
#endif
}

}  // namespace
}  // namespace carat
#endif

namespace carat {
const PictureFormat kJpeg = {"JPEG",
                             [](Bytes b) { return starts(b, "\xff\xd8\xff"); },
#ifdef CARAT_JPEG
                             header,
                             decode,
                             library,
#else
                             nullptr,
                             nullptr,
                             nullptr,
#endif
                             "libjpeg62-turbo-dev"};
}  // namespace carat
