// EXIF's orientation (CIPA DC-008, tag 0x0112 of IFD 0) and what it does to a picture.
#include <utility>

#include "media/picture_files.h"

namespace carat {

int exif_orientation(Bytes b) {
  const bool little = starts(b, "II"), big = starts(b, "MM");
  if (b.size() < 8 || (!little && !big)) return 1;
  const auto at16 = [&](size_t i) -> uint32_t {
    return little ? b[i] | b[i + 1] << 8 : b[i] << 8 | b[i + 1];
  };
  const auto at32 = [&](size_t i) {
    return little ? at16(i) | at16(i + 2) << 16 : at16(i) << 16 | at16(i + 2);
  };
  const size_t ifd = at32(4);
  if (at16(2) != 42 || ifd > b.size() - 2) return 1;
  const size_t entries = at16(ifd);
  for (size_t i = 0; i < entries; ++i) {
    const size_t e = ifd + 2 + 12 * i;
    if (e + 12 > b.size()) return 1;
    constexpr uint32_t kOrientation = 0x0112, kShort = 3;
    if (at16(e) != kOrientation) continue;
    const uint32_t value = at16(e + 8);
    return at16(e + 2) == kShort && at32(e + 4) == 1 && value >= 1 && value <= 8 ? static_cast<int>(value)
                                                                                 : 1;
  }
  return 1;
}

Picture turned(Picture p, int orientation) {
  if (orientation <= 1 || orientation > 8) return p;
  // Where the stored picture's pixel (x, y) goes: mirrored, then its axes swapped.
  const bool across = orientation > 4;
  const bool mirror_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool mirror_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Picture out{across ? p.height : p.width, across ? p.width : p.height, {}};
  out.rgb.resize(p.rgb.size());
  const uint8_t* in = p.rgb.data();
  for (int y = 0; y < p.height; ++y)
    for (int x = 0; x < p.width; ++x, in += 3) {
      int to_x = mirror_x ? p.width - 1 - x : x, to_y = mirror_y ? p.height - 1 - y : y;
      if (across) std::swap(to_x, to_y);
      uint8_t* to = &out.rgb[3 * (static_cast<size_t>(to_y) * out.width + to_x)];
      to[0] = in[0], to[1] = in[1], to[2] = in[2];
    }
  return out;
}

}  // namespace carat
