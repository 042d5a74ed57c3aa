#include "serve/server.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "base/file.h"
#include "base/log.h"
#include "serve/api/anthropic.h"
#include "serve/api/completion.h"
#include "serve/api/endpoints.h"
#include "serve/api/form.h"
#include "serve/api/ollama.h"
#include "serve/api/ollama_models.h"
#include "serve/api/responses.h"
#include "serve/api/slots.h"
#include "serve/api/transcription.h"
#include "serve/keys.h"
#include "serve/page.h"

namespace carat {
namespace {

constexpr std::string_view kLivePaths[] = {"/live", "/v2/health/live"};
constexpr std::string_view kReadyPaths[] = {"/ready", "/v2/health/ready"};
constexpr const char* kPromotion = "/promotion";
constexpr std::string_view kHealthPaths[] = {"/health", "/v1/health", "/ping"};

// Needs no key: answers say nothing of what is served.
bool is_probe(std::string_view path) {
  const auto among = [&](const auto& paths) {
    return std::find(std::begin(paths), std::end(paths), path) != std::end(paths);
  };
  return among(kLivePaths) || among(kReadyPaths) || among(kHealthPaths);
}

// Schemes have no case (RFC 9110, 11.1).
bool is_bearer(std::string_view header) {
  constexpr std::string_view kScheme = "bearer ";
  return header.size() >= kScheme.size() &&
         std::equal(kScheme.begin(), kScheme.end(), header.begin(),
                    [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b + 32 : b); });
}

// A streamed answer with the model that it comes from, which is let go of last.
struct KeptStream {
  std::shared_ptr<LiveModel> live;
  std::function<HttpStream(const HttpWrite&)> stream;
  HttpStream operator()(const HttpWrite& write) const { return stream(write); }
};

std::string asked_model(const HttpRequest& r) {
  const std::string_view type = r.header("content-type");
  const Json body = is_form(type) ? body_of_form(parse_form(type, r.body), {"model"}) : parse_body(r.body);
  return Fields(body).get_string("model", "");
}

HttpResponse shaped(std::string_view path, HttpResponse r) {
  if (path.starts_with("/v1/messages")) return anthropic_error(std::move(r));
  return path.starts_with("/api/") ? ollama_error(std::move(r)) : r;
}

}  // namespace

struct ApiServer::Impl {
  using Answer = HttpResponse (*)(const ApiContext&, const HttpRequest&);

  template <class Models>
  Impl(Models given, ServeConfig c) : config(std::move(c)), models(std::move(given)), http(config.http) {}

  std::unique_ptr<HttpResponse> authorize(HttpRequest& r);
  void add_promotion_routes();
  HttpResponse alive() const;
  HttpResponse health() const;
  HttpResponse ready() const;
  HttpResponse list_models() const;
  HttpResponse one_model(const std::string& name) const;
  HttpResponse all_metrics() const;
  HttpResponse answer(Answer make, const HttpRequest& r);
  HttpResponse about(const HttpRequest& r, const std::function<HttpResponse()>& make) const;
  void add_routes();
  void add_ollama_routes();
  void add_folder_routes();

  const ServeConfig config;
  KeyRing keys{config.api_keys, config.api_keys_file, config.requests_per_minute};
  ModelHost models;
  std::shared_ptr<Promotion> promotion;  // null: nothing is promoted here
  HttpCounters counters;
  const std::time_t started = std::time(nullptr);
  HttpServer http;
};

// Runs in the loop's thread: nothing here may wait. What is asked often and by machines is not counted.
std::unique_ptr<HttpResponse> ApiServer::Impl::authorize(HttpRequest& r) {
  if (is_probe(r.path) || is_page(r.path) || (config.metrics_open && r.path == "/metrics")) return nullptr;
  if (r.path == kPromotion && promotion && promotion->is_key(r.header("carat-promotion-key"))) return nullptr;
  if (keys.needed()) {
    std::string_view given = r.header("authorization");
    if (is_bearer(given))
      given.remove_prefix(7);
    else
      given = r.header("x-api-key");
    auto client = keys.client_of(given);
    if (!client)
      return std::make_unique<HttpResponse>(error_response(
          401, given.empty() ? "an API key is needed: Authorization: Bearer KEY" : "the API key is wrong", {},
          "invalid_api_key"));
    r.client = std::move(client->name);
    r.secret = std::move(client->secret);
  }
  if (r.method != "POST") return nullptr;
  const double wait = keys.wait_of(keys.needed() ? r.client : r.remote);
  if (wait <= 0) return nullptr;
  auto out = std::make_unique<HttpResponse>(
      error_response(429, "too many requests in this minute", {}, "rate_limit_exceeded"));
  out->headers["Retry-After"] = fmt::format("{:.0f}", std::ceil(wait));
  return out;
}

