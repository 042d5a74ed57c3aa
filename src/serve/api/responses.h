// OpenAI's Responses API (platform.openai.com/docs/api-reference/responses), without a memory: the server
// keeps no responses, so the whole conversation stands in `input`.
#pragma once
#include <map>
#include <string>

#include "serve/api/openai.h"

namespace carat {

HttpResponse responses(const ApiContext& api, const HttpRequest& request);

// What a client calls a tool whose chat name is another: tools in a namespace, and such as take a plain text.
struct ToolOrigin {
  std::string name, space;  // space: the namespace, "" if none
  bool custom = false;      // its only argument is a text, `input`
};
using ToolOrigins = std::map<std::string, ToolOrigin>;  // by the chat's name

// The body of the chat request that says the same. ApiError 400 naming the field. Tools that this server
// cannot serve are left out.
Json chat_of_responses(const Json& body, ToolOrigins* origins = nullptr);

// How many tokens the prompt of a request has.
HttpResponse count_input_tokens(const ApiContext& api, const HttpRequest& request);

}  // namespace carat
