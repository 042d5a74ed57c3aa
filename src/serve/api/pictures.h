// Pictures of a chat: taken out of its messages before they are rendered, and what they are among the tokens
// of the prompt. A place for a picture comes from a part of a message, never from a text that spells it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/openai.h"

namespace carat {

// A picture as a request has it: a data: URL or base64, and where.
struct AskedPicture {
  std::string value, detail, field;
};

// For a model that sees: pictures become {"type": "image"} in `messages` and are told in the order in which
// they stand there. ApiError 400 naming the field.
std::vector<AskedPicture> take_pictures(Json& messages);
// For one that does not: pictures become words, so that a conversation goes on, but for those of the newest
// message of the user: ApiError 400 with the reason.
void words_for_pictures(Json& messages, std::string_view why);

// In all texts of `j` what spells `mark` becomes `instead`.
void hide_mark(Json& j, std::string_view mark, const std::string& instead);

struct PromptPicture {
  std::vector<uint8_t> file;
  int32_t budget = 0;  // as Eyes::see takes it
  std::string field;
};
// The files of the pictures, and how many tokens each may be: body's image_tokens and mm_processor_kwargs.
std::vector<PromptPicture> read_pictures(const Eyes& eyes, const Json& body, std::vector<AskedPicture> asked);

// A prompt with places.
struct PlacedText {
  std::string text;
  std::vector<size_t> places, spelled;  // bytes of `text` where a mark is a place, and where it is a text
};
// rendered: where texts have `hidden` for the mark (empty: no text has it).
PlacedText place_marks(const std::string& rendered, std::string_view mark, const std::string& hidden);

struct PromptTokens {
  std::vector<Token> tokens;
  std::vector<SoftRows> soft;  // without values and content: how many rows follows from a picture's header
  int64_t image_tokens() const;
};
PromptTokens encode_placed(const ServedModel& model, const PlacedText& placed,
                           const std::vector<PromptPicture>& pictures);
// Looks at the pictures: now `soft` is whole.
void see_pictures(Eyes& eyes, const std::vector<PromptPicture>& pictures, std::vector<SoftRows>& soft);

}  // namespace carat