// Whether the process is of use: a supervisor may restart it when this fails. Loading is no fault.
HttpResponse ApiServer::Impl::alive() const {
  if (const std::string changed = changed_file(); !changed.empty())
    return error_response(
        503,
        fmt::format("'{}' was changed while it is served; start the server again (to change a "
                    "served file, write another and rename it)",
                    changed),
        {}, "model_file_changed");
  for (const auto& live : models.live(false)) {
    const EngineStats s = live->model.engine.stats();
    if (s.failed) return error_response(503, "the device has failed; restart the server", {}, "device_error");
    if (s.step_seconds > config.stuck_seconds)
      return error_response(
          503, fmt::format("the engine is stuck: one step takes {:.0f} s already", s.step_seconds), {},
          "stuck");
  }
  return json_response({{"status", "ok"}});
}

// Whether new requests should be sent here.
HttpResponse ApiServer::Impl::ready() const {
  if (http.leaving()) return error_response(503, kEnding, {}, "ending");
  HttpResponse r = alive();
  if (r.status != 200) return r;
  const auto list = models.list();
  if (!models.folder() && !list.at(0).live) {
    Json body = error_object(503, fmt::format("the model is being loaded ({:.0f} %)", 100 * list[0].progress),
                             {}, "loading");
    body["status"] = "loading";
    body["progress"] = list[0].progress;
    r = json_response(body, 503);
    r.headers.emplace("Retry-After", "1");
    return r;
  }
  return json_response({{"status", "ready"}});
}

// As routers made for llama.cpp and vLLM ask it: they send requests as long as this is 200.
HttpResponse ApiServer::Impl::health() const {
  HttpResponse r = ready();
  return r.status == 200 ? json_response({{"status", "ok"}}) : r;
}

HttpResponse ApiServer::Impl::list_models() const {
  Json list = {{"object", "list"}, {"data", Json::array()}};
  const auto add = [&](const std::string& name, const ModelHost::Status& s) {
    Json model = {
        {"id", name}, {"object", "model"}, {"created", static_cast<int64_t>(started)}, {"owned_by", "carat"}};
    if (s.live) {
      model["max_model_len"] = s.live->model.engine.config().context;
      model["architecture"] = {{"input_modalities", input_modalities(s.live->api)},
                               {"output_modalities", {"text"}}};
    }
    if (const ModelFacts f = models.facts(s.name); f.bytes > 0)
      model["meta"] = {{"size", f.bytes},
                       {"n_ctx_train", f.context},
                       {"parameter_size", f.parameters},
                       {"quantization_level", f.quantization}};
    model["status"] = {{"value", s.state}};
    list["data"].push_back(std::move(model));
  };
  for (const ModelHost::Status& s : models.list()) {
    if (models.folder()) {
      add(s.name, s);
      for (const std::string& name : s.aliases) add(name, s);
      continue;
    }
    for (const std::string& name : config.names) add(name, s);
  }
  return json_response(list);
}

HttpResponse ApiServer::Impl::one_model(const std::string& name) const {
  const Json list = Json::parse(list_models().body);
  for (const Json& m : list["data"])
    if (m["id"] == name) return json_response(m);
  return error_response(404, fmt::format("there is no model '{}' here; GET /v1/models lists them", name), {},
                        "model_not_found");
}

HttpResponse ApiServer::Impl::all_metrics() const {
  std::vector<std::string> texts;
  for (const auto& live : models.live())
    texts.push_back(live->metrics.text(live->model.engine.stats(), live->model.engine.config()));
  if (promotion) texts.push_back(promotion->metrics());
  if (config.joules) texts.push_back(energy_metrics(config.joules()));
  texts.push_back(adapter_metrics(static_cast<double>(started)));
  texts.push_back(counters.text());
  texts.push_back(process_metrics(static_cast<double>(started)));
  HttpResponse r;
  r.type = "text/plain; version=0.0.4";
  r.body = merge_metrics(texts);
  return r;
}

HttpResponse ApiServer::Impl::answer(Answer make, const HttpRequest& r) {
  try {
    std::string name;
    if (models.folder() && r.method == "GET" && models.live().empty())  // a question opens no model
      return json_response({{"build_info", config.build}});
    if (models.folder() && r.method == "POST") name = asked_model(r);
    std::shared_ptr<LiveModel> live = models.get(name);
    if (promotion) live = promotion->choose(r);
    if (r.method == "POST" &&
        (live->model.engine.stats().step_seconds > config.stuck_seconds || !changed_file().empty()))
      return shaped(r.path, alive());
    HttpResponse out = make(live->api, r);
    if (out.status == 499 && http.stopping()) throw ApiError(503, kEnding, {}, "ending");
    if (promotion) out = promotion->watch(std::move(out), r, *live, make);
    if (out.stream) out.stream = KeptStream{live, std::move(out.stream)};
    return out;
  } catch (const std::exception& e) {
    log_debug("{} {}", r.id, e.what());
    return shaped(r.path, error_response(e));
  }
}

