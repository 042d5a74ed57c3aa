#include "serve/api/video_parts.h"

#include <algorithm>
#include <cmath>

#include "serve/api/media_parts.h"

namespace carat {
namespace {

constexpr double kLatest = 100 * 3600;  // seconds
constexpr std::string_view kFramesUrl = "data:video/jpeg;base64,";
constexpr const char* kHow =
    "send a video as pictures with times: {\"type\": \"video_frames\", \"frames\": [{\"image\": "
    "\"data:image/jpeg;base64,...\", \"t\": 0.5}, ...]}, or \"data:video/jpeg;base64,FRAME,FRAME,...\"; "
    "`ffmpeg -i FILE -vf fps=1 frame%03d.jpg` makes them";

const Json* member(const Json& j, const char* name) {
  return j.is_object() && j.contains(name) ? &j[name] : nullptr;
}

double number_in(const Json& j, const char* name, double otherwise, const std::string& field) {
  const Json* n = member(j, name);
  if (!n || n->is_null()) return otherwise;
  const double v = n->is_number() ? n->get<double>() : -1;
  if (!std::isfinite(v) || v < 0 || v > kLatest)
    refuse_medium(field + "." + name, fmt::format("must be a number from 0 to {:.0f}", kLatest));
  return v;
}

// The pictures behind the comma of vLLM's data: URL.
std::vector<AskedFrame> frames_of_url(const std::string& url, const std::string& field) {
  if (!url.starts_with(kFramesUrl)) refuse_medium(field, fmt::format("videos are not decoded; {}", kHow));
  std::vector<AskedFrame> out;
  for (size_t at = kFramesUrl.size(); at <= url.size();) {
    const size_t end = std::min(url.find(',', at), url.size());
    out.push_back({url.substr(at, end - at)});
    at = end + 1;
  }
  return out;
}

}  // namespace

bool is_video(const Json& part) {
  const Json* type = member(part, "type");
  return type &&
         (*type == "video" || *type == "video_url" || *type == "video_frames" || *type == "input_video");
}

std::vector<AskedFrame> asked_frames(const Json& part, const std::string& field) {
  const Json* given = nullptr;
  for (const char* name : {"frames", "video_url", "video", "url"})
    if (!given) given = member(part, name);
  if (!given) refuse_medium(field, kHow);
  const Json& holder = given->is_object() ? *given : part;
  const double rate = number_in(holder, "fps", number_in(part, "fps", 1, field), field);
  if (rate == 0) refuse_medium(field + ".fps", "must be above 0");
  const Json* url = given->is_object() ? member(*given, "url") : given;
  std::vector<AskedFrame> out;
  if (url && url->is_string()) {
    out = frames_of_url(url->get<std::string>(), field);
  } else if (!url || !url->is_array()) {
    refuse_medium(field, kHow);
  } else {
    for (const Json& frame : *url)
      out.push_back({frame.is_string() ? frame.get<std::string>()
                                       : text_in(frame, {"image_url", "image", "url", "data"})});
  }
  if (out.empty() || std::ranges::any_of(out, &std::string::empty, &AskedFrame::value))
    refuse_medium(field, fmt::format("a frame without its bytes; {}", kHow));
  for (size_t i = 0; i < out.size(); ++i) {
    const Json& frame = url->is_array() ? (*url)[i] : part;
    out[i].seconds = static_cast<double>(i) / rate;
    if (url->is_array()) out[i].seconds = number_in(frame, "t", out[i].seconds, field);
    if (i > 0 && out[i].seconds < out[i - 1].seconds)
      refuse_medium(field, fmt::format("frame {} is earlier than the one before it", i));
  }
  return out;
}

std::string time_text(FrameTime form, double seconds) {
  if (form == FrameTime::seconds) return fmt::format("<{:.1f} seconds>", seconds);
  const auto whole = static_cast<int64_t>(seconds);
  return fmt::format("{:02}:{:02} ", whole / 60, whole % 60);
}

}  // namespace carat
