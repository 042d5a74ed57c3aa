// Wishes of OpenAI's, vLLM's, llama.cpp's, Ollama's and Anthropic's APIs that this server cannot meet: a
// request with one gets a 400 that names it.
#pragma once
#include "serve/api/json.h"

namespace carat {

// body: as the client sent it, in whatever API. Values that ask for nothing (null, false, an empty object,
// what is done anyway) pass.
void refuse_what_is_not_done(const Fields& body);

// ApiError 400: the field must be so.
[[noreturn]] void must_be(const std::string& field, const std::string& what);

// Where control tokens in an answer are read as thoughts and calls. ApiError 400 if they are to be shown.
void refuse_special_tokens(const Fields& body);

}  // namespace carat
