// Log probabilities as OpenAI's chat writes them; Ollama and the Responses API write them alike.
#pragma once
#include <string>

#include "serve/api/job.h"

namespace carat {

inline constexpr int kMaxAlternatives = 100;

// JSON has no infinity.
double finite_logprob(float logprob);
// vLLM's name of a token: "token_id:N".
std::string id_text(Token token);
// {"token", "logprob", "bytes"}
Json token_json(const std::string& text, float logprob);
// An array of what tokens from `first` on were said, each with its alternatives in `top_logprobs`.
Json token_reports(const Job& job, const Choice& c, size_t first);

}  // namespace carat
