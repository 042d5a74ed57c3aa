// carat serve: the HTTP server, until SIGINT or SIGTERM.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <sstream>
#include <thread>

#include "apps/cli.h"
#include "apps/model_facts.h"
#include "apps/models_folder.h"
#include "apps/open.h"
#include "apps/pulled_models.h"
#include "apps/serve_options.h"
#include "base/error.h"
#include "base/log.h"
#include "measure/energy.h"
#include "serve/http/address.h"
#include "serve/server.h"

namespace carat {
namespace {

// A signal handler may do little more than write a byte to a pipe.
int g_signal_pipe[2] = {-1, -1};

volatile std::sig_atomic_t g_serving = 0;  // requests may run; else there is nothing to wait for

void on_signal(int number) {
  if (!g_serving) ::_exit(0);
  const int saved = errno;
  const char byte = static_cast<char>(number);
  [[maybe_unused]] const ssize_t n = ::write(g_signal_pipe[1], &byte, 1);
  for (const int second : {SIGINT, SIGTERM}) std::signal(second, SIG_DFL);  // ends the program at once
  errno = saved;
}

// Also before anything runs: the first process of a container gets no signal that it does not catch.
void catch_signals() {
  if (::pipe2(g_signal_pipe, O_CLOEXEC | O_NONBLOCK) != 0) throw Error("cannot create a pipe");
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, on_signal);
}

void wait_for_signal() {
  pollfd p{g_signal_pipe[0], POLLIN, 0};
  while (::poll(&p, 1, -1) < 0 && errno == EINTR) {}
}

std::vector<std::string> listed(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string name; std::getline(in, name, ',');)
    if (!name.empty()) out.push_back(name);
  return out;
}

std::vector<std::string> names_of(const ServeOptions& o) {
  std::vector<std::string> names;
  if (!o.models_dir.empty()) return {"models"};
  names = listed(o.alias);
  if (!names.empty()) return names;
  const std::filesystem::path path = std::filesystem::path(o.open.model).lexically_normal();
  const std::filesystem::path last = path.has_filename() ? path.filename() : path.parent_path().filename();
  return {last.extension() == ".gguf" ? last.stem().string() : last.string()};
}

ServeConfig serve_config(const ServeOptions& o) {
  ServeConfig c = o.serve;
  c.api_keys = read_api_keys(o.api_key, o.api_key_file);
  c.names = names_of(o);
  c.model_path = o.open.model;
  c.sample = o.sample.params;
  c.seed = o.sample.seed;
  c.max_tokens = o.sample.max_tokens;
  c.dry_breakers = o.sample.dry_breakers;
  c.build = "carat " CARAT_VERSION;
  if (const auto meter = std::make_shared<EnergyMeter>(); meter->any())
    c.joules = [meter] { return meter->read().joules().value_or(0); };
  if (const auto socket = handed_listener()) {
    const HostName at = listening_address(*socket);
    ::fcntl(*socket, F_SETFD, FD_CLOEXEC);
    c.http.listener = *socket;
    c.http.host = at.name;
    c.http.port = at.port;
  }
  return c;
}

ModelHost::Source one_model(const ServeOptions& o, const ServeConfig& config,
                            const std::shared_ptr<Promotion>& promotion) {
  ModelHost::Source s;
  s.list = [name = config.names.front()] { return std::vector<ModelHost::Known>{{name, 0}}; };
  s.open = [&o, config, promotion](const std::string&, const ModelHost::Report& report) {
    return promotion ? promotion->open_serving(report) : open_served(o, o.open, config, report);
  };
  s.facts = [path = o.open.model](const std::string&) { return model_facts(path); };
  return s;
}

std::vector<FolderModel> served_models(const std::string& folder) {
  std::vector<FolderModel> models = models_in(folder);
  for (FolderModel& m : pulled_models(folder)) models.push_back(std::move(m));
  std::erase_if(models, [](const FolderModel& m) { return !can_be_served(m.path); });
  return models;
}

