// Anthropic's Messages API (docs.anthropic.com, "Messages" and "Streaming messages", version 2023-06-01): the
// same requests as a chat, in other words.
#pragma once
#include "serve/api/openai.h"

namespace carat {

HttpResponse messages(const ApiContext& api, const HttpRequest& request);
HttpResponse count_tokens(const ApiContext& api, const HttpRequest& request);

// The body of the chat request that says the same. ApiError 400 naming the field.
Json chat_of_messages(const Json& body);

// System messages that stand among the user's before the first answer come before those: Claude Code puts its
// long description of the surroundings behind the question, where no second session would find it in the
// cache.
Json systems_first(Json chat);

// An error answer of this server in that API's shape.
HttpResponse anthropic_error(HttpResponse openai);

}  // namespace carat
