// OpenAI's /v1/chat/completions and /v1/completions (platform.openai.com/docs/api-reference), with the
// additions that clients of llama.cpp and vLLM know: sampling fields, timings, reasoning_content,
// chat_template_kwargs.
#pragma once
#include "serve/api/constrain.h"
#include "serve/api/job.h"

namespace carat {

struct ApiContext {
  const ServedModel& model;
  const ServeConfig& config;
  Metrics& metrics;
  Constraints& constraints;
};

HttpResponse chat_completions(const ApiContext& api, const HttpRequest& request);
HttpResponse completions(const ApiContext& api, const HttpRequest& request);
// vLLM's: the tokens that such a request reads, for routers that look for a server that knows them.
HttpResponse render_chat_completion(const ApiContext& api, const HttpRequest& request);
HttpResponse render_completion(const ApiContext& api, const HttpRequest& request);

// What a chat body asks for, submitted; its options beside the messages are `options`. before: tokens of an
// earlier conversation that the prompt goes on.
std::shared_ptr<Job> chat_job(const ApiContext& api, const Json& body, GenerateOptions options,
                              const std::string& id_prefix, std::vector<Token> before = {});

}  // namespace carat