// --alias NAME=MODEL,...: further names of a folder's models; NAME alone where there is one model.
std::map<std::string, std::vector<std::string>> folder_aliases(const ServeOptions& o) {
  std::map<std::string, std::vector<std::string>> out;
  const std::vector<FolderModel> models = served_models(o.models_dir);
  for (const std::string& text : listed(o.alias)) {
    const size_t equals = text.find('=');
    const std::string alias = text.substr(0, equals);
    std::string model = equals == std::string::npos ? "" : text.substr(equals + 1);
    if (equals == std::string::npos && models.size() == 1) model = models[0].name;
    if (alias.empty() ||
        std::none_of(models.begin(), models.end(), [&](const FolderModel& m) { return m.name == model; }))
      throw Error(fmt::format("--alias {}: {} has no such model", text, o.models_dir),
                  "give NAME=MODEL, where MODEL is a file's name without .gguf");
    out[model].push_back(alias);
  }
  return out;
}

// What this machine has, less what others need to breathe.
int64_t usable_memory() {
  return static_cast<int64_t>(0.8 * static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                              static_cast<double>(::sysconf(_SC_PAGESIZE)));
}

ModelHost::Source folder_of_models(const ServeOptions& o, const ServeConfig& config) {
  ModelHost::Source s;
  s.folder = true;
  s.memory_limit = o.models_memory > 0 ? static_cast<int64_t>(o.models_memory * 1e9) : usable_memory();
  const auto aliases = folder_aliases(o);
  const auto aliases_of = [aliases](const std::string& name) {
    const auto it = aliases.find(name);
    std::vector<std::string> out = it == aliases.end() ? std::vector<std::string>() : it->second;
    if (name.find('/') != name.npos) out.push_back("hf.co/" + name);  // as Ollama's clients call it
    return out;
  };
  const auto file_of = [dir = o.models_dir](const std::string& name) {
    for (const FolderModel& m : served_models(dir))
      if (m.name == name) return m.path;
    throw Error(fmt::format("the file of {} is gone", name));
  };
  s.list = [dir = o.models_dir, aliases_of] {
    std::vector<ModelHost::Known> known;
    for (const FolderModel& m : served_models(dir)) known.push_back({m.name, m.bytes, aliases_of(m.name)});
    return known;
  };
  s.open = [&o, config, file_of, aliases_of](const std::string& name, const ModelHost::Report& report) {
    OpenOptions open = o.open;
    open.model = file_of(name);
    ServeConfig own = config;
    own.names = aliases_of(name);
    own.names.insert(own.names.begin(), name);
    return open_served(o, open, std::move(own), report);
  };
  s.facts = [file_of](const std::string& name) { return model_facts(file_of(name)); };
  if (o.allow_pull)
    s.pull = [dir = o.models_dir](const std::string& name, const ModelHost::PullReport& report) {
      pull_into(dir, name, report);
    };
  return s;
}

void greet(ApiServer& server, const ServeConfig& c) {
  const std::string key =
      c.api_keys.empty() && c.api_keys_file.empty() ? "" : " -H 'Authorization: Bearer KEY'";
  std::string what = fmt::format("{} models", server.models().list().size()), room;
  if (!server.models().folder()) {
    const EngineConfig& engine = server.models().get("")->model.engine.config();
    what = c.names.front();
    room = fmt::format("context {}, {} at once; ", engine.context, engine.sequences);
  }
  fmt::print(
      "\nServing {} at {}  ({}Ctrl-C ends)\n\n  curl {}/v1/chat/completions{} -H "
      "'Content-Type: "
      "application/json' \\\n    -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}]}}'\n\n",
      what, server.url(), room, server.url(), key);
  std::fflush(stdout);
}

// Whoever can reach the port can use the model, so strangers must show a key.
void check_exposure(const ServeOptions& o, const ServeConfig& config) {
  if (is_loopback(config.http.host) || !config.api_keys.empty() || !config.api_keys_file.empty()) return;
  if (!o.open_to_all)
    throw Error(fmt::format("{} can be reached from other machines, and no API key is set", config.http.host),
                "set one with --api-key KEY (or CARAT_API_KEY), or start without one: --no-api-key");
  log_warn("other machines can reach {}, and no API key is set: any of them may use it", config.http.host);
}

