// The HTTP server behind everything in serve/: listens, parses, answers, streams. Nothing here knows what is
// served. cpp-httplib parses and formats; sockets, connections and limits are ours, because version 0.11
// cannot tell a handler that its client has gone, bounds neither chunked bodies nor slow senders, and shares
// ports silently.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace carat {

struct HttpConfig {
  std::string host = "127.0.0.1";
  int port = 8080;                     // 0: any free one
  size_t max_body = size_t{32} << 20;  // bytes of a request
  int max_connections = 256;           // further ones wait to be accepted
  double read_seconds = 60;            // for a whole request to arrive
  double write_seconds = 30;           // for a client to take what is written
  double idle_seconds = 15;            // a connection may rest between requests
  // On a loopback address: names under which clients may ask for this server, beside localhost and addresses.
  // A page of another name that resolves to this machine is refused (DNS rebinding).
  std::vector<std::string> allowed_hosts;
  bool log_json = false;    // the log's lines about requests as JSON objects
  std::string cors_origin;  // Access-Control-Allow-Origin; empty: none, browsers' pages are kept out
};

struct HttpRequest {
  std::string method, path, body;
  std::string id;  // the client's X-Request-Id or one of ours; in the answer and the log
  std::map<std::string, std::string, std::less<>> headers;  // names in lower case
  std::map<std::string, std::string, std::less<>> query;    // behind the path's '?'
  std::function<bool()> gone;                               // whether the client has hung up
  std::string_view header(std::string_view name) const {
    const auto it = headers.find(name);
    return it == headers.end() ? std::string_view() : std::string_view(it->second);
  }
};

// Writes a piece of a streamed body; false: the client has gone, stop.
using HttpWrite = std::function<bool(std::string_view)>;

struct HttpResponse {
  int status = 200;
  std::string type = "application/json", body;
  std::map<std::string, std::string> headers;
  // If set, called once in the connection's thread to produce the body; if it throws, the body has no end.
  std::function<void(const HttpWrite&)> stream;
};

class HttpServer {
 public:
  using Handler = std::function<HttpResponse(const HttpRequest&)>;
  // Listens at once. Error if the address cannot be had, with what to do about it.
  explicit HttpServer(const HttpConfig& config);
  ~HttpServer();
  int port() const;
  void route(const std::string& method, const std::string& path, Handler handler);
  std::vector<std::pair<std::string, std::string>> routes() const;  // methods and paths
  // Runs before every handler; what it returns is sent instead.
  void before(std::function<std::unique_ptr<HttpResponse>(const HttpRequest&)> check);
  // Told of every answer: path ("" if no route) and status. The log has it already.
  void after(std::function<void(std::string_view path, int status)> observe);
  // The answer for 404, 405, 413, 400, foreign hosts and exceptions.
  void on_error(
      std::function<HttpResponse(int status, std::string_view message, std::string_view path)> make);
  void run();  // until stop(); then waits for open connections
  // From any thread. Takes no more work (POST gets 503), waits for what runs, grace_seconds at the most, and
  // stops. Returns when the server has been told to stop.
  void drain();
  void stop();  // from any thread, at once for new clients; requests that run see gone() after grace_seconds
  bool stopping() const;  // or draining
  double grace_seconds = 30;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat
