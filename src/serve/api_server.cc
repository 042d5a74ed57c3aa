#include "serve/api_server.h"

#include <ctime>

#include "base/log.h"
#include "serve/anthropic.h"
#include "serve/page.h"

namespace carat {
namespace {

// No earlier exit at the first difference: the time must not tell how much of a key was right.
bool equal_keys(std::string_view a, std::string_view b) {
  unsigned char differs = a.size() != b.size();
  for (size_t i = 0; i < a.size(); ++i)
    differs |= static_cast<unsigned char>(a[i] ^ (b.empty() ? 1 : b[i % b.size()]));
  return differs == 0;
}

}  // namespace

struct ApiServer::Impl {
  Impl(ServedModel m, ServeConfig c)
      : model(std::move(m)),
        config(std::move(c)),
        metrics(config.names.at(0)),
        constraints(model.tokenizer),
        api{model, config, metrics, constraints},
        http(config.http) {}

  HttpResponse health() const;
  HttpResponse ready() const;
  HttpResponse models() const;
  HttpResponse props() const;
  HttpResponse tokenize(const HttpRequest& r) const;
  HttpResponse detokenize(const HttpRequest& r) const;
  std::unique_ptr<HttpResponse> authorize(const HttpRequest& r) const;
  void add_routes();

  const ServedModel model;
  const ServeConfig config;
  Metrics metrics;
  Constraints constraints;
  const ApiContext api;
  const std::time_t started = std::time(nullptr);
  HttpServer http;
};

std::unique_ptr<HttpResponse> ApiServer::Impl::authorize(const HttpRequest& r) const {
  if (config.api_keys.empty() || r.path == "/health" || r.path == "/ready" || is_page(r.path)) return nullptr;
  std::string_view given = r.header("authorization");
  if (given.substr(0, 7) == "Bearer ")
    given.remove_prefix(7);
  else
    given = r.header("x-api-key");
  bool known = false;
  for (const std::string& key : config.api_keys) known |= equal_keys(given, key);
  if (known) return nullptr;
  return std::make_unique<HttpResponse>(error_response(
      401, given.empty() ? "an API key is needed: Authorization: Bearer KEY" : "the API key is wrong", {},
      "invalid_api_key"));
}

// Whether the process is of use: a supervisor may restart it when this fails.
HttpResponse ApiServer::Impl::health() const {
  const EngineStats s = model.engine.stats();
  if (s.failed) return error_response(503, "the device has failed; restart the server", {}, "device_error");
  if (s.step_seconds > config.stuck_seconds)
    return error_response(503,
                          fmt::format("the engine is stuck: one step takes {:.0f} s already", s.step_seconds),
                          {}, "stuck");
  return json_response({{"status", "ok"}});
}

// Whether new requests should be sent here.
HttpResponse ApiServer::Impl::ready() const {
  if (http.stopping()) return error_response(503, "the server is ending", {}, "ending");
  HttpResponse r = health();
  if (r.status == 200) r = json_response({{"status", "ready"}});
  return r;
}

HttpResponse ApiServer::Impl::models() const {
  Json list = {{"object", "list"}, {"data", Json::array()}};
  for (const std::string& name : config.names)
    list["data"].push_back({{"id", name},
                            {"object", "model"},
                            {"created", static_cast<int64_t>(started)},
                            {"owned_by", "carat"},
                            {"max_model_len", model.engine.config().context}});
  return json_response(list);
}

HttpResponse ApiServer::Impl::props() const {
  const EngineConfig& e = model.engine.config();
  const SampleParams& s = config.sample;
  const Json sampling = {{"temperature", s.temperature},
                         {"top_k", s.top_k},
                         {"top_p", s.top_p},
                         {"min_p", s.min_p},
                         {"repeat_penalty", s.repeat_penalty},
                         {"repeat_last_n", s.repeat_last_n},
                         {"presence_penalty", s.presence_penalty},
                         {"frequency_penalty", s.frequency_penalty},
                         {"max_tokens", config.max_tokens}};
  return json_response({{"default_generation_settings", {{"n_ctx", e.context}, {"params", sampling}}},
                        {"total_slots", e.sequences},
                        {"model_path", config.model_path},
                        {"model_alias", config.names.front()},
                        {"modalities", {{"vision", false}, {"audio", false}}},
                        {"chat_template", model.chat_template},
                        {"chat_format", model.chat ? Json(std::string(model.chat->name())) : Json()},
                        {"bos_token", model.bos},
                        {"eos_token", model.eos},
                        {"build_info", config.build}});
}

HttpResponse ApiServer::Impl::tokenize(const HttpRequest& r) const {
  const Json body = parse_body(r.body);
  const Fields f(body);
  const char* name = f.find("prompt") ? "prompt" : "content";
  const std::string text = f.find("messages") ? render_chat(api, body) : f.get_string(name, "");
  const bool chat = f.find("messages") != nullptr;
  if (!chat && !f.find(name)) f.fail("content", "given");
  const bool special = f.get_bool("parse_special", true);
  std::vector<Token> tokens = model.tokenizer.encode(text, special);
  const bool add = f.get_bool(f.find("add_special_tokens") ? "add_special_tokens" : "add_special", chat);
  const Token bos = model.tokenizer.data().bos;
  if (add && bos >= 0 && model.tokenizer.data().add_bos && (tokens.empty() || tokens.front() != bos))
    tokens.insert(tokens.begin(), bos);
  Json out = {
      {"tokens", Json::array()}, {"count", tokens.size()}, {"max_model_len", model.engine.config().context}};
  const bool pieces = f.get_bool("with_pieces", false);
  for (const Token t : tokens) {
    if (pieces)
      out["tokens"].push_back({{"id", t}, {"piece", model.tokenizer.piece(t)}});
    else
      out["tokens"].push_back(t);
  }
  return json_response(out);
}

HttpResponse ApiServer::Impl::detokenize(const HttpRequest& r) const {
  const Json body = parse_body(r.body);
  const Fields f(body);
  const Json* tokens = f.find("tokens");
  if (!tokens) f.fail("tokens", "given");
  const std::vector<Token> ids = read_tokens(*tokens, "tokens");
  for (const Token t : ids)
    if (t >= model.tokenizer.size())
      throw ApiError(400, fmt::format("tokens: there is no token {}", t), "tokens");
  Utf8Stream utf8;
  std::string text = utf8.push(model.tokenizer.decode(ids, true));
  text += utf8.finish();
  return json_response({{"content", text}, {"prompt", text}});
}

void ApiServer::Impl::add_routes() {
  const auto add = [this](const char* method, const char* path, HttpServer::Handler handler) {
    http.route(method, path, [this, handler = std::move(handler)](const HttpRequest& r) {
      try {
        if (model.engine.stats().step_seconds > config.stuck_seconds && r.method == "POST") return health();
        return handler(r);
      } catch (const std::exception& e) {
        log_debug("{} {}", r.id, e.what());
        return error_response(e);
      }
    });
  };
  add("POST", "/v1/chat/completions", [this](const HttpRequest& r) { return chat_completions(api, r); });
  const auto as_anthropic = [](HttpResponse (*handler)(const ApiContext&, const HttpRequest&),
                               const ApiContext& a) {
    return [handler, &a](const HttpRequest& r) {
      try {
        return handler(a, r);
      } catch (const std::exception& e) {
        return anthropic_error(error_response(e));
      }
    };
  };
  add("POST", "/v1/messages", as_anthropic(messages, api));
  add("POST", "/v1/messages/count_tokens", as_anthropic(count_tokens, api));
  add("POST", "/v1/completions", [this](const HttpRequest& r) { return completions(api, r); });
  for (const char* path : {"/v1/models", "/models"})
    add("GET", path, [this](const HttpRequest&) { return models(); });
  for (const char* path : {"/health", "/v1/health"})
    add("GET", path, [this](const HttpRequest&) { return health(); });
  add("GET", "/ready", [this](const HttpRequest&) { return ready(); });
  add("GET", "/props", [this](const HttpRequest&) { return props(); });
  add_page(http);
  add("POST", "/tokenize", [this](const HttpRequest& r) { return tokenize(r); });
  add("POST", "/detokenize", [this](const HttpRequest& r) { return detokenize(r); });
  add("POST", "/apply-template", [this](const HttpRequest& r) {
    return json_response({{"prompt", render_chat(api, parse_body(r.body))}});
  });
  add("GET", "/metrics", [this](const HttpRequest&) {
    HttpResponse r;
    r.type = "text/plain; version=0.0.4";
    r.body = metrics.text(model.engine.stats(), model.engine.config());
    return r;
  });
}

ApiServer::ApiServer(ServedModel model, ServeConfig config)
    : impl_(std::make_unique<Impl>(std::move(model), std::move(config))) {
  Impl& s = *impl_;
  const auto shaped = [](std::string_view path, HttpResponse r) {
    return path.starts_with("/v1/messages") ? anthropic_error(std::move(r)) : r;
  };
  s.http.before([&s, shaped](const HttpRequest& r) {
    auto refused = s.authorize(r);
    if (refused) *refused = shaped(r.path, std::move(*refused));
    return refused;
  });
  s.http.after([&s](std::string_view path, int status) { s.metrics.http(path, status); });
  s.http.on_error([shaped](int status, std::string_view message, std::string_view path) {
    return shaped(path, error_response(status, message));
  });
  s.add_routes();
}
ApiServer::~ApiServer() = default;
int ApiServer::port() const { return impl_->http.port(); }
std::string ApiServer::url() const {
  const std::string& host = impl_->config.http.host;
  return fmt::format("http://{}:{}", host.find(':') == std::string::npos ? host : "[" + host + "]", port());
}
void ApiServer::run() { impl_->http.run(); }
void ApiServer::stop() { impl_->http.stop(); }
void ApiServer::set_grace(double seconds) { impl_->http.grace_seconds = seconds; }

}  // namespace carat