// What needs no model that is open.
HttpResponse ApiServer::Impl::about(const HttpRequest& r, const std::function<HttpResponse()>& make) const {
  try {
    return shaped(r.path, make());
  } catch (const std::exception& e) {
    log_debug("{} {}", r.id, e.what());
    return shaped(r.path, error_response(e));
  }
}

void ApiServer::Impl::add_ollama_routes() {
  const auto generate = [this](const char* path, Answer make, bool chat) {
    http.route("POST", path, [this, make, chat](const HttpRequest& r) {
      bool loads = false;
      const HttpResponse wrong = about(r, [&] {
        loads = only_loads(parse_body(r.body));
        return loads ? ollama_load(models, r, chat) : HttpResponse();
      });
      return loads || wrong.status != 200 ? wrong : answer(make, r);
    });
  };
  generate("/api/chat", ollama_chat, true);
  generate("/api/generate", ollama_generate, false);
  const auto add = [this](const char* method, const char* path,
                          std::function<HttpResponse(const HttpRequest&)> make) {
    http.route(method, path,
               [this, make](const HttpRequest& r) { return about(r, [&] { return make(r); }); });
  };
  add("GET", "/api/tags", [this](const HttpRequest&) { return ollama_tags(models, config); });
  add("GET", "/api/ps", [this](const HttpRequest&) { return ollama_ps(models, config); });
  add("GET", "/api/version", [this](const HttpRequest&) { return ollama_version(config); });
  add("POST", "/api/show", [this](const HttpRequest& r) { return ollama_show(models, config, r); });
  add("POST", "/api/pull", [this](const HttpRequest& r) { return ollama_pull(models, config, r); });
  for (const char* path : {"/api/embed", "/api/embeddings", "/api/create", "/api/copy", "/api/push"})
    add("POST", path, [](const HttpRequest& r) { return ollama_refusal(r.path); });
  add("DELETE", "/api/delete", [](const HttpRequest& r) { return ollama_refusal(r.path); });
}

// Whoever may read the server's directory may change what it serves; its users may not.
void ApiServer::Impl::add_promotion_routes() {
  const auto add = [this](const char* method, std::function<HttpResponse(const HttpRequest&)> make) {
    http.route(method, kPromotion, [this, make](const HttpRequest& r) {
      return about(r, [&] {
        if (!promotion)
          throw ApiError(501, "this server keeps no versions; see --promotions", {}, "not_supported");
        return make(r);
      });
    });
  };
  add("GET", [this](const HttpRequest&) { return json_response(promotion->status()); });
  add("POST", [this](const HttpRequest& r) {
    if (!promotion->is_key(r.header("carat-promotion-key")))
      throw ApiError(403, "only `carat promote` may change what is served", {}, "no_promotion_key");
    return json_response(promotion->act(parse_body(r.body)));
  });
}

// As llama.cpp's router has them. Loading is waited for.
void ApiServer::Impl::add_folder_routes() {
  const auto add = [this](const char* path, void (*act)(ModelHost&, const std::string&)) {
    http.route("POST", path, [this, act](const HttpRequest& r) {
      return about(r, [&] {
        const Json body = parse_body(r.body);
        const std::string name = Fields(body).get_string("model", "");
        if (name.empty()) Fields(body).fail("model", "the name of a model");
        act(models, name);
        return json_response({{"success", true}});
      });
    });
  };
  add("/models/load", [](ModelHost& all, const std::string& name) { all.get(name); });
  add("/models/unload", [](ModelHost& all, const std::string& name) {
    if (!all.folder())
      throw ApiError(501, "this server was started with one model, which it keeps; see --models-dir", {},
                     "not_supported");
    all.close(name);
  });
}

