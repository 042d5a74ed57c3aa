#include "serve/http/http.h"

#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "serve/http/address.h"
#include "serve/http/audit_log.h"
#include "serve/http/crowd.h"
#include "serve/http/framing.h"
#include "serve/http/request_log.h"
#include "serve/http/route.h"
#include "serve/http/run_stream.h"

namespace carat {
namespace {

// Whole answers wait in a thread each for the engine, whose queue is bounded (Workers::Waits); streams wait
// in none.
constexpr size_t kBusyHandlers = 32, kMostHandlers = 1024;

const auto kStreamThreads = static_cast<size_t>(std::max(2, available_cpus()));

constexpr std::chrono::seconds kArrival{2};  // a request that is on its way when no more work is taken

double ms_since(Clock::time_point t) {
  return std::chrono::duration<double, std::milli>(Clock::now() - t).count();
}

std::string own_name() {
  char name[256] = "";
  if (::gethostname(name, sizeof name - 1) != 0) return {};
  const auto parsed = parse_host(name);
  return parsed ? parsed->name : std::string();
}

// A request for work, as long as it is not answered to its end. The engine's thread may let go of the last
// one after the server has gone, so the count is shared.
using Count = std::shared_ptr<std::atomic<int>>;
class Work {
 public:
  explicit Work(Count count) : count_(std::move(count)) { ++*count_; }
  ~Work() { --*count_; }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

 private:
  Count count_;
};

struct Served {
  const Route* route = nullptr;
  std::shared_ptr<Work> work;
  Clock::time_point began = Clock::now();
};

}  // namespace

struct HttpServer::Impl {
  explicit Impl(const HttpConfig& c)
      : config(c),
        handlers(kBusyHandlers, kMostHandlers, c.idle_seconds),
        urgent(2, 2, c.idle_seconds),
        streams(kStreamThreads, kStreamThreads, c.idle_seconds),
        transport(c,
                  {[this](HttpRequest& head) { return admit(head); },
                   [this](std::shared_ptr<Exchange> e) { serve(std::move(e)); },
                   [this](const HttpRequest& r, HttpResponse& refusal) { refused(r, refusal); },
                   [this](int status, std::string_view message, std::string_view path) {
                     return error(status, message, path);
                   },
                   [this](size_t clients) { tick(clients); }},
                  cut_off) {}

  const HttpConfig config;
  const std::string own = own_name();
  const std::unique_ptr<AuditLog> audit =
      config.audit_log.empty() ? nullptr : std::make_unique<AuditLog>(config.audit_log);
  std::function<std::unique_ptr<HttpResponse>(HttpRequest&)> check;
  std::function<void(std::string_view, int)> observe;
  std::function<HttpResponse(int, std::string_view, std::string_view)> make_error;
  std::vector<Route> routes;
  std::atomic<bool> stopping{false}, draining{false}, leaving{false};
  const Count working =
      std::make_shared<std::atomic<int>>(0);  // requests for work that are not answered to the end
  CutOff cut_off;
  Crowd crowd;  // the loop's thread
  Workers handlers, urgent, streams;
  Transport transport;

  void tick(size_t clients);
  Verdict admit(HttpRequest& r);
  std::unique_ptr<HttpResponse> refusal_of(HttpRequest& r, const Route* route) const;
  HttpResponse preflight(const HttpRequest& r) const;
  void refused(const HttpRequest& r, HttpResponse& refusal) const;
  void say(const Answered& said, bool machines) const;
  void serve(std::shared_ptr<Exchange> e);
  void handle(const std::shared_ptr<Exchange>& e);
  void dress(const HttpRequest& r, HttpResponse& response) const;
  void stream(const std::shared_ptr<Exchange>& e, HttpResponse response, Answered said);
  HttpResponse error(int status, std::string_view message, std::string_view path) const;
  bool knows_host(const HttpRequest& r) const;
  bool knows_origin(const HttpRequest& r) const;
  const Route* find(const HttpRequest& r) const;
};

void HttpServer::Impl::tick(size_t clients) {
  const auto now = Clock::now();
  handlers.look(now);
  if (crowd.has_gone(clients, now)) handlers.add([] { ::malloc_trim(0); });
}

// Pages whose name was made to resolve to this machine send their own name here.
bool HttpServer::Impl::knows_host(const HttpRequest& r) const {
  const auto host = parse_host(r.header("host"));
  if (!host) return false;
  const auto allowed = [&](std::string_view name) {
    return std::find(config.allowed_hosts.begin(), config.allowed_hosts.end(), name) !=
           config.allowed_hosts.end();
  };
  if (is_loopback(host->name) || allowed(host->name) || allowed("*")) return true;
  const auto bound =
      parse_host(config.host.find(':') == std::string::npos ? config.host : "[" + config.host + "]");
  if (bound && host->name == bound->name) return true;
  if (is_loopback(config.host)) return false;
  return host->is_address || host->name == own || host->name.starts_with(own + ".");
}

// Browsers send a page's requests also where they will not show it the answer: a page of elsewhere may not
// even ask.
bool HttpServer::Impl::knows_origin(const HttpRequest& r) const {
  const std::string_view origin = r.header("origin");
  if (origin.empty() || config.cors_origin == "*" || origin == config.cors_origin) return true;
  const size_t at = origin.find("://");
  return at != std::string_view::npos && origin.substr(at + 3) == r.header("host");
}

HttpResponse HttpServer::Impl::error(int status, std::string_view message, std::string_view path) const {
  if (make_error) return make_error(status, message, path);
  HttpResponse r;
  r.status = status;
  r.type = "text/plain";
  r.body = message;
  return r;
}

const Route* HttpServer::Impl::find(const HttpRequest& r) const {
  for (const Route& route : routes)
    if ((route.method == r.method || (route.method == "GET" && r.method == "HEAD")) && route.matches(r.path))
      return &route;
  return nullptr;
}

HttpResponse HttpServer::Impl::preflight(const HttpRequest& r) const {
  HttpResponse out;
  out.status = 204;
  std::string_view headers = r.header("access-control-request-headers");
  if (headers.empty()) headers = "Authorization, Content-Type, X-Api-Key";
  out.headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE"},
                 {"Access-Control-Allow-Headers", std::string(headers)},
                 {"Access-Control-Max-Age", "600"}};
  return out;
}

