// Ollama's API (docs.ollama.com, "API reference"): /api/chat and /api/generate, the same requests as a chat
// or a completion in other words, streamed as a JSON object a line. Durations are nanoseconds.
#pragma once
#include <string>
#include <vector>

#include "serve/api/openai.h"

namespace carat {

HttpResponse ollama_chat(const ApiContext& api, const HttpRequest& request);
HttpResponse ollama_generate(const ApiContext& api, const HttpRequest& request);

// What a body of either asks for, as the body of a chat (raw: of a completion).
struct OllamaAsked {
  Json body;
  bool raw = false;            // the prompt is `prompt`, as it stands
  std::vector<Token> context;  // of the answer that this one goes on behind
};
// ApiError 400 naming the field.
OllamaAsked chat_of_ollama(const Json& body);
OllamaAsked generate_of_ollama(const Json& body);

// Whether a body only asks for the model to be there (or, with keep_alive 0, not to be there).
bool only_loads(const Json& body);
// keep_alive is 0: the model may go.
bool lets_go(const Json& body);

// "2026-11-25T20:15:02.123456789Z"
std::string ollama_time(int64_t unix_nanoseconds);
std::string ollama_now();

// An error answer of this server in that API's shape: {"error": "..."}.
HttpResponse ollama_error(HttpResponse openai);

}  // namespace carat
