#include "serve/api/ollama_models.h"

#include <openssl/evp.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "serve/api/ollama.h"
#include "serve/api/stream.h"
#include "serve/http/workers.h"

namespace carat {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// An identifier that changes with the file: hashing its gigabytes for a list would take minutes.
std::string digest_of(const std::string& name, const ModelFacts& f) {
  const std::string text = fmt::format("{}\n{}\n{}", name, f.bytes, f.modified);
  unsigned char hash[EVP_MAX_MD_SIZE];
  unsigned int n = 0;
  EVP_Digest(text.data(), text.size(), hash, &n, EVP_sha256(), nullptr);
  std::string out;
  for (unsigned int i = 0; i < n; ++i) out += fmt::format("{:02x}", hash[i]);
  return out;
}

Json details(const ModelFacts& f) {
  return {{"parent_model", ""},
          {"format", f.format},
          {"family", f.family},
          {"families", Json::array({f.family})},
          {"parameter_size", f.parameters},
          {"quantization_level", f.quantization}};
}

Json summary(const std::string& name, const ModelFacts& f) {
  return {{"name", name},
          {"model", name},
          {"modified_at", ollama_time(f.modified * kSecond)},
          {"size", f.bytes},
          {"digest", digest_of(name, f)},
          {"details", details(f)}};
}

// All names of a model; the only one may have several of the server's.
std::vector<std::string> names_of(const ModelHost& models, const ServeConfig& config,
                                  const ModelHost::Status& s) {
  std::vector<std::string> names = {s.name};
  const auto& more = models.folder() ? s.aliases : config.names;
  for (const std::string& name : more)
    if (name != s.name) names.push_back(name);
  return names;
}

bool is_one_of(const std::vector<std::string>& names, const std::string& asked) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name == asked || name + ":latest" == asked; });
}

std::string asked_name(const Json& body) {
  const Fields f(body);
  std::string name = f.get_string("model", f.get_string("name", ""));
  if (name.empty()) f.fail("model", "the name of a model");
  return name;
}

// "temperature                    0.7", as `ollama show` prints them.
std::string parameters_text(const SampleParams& s) {
  std::string out;
  const auto add = [&](const char* name, auto value) { out += fmt::format("{:<30} {}\n", name, value); };
  add("temperature", s.temperature);
  if (s.top_k > 0) add("top_k", s.top_k);
  if (s.top_p < 1) add("top_p", s.top_p);
  if (s.min_p > 0) add("min_p", s.min_p);
  if (s.repeat_penalty != 1) add("repeat_penalty", s.repeat_penalty);
  if (!out.empty()) out.pop_back();
  return out;
}

// What a thread that loads tells, for the connection that waits.
struct Loading {
  std::mutex mutex;
  std::string file, error;
  int64_t done = 0, total = 0;
  bool ended = false, fresh = false;  // fresh: there is more to tell
  std::function<void()> wake;
  std::condition_variable changed;

  void tell(const std::function<void()>& change) {
    std::function<void()> call;
    {
      const std::lock_guard lock(mutex);
      change();
      fresh = true;
      call = wake;
    }
    changed.notify_all();
    if (call) call();
  }
};

Json status_line(std::string_view status) { return {{"status", std::string(status)}}; }

// Goes on without its client: who asks again finds what has come.
void load_apart(ModelHost& models, const std::string& name, const std::shared_ptr<Loading>& loading) {
  std::thread([pull = models.source().pull, name, loading] {
    std::string error;
    try {
      pull(name, [&](const std::string& file, int64_t done, int64_t total) {
        loading->tell([&] { loading->file = file, loading->done = done, loading->total = total; });
      });
    } catch (const Error& e) {
      error = e.hint().empty() ? e.what() : fmt::format("{} ({})", e.what(), e.hint());
    } catch (const std::exception& e) {
      error = e.what();
    }
    loading->tell([&] { loading->error = error, loading->ended = true; });
  }).detach();
}

// A function of its own: GCC 12 destroys what a Pause captures twice where it is made within co_await.
HttpStream::Pause until_told(const std::shared_ptr<Loading>& loading) {
  return {[loading](std::function<void()> wake) {
    bool now = false;
    {
      const std::lock_guard lock(loading->mutex);
      loading->wake = wake;
      now = loading->fresh;
    }
    if (now) wake();
  }};
}

HttpStream pull_stream(std::shared_ptr<Loading> loading, const HttpWrite& write) {
  const auto line = [](const Json& j) { return dump_json(j) + "\n"; };
  if (!write(line(status_line("pulling manifest")))) co_return;
  std::string said;
  for (;;) {
    Json now;
    bool ended = false;
    {
      const std::lock_guard lock(loading->mutex);
      loading->fresh = false;
      ended = loading->ended;
      if (ended && !loading->error.empty()) now = {{"error", loading->error}};
      if (!ended && !loading->file.empty())
        now = {{"status", "pulling " + loading->file},
               {"digest", loading->file},
               {"total", loading->total},
               {"completed", loading->done}};
    }
    if (ended && now.is_null()) {
      write(line(status_line("success")));
      co_return;
    }
    if (!now.is_null() && line(now) != said) {
      said = line(now);
      if (!write(said)) co_return;
    }
    if (ended) co_return;
    co_await until_told(loading);
  }
}

}  // namespace

