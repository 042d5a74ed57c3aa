// GIF (89a specification): the first frame on its logical screen; what no frame covers is transparent.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "media/picture_files.h"

namespace carat {
namespace {

struct Frame {
  int left = 0, top = 0, width = 0, height = 0;
  bool interlaced = false;
  Bytes colours;  // 3 bytes each
  int transparent = -1;
  size_t data = 0;  // where the LZW code size stands
};
struct Gif {
  int width = 0, height = 0;
  Frame frame;
};

// Reads on, or says that the file ends.
struct Cursor {
  Bytes b;
  size_t at;
  int byte() {
    if (at >= b.size()) damaged("GIF", "it ends too early");
    return b[at++];
  }
  int word() {
    const int low = byte();
    return low | byte() << 8;
  }
  Bytes take(size_t n) {
    if (n > b.size() - at) damaged("GIF", "it ends too early");
    at += n;
    return b.subspan(at - n, n);
  }
  void skip_blocks() {
    while (const int n = byte()) take(n);
  }
};

Bytes colours(Cursor& c, int flags) {
  return flags & 0x80 ? c.take(size_t{3} << ((flags & 7) + 1)) : Bytes();
}

void read_extension(Cursor& c, Frame& frame) {
  constexpr int kGraphicControl = 0xF9;
  if (c.byte() == kGraphicControl) {
    const Bytes block = c.take(c.byte());
    if (block.size() >= 4) frame.transparent = block[0] & 1 ? block[3] : -1;
  }
  c.skip_blocks();
}

Gif read(Bytes b) {
  Cursor c{b, 6};
  Gif gif;
  gif.width = c.word(), gif.height = c.word();
  const int flags = c.byte();
  c.take(2);
  Frame& frame = gif.frame;
  frame.colours = colours(c, flags);
  for (;;) {
    const int kind = c.byte();
    if (kind == '!')
      read_extension(c, frame);
    else if (kind == ',')
      break;
    else
      damaged("GIF", "it has no picture");
  }
  frame.left = c.word(), frame.top = c.word(), frame.width = c.word(), frame.height = c.word();
  const int local = c.byte();
  frame.interlaced = local & 0x40;
  if (local & 0x80) frame.colours = colours(c, local);
  frame.data = c.at;
  // Screens that are too small for their frame grow, as in browsers.
  gif.width = std::max(gif.width, frame.left + frame.width),
  gif.height = std::max(gif.height, frame.top + frame.height);
  return gif;
}

// The codes of one picture, low bits first, from blocks of up to 255 bytes.
class Codes {
 public:
  explicit Codes(Cursor c) : c_(c) {}
  int next(int bits) {
    while (have_ < bits) {
      if (left_ == 0) left_ = c_.byte();
      if (left_ == 0) damaged("GIF", "pixels are missing");
      --left_;
      word_ |= static_cast<uint32_t>(c_.byte()) << have_;
      have_ += 8;
    }
    const int code = static_cast<int>(word_ & ((1u << bits) - 1));
    word_ >>= bits, have_ -= bits;
    return code;
  }

 private:
  Cursor c_;
  uint32_t word_ = 0;
  int have_ = 0, left_ = 0;
};

// Fills out with palette indices.
void unpack(Cursor c, std::vector<uint8_t>& out) {
  constexpr int kMost = 4096;
  const int size = c.byte();
  if (size < 1 || size > 8) damaged("GIF", "its code size is out of range");
  Codes codes(c);
  std::array<uint16_t, kMost> prefix{};
  std::array<uint8_t, kMost> last{}, chain{};
  const int clear = 1 << size, end = clear + 1;
  int bits = size + 1, next = clear + 2, before = -1, first = 0;
  for (size_t n = 0; n < out.size();) {
    const int code = codes.next(bits);
    if (code == end) damaged("GIF", "pixels are missing");
    if (code == clear) {
      bits = size + 1, next = clear + 2, before = -1;
      continue;
    }
    if (code > next || (code == next && before < 0) || (before < 0 && code >= clear))
      damaged("GIF", "its pixels cannot be read");
    int length = 0, at = code;
    if (code == next) chain[length++] = static_cast<uint8_t>(first), at = before;
    for (; at >= clear; at = prefix[at]) chain[length++] = last[at];
    chain[length++] = static_cast<uint8_t>(first = at);
    while (length > 0 && n < out.size()) out[n++] = chain[--length];
    if (before >= 0 && next < kMost) {
      prefix[next] = static_cast<uint16_t>(before), last[next] = static_cast<uint8_t>(first);
      if (++next == 1 << bits && bits < 12) ++bits;
    }
    before = code;
  }
}

// The row that comes as number i.
std::vector<int> row_order(int height, bool interlaced) {
  std::vector<int> rows;
  rows.reserve(height);
  constexpr int kStart[] = {0, 4, 2, 1}, kStep[] = {8, 8, 4, 2};
  if (interlaced)
    for (int pass = 0; pass < 4; ++pass)
      for (int y = kStart[pass]; y < height; y += kStep[pass]) rows.push_back(y);
  else
    for (int y = 0; y < height; ++y) rows.push_back(y);
  return rows;
}

// Another picture follows the first one's blocks.
bool more_frames(Bytes b, const Frame& frame) {
  try {
    Cursor c{b, frame.data + 1};
    Frame unused;
    for (c.skip_blocks();;) {
      const int kind = c.byte();
      if (kind != '!') return kind == ',';
      read_extension(c, unused);
    }
  } catch (const Error&) {
    return false;
  }
}

Header header(Bytes b) {
  const Gif gif = read(b);
  return {gif.width, gif.height, 1, more_frames(b, gif.frame)};
}

Pixels decode(Bytes b) {
  const Gif gif = read(b);
  const Frame& f = gif.frame;
  if (f.width == 0 || f.height == 0) damaged("GIF", "its first frame has no pixels");
  std::vector<uint8_t> indices(static_cast<size_t>(f.width) * f.height);
  unpack(Cursor{b, f.data}, indices);
  Pixels p{gif.width, gif.height, 4, {}};
  p.data.resize(static_cast<size_t>(p.width) * p.height * 4);
  const uint8_t* in = indices.data();
  for (const int y : row_order(f.height, f.interlaced)) {
    uint8_t* to = &p.data[(static_cast<size_t>(f.top + y) * p.width + f.left) * 4];
    for (int x = 0; x < f.width; ++x, ++in, to += 4) {
      const size_t colour = size_t{3} * *in;
      if (*in == f.transparent) continue;
      if (colour + 3 > f.colours.size()) damaged("GIF", "a colour is missing");
      std::copy_n(&f.colours[colour], 3, to);
      to[3] = 255;
    }
  }
  return p;
}

}  // namespace

const PictureFormat kGif = {"GIF",
                            [](Bytes b) { return starts(b, "GIF87a") || starts(b, "GIF89a"); },
                            header,
                            decode,
                            [] { return std::string("built in"); },
                            {}};

}  // namespace carat
