#include "apps/media_hosts.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <sstream>

#include "apps/curl.h"
#include "base/error.h"
#include "serve/http/address.h"

namespace carat {
namespace {

struct Range {
  const char* network;
  int bits;
};
// RFC 6890 and its successors.
constexpr Range kInside4[] = {
    {"0.0.0.0", 8},     {"10.0.0.0", 8},      {"100.64.0.0", 10},  {"127.0.0.0", 8},    {"169.254.0.0", 16},
    {"172.16.0.0", 12}, {"192.0.0.0", 24},    {"192.0.2.0", 24},   {"192.88.99.0", 24}, {"192.168.0.0", 16},
    {"198.18.0.0", 15}, {"198.51.100.0", 24}, {"203.0.113.0", 24}, {"224.0.0.0", 4},    {"240.0.0.0", 4}};
// Of IPv6 all but 2000::/3 is inside, and of that what carries IPv4 or is none of anybody.
constexpr Range kInside6[] = {{"2001::", 23}, {"2001:db8::", 32}, {"2002::", 16}, {"3fff::", 20}};

template <size_t N>
bool within(const std::array<uint8_t, N>& a, const std::array<uint8_t, N>& network, int bits) {
  for (int i = 0; i < bits; ++i)
    if ((a[static_cast<size_t>(i / 8)] ^ network[static_cast<size_t>(i / 8)]) >> (7 - i % 8) & 1)
      return false;
  return true;
}
template <size_t N>
bool parse(int family, const char* text, std::array<uint8_t, N>& out) {
  return ::inet_pton(family, text, out.data()) == 1;
}

struct UrlDelete {
  void operator()(CURLU* u) const { curl_url_cleanup(u); }
};
using Url = std::unique_ptr<CURLU, UrlDelete>;

std::string part_of(CURLU* url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, flags) != CURLUE_OK || !text) return {};
  std::string out(text);
  curl_free(text);
  return out;
}

struct Loading {
  size_t most = 0;
  std::vector<uint8_t> bytes;
  bool too_long = false, inside = false;  // the host has no public address
  bool any_address = false;
};

size_t on_bytes(char* data, size_t, size_t n, void* user) {
  auto& l = *static_cast<Loading*>(user);
  if (l.bytes.size() + n > l.most) return l.too_long = true, 0;
  l.bytes.insert(l.bytes.end(), data, data + n);
  return n;
}

// What is about to be connected is what was looked up: a name cannot mean another address a moment later.
curl_socket_t on_socket(void* user, curlsocktype purpose, curl_sockaddr* a) {
  auto& l = *static_cast<Loading*>(user);
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* from = a->family == AF_INET
                         ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(&a->addr)->sin_addr)
                         : &reinterpret_cast<const sockaddr_in6*>(&a->addr)->sin6_addr;
  const bool known = (a->family == AF_INET || a->family == AF_INET6) && purpose == CURLSOCKTYPE_IPCXN &&
                     ::inet_ntop(a->family, from, text.data(), text.size());
  if (!known || (!l.any_address && is_inside_address(text.data()))) return l.inside = true, CURL_SOCKET_BAD;
  return ::socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

std::string shown(const std::string& url) { return url.size() > 200 ? url.substr(0, 200) + "..." : url; }

// The answer's status; 0: there is none, for a reason that `l` has.
long get(const std::string& url, double seconds, Loading& l) {
  const Curl curl = new_curl();
  const auto set = [&](CURLoption option, auto value) { curl_easy_setopt(curl.get(), option, value); };
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_PROXY, "");
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(seconds * 1000));
  set(CURLOPT_USERAGENT, "carat");
  set(CURLOPT_WRITEFUNCTION, on_bytes);
  set(CURLOPT_WRITEDATA, &l);
  set(CURLOPT_OPENSOCKETFUNCTION, on_socket);
  set(CURLOPT_OPENSOCKETDATA, &l);
  const CURLcode code = curl_easy_perform(curl.get());
  long status = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
  if (code == CURLE_OK) return status;
  if (l.too_long || l.inside) return 0;
  if (code == CURLE_OPERATION_TIMEDOUT)
    throw Error(fmt::format("'{}' does not come within {:g} s", shown(url), seconds),
                "send the picture's bytes");
  throw Error(fmt::format("'{}' cannot be loaded: {}", shown(url), curl_easy_strerror(code)));
}

}  // namespace

