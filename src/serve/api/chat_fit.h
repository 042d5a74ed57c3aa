// Conversations that are too long for the context, where the client asks for their oldest turns to be left
// out (OpenAI's `truncation: auto`, Ollama's `truncate`).
#pragma once
#include <cstdint>

#include "serve/api/openai.h"

namespace carat {

// A chat body with the system messages it begins with and the latest turns, as many as leave room for
// max_tokens (less than 1: one token). A turn begins with a message of the user. What is too long even so
// stays whole, and is refused as such.
Json without_oldest_turns(const ApiContext& api, Json body, const ToolUse& use, int32_t max_tokens);

}  // namespace carat
