// Anthropic's context management ("Context editing", beta 2025-06-27): what the model is no longer shown of a
// conversation, which the client keeps whole.
#pragma once
#include <functional>

#include "serve/api/json.h"

namespace carat {

struct ContextEdits {
  bool asked = false;            // wishes had `edits`
  Json applied = Json::array();  // of those that had an effect, as the API tells of them
};
// chat: a chat body, whose messages are changed; wishes: {"edits": [...]} or null; tokens: of a chat body's
// prompt, asked for only where an edit needs it. ApiError 400 naming the field.
ContextEdits manage_context(Json& chat, const Json& wishes,
                            const std::function<int64_t(const Json& chat)>& tokens);

}  // namespace carat
