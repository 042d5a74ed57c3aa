// Pictures by address: off unless the server's owner names hosts, and then from those alone.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace carat {

// Whether an address (IPv4 as four numbers, or IPv6) is of this machine or its network, not of the Internet:
// loopback, private, link-local, carrier-grade NAT, multicast, documentation, and IPv4 written as IPv6.
bool is_inside_address(std::string_view address);

class MediaHosts {
 public:
  struct Limits {
    size_t bytes = 20'000'000;  // of a file
    double seconds = 10;        // for all of it
  };
  // names: HOST or HOST:PORT, with commas between; without a port it is the scheme's own. A name's addresses
  // must be public ones; an address that is written as numbers is taken as it is. http: whether http: is
  // taken beside https:. Error if a name is none.
  MediaHosts(const std::string& names, bool http, Limits limits);
  MediaHosts(const std::string& names, bool http) : MediaHosts(names, http, Limits()) {}
  bool empty() const { return hosts_.empty(); }

  // The file at this address. No redirect is followed, no proxy asked, no password sent. Error if the host is
  // not named, or for what it answers.
  std::vector<uint8_t> load(const std::string& url) const;

 private:
  struct Host {
    std::string name;
    int port = -1;  // -1: the scheme's
  };
  bool named(std::string_view name, int port, int usual) const;
  std::string list() const;

  std::vector<Host> hosts_;
  bool http_ = false;
  Limits limits_;
};

}  // namespace carat
