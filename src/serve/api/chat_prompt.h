// A chat body's messages as the text that the model reads.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "serve/api/openai.h"
#include "serve/api/placed.h"

namespace carat {

struct ChatPrompt : PlacedText {
  std::vector<PromptMedium> media;  // one for each place
  bool thinking = false;            // the model may think first
};
// ApiError 400 naming the field. A system message that the template takes only as the first goes on as the
// user's; parts of a content are joined for templates that know only text. Pictures have places if the model
// sees, sounds if it hears. media: those of parts that are {"type": "image"}, "audio" or "video" already;
// none: the messages have their own.
ChatPrompt chat_prompt(const ApiContext& api, const Json& body, const ToolUse& use,
                       std::vector<PromptMedium> media = {});

// Where a conversation with the same tools and system messages, but another question, parts from this prompt;
// with other system messages behind the first, too. Ascending; none where reading again costs little.
std::vector<int32_t> shared_beginnings(const ApiContext& api, const Json& body, const ToolUse& use,
                                       const std::string& prompt, std::span<const Token> tokens);

// The prompt of a chat request: what /apply-template answers, and its tokens.
std::string render_chat(const ApiContext& api, const Json& body);
std::vector<Token> chat_tokens(const ApiContext& api, const Json& body);

}  // namespace carat
