// Pictures: from a file's bytes to the pixels that a vision tower reads. What each odd file becomes stands in
// docs/media.md; size rules and the resize follow the reference implementation bit for bit.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace carat {

struct Picture {
  int width = 0, height = 0;
  std::vector<uint8_t> rgb;  // [height][width][3]
};

struct PictureLimits {
  int64_t pixels = 64'000'000;
  int side = 32'768;
};

// What the header says; nothing is decoded.
struct PictureInfo {
  std::string_view format;    // "JPEG", "PNG", "WebP", "GIF"
  int width = 0, height = 0;  // as decode_picture gives it: turned as EXIF says
  bool animated = false;      // its first frame is read
};

// Error: no picture, of a format that is not read, damaged, or larger than allowed. The content decides, no
// name or label.
PictureInfo picture_info(std::span<const uint8_t> bytes, const PictureLimits& limits = {});
Picture decode_picture(std::span<const uint8_t> bytes, const PictureLimits& limits = {});

// What a tower reads of a picture: pixels, and the rows of the text's model that come of it.
struct GridSize {
  int width = 0, height = 0, tokens = 0;
};
// Gemma 4: fills a budget of soft tokens, up as well as down. Each token is pooling x pooling patches.
GridSize gemma_size(int width, int height, int budget, int patch = 16, int pooling = 3);
// Qwen3.6: multiples of factor, as many pixels as the bounds allow. Error if one side is over 200 times the
// other.
GridSize qwen_size(int width, int height, int64_t min_pixels, int64_t max_pixels, int factor = 32);

// Antialiased bicubic on bytes. torch: torchvision's integer weights, the reference's default; pillow:
// Pillow's, which differ in some last bits.
enum class Resize { torch, pillow };
Picture resize(const Picture& picture, int width, int height, Resize precision = Resize::torch);

// The formats this build reads and the libraries that read them, in one line each.
std::string picture_formats();

}  // namespace carat
