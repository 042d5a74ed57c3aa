// A chat body's messages as the text that the model reads.
#pragma once
#include <string>

#include "serve/api/openai.h"

namespace carat {

struct ChatPrompt {
  std::string text;
  bool thinking = false;  // the model may think first
};
// ApiError 400 naming the field. A system message that the template takes only as the first goes on as the
// user's; parts of a content are joined for templates that know only text.
ChatPrompt chat_prompt(const ApiContext& api, const Json& body, const ToolUse& use);

// The prompt of a chat request: what /apply-template answers.
std::string render_chat(const ApiContext& api, const Json& body);

}  // namespace carat
