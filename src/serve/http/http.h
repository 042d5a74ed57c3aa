// The HTTP server behind everything in serve/: listens, parses, answers, streams. Nothing here knows what is
// served. One thread waits for all connections (Boost.Asio) and parses (Boost.Beast, behind stricter rules of
// ours); handlers run in threads that come as they are needed, and a stream that waits has none.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/stream.h"

namespace carat {

struct HttpConfig {
  std::string host = "127.0.0.1";
  int port = 8080;                     // 0: any free one
  size_t max_body = size_t{32} << 20;  // bytes of a request
  int max_connections = 16384;         // further ones may ask for health and metrics alone
  double read_seconds = 60;            // for a head to arrive, or some of a body
  double write_seconds = 30;           // for a client to take some of what is written
  double idle_seconds = 15;            // a connection may rest between requests
  double last_call_seconds = 1;        // and so long when the server ends
  // Names under which clients may ask for this server, beside localhost, the machine's and addresses; "*":
  // any. A page of another name that resolves to this machine is refused (DNS rebinding).
  std::vector<std::string> allowed_hosts;
  int listener = -1;  // a socket that listens already, another process's too; host and port are its address
  std::string tls_cert, tls_key;  // PEM files: HTTPS
  std::string audit_log;          // a file with a line a request (audit_log.h); empty: none
  bool log_json = false;          // the log's lines about requests as JSON objects
  std::string cors_origin;        // Access-Control-Allow-Origin; empty: none, browsers' pages are kept out
};

struct HttpRequest {
  std::string method, path, body;
  std::string target, remote;  // the path as it was sent, for logs; the client's address
  std::string client;          // its name, if before() knows one; in the log
  std::string secret;          // what before() knows of it beyond that; in no log
  std::string id;              // the client's X-Request-Id or one of ours; in the answer and the log
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
  // If set, called once for the body's coroutine, which outlives neither this nor `write`; if it throws, the
  // body has no end.
  std::function<HttpStream(const HttpWrite&)> stream;
};

// Said to work that comes too late.
inline constexpr std::string_view kTakesNoMore = "the server is ending and takes no new requests";

class HttpServer {
 public:
  using Handler = std::function<HttpResponse(const HttpRequest&)>;
  // Listens at once. Error if the address cannot be had, with what to do about it.
  explicit HttpServer(const HttpConfig& config);
  ~HttpServer();
  int port() const;
  // A part of the path in brackets stands for others: (\\d+) for a number, (.+) for all that follows,
  // anything else for one part. urgent: answered also when all connections are in use; never waits for other
  // handlers.
  void route(const std::string& method, const std::string& path, Handler handler, bool urgent = false);
  std::vector<std::pair<std::string, std::string>> routes() const;  // methods and paths
  // Runs before every handler, when the head is there (no body yet); what it returns is sent instead. Must
  // not wait.
  void before(std::function<std::unique_ptr<HttpResponse>(HttpRequest&)> check);
  // Told of every answer: path ("" if no route) and status. The log has it already.
  void after(std::function<void(std::string_view path, int status)> observe);
  // The answer for 404, 405, 413, 400, foreign hosts and exceptions.
  void on_error(
      std::function<HttpResponse(int status, std::string_view message, std::string_view path)> make);
  void run();  // until stop(); then waits for open connections
  // From any thread. For delay_seconds all goes on, but leaving() is true and each answer ends its
  // connection, so that balancers can turn away; then the port is closed, and what comes on the connections
  // that there are is served. Without a delay no more work is taken (POST gets 503). What runs is waited for,
  // grace_seconds at the most, and connections that rest are refused for a last second if something comes on
  // them after all: none is closed without an answer. Returns when the server has been told to stop.
  void drain();
  void stop();  // from any thread, at once for new clients; requests that run see gone() after grace_seconds
  bool leaving() const;   // new requests should go elsewhere
  bool stopping() const;  // and are not taken any more
  double grace_seconds = 30, delay_seconds = 0;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat
