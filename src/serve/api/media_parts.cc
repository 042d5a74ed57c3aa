#include "serve/api/media_parts.h"

#include <algorithm>

namespace carat {
namespace {

constexpr size_t kMostMedia = 16;

AskedMedium asked_picture(const Json& part, const std::string& field) {
  AskedMedium out{Medium::picture, {}, {}, field};
  const Json source = part.value("source", Json());  // Anthropic's
  out.value = source.is_object() ? text_in(source, {"data", "url"})
                                 : text_in(part, {"image_url", "image", "url", "data"});
  if (out.value.empty())
    refuse_medium(field,
                  "a picture needs its bytes: \"image_url\": {\"url\": \"data:image/png;base64,...\"}");
  const Json& holder = part.contains("image_url") && part["image_url"].is_object() ? part["image_url"] : part;
  if (holder.contains("detail") && holder["detail"].is_string())
    out.detail = holder["detail"].get<std::string>();
  return out;
}

AskedMedium asked_sound(const Json& part, const std::string& field) {
  AskedMedium out{
      Medium::sound, text_in(part, {"input_audio", "audio_url", "audio", "url", "data"}), {}, field};
  if (out.value.empty())
    refuse_medium(field,
                  "a sound needs its bytes: \"input_audio\": {\"data\": \"BASE64\", \"format\": \"wav\"}");
  return out;
}

AskedMedium asked_video(const Json& part, const std::string& field) {
  AskedMedium out{Medium::video, {}, {}, field, asked_frames(part, field)};
  if (part.contains("detail") && part["detail"].is_string()) out.detail = part["detail"].get<std::string>();
  return out;
}

const char* place_of(Medium kind) {
  return kind == Medium::picture ? "image" : kind == Medium::sound ? "audio" : "video";
}

// Calls f(part, message, part's index) for the parts of contents.
template <class F>
void each_part(Json& messages, F&& f) {
  for (size_t i = 0; i < messages.size(); ++i) {
    Json& m = messages[i];
    if (!m.is_object() || !m.contains("content") || !m["content"].is_array()) continue;
    for (size_t k = 0; k < m["content"].size(); ++k) f(m["content"][k], i, k);
  }
}

// In all texts of `j` what spells `mark` becomes `instead`.
void hide_mark(Json& j, std::string_view mark, const std::string& instead) {
  if (j.is_string()) {
    std::string& text = j.get_ref<std::string&>();
    for (size_t at = 0; (at = text.find(mark, at)) != text.npos; at += instead.size())
      text.replace(at, mark.size(), instead);
  } else if (j.is_structured()) {
    for (Json& inner : j) hide_mark(inner, mark, instead);
  }
}

}  // namespace

std::string text_in(const Json& part, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (!part.contains(name)) continue;
    const Json& j = part[name];
    if (j.is_string()) return j.get<std::string>();
    for (const char* inner : {"url", "data"})
      if (j.is_object() && j.contains(inner) && j[inner].is_string()) return j[inner].get<std::string>();
  }
  return {};
}

Senses senses_of(const ServedModel& model) { return {model.eyes != nullptr, model.ears != nullptr}; }

std::vector<AskedMedium> take_media(Json& messages, const Senses& senses) {
  std::vector<AskedMedium> out;
  each_part(messages, [&](Json& part, size_t i, size_t k) {
    if (!senses.take(part)) return;
    const std::string field = fmt::format("messages[{}].content[{}]", i, k);
    out.push_back(is_picture(part) ? asked_picture(part, field)
                  : is_sound(part) ? asked_sound(part, field)
                                   : asked_video(part, field));
    part = {{"type", place_of(out.back().kind)}};
  });
  size_t frames = 0;
  for (const AskedMedium& m : out)
    if ((frames += m.frames.size()) > kMostFrames)
      refuse_medium(m.field, fmt::format("{} frames of videos up to here, but a request may have {}", frames,
                                         kMostFrames));
  if (out.size() <= kMostMedia) return out;
  const auto count = [&](Medium kind) { return std::ranges::count(out, kind, &AskedMedium::kind); };
  refuse_medium("messages",
                fmt::format("{} pictures and {} sounds, but a request may have {} of both, videos among them",
                            count(Medium::picture), count(Medium::sound), kMostMedia));
}

void words_for_media(Json& messages, const ServedModel& model) {
  size_t newest = messages.size();  // behind the last answer
  while (newest > 0 && messages[newest - 1].is_object() &&
         messages[newest - 1].value("role", Json()) != "assistant")
    --newest;
  const Senses senses = senses_of(model);
  each_part(messages, [&](Json& part, size_t i, size_t) {
    if (senses.take(part) || (!is_picture(part) && !is_sound(part) && !is_video(part))) return;
    if (i >= newest && messages[i].value("role", Json()) != "tool")
      refuse_medium(fmt::format("messages[{}].content", i), is_sound(part) ? model.deaf : model.blind);
    part = {{"type", "text"}, {"text", readable(part)}};
  });
}

void refuse_medium(const std::string& field, const std::string& why) {
  throw ApiError(400, fmt::format("{}: {}", field, why), field);
}

std::vector<PlaceMark> place_marks(const ServedModel& model) {
  std::vector<PlaceMark> out;
  if (model.eyes) out.push_back({Medium::picture, model.eyes->marks().mark});
  if (model.eyes && !model.eyes->frame_marks().mark.empty())
    out.push_back({Medium::video, model.eyes->frame_marks().mark});
  if (model.ears) out.push_back({Medium::sound, model.ears->marks().mark});
  return out;
}

void hide_spelled(std::vector<PlaceMark>& marks, std::initializer_list<Json*> texts) {
  for (const Json* j : texts) {
    const std::string text = j->dump(-1, ' ', false, Json::error_handler_t::replace);
    for (PlaceMark& m : marks)
      if (m.hidden.empty() && text.find(m.mark) != text.npos) m.hidden = fmt::format("[{}]", random_id(24));
  }
  for (const PlaceMark& m : marks)
    if (!m.hidden.empty())
      for (Json* j : texts) hide_mark(*j, m.mark, m.hidden);
}

}  // namespace carat
