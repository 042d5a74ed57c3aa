// Videos of a chat: pictures with times, as clients take them out of a file. Containers are not decoded.
#pragma once
#include <string>
#include <vector>

#include "serve/api/json.h"

namespace carat {

struct AskedFrame {
  std::string value;  // as of a picture
  double seconds = 0;
};
inline constexpr size_t kMostFrames = 32;  // of a request; what the reference samples of a video

// A video, in the form of any API.
bool is_video(const Json& part);
// Of {"type": "video_frames", "frames": [{"image": ..., "t": SECONDS}, ...]}, of vLLM's "video_url" with
// data:video/jpeg;base64,FRAME,FRAME,... and of {"type": "video", "video": [PICTURE, ...]}. Where no times
// are given, "fps" says them, or a frame is a second. ApiError 400 at `field`.
std::vector<AskedFrame> asked_frames(const Json& part, const std::string& field);

// What models read before a frame: "01:05 " or "<65.0 seconds>".
enum class FrameTime : uint8_t { clock, seconds };
std::string time_text(FrameTime form, double seconds);

}  // namespace carat