void check_slot_directory(const std::string& path) {
  if (path.empty()) return;
  if (!std::filesystem::is_directory(path) || ::access(path.c_str(), W_OK | X_OK) != 0)
    throw Error(fmt::format("'{}' is no directory that can be written", path),
                "make it first, or choose another --slot-save-path");
}

// Routers find this server by its topic.
std::shared_ptr<KvEvents> kv_events(const ServeOptions& o, const ServeConfig& config, int port) {
  if (o.kv_events.endpoint.empty()) return nullptr;
  if (!o.models_dir.empty())
    throw Error("--kv-events tells of one model", "give it with -m FILE instead of --models-dir");
  if (o.engine.prefix_cache_bytes == 0)
    throw Error("--kv-events tells what the prefix cache holds, and --no-prefix-cache turns it off");
  KvEventConfig events = o.kv_events;
  if (events.topic.empty())
    events.topic =
        kv_event_topic(environment("POD_IP").value_or(config.http.host), port, config.names.front());
  return std::make_shared<KvEvents>(events, KvLimits{}.page_tokens);
}

void serve(ServeOptions& o) {
  const bool folder = !o.models_dir.empty();
  if (folder == !o.open.model.empty())
    throw Error(folder ? "both a model and a folder of models are given" : "no model is given",
                "give one with -m FILE or -hf OWNER/REPO, or a folder of them with --models-dir DIR");
  if (o.allow_pull && !folder)
    throw Error("--allow-pull needs a folder of models", "give it with --models-dir DIR instead of a model");
  if (folder && !o.eyes.mmproj.empty())
    throw Error("--mmproj names one projector, but a folder's models need one each",
                "a projector beside its model is found by itself");
  const ServeConfig config = serve_config(o);
  check_exposure(o, config);
  check_slot_directory(config.slot_save_path);
  if (folder) models_in(o.models_dir);  // or Error
  if (o.allow_pull) check_can_keep_pulled(o.models_dir);
  const std::shared_ptr<Promotion> promotion = promotion_of(o, config);
  ApiServer server(folder ? folder_of_models(o, config) : one_model(o, config, promotion), config);
  if (promotion) server.set_promotion(promotion);
  const std::shared_ptr<KvEvents> events = kv_events(o, config, server.port());
  if (events)
    o.engine.prefix_changes = [events](PrefixChanges changes) { return events->tell(std::move(changes)); };
  server.set_grace(o.grace);
  server.set_drain_delay(o.drain_delay);
  catch_signals();
  std::thread thread;
  const auto run = [&] { thread = std::thread([&] { server.run(); }); };
  const bool waits = config.http.listener >= 0;  // a socket that is kept open keeps connections until then
  if (!waits) run();                             // answers already: that it is loading
  try {
    if (!folder) server.open_model();
    if (promotion) promotion->attach(server.models(), server.url());
    if (waits) run();
    g_serving = 1;
    greet(server, config);
    wait_for_signal();
    log_info(
        "shutting down: {}running requests may take {} s to finish (Ctrl-C again stops at once)",
        o.drain_delay > 0 ? fmt::format("new requests are served for {} s more, then ", o.drain_delay) : "",
        o.grace);
    server.drain();
    if (promotion) promotion->stop();
  } catch (...) {
    server.stop();
    if (thread.joinable()) thread.join();
    throw;
  }
  thread.join();
}

// Nothing else may get into the page's Content-Security-Policy.
std::string check_origin(const std::string& text) {
  const size_t scheme = text.starts_with("http://") ? 7 : text.starts_with("https://") ? 8 : 0;
  const auto fits = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == ':';
  };
  if (scheme && text.size() > scheme &&
      std::all_of(text.begin() + static_cast<std::ptrdiff_t>(scheme), text.end(), fits))
    return {};
  return "an origin is http://HOST:PORT or https://HOST, without a path: " + text;
}