void ApiServer::Impl::add_routes() {
  add_ollama_routes();
  const auto add = [this](const char* method, const char* path, Answer make) {
    http.route(method, path, [this, make](const HttpRequest& r) { return answer(make, r); });
  };
  for (const char* path : {"/v1/chat/completions", "/chat/completions"}) add("POST", path, chat_completions);
  add("POST", "/v1/completions", completions);
  add("POST", "/v1/completions/render", render_completion);
  add("POST", "/v1/chat/completions/render", render_chat_completion);
  for (const char* path : {"/completion", "/completions"}) add("POST", path, native_completion);
  add("POST", "/infill", infill);
  for (const char* path : {"/v1/responses", "/responses"}) add("POST", path, responses);
  add("POST", "/v1/responses/input_tokens", count_input_tokens);
  for (const char* path : {"/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"})
    add("POST", path, count_chat_tokens);
  add("POST", "/v1/messages", messages);
  add("POST", "/v1/messages/count_tokens", count_tokens);
  add("POST", "/v1/audio/transcriptions", transcriptions);
  add("POST", "/v1/audio/translations", translations);
  add("POST", "/tokenize", tokenize);
  add("POST", "/detokenize", detokenize);
  add("POST", "/apply-template", apply_template);
  add("GET", "/props", [](const ApiContext& api, const HttpRequest&) { return json_response(props(api)); });
  for (const char* path : {"/v1/embeddings", "/embeddings", "/embedding"})
    http.route("POST", path, [](const HttpRequest&) {
      return error_response(400, "the model served generates text; this server makes no embeddings", {},
                            "unsupported_operation");
    });
  add_folder_routes();
  add_promotion_routes();
  http.route("GET", "/version", [this](const HttpRequest&) {
    return json_response({{"version", config.build.substr(config.build.rfind(' ') + 1)}});
  });
  http.route("GET", "/lora-adapters", [](const HttpRequest&) { return json_response(Json::array()); });
  http.route("GET", "/slots", [this](const HttpRequest&) {
    Json list = Json::array();
    for (const auto& live : models.live()) add_slots(live->api, list);
    return json_response(list);
  });
  add("POST", R"(/slots/(\d+))", slot_action);
  for (const char* path : {"/v1/models", "/models"})
    http.route("GET", path, [this](const HttpRequest&) { return list_models(); });
  for (const std::string path : {"/v1/models/", "/models/"})
    http.route("GET", path + "(.+)",
               [this, path](const HttpRequest& r) { return one_model(r.path.substr(path.size())); });
  constexpr bool kUrgent = true;
  const auto probe = [this](std::string_view path, HttpResponse (Impl::*say)() const) {
    for (const char* method : {"GET", "POST"})
      if (*method == 'G' || path == "/ping")
        http.route(
            method, std::string(path), [this, say](const HttpRequest&) { return (this->*say)(); }, kUrgent);
  };
  for (const auto path : kLivePaths) probe(path, &Impl::alive);
  for (const auto path : kReadyPaths) probe(path, &Impl::ready);
  for (const auto path : kHealthPaths) probe(path, &Impl::health);
  http.route(
      "GET", "/metrics", [this](const HttpRequest&) { return all_metrics(); }, kUrgent);
  add_page(http, config);
  http.before([this](HttpRequest& r) {
    auto refused = authorize(r);
    if (refused) *refused = shaped(r.path, std::move(*refused));
    return refused;
  });
  http.after([this](std::string_view path, int status) { counters.count(path, status); });
  http.on_error([](int status, std::string_view message, std::string_view path) {
    return shaped(path,
                  error_response(status, std::string(message), {}, message == kTakesNoMore ? "ending" : ""));
  });
}

ApiServer::ApiServer(ServedModel model, ServeConfig config)
    : impl_(std::make_unique<Impl>(std::make_shared<LiveModel>(std::move(model), config), config)) {
  impl_->add_routes();
}
ApiServer::ApiServer(ModelHost::Source models, ServeConfig config)
    : impl_(std::make_unique<Impl>(std::move(models), std::move(config))) {
  impl_->add_routes();
}
ApiServer::~ApiServer() = default;
int ApiServer::port() const { return impl_->http.port(); }
std::string ApiServer::url() const {
  const std::string& host = impl_->config.http.host;
  return fmt::format("{}://{}:{}", impl_->config.http.tls_cert.empty() ? "http" : "https",
                     host.find(':') == std::string::npos ? host : "[" + host + "]", port());
}
std::vector<std::pair<std::string, std::string>> ApiServer::routes() const { return impl_->http.routes(); }
ModelHost& ApiServer::models() { return impl_->models; }
void ApiServer::set_promotion(std::shared_ptr<Promotion> promotion) {
  impl_->promotion = std::move(promotion);
}
void ApiServer::open_model() { impl_->models.open_only(); }
void ApiServer::run() { impl_->http.run(); }
void ApiServer::drain() { impl_->http.drain(); }
void ApiServer::stop() { impl_->http.stop(); }
void ApiServer::set_grace(double seconds) { impl_->http.grace_seconds = seconds; }
void ApiServer::set_drain_delay(double seconds) { impl_->http.delay_seconds = seconds; }

}  // namespace carat
