// Names and addresses in Host headers and --host.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace carat {

// A Host header's parts (RFC 9110, 7.2): the name in lower case, an IPv6 address without its brackets.
struct HostName {
  std::string name;
  int port = -1;  // -1: not given
  bool is_address = false;
};
std::optional<HostName> parse_host(std::string_view host);  // nothing: it is none

// Where a socket listens that was opened before this program (by systemd). Error if it does not listen on
// TCP.
HostName listening_address(int socket);

bool is_address(std::string_view host);   // IPv4 as four numbers, or IPv6
bool is_loopback(std::string_view host);  // localhost, 127.0.0.0/8 as four numbers, ::1

}  // namespace carat
