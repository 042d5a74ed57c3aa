// The event loop below HttpServer: sockets, TLS, parsing, timeouts and room for connections. One thread runs
// it; it knows no routes. Boost.Beast parses and Boost.Asio waits, behind loop.cc alone.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "serve/http/http.h"

namespace carat {

using Clock = std::chrono::steady_clock;

constexpr size_t kStreamAhead = size_t{256} << 10;  // bytes of a stream that may wait for its client

// When a server that ends waits for no client any more. Any thread.
class CutOff {
 public:
  void set(Clock::time_point t) { at_ = t.time_since_epoch().count(); }
  void set_in(double seconds) {
    set(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
  }
  Clock::time_point get() const { return Clock::time_point(Clock::duration(at_)); }
  bool passed() const { return Clock::now() > get(); }

 private:
  std::atomic<Clock::rep> at_{Clock::time_point::max().time_since_epoch().count()};
};

// One request and its answer. Any thread.
class Exchange {
 public:
  virtual ~Exchange() = default;
  HttpRequest request;
  std::shared_ptr<void> of_server;  // what the server keeps with it

  virtual bool gone() const = 0;                     // the client has hung up
  virtual void send(HttpResponse response) = 0;      // all of the answer
  virtual void begin(const HttpResponse& head) = 0;  // of an answer that comes bit by bit
  virtual bool write(std::string_view piece) = 0;    // false: the client has gone
  virtual void end(bool whole) = 0;                  // not whole: the body gets no end
  virtual void abandon() noexcept = 0;               // no memory to answer: the connection ends
  virtual size_t unsent() const = 0;                 // bytes that wait for the client
  // Called when the client goes, when what waits has been sent, and every few seconds.
  virtual void on_wake(std::function<void()> wake) = 0;
};

// What is decided when a request's head is here.
struct Verdict {
  std::unique_ptr<HttpResponse> refusal;  // the answer already: its body is not wanted
  size_t max_body = 0;
  bool urgent = false;  // may use the connections that are kept free
};

struct TransportHooks {  // in the loop's thread; none may wait
  std::function<Verdict(HttpRequest& head)> admit;
  std::function<void(std::shared_ptr<Exchange>)> serve;
  // A refusal's answer: of admit() or of what could not be read (then with what is known of it).
  std::function<void(const HttpRequest& request, HttpResponse& refusal)> refused;
  std::function<HttpResponse(int status, std::string_view message, std::string_view path)> error;
  std::function<void(size_t connections)> tick;  // every tenth of a second
};

class Transport {
 public:
  // Listens at once, or Error.
  Transport(const HttpConfig& config, TransportHooks hooks, const CutOff& cut_off);
  ~Transport();
  int port() const;
  void run();  // until stop() and the end of all connections
  // Any thread. Answers say that their connection ends.
  void close_after_answers();
  // Any thread. A listener of another process, too, is left to that process; own: ours alone is closed as
  // well.
  void leave_queue(bool own);
  // Any thread. No new connections; each ends with its answer, those that rest after the last call.
  void stop(double last_call_seconds);
  int arriving() const;  // requests of which a part is here, a tenth of a second ago

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat
