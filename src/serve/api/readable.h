// What a model that reads text can be told of the parts of a conversation that are no text, and which tools
// of a client this server cannot serve.
#pragma once
#include <string>
#include <string_view>

#include "serve/api/json.h"

namespace carat {

// A text for a content block or item of any API: a document's own text, "[image]" for a picture, its fields
// for others. Nothing that only its maker can read (base64, encrypted contents, signatures) is in it.
std::string readable(const Json& part);

// Says once in the log, for each kind, that tools of that kind are left out.
void say_left_out(std::string_view kind);

// Messages of OpenAI's chat as they are rendered: pictures in results of tools become words, arguments of
// former calls that are no JSON object are kept as a text, `function_call` and its results become calls.
Json tolerant_messages(const Json& messages);

// OpenAI's older `functions` and `function_call` as tools. ApiError 400 naming the field.
Json with_tools_for_functions(const Json& body);

}  // namespace carat
