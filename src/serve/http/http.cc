#include "serve/http/http.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "serve/http/connection.h"

namespace carat {
namespace {

constexpr size_t kHeaderBytes = size_t{256} << 10;  // request line and headers
constexpr size_t kMaxWaste = size_t{16} << 20;      // read of a request that was refused
constexpr int kBacklog = 512;
constexpr int kSendBuffer = 256 << 10;  // what a client that does not read may hold of the kernel's memory

std::string lower(std::string s) {
  for (char& c : s) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return s;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// A Host header without its port.
std::string_view host_name(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, std::min(host.find(']'), host.size()) - 1);
  return host.substr(0, host.find(':'));
}

// The client's own id if it is harmless in a log.
std::string request_id(std::string_view given) {
  const auto harmless = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  if (!given.empty() && given.size() <= 128 && std::all_of(given.begin(), given.end(), harmless))
    return std::string(given);
  static std::atomic<uint64_t> count{0};
  static const uint64_t start = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
  return fmt::format("req-{:012x}-{}", start & 0xFFFFFFFFFFFF, ++count);
}

// One line about a request on stderr: when it is answered, and for streams again when they end.
struct Answered {
  std::string id, method, path;
  int status = 0;
  double ms = 0;
  const char* stream = "";  // "begins", "ends", "cut"
};

void log_answer(const Answered& a, bool json) {
  if (!json) {
    log_info("{} {} {} {} {:.0f} ms{}{}", a.id, a.method, a.path, a.status, a.ms,
             *a.stream ? ", stream " : "", a.stream);
    return;
  }
  if (log_level() > LogLevel::info) return;
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  nlohmann::ordered_json line = {{"time", std::round(now * 1e3) / 1e3},
                                 {"level", "info"},
                                 {"id", a.id},
                                 {"method", a.method},
                                 {"path", a.path},
                                 {"status", a.status},
                                 {"ms", std::round(a.ms * 10) / 10}};
  if (*a.stream) line["stream"] = a.stream;
  const std::string text = line.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
}

double ms_since(Clock::time_point t) {
  return std::chrono::duration<double, std::milli>(Clock::now() - t).count();
}

// A request for work, as long as it is not answered to its end.
class Work {
 public:
  explicit Work(std::atomic<int>& count) : count_(count) { ++count_; }
  ~Work() { --count_; }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

 private:
  std::atomic<int>& count_;
};

// Who is being served by this thread: handlers have no other way to reach their connection.
thread_local SocketStream* t_stream = nullptr;
// The request was not read to its end, so the connection cannot go on.
thread_local bool t_unread = false;

}  // namespace

struct HttpServer::Impl : httplib::Server {
  explicit Impl(const HttpConfig& c) : config(c) {}
  ~Impl() override {
    const socket_t s = svr_sock_.exchange(INVALID_SOCKET);
    if (s != INVALID_SOCKET) ::close(s);
  }

  HttpConfig config;
  int port = 0;
  std::function<std::unique_ptr<HttpResponse>(const HttpRequest&)> check;
  std::function<void(std::string_view, int)> observe;
  std::function<HttpResponse(int, std::string_view, std::string_view)> make_error;
  std::set<std::string> paths;
  std::vector<std::pair<std::string, std::string>> routes;
  std::atomic<bool> stopping{false}, draining{false}, entered{false}, left{false};
  std::atomic<int> working{0};  // requests for work that are not answered to the end
  CutOff cut_off;