HttpResponse ollama_tags(const ModelHost& models, const ServeConfig& config) {
  Json list = Json::array();
  for (const ModelHost::Status& s : models.list()) {
    const ModelFacts facts = models.facts(s.name);
    for (const std::string& name : names_of(models, config, s)) list.push_back(summary(name, facts));
  }
  return json_response({{"models", std::move(list)}});
}

HttpResponse ollama_show(const ModelHost& models, const ServeConfig& config, const HttpRequest& request) {
  const std::string asked = asked_name(parse_body(request.body));
  for (const ModelHost::Status& s : models.list()) {
    if (!is_one_of(names_of(models, config, s), asked)) continue;
    const ModelFacts f = models.facts(s.name);
    Json capabilities = {"completion"};
    if (f.calls) capabilities.push_back("tools");
    if (f.thinks) capabilities.push_back("thinking");
    if (s.live && s.live->model.eyes) capabilities.push_back("vision");
    if (s.live && s.live->model.ears) capabilities.push_back("audio");
    const SampleParams& sample = s.live ? s.live->config.sample : config.sample;
    return json_response({{"modelfile", fmt::format("FROM {}", s.name)},
                          {"parameters", parameters_text(sample)},
                          {"template", s.live ? s.live->model.chat_template : f.chat_template},
                          {"license", ""},
                          {"system", ""},
                          {"details", details(f)},
                          {"model_info", f.metadata},
                          {"capabilities", capabilities},
                          {"modified_at", ollama_time(f.modified * kSecond)}});
  }
  throw ApiError(404, fmt::format("model '{}' not found; GET /api/tags lists what there is", asked), "model",
                 "model_not_found");
}

HttpResponse ollama_ps(const ModelHost& models, const ServeConfig& config) {
  // Nothing ends a model but the wish for another one's room.
  constexpr const char* kNever = "9999-12-31T23:59:59Z";
  Json list = Json::array();
  for (const ModelHost::Status& s : models.list()) {
    if (!s.live) continue;
    const ModelFacts facts = models.facts(s.name);
    Json m = summary(names_of(models, config, s).front(), facts);
    m.erase("modified_at");
    m["size"] = facts.bytes + s.live->model.engine.memory_bytes();
    m["expires_at"] = kNever;
    m["size_vram"] = s.live->model.on_gpu ? m["size"] : Json(0);
    m["context_length"] = s.live->model.engine.config().context;
    list.push_back(std::move(m));
  }
  return json_response({{"models", std::move(list)}});
}

HttpResponse ollama_version(const ServeConfig& config) {
  return json_response({{"version", kOllamaVersion}, {"server", config.build}});
}

HttpResponse ollama_pull(ModelHost& models, const ServeConfig& config, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  const std::string asked = asked_name(body);
  auto loading = std::make_shared<Loading>();
  bool here = false;
  for (const ModelHost::Status& s : models.list()) here |= is_one_of(names_of(models, config, s), asked);
  if (here) {
    loading->ended = true;
  } else if (!models.source().pull) {
    throw ApiError(403,
                   fmt::format("model '{}' not found, and this server loads none by request; `carat serve "
                               "--models-dir DIR --allow-pull` does, `carat pull OWNER/REPO[:QUANT]` and -hf "
                               "load it by hand",
                               asked),
                   "model", "pull_not_allowed");
  } else {
    load_apart(models, asked, loading);
  }
  HttpResponse r;
  if (Fields(body).get_bool("stream", true)) {
    r.type = "application/x-ndjson";
    r.stream = [loading](const HttpWrite& write) { return pull_stream(loading, write); };
    return r;
  }
  const Workers::Waits waits;
  std::unique_lock lock(loading->mutex);
  while (!loading->ended && !request.gone()) loading->changed.wait_for(lock, std::chrono::milliseconds(200));
  if (!loading->error.empty()) throw ApiError(502, loading->error, "model", "pull_failed");
  return json_response(status_line("success"));
}

HttpResponse ollama_load(ModelHost& models, const HttpRequest& request, bool chat) {
  const Json body = parse_body(request.body);
  const Fields f(body);
  const std::string name = f.get_string("model", f.get_string("name", ""));
  const bool close = lets_go(body);
  if (close && models.folder())
    models.close(name);
  else if (!close)
    models.get(name);
  Json out = {{"model", name}, {"created_at", ollama_now()}};
  if (chat)
    out["message"] = {{"role", "assistant"}, {"content", ""}};
  else
    out["response"] = "";
  out["done"] = true;
  out["done_reason"] = close ? "unload" : "load";
  return json_response(out);
}

HttpResponse ollama_refusal(std::string_view path) {
  const auto because = [](const char* why) { return error_response(501, why, {}, "not_supported"); };
  if (path == "/api/embed" || path == "/api/embeddings")
    return error_response(400, "the model served generates text; this server makes no embeddings", {},
                          "unsupported_operation");
  if (path == "/api/delete")
    return because("this server deletes no models: remove the file, or use `carat rm OWNER/REPO`");
  if (path == "/api/copy")
    return because("this server copies no models: --alias NAME gives one a further name");
  if (path == "/api/push") return because("this server publishes no models");
  return because("this server makes no models: `carat convert` does, and flags set a model's defaults");
}

}  // namespace carat
