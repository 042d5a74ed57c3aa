// Pictures and sounds of a chat: taken out of its messages before they are rendered.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/job.h"
#include "serve/api/readable.h"

namespace carat {

enum class Medium : uint8_t { picture, sound, video };

Senses senses_of(const ServedModel& model);

// A picture or a sound as a request has it: a data: URL or base64, and where.
struct AskedMedium {
  Medium kind{};
  std::string value, detail, field;
  std::vector<AskedFrame> frames = {};  // of a video
};
// The first of the fields that is there: itself, or its "url" or "data".
std::string text_in(const Json& part, std::initializer_list<const char*> names);

// What the model takes becomes {"type": "image"}, {"type": "audio"} or {"type": "video"} in `messages` and is
// told in the order in which it stands there. ApiError 400 naming the field.
std::vector<AskedMedium> take_media(Json& messages, const Senses& senses);
// What it does not take becomes words, so that a conversation goes on, but for the newest message of the
// user: ApiError 400 with the reason.
void words_for_media(Json& messages, const ServedModel& model);

// A place's mark among the texts of a prompt, and what stands for it where a text only spells it (empty: no
// text does).
struct PlaceMark {
  Medium kind{};
  std::string_view mark;
  std::string hidden = {};
};
// ApiError 400 at that field.
[[noreturn]] void refuse_medium(const std::string& field, const std::string& why);
// Of what the model takes.
std::vector<PlaceMark> place_marks(const ServedModel& model);
// Where a text of these spells a mark it must stay a text: it becomes `hidden`.
void hide_spelled(std::vector<PlaceMark>& marks, std::initializer_list<Json*> texts);

}  // namespace carat
