// What a model that reads text can be told of the parts of a conversation that are no text, and which tools
// of a client this server cannot serve.
#pragma once
#include <string>
#include <string_view>
#include <utility>

#include "serve/api/json.h"
#include "serve/api/video_parts.h"

namespace carat {

// A text for a content block or item of any API: a document's own text, a word for a picture or a sound, its
// fields for others. Nothing that only its maker can read (base64, encrypted contents, signatures) is in it.
std::string readable(const Json& part);

// A message's content as one text.
std::string content_text(const Json& content);

// A picture and a sound, in the form of any API.
bool is_picture(const Json& part);
bool is_sound(const Json& part);

// What a model takes beside text.
struct Senses {
  bool sees = false, hears = false;
  bool take(const Json& part) const {
    return (sees && (is_picture(part) || is_video(part))) || (hears && is_sound(part));
  }
};

// A message's content in the making: a text, or parts if pictures or sounds stand between texts.
class MixedContent {
 public:
  void add(std::string_view text) { text_ += text; }
  void add_part(Json part) {
    end_text();
    parts_.push_back(std::move(part));
  }
  bool empty() const { return text_.empty() && parts_.empty(); }
  Json take() {
    if (parts_.empty()) return std::move(text_);
    end_text();
    return std::move(parts_);
  }

 private:
  void end_text() {
    if (!text_.empty()) parts_.push_back({{"type", "text"}, {"text", std::exchange(text_, {})}});
  }
  std::string text_;
  Json parts_ = Json::array();
};

// Says once in the log, for each kind, that tools of that kind are left out.
void say_left_out(std::string_view kind);

// Messages of OpenAI's chat as they are rendered: arguments of former calls that are no JSON object are kept
// as a text, `function_call` and its results become calls, parts of tools' results that are no text become
// words; pictures and sounds, too, where the model does not take them.
Json tolerant_messages(const Json& messages, const Senses& senses = {});

// OpenAI's older `functions` and `function_call` as tools. ApiError 400 naming the field.
Json with_tools_for_functions(const Json& body);

}  // namespace carat
