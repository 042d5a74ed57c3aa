// Pictures: header and pixels of any bytes; what is read has the size that its header says.
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "media/picture.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const uint8_t> bytes(data, size);
  const carat::PictureLimits limits{100'000, 2'000};
  try {
    const carat::PictureInfo info = carat::picture_info(bytes, limits);
    const carat::Picture p = carat::decode_picture(bytes, limits);
    if (p.width != info.width || p.height != info.height) std::abort();
    if (p.rgb.size() != static_cast<size_t>(p.width) * p.height * 3) std::abort();
  } catch (const carat::Error&) {}
  return 0;
}
