// A bare connection, for what a polite client library does not do.
#pragma once
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cstdint>

#include <string>
#include <utility>

namespace carat::test {

class RawClient {
 public:
  // receive: bytes of the buffer for what comes, 0 for the usual.
  explicit RawClient(int port, int receive = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive, sizeof receive);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<uint16_t>(port));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(socket_, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0);
    const timeval patience{20, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  ~RawClient() { close(); }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  void half_close() { ::shutdown(socket_, SHUT_WR); }
  bool send(const std::string& text) {
    return ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  void post(const std::string& path, const std::string& body) {
    send(fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}", path, body.size(),
                     body));
  }
  // Until `text` has come or the connection ends.
  std::string read_until(const std::string& text) {
    std::string got;
    char buffer[4096];
    while (got.find(text) == std::string::npos) {
      const ssize_t n = ::recv(socket_, buffer, sizeof buffer, 0);
      if (n <= 0) break;
      got.append(buffer, static_cast<size_t>(n));
    }
    return got;
  }

 private:
  int socket_;
};

}  // namespace carat::test