std::unique_ptr<HttpResponse> HttpServer::Impl::refusal_of(HttpRequest& r, const Route* route) const {
  const auto refuse = [&](int status, std::string_view message) {
    return std::make_unique<HttpResponse>(error(status, message, r.path));
  };
  if (!r.header("host").empty() && !parse_host(r.header("host")))
    return refuse(400, "the Host header is no name of a server");
  if (r.headers.contains("host") && !knows_host(r))
    return refuse(403, "this server does not go by the name in the Host header (--allowed-host adds names)");
  if (r.method == "OPTIONS" && !config.cors_origin.empty())
    return std::make_unique<HttpResponse>(preflight(r));
  if (!route) {
    std::set<std::string> methods;
    for (const Route& other : routes)
      if (other.matches(r.path)) methods.insert(other.method);
    if (methods.empty()) return refuse(404, fmt::format("no such endpoint: {} {}", r.method, r.target));
    if (methods.contains("GET")) methods.insert("HEAD");
    auto out = refuse(405, fmt::format("{} does not take {}", r.target, r.method));
    out->headers["Allow"] = fmt::format("{}", fmt::join(methods, ", "));
    return out;
  }
  if (!knows_origin(r)) return refuse(403, "pages of other origins are kept out (--cors-origin lets one in)");
  if (auto instead = check ? check(r) : nullptr) return instead;
  if (r.method == "POST" && draining) return refuse(503, kTakesNoMore);
  return nullptr;
}

Verdict HttpServer::Impl::admit(HttpRequest& r) {
  r.id = request_id(r.header("x-request-id"));
  const Route* route = find(r);
  Verdict v;
  v.refusal = refusal_of(r, route);
  v.max_body = r.method == "POST" ? config.max_body : kMaxIdleBody;
  v.urgent = route && route->urgent;
  return v;
}

void HttpServer::Impl::dress(const HttpRequest& r, HttpResponse& response) const {
  if (!r.id.empty()) response.headers.emplace("X-Request-Id", r.id);
  if (!config.cors_origin.empty()) {
    response.headers["Access-Control-Allow-Origin"] = config.cors_origin;
    response.headers["Access-Control-Expose-Headers"] = "X-Request-Id, Retry-After";
  }
}

void HttpServer::Impl::refused(const HttpRequest& r, HttpResponse& refusal) const {
  dress(r, refusal);
  const Route* route = find(r);
  if (observe) observe(route ? route->path : "", refusal.status);
  say({r.id.empty() ? "-" : r.id, r.method.empty() ? "-" : r.method.substr(0, 16),
       r.target.empty() ? "-" : r.target.substr(0, 256), r.client, r.remote, refusal.status, 0, ""},
      false);
}

// machines': of those that ask for health and metrics all day.
void HttpServer::Impl::say(const Answered& said, bool machines) const {
  log_answer(said, config.log_json);
  if (audit && !machines) audit->write(said);
}

