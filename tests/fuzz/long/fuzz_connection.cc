// The whole HTTP layer, over sockets: whatever a client sends, in whatever pieces, each answer is whole,
// there are never more than requests, the same bytes in other pieces get the same, and others go on being
// served.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/log.h"
#include "serve/http/http.h"

using namespace carat;

namespace {

HttpStream some_stream(const HttpWrite& write) {
  for (int i = 0; i < 3; ++i) write("data: x\n\n");
  co_return;
}

struct Served {
  HttpServer server{config()};
  static HttpConfig config() {
    set_log_level(LogLevel::off);
    HttpConfig c;
    c.port = 0;
    c.max_body = 1 << 16;
    c.read_seconds = c.idle_seconds = 0.2;
    return c;
  }
  Served() {
    server.route(
        "GET", "/health", [](const HttpRequest&) { return HttpResponse{}; }, true);
    server.route("POST", "/echo", [](const HttpRequest& r) {
      HttpResponse out;
      out.body = r.body;
      return out;
    });
    server.route("POST", "/stream", [](const HttpRequest&) {
      HttpResponse out;
      out.stream = some_stream;
      return out;
    });
    std::thread([this] { server.run(); }).detach();
  }
};

// Statuses of all answers to these bytes, sent in two pieces.
std::vector<int> ask(int port, std::string_view bytes, size_t first) {
  const int s = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<uint16_t>(port));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  while (::connect(s, reinterpret_cast<sockaddr*>(&a), sizeof a) != 0) {
    if (errno != EADDRNOTAVAIL) std::abort();  // so many closed lately that no port is left: some come back
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const timeval patience{5, 0};
  ::setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  const auto send = [&](std::string_view part) {
    while (!part.empty()) {
      const ssize_t n = ::send(s, part.data(), part.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      part.remove_prefix(static_cast<size_t>(n));
    }
  };
  send(bytes.substr(0, first));
  if (first < bytes.size()) std::this_thread::yield();
  send(bytes.substr(first));
  ::shutdown(s, SHUT_WR);
  std::string got;
  char buffer[16384];
  for (ssize_t n; (n = ::recv(s, buffer, sizeof buffer, 0)) != 0;) {
    if (n < 0 && errno == ECONNRESET) break;  // closed while more was coming
    if (n < 0) std::abort();                  // nothing for five seconds: it hangs
    got.append(buffer, static_cast<size_t>(n));
  }
  ::close(s);
  std::vector<int> out;
  constexpr std::string_view kLine = "HTTP/1.1 ";
  for (size_t at = 0; (at = got.find(kLine, at)) != std::string::npos; at += kLine.size())
    if (at == 0 || got[at - 1] == '\n' || got[at - 1] == '}')
      out.push_back(std::atoi(got.c_str() + at + kLine.size()));
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Served& served = *new Served;  // its threads live as long as the process
  static unsigned count = 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (size > (1 << 17)) return 0;
  if (bytes.find("HTTP/1.1 ") != std::string_view::npos && bytes.find("/echo") != std::string_view::npos)
    return 0;
  const int port = served.server.port();
  const auto whole = ask(port, bytes, size);
  size_t ends = 0;  // no request is shorter than its last empty line
  for (size_t at = 0; (at = bytes.find('\n', at)) != std::string_view::npos; ++at) ++ends;
  if (whole.size() > ends + 1) std::abort();
  const auto cut = ask(port, bytes, size == 0 ? 0 : data[size / 2] % (size + 1));
  if (cut != whole) {
    // What came before a reset may be lost with it; but no answer is another one.
    for (size_t i = 0; i < std::min(cut.size(), whole.size()); ++i)
      if (cut[i] != whole[i]) std::abort();
  }
  if (++count % 64 == 0 &&
      ask(port, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 40) != std::vector{200})
    std::abort();
  return 0;
}
