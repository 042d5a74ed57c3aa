// The decoders behind decode_picture, one a format. Each throws Error on a file that is damaged or has no
// end.
#pragma once
#include "media/picture.h"

namespace carat {

using Bytes = std::span<const uint8_t>;

struct Header {
  int width = 0, height = 0;  // as stored
  int orientation = 1;        // EXIF's 1 to 8
  bool animated = false;
};
struct Pixels {
  int width = 0, height = 0;
  int channels = 3;  // 4: with alpha
  std::vector<uint8_t> data;
};
struct PictureFormat {
  std::string_view name;
  bool (*is)(Bytes);
  Header (*header)(Bytes);
  Pixels (*decode)(Bytes);   // header() was asked, its size is allowed
  std::string (*library)();  // "libpng 1.6.39"; null: this build cannot read it
  std::string_view package;  // what a build needs
};
extern const PictureFormat kJpeg, kPng, kWebp, kGif;

[[noreturn]] void damaged(std::string_view format, std::string_view why);

inline bool starts(Bytes b, std::string_view word, size_t at = 0) {
  if (b.size() < at + word.size()) return false;
  for (size_t i = 0; i < word.size(); ++i)
    if (b[at + i] != static_cast<uint8_t>(word[i])) return false;
  return true;
}

// The orientation that a TIFF block (behind "Exif\0\0") gives, 1 if it says nothing or is malformed.
int exif_orientation(Bytes tiff);
Picture turned(Picture picture, int orientation);
// Alpha over white, in whole numbers.
Picture flattened(Pixels&& pixels);

}  // namespace carat