void HttpServer::Impl::serve(std::shared_ptr<Exchange> e) {
  auto served = std::make_shared<Served>();
  served->route = find(e->request);
  if (e->request.method == "POST") served->work = std::make_shared<Work>(working);
  const bool now = served->route->urgent;
  e->of_server = std::move(served);
  (now ? urgent : handlers).add([this, e = std::move(e)] {
    try {
      handle(e);
    } catch (const std::bad_alloc&) {
      e->abandon();
    }
  });
}

void HttpServer::Impl::handle(const std::shared_ptr<Exchange>& e) {
  const auto served = std::static_pointer_cast<Served>(e->of_server);
  const HttpRequest& r = e->request;
  HttpResponse response;
  try {
    response = served->route->handler(r);
  } catch (const std::exception& failed) {
    log_error("{} {} {}: {}", r.id, r.method, r.target, failed.what());
    response = error(500, failed.what(), r.path);
  }
  dress(r, response);
  if (observe) observe(served->route->path, response.status);
  Answered said{r.id,     r.method,        r.target.substr(0, 256), r.client,
                r.remote, response.status, ms_since(served->began), response.stream ? "begins" : ""};
  say(said, served->route->urgent && response.status < 400);
  if (!response.stream) return e->send(std::move(response));
  stream(e, std::move(response), std::move(said));
}

void HttpServer::Impl::stream(const std::shared_ptr<Exchange>& e, HttpResponse response, Answered said) {
  const auto served = std::static_pointer_cast<Served>(e->of_server);
  const auto done = [this, said = std::move(said), served](bool whole, const std::exception* error) mutable {
    if (error) log_error("{} {} {}: {}", said.id, said.method, said.path, error->what());
    said.ms = ms_since(served->began);
    said.stream = whole ? "ends" : "cut";
    say(said, false);
  };
  std::make_shared<RunningStream>(e, std::move(response), streams, done)->start();
}

HttpServer::HttpServer(const HttpConfig& config) : impl_(std::make_unique<Impl>(config)) {}
HttpServer::~HttpServer() = default;

int HttpServer::port() const { return impl_->transport.port(); }

void HttpServer::route(const std::string& method, const std::string& path, Handler handler, bool urgent) {
  CARAT_CHECK(method == "GET" || method == "POST" || method == "DELETE", "{}", method);
  impl_->routes.push_back({method, path, std::move(handler), urgent});
}

std::vector<std::pair<std::string, std::string>> HttpServer::routes() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const Route& r : impl_->routes) out.emplace_back(r.method, r.path);
  return out;
}
void HttpServer::before(std::function<std::unique_ptr<HttpResponse>(HttpRequest&)> check) {
  impl_->check = std::move(check);
}
void HttpServer::after(std::function<void(std::string_view, int)> observe) {
  impl_->observe = std::move(observe);
}
void HttpServer::on_error(std::function<HttpResponse(int, std::string_view, std::string_view)> make) {
  impl_->make_error = std::move(make);
}

void HttpServer::run() {
  impl_->transport.run();
  impl_->streams.shutdown();
  impl_->handlers.shutdown();
  impl_->urgent.shutdown();
}

bool HttpServer::leaving() const { return impl_->leaving || stopping(); }
bool HttpServer::stopping() const { return impl_->stopping || impl_->draining; }

void HttpServer::drain() {
  constexpr std::chrono::milliseconds kLook{10};
  impl_->leaving = true;
  impl_->transport.close_after_answers();
  CutOff delay;
  for (delay.set_in(delay_seconds); !delay.passed() && !impl_->stopping;) std::this_thread::sleep_for(kLook);
  impl_->cut_off.set_in(grace_seconds);
  const double last_call = impl_->config.last_call_seconds;
  // Where balancers had time to turn away, none but those without checks still comes: a closed port sends it
  // elsewhere, a 503 would reach its client. What is connected already is served until nothing more comes.
  const bool closes = delay_seconds > 0;
  if (!closes) impl_->draining = true;
  impl_->transport.leave_queue(closes);
  const auto arrives_until = Clock::now() + kArrival;
  CutOff quiet;
  quiet.set_in(closes ? last_call : 0);
  const auto busy = [&] {
    if (*impl_->working == 0 && (impl_->transport.arriving() == 0 || Clock::now() >= arrives_until))
      return !quiet.passed() && !impl_->stopping;
    if (closes) quiet.set_in(last_call);
    return true;
  };
  while (busy() && !impl_->cut_off.passed()) std::this_thread::sleep_for(kLook);
  impl_->draining = true;
  if (!impl_->cut_off.passed()) impl_->cut_off.set_in(last_call);  // only late ones are left
  impl_->stopping = true;
  impl_->transport.stop(last_call);
}

void HttpServer::stop() {
  impl_->cut_off.set_in(grace_seconds);
  impl_->stopping = true;
  impl_->transport.stop(0);
}

}  // namespace carat
