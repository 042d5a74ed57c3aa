// Ollama's endpoints about models: /api/tags, show, ps, version, pull; and why those that make, copy, push or
// delete models are not served.
#pragma once
#include "serve/models.h"

namespace carat {

// What /api/version says: clients compare it with the version whose API they need.
inline constexpr const char* kOllamaVersion = "0.12.11";

HttpResponse ollama_tags(const ModelHost& models, const ServeConfig& config);
HttpResponse ollama_show(const ModelHost& models, const ServeConfig& config, const HttpRequest& request);
HttpResponse ollama_ps(const ModelHost& models, const ServeConfig& config);
HttpResponse ollama_version(const ServeConfig& config);
HttpResponse ollama_pull(ModelHost& models, const ServeConfig& config, const HttpRequest& request);
// The answer to a body that only loads a model, or lets it go.
HttpResponse ollama_load(ModelHost& models, const HttpRequest& request, bool chat);
// Why this server does not do what the path asks for.
HttpResponse ollama_refusal(std::string_view path);

}  // namespace carat
