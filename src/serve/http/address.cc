#include "serve/http/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/error.h"

namespace carat {
namespace {

bool parse_v4(std::string_view host, in_addr& out) {
  return host.size() < INET_ADDRSTRLEN && inet_pton(AF_INET, std::string(host).c_str(), &out) == 1;
}
bool parse_v6(std::string_view host, in6_addr& out) {
  return host.size() < INET6_ADDRSTRLEN && inet_pton(AF_INET6, std::string(host).c_str(), &out) == 1;
}

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
}

std::optional<int> parse_port(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port < 0 || port > 65535) return {};
  return port;
}

}  // namespace

bool is_address(std::string_view host) {
  in_addr v4;
  in6_addr v6;
  return parse_v4(host, v4) || parse_v6(host, v6);
}

HostName listening_address(int socket) {
  int listens = 0;
  socklen_t size = sizeof listens;
  sockaddr_storage at{};
  socklen_t length = sizeof at;
  if (::getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || !listens ||
      ::getsockname(socket, reinterpret_cast<sockaddr*>(&at), &length) != 0 ||
      (at.ss_family != AF_INET && at.ss_family != AF_INET6))
    throw Error("the socket that was handed over does not listen on TCP",
                "ListenStream=ADDRESS:PORT in the .socket unit");
  char name[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  ::getnameinfo(reinterpret_cast<sockaddr*>(&at), length, name, sizeof name, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
  return {name, std::atoi(port), true};
}

bool is_loopback(std::string_view host) {
  if (host == "localhost") return true;
  in_addr v4;
  if (parse_v4(host, v4)) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6;
  return parse_v6(host, v6) && IN6_IS_ADDR_LOOPBACK(&v6);
}

std::optional<HostName> parse_host(std::string_view host) {
  HostName out;
  std::string_view rest;
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    in6_addr v6;
    if (end == std::string_view::npos || !parse_v6(host.substr(1, end - 1), v6)) return {};
    out.name = host.substr(1, end - 1);
    rest = host.substr(end + 1);
  } else {
    const size_t end = std::min(host.find(':'), host.size());
    out.name = host.substr(0, end);
    rest = host.substr(end);
  }
  for (char& c : out.name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  out.is_address = is_address(out.name);
  if (out.name.empty() || out.name.size() > 253) return {};
  if (!out.is_address && !std::all_of(out.name.begin(), out.name.end(), is_name_char)) return {};
  if (rest.empty()) return out;
  if (rest == ":") return out;
  const auto port = parse_port(rest.substr(1));
  if (rest.front() != ':' || !port) return {};
  out.port = *port;
  return out;
}

}  // namespace carat