void add_server_flags(CLI::App& app, ServeOptions& o) {
  HttpConfig& h = o.serve.http;
  app.add_option("--host", h.host, "Address to listen on; 0.0.0.0: all addresses of this machine")
      ->capture_default_str();
  app.add_option("--port", h.port, "Port (0: any free one)")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app.add_option("--models-dir", o.models_dir,
                 "Folder of models instead of -m; a model is opened when a request names it");
  app.add_flag("--allow-pull", o.allow_pull,
               "With --models-dir: POST /api/pull loads models of Hugging Face (hf.co/OWNER/REPO[:QUANT])");
  app.add_option(
      "--promotions", o.promotions,
      "Directory that keeps which version of model and settings serves: `carat promote` tries others "
      "beside it (default: none)");
  app.add_option("--models-memory", o.models_memory,
                 "With --models-dir: GB that open models may take; the one used longest ago is closed first "
                 "(default: 80 % of this machine's)")
      ->check(CLI::Range(0.001, 1e6));
  app.add_option("-a,--alias", o.alias,
                 "Names of the model in the API, comma-separated (default: the file's); with --models-dir "
                 "NAME=MODEL");
  app.add_option("--api-key", o.api_key,
                 "API keys, comma-separated; clients must send one of them (default: no key is needed)");
  app.add_option("--api-key-file", o.api_key_file, "File with one API key per line");
  app.add_option("--api-keys", o.serve.api_keys_file,
                 "File of named API keys, NAME KEY a line; read again when it changes");
  app.add_option("--rate-limit", o.serve.requests_per_minute,
                 "Requests a minute of each key (each address without keys); more get 429 (0: any number)")
      ->check(CLI::Range(0.0, 1e9));
  app.add_option_function<std::string>(
         "--prefix-salt", [&o](const std::string& how) { o.serve.salt_per_key = how == "per-key"; },
         "per-key: a prompt that was read for one key is read again for another, so that cached_tokens and "
         "times tell it nothing; shared: keys share what was read (default: per-key)")
      ->check(CLI::IsMember({"per-key", "shared"}));
  app.add_flag("--metrics-no-key", o.serve.metrics_open,
               "With API keys: /metrics needs none (Prometheus, llm-d and others ask without one)");
  app.add_flag("--no-api-key", o.open_to_all,
               "Start without an API key although other machines can reach the address");
  add_capacity_flags(app, o);
  app.add_option_function<double>(
         "--step-ms", [&o](double ms) { o.engine.step_seconds = ms / 1e3; },
         "While others generate, prompts are read in steps of about this long; 0: always -b tokens")
      ->check(CLI::Range(0.0, 1e6))
      ->default_str("200");
  app.add_flag("--cont-batching", o.continuous, "Always on; taken for llama.cpp's users (-cb)");
  app.add_option("--prefix-cache-dir", o.engine.prefix_cache_dir,
                 "Directory that keeps the prefix cache across restarts (default: none)");
  app.add_option_function<int64_t>(
         "--prefix-disk-mib", [&o](int64_t mib) { o.engine.prefix_disk_bytes = mib << 20; },
         "Largest size of that directory in MiB (default: 16384)")
      ->check(CLI::Range(0, 1 << 24));
  app.add_option("--slot-save-path", o.serve.slot_save_path,
                 "Directory of POST /slots/N?action=save|restore (default: none)")
      ->check(CLI::ExistingDirectory);
  KvEventConfig& kv = o.kv_events;
  app.add_option(
      "--kv-events", kv.endpoint,
      "ZeroMQ address (tcp://*:5557) on which routers hear which prompts' beginnings this server knows, "
      "as vLLM tells it (default: none)");
  app.add_option("--kv-events-replay", kv.replay,
                 "Address on which missed batches can be asked for (tcp://*:5558)");
  app.add_option("--kv-events-topic", kv.topic, "Topic of its messages (default: kv@POD_IP:PORT@MODEL)");
  app.add_flag("--kv-events-connect", kv.connect, "Connect to a router that listens at --kv-events' address");
  app.add_option_function<std::string>(
         "--kv-events-format", [&kv](const std::string& form) { kv.as_array = form == "array"; },
         "map: events as vLLM writes them today; array: as before its pull request 42892 (default: map)")
      ->check(CLI::IsMember({"map", "array"}));
  app.add_option("--max-queue", o.engine.max_queue, "Requests that may wait; further ones get status 429")
      ->capture_default_str();
  app.add_option("--max-body", h.max_body, "Largest request in bytes")
      ->check(CLI::Range(size_t{1024}, size_t{1} << 30))
      ->capture_default_str();
  app.add_option("--max-connections", h.max_connections, "Connections served at once")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--timeout", h.read_seconds,
                 "Seconds for a request's head, or for a KiB of its body, to arrive")
      ->check(CLI::Range(1.0, 3600.0))
      ->capture_default_str();
  app.add_option("--watchdog", o.serve.stuck_seconds,
                 "Seconds after which a step counts as stuck: /live and /health fail")
      ->check(CLI::Range(1.0, 86400.0))
      ->capture_default_str();
  app.add_option("--allowed-host", h.allowed_hosts,
                 "Further host names under which clients may address this server (*: any)")
      ->delimiter(',');
  app.add_option("--tls-cert", h.tls_cert, "HTTPS: PEM file with the certificate chain");
  app.add_option("--tls-key", h.tls_key, "HTTPS: PEM file with the private key");
  app.add_option("--cors-origin", h.cors_origin, "Origin whose pages may call the API, or * (default: none)");
  app.add_flag_callback(
      "--no-ui", [&o] { o.serve.page = false; }, "Do not serve the page at /");
  app.add_option(
         "--page-origin", o.serve.page_origins,
         "Origins (http://127.0.0.1:3000) that the page at / may ask, too: MCP servers, servers to compare")
      ->delimiter(',')
      ->check(check_origin);
  app.add_option("--audit-log", h.audit_log,
                 "Append to FILE, as a JSON object a line, which client asked for what and what came of it");
  app.add_flag("--log-json", h.log_json, "Log requests as JSON objects, one a line");
  app.add_option(
         "--grace,--drain-timeout,--shutdown-timeout", o.grace,
         "Seconds that running requests have to finish after SIGTERM or Ctrl-C; new ones get status 503")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  app.add_option(
         "--drain-delay", o.drain_delay,
         "Seconds after SIGTERM in which requests are still served while /ready says 503 already, so that "
         "balancers turn away before any is refused; --grace comes after it")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  app.add_flag("--think,!--no-think", o.serve.think,
               "Let the model think before it answers, or not, unless a request says otherwise (default: as "
               "its chat template does)");
  app.add_option("--reasoning-budget", o.serve.reasoning_budget,
                 "Tokens of thought, where a request does not say (-1: no bound, 0: no thoughts)")
      ->check(CLI::Range(-1, 1 << 30))
      ->capture_default_str();
  app.add_option("--reasoning-budget-message", o.serve.reasoning_budget_message,
                 "Text that a thought ends with where its budget cuts it (default: none)");
}

}  // namespace

void add_serve(CLI::App& app) {
  auto o = std::make_shared<ServeOptions>();
  o->engine.sequences = 0;
  CLI::App* sub = app.add_subcommand(
      "serve", "Serve a chat page and the APIs of OpenAI, Anthropic, Ollama and llama.cpp");
  add_open_flags(*sub, o->open);
  sub->get_option("--model")->required(false);
  add_engine_flags(*sub, o->engine);
  add_server_flags(*sub, *o);
  add_sample_flags(*sub, o->sample);
  add_spec_flags(*sub, o->spec);
  add_tower_flags(*sub, o->eyes);
  add_media_host_flags(*sub, o->eyes);
  sub->callback([o, sub] {
    o->model_flags = given_model_flags(*sub);
    serve(*o);
  });
}

}  // namespace carat
