// OpenAI's Responses API (platform.openai.com/docs/api-reference/responses), without a memory: the server
// keeps no responses, so the whole conversation stands in `input`.
#pragma once
#include "serve/api/openai.h"

namespace carat {

HttpResponse responses(const ApiContext& api, const HttpRequest& request);

// The body of the chat request that says the same. ApiError 400 naming the field.
Json chat_of_responses(const Json& body);

}  // namespace carat