  void bind();
  void end();
  bool process_and_close_socket(socket_t socket) override;
  bool wait_for_request(SocketStream& stream) const;
  bool gone(const SocketStream& stream) const { return stream.gone() || cut_off.passed(); }
  void set_cut_off(double seconds) {
    cut_off.set(Clock::now() +
                std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
  }
  HttpRequest convert(const httplib::Request& in) const;
  void handle(const httplib::Request& in, httplib::Response& out, const std::string& path,
              const HttpServer::Handler& handler);
  void answer(httplib::Response& out, HttpResponse response) const;
  HttpResponse error(int status, std::string_view message, std::string_view path) const;
  bool knows_host(const HttpRequest& r) const;
  bool knows_origin(const HttpRequest& r) const;
};

void HttpServer::Impl::bind() {
  // Not SO_REUSEPORT, which lets two servers share a port and each get some of the requests.
  set_socket_options([](socket_t s) {
    const int yes = 1;
    ::setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  set_tcp_nodelay(true);
  new_task_queue = [this] {
    return new Connections(static_cast<size_t>(config.max_connections), config.idle_seconds);
  };
  set_payload_max_length(config.max_body);
  set_keep_alive_timeout(static_cast<time_t>(config.idle_seconds));  // what the header tells the client
  set_keep_alive_max_count(100'000);
  errno = 0;
  const bool any = config.port == 0;
  port = any ? bind_to_any_port(config.host) : bind_to_port(config.host, config.port) ? config.port : -1;
  if (port <= 0) {
    const int err = errno;
    std::string hint = "check --host and --port";
    if (err == EADDRINUSE)
      hint = fmt::format("another server runs there: stop it, or choose another port with --port {}",
                         config.port + 1);
    if (err == EACCES) hint = "ports below 1024 need privileges: choose another with --port";
    if (err == EADDRNOTAVAIL) hint = "--host must be an address of this machine; 0.0.0.0 is all of them";
    throw Error(fmt::format("cannot listen on {}:{}: {}", config.host, config.port,
                            err ? std::strerror(err) : "unknown host"),
                hint);
  }
  ::listen(svr_sock_, kBacklog);  // the library asks for 5
}

// Between requests: until data, the end of the connection, the idle limit or the server's end.
bool HttpServer::Impl::wait_for_request(SocketStream& stream) const {
  if (stream.buffered()) return !stopping;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(config.idle_seconds));
  while (!stopping && Clock::now() < end) {
    const auto tick = std::min(end, Clock::now() + std::chrono::milliseconds(100));
    if (wait_socket(stream.socket(), POLLIN, tick)) return !stream.gone();
  }
  return false;
}

bool HttpServer::Impl::process_and_close_socket(socket_t socket) {
  ::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof kSendBuffer);
  const auto stream = std::make_unique<SocketStream>(socket, config.write_seconds, cut_off);
  t_stream = stream.get();
  bool ok = true;
  while (ok && wait_for_request(*stream)) {
    stream->start_request(config.read_seconds, config.max_body + kHeaderBytes);
    bool closed = false;
    t_unread = false;
    ok = process_request(*stream, stopping || draining, closed, [](httplib::Request& r) {
      // Not for us: ranges, compression (a small body may inflate without bound), forms (curl's default type
      // has a limit of its own).
      r.ranges.clear();
      for (const char* name : {"Accept-Encoding", "Content-Encoding", "Content-Type", "Range"})
        r.headers.erase(name);
    });
    ok = ok && !closed && !t_unread;
  }
  t_stream = nullptr;
  ::shutdown(socket, SHUT_WR);
  // What the client still sends is read for a moment: closing at once would reset the connection and could
  // destroy an answer (413, say) before it is read.
  char waste[16384];
  const auto linger = Clock::now() + std::chrono::seconds(1);
  for (size_t wasted = 0; !ok && wasted < kMaxWaste && wait_socket(socket, POLLIN, linger);) {
    const ssize_t n = ::recv(socket, waste, sizeof waste, MSG_DONTWAIT);
    if (n <= 0) break;
    wasted += static_cast<size_t>(n);
  }
  ::close(socket);
  return ok;
}

HttpRequest HttpServer::Impl::convert(const httplib::Request& in) const {
  HttpRequest r;
  r.method = in.method;
  r.path = in.path;
  r.body = in.body;
  for (const auto& [name, value] : in.headers) r.headers.emplace(lower(name), value);
  for (const auto& [name, value] : in.params) r.query.emplace(name, value);
  r.id = request_id(r.header("x-request-id"));
  r.gone = [this, stream = t_stream] { return gone(*stream); };
  return r;
}

// Pages whose name was made to resolve to this machine send their own name here.
bool HttpServer::Impl::knows_host(const HttpRequest& r) const {
  if (!is_loopback(config.host)) return true;
  const std::string host = lower(std::string(host_name(r.header("host"))));
  return host.empty() || is_loopback(host) || host == lower(config.host) ||
         std::find(config.allowed_hosts.begin(), config.allowed_hosts.end(), host) !=
             config.allowed_hosts.end();
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

void HttpServer::Impl::answer(httplib::Response& out, HttpResponse response) const {
  out.status = response.status;
  for (const auto& [name, value] : response.headers) out.set_header(name, value);
  if (!config.cors_origin.empty()) out.set_header("Access-Control-Allow-Origin", config.cors_origin);
  if (!response.stream) {
    out.set_content(response.body, response.type);
    return;
  }
  const auto produce = [stream = std::move(response.stream)](size_t, httplib::DataSink& sink) {
    bool alive = true;
    try {
      stream([&](std::string_view piece) {
        alive = alive && (piece.empty() || sink.write(piece.data(), piece.size()));
        return alive;
      });
    } catch (const std::exception&) {  // is in the log; a body without its end tells the client
      alive = false;
    }
    if (alive) sink.done();
    return alive;
  };
  out.set_header("Cache-Control", "no-cache");
  out.set_chunked_content_provider(response.type, produce);
}

void HttpServer::Impl::handle(const httplib::Request& in, httplib::Response& out, const std::string& path,
                              const HttpServer::Handler& handler) {
  HttpResponse response;
  const HttpRequest request = convert(in);
  const auto began = Clock::now();
  const auto work = in.method == "POST" ? std::make_shared<Work>(working) : nullptr;
  try {
    std::unique_ptr<HttpResponse> instead = check ? check(request) : nullptr;
    if (!knows_host(request))
      response = error(
          403, "this server does not go by the name in the Host header (--allowed-host adds names)", path);
    else if (!knows_origin(request))
      response = error(403, "pages of other origins are kept out (--cors-origin lets one in)", path);
    else if (work && draining)
      response = error(503, "the server is ending and takes no new requests", path);
    else
      response = instead ? std::move(*instead) : handler(request);
  } catch (const std::exception& e) {
    log_error("{} {} {}: {}", request.id, in.method, in.path, e.what());
    response = error(500, e.what(), path);
  }
  response.headers.emplace("X-Request-Id", request.id);
  if (observe) observe(path, response.status);
  Answered said{request.id,      in.method,       in.path,
                response.status, ms_since(began), response.stream ? "begins" : ""};
  log_answer(said, config.log_json);
  if (response.stream)
    response.stream = [said, began, work, json = config.log_json,
                       stream = std::move(response.stream)](const HttpWrite& write) {
      bool whole = true;
      const auto log_end = [&] {
        Answered end = said;
        end.ms = ms_since(began);
        end.stream = whole ? "ends" : "cut";
        log_answer(end, json);
      };
      try {
        stream([&](std::string_view piece) { return whole = write(piece); });
      } catch (const std::exception& e) {
        log_error("{} {} {}: {}", said.id, said.method, said.path, e.what());
        whole = false;
        log_end();
        throw;
      }
      log_end();
    };
  answer(out, std::move(response));
}

HttpServer::HttpServer(const HttpConfig& config) : impl_(std::make_unique<Impl>(config)) {
  Impl& s = *impl_;
  s.bind();
  s.set_error_handler(
      httplib::Server::HandlerWithResponse([&s](const httplib::Request& in, httplib::Response& out) {
        // A handler's own error has its body already.
        if (!out.body.empty() || out.content_provider_) return httplib::Server::HandlerResponse::Unhandled;
        int status = out.status;
        t_unread = status != 404;
        const bool known = s.paths.count(in.path) > 0;
        if (status == 404 && known) status = 405;
        if (t_unread) out.set_header("Connection", "close");
        std::string message = fmt::format("the request could not be read (status {})", status);
        if (status == 404) message = fmt::format("no such endpoint: {} {}", in.method, in.path);
        if (status == 405) message = fmt::format("{} does not take {}", in.path, in.method);
        if (status == 413) message = fmt::format("the body is larger than {} bytes", s.config.max_body);
        if (s.observe) s.observe(known ? in.path : "", status);
        s.answer(out, s.error(status, message, in.path));
        return httplib::Server::HandlerResponse::Handled;
      }));
  if (!config.cors_origin.empty())
    s.Options(".*", [&s](const httplib::Request&, httplib::Response& out) {
      HttpResponse r;
      r.status = 204;
      r.headers = {{"Access-Control-Allow-Methods", "GET, POST"},
                   {"Access-Control-Allow-Headers", "Authorization, Content-Type"}};
      s.answer(out, std::move(r));
    });
}
HttpServer::~HttpServer() = default;

int HttpServer::port() const { return impl_->port; }

void HttpServer::route(const std::string& method, const std::string& path, Handler handler) {
  Impl& s = *impl_;
  s.paths.insert(path);
  s.routes.emplace_back(method, path);
  const auto call = [&s, path, handler = std::move(handler)](const httplib::Request& in,
                                                             httplib::Response& out) {
    s.handle(in, out, path, handler);
  };
  std::string pattern;  // a dot is a dot
  for (const char c : path) pattern += c == '.' ? std::string("\\.") : std::string(1, c);
  if (method == "GET")
    s.Get(pattern, call);
  else if (method == "POST")
    s.Post(pattern, call);
  else
    CARAT_CHECK(false, "{}", method);
}

std::vector<std::pair<std::string, std::string>> HttpServer::routes() const { return impl_->routes; }
void HttpServer::before(std::function<std::unique_ptr<HttpResponse>(const HttpRequest&)> check) {
  impl_->check = std::move(check);
}
void HttpServer::after(std::function<void(std::string_view, int)> observe) {
  impl_->observe = std::move(observe);
}
void HttpServer::on_error(std::function<HttpResponse(int, std::string_view, std::string_view)> make) {
  impl_->make_error = std::move(make);
}

void HttpServer::run() {
  impl_->entered = true;
  if (!impl_->stopping) impl_->listen_after_bind();
  impl_->left = true;
}

bool HttpServer::stopping() const { return impl_->stopping || impl_->draining; }

void HttpServer::drain() {
  impl_->set_cut_off(grace_seconds);
  impl_->draining = true;
  while (impl_->working > 0 && !impl_->cut_off.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  impl_->set_cut_off(0);
  impl_->end();
}

void HttpServer::stop() {
  impl_->set_cut_off(grace_seconds);
  impl_->end();
}

void HttpServer::Impl::end() {
  stopping = true;
  // The library forgets a stop() that comes before it listens.
  while (entered && !left && !is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  httplib::Server::stop();
}

}  // namespace carat
