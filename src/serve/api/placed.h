// What pictures and sounds are among the tokens of a prompt. A place for one comes from a part of a message,
// never from a text that spells it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/media_parts.h"

namespace carat {

struct PromptMedium {
  Medium kind{};
  std::string field = {};
  std::vector<uint8_t> file = {};  // a picture, and as Eyes::see takes it
  int32_t budget = 0;
  std::shared_ptr<const Listened> sound = {};
  struct Frame {
    std::vector<uint8_t> file;
    double seconds = 0;
  };
  std::vector<Frame> frames = {};  // of a video
};
// The files of what is asked, and how many tokens each picture and each frame may be: body's image_tokens and
// mm_processor_kwargs. Sounds are decoded.
std::vector<PromptMedium> read_media(const ServedModel& model, const Json& body,
                                     std::vector<AskedMedium> asked);

// A prompt with places.
struct PlacedText {
  struct Spot {
    size_t at = 0;  // where a mark begins in `text`
    std::string_view mark;
    Medium kind{};
    bool place = false;  // false: a text that spells one
  };
  std::string text;
  std::vector<Spot> spots;  // ascending
  std::vector<Medium> places() const;
};
// rendered: where texts have PlaceMark::hidden for a mark.
PlacedText find_places(const std::string& rendered, const std::vector<PlaceMark>& marks);

struct PromptTokens {
  std::vector<Token> tokens;
  // Without values and content: how many rows follows from a picture's header, or a sound's length. A picture
  // has one of these, a sound one for each piece, a video one for each frame.
  std::vector<SoftRows> soft;
};
// media: one for each place.
PromptTokens encode_placed(const ServedModel& model, const PlacedText& placed,
                           const std::vector<PromptMedium>& media);
// Looks at the pictures and hears the sounds: now `soft` is whole.
void perceive(const ServedModel& model, const std::vector<PromptMedium>& media, std::vector<SoftRows>& soft);

}  // namespace carat