bool is_inside_address(std::string_view address) {
  const std::string text(address);
  std::array<uint8_t, 4> v4{};
  if (parse(AF_INET, text.c_str(), v4))
    return std::any_of(std::begin(kInside4), std::end(kInside4), [&](const Range& r) {
      std::array<uint8_t, 4> network{};
      return parse(AF_INET, r.network, network) && within(v4, network, r.bits);
    });
  std::array<uint8_t, 16> v6{};
  if (!parse(AF_INET6, text.c_str(), v6) || v6[0] >> 5 != 1) return true;
  return std::any_of(std::begin(kInside6), std::end(kInside6), [&](const Range& r) {
    std::array<uint8_t, 16> network{};
    return parse(AF_INET6, r.network, network) && within(v6, network, r.bits);
  });
}

MediaHosts::MediaHosts(const std::string& names, bool http, Limits limits) : http_(http), limits_(limits) {
  std::istringstream in(names);
  for (std::string text; std::getline(in, text, ',');) {
    if (text.empty()) continue;
    const auto host = parse_host(text);
    if (!host || host->name.empty())
      throw Error(fmt::format("--media-hosts: '{}' names no host", text),
                  "HOST or HOST:PORT, with commas between: images.example.org,10.0.0.7:8443");
    hosts_.push_back({host->name, host->port});
  }
}

bool MediaHosts::named(std::string_view name, int port, int usual) const {
  return std::any_of(hosts_.begin(), hosts_.end(),
                     [&](const Host& h) { return h.name == name && (h.port < 0 ? usual : h.port) == port; });
}

std::string MediaHosts::list() const {
  std::string out;
  for (const Host& h : hosts_)
    out +=
        fmt::format("{}{}{}", out.empty() ? "" : ", ", h.name, h.port < 0 ? "" : fmt::format(":{}", h.port));
  return out;
}

std::vector<uint8_t> MediaHosts::load(const std::string& url) const {
  // The parser that connects decides what the host is.
  const Url parsed(curl_url());
  if (!parsed || curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK)
    throw Error(fmt::format("'{}' is no address", shown(url)));
  const std::string scheme = part_of(parsed.get(), CURLUPART_SCHEME);
  std::string host = part_of(parsed.get(), CURLUPART_HOST);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  std::transform(host.begin(), host.end(), host.begin(),
                 [](char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
  const int port = std::atoi(part_of(parsed.get(), CURLUPART_PORT, CURLU_DEFAULT_PORT).c_str());
  if (scheme != "https" && !(http_ && scheme == "http"))
    throw Error(fmt::format("'{}' is not loaded: its scheme is not https:", shown(url)),
                scheme == "http" ? "the server's --media-http permits http:" : "");
  if (!part_of(parsed.get(), CURLUPART_USER).empty() || !part_of(parsed.get(), CURLUPART_PASSWORD).empty())
    throw Error(fmt::format("'{}' is not loaded: it has a user's name in it", shown(url)));
  if (!named(host, port, scheme == "https" ? 443 : 80))
    throw Error(
        fmt::format("{}:{} is not among the hosts that pictures are loaded from: {}", host, port, list()),
        "the server's --media-hosts names them");
  const std::string whole = part_of(parsed.get(), CURLUPART_URL);
  Loading l;
  l.most = limits_.bytes;
  l.any_address = is_address(host);
  const long status = get(part_of(parsed.get(), CURLUPART_URL), limits_.seconds, l);
  if (l.inside)
    throw Error(fmt::format("{} has no public address, so nothing is loaded from it", host),
                "if it is meant: --media-hosts with its address in numbers");
  if (l.too_long)
    throw Error(fmt::format("'{}' is larger than the {} MB that a picture may have", shown(url),
                            limits_.bytes / 1'000'000));
  if (status >= 300 && status < 400)
    throw Error(fmt::format("'{}' answers {}: redirects are not followed", shown(url), status),
                "give the address that it leads to");
  if (status != 200) throw Error(fmt::format("'{}' answers {}", shown(url), status));
  return std::move(l.bytes);
}

}  // namespace carat
