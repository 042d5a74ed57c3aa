// llama.cpp's own completions (tools/server/README.md, "POST /completion" and "/infill"): the same request as
// OpenAI's /v1/completions, in other words.
#pragma once
#include "serve/api/openai.h"

namespace carat {

// POST /completion, /completions.
HttpResponse native_completion(const ApiContext& api, const HttpRequest& request);
// POST /infill: code between two others. ApiError 501 where the model has no tokens for that.
HttpResponse infill(const ApiContext& api, const HttpRequest& request);

// Prompts in all shapes of that API: a text, token ids, both mixed, {"prompt_string": ...}, or an array of
// such. one: whether there was no array around it, so that the answer has none.
std::vector<std::vector<Token>> native_prompts(const Tokenizer& tokenizer, const Json& prompt, bool& one);

}  // namespace carat
