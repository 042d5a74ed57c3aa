// WebP by libwebp; of an animation the first frame, on its canvas.
#include "media/picture_files.h"
#ifdef CARAT_WEBP
#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>

#include "base/error.h"

namespace carat {
namespace {

WebPBitstreamFeatures features(Bytes b) {
  WebPBitstreamFeatures f;
  const VP8StatusCode status = WebPGetFeatures(b.data(), b.size(), &f);
  if (status != VP8_STATUS_OK) damaged("WebP", "its header cannot be read");
  return f;
}

Header header(Bytes b) {
  const WebPBitstreamFeatures f = features(b);
  return {f.width, f.height, 1, f.has_animation != 0};
}

Pixels decode_still(Bytes b) {
  const WebPBitstreamFeatures f = features(b);
  Pixels p{f.width, f.height, f.has_alpha ? 4 : 3, {}};
  const size_t line = static_cast<size_t>(p.width) * p.channels;
  p.data.resize(line * p.height);
  const auto decode = f.has_alpha ? WebPDecodeRGBAInto : WebPDecodeRGBInto;
  if (!decode(b.data(), b.size(), p.data.data(), p.data.size(), static_cast<int>(line)))
    damaged("WebP", "its pixels cannot be read");
  return p;
}

Pixels first_frame(Bytes b) {
  const WebPData data = {b.data(), b.size()};
  const std::unique_ptr<WebPDemuxer, decltype(&WebPDemuxDelete)> demux(WebPDemux(&data), WebPDemuxDelete);
  if (!demux) damaged("WebP", "its frames cannot be read");
  WebPIterator frame;
  if (!WebPDemuxGetFrame(demux.get(), 1, &frame)) damaged("WebP", "it has no frame");
  const std::unique_ptr<WebPIterator, decltype(&WebPDemuxReleaseIterator)> release(&frame,
                                                                                   WebPDemuxReleaseIterator);
  const WebPBitstreamFeatures canvas = features(b);
  if (frame.x_offset < 0 || frame.y_offset < 0 || frame.width > canvas.width - frame.x_offset ||
      frame.height > canvas.height - frame.y_offset)
    damaged("WebP", "its first frame leaves the picture");
  Pixels p{canvas.width, canvas.height, 4, {}};
  const size_t line = static_cast<size_t>(p.width) * 4;
  p.data.resize(line * p.height);
  const size_t at = frame.y_offset * line + static_cast<size_t>(frame.x_offset) * 4;
  if (!WebPDecodeRGBAInto(frame.fragment.bytes, frame.fragment.size, &p.data[at], p.data.size() - at,
                          static_cast<int>(line)))
    damaged("WebP", "its first frame cannot be read");
  return p;
}

Pixels decode(Bytes b) { return features(b).has_animation ? first_frame(b) : decode_still(b); }

std::string library() {
  const int v = WebPGetDecoderVersion();
  return fmt::format("libwebp {}.{}.{}", v >> 16, v >> 8 & 255, v & 255);
}

}  // namespace
}  // namespace carat
#endif

namespace carat {
const PictureFormat kWebp = {"WebP",       [](Bytes b) { return starts(b, "RIFF") && starts(b, "WEBP", 8); },
#ifdef CARAT_WEBP
                             header,       decode,
                             library,
#else
                             nullptr,      nullptr,
                             nullptr,
#endif
                             "libwebp-dev"};
}  // namespace carat
