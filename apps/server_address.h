// A server's address as it is typed, and what talking to one needs: carat run --url, gate --url, load.
#pragma once
#include <string>

namespace httplib {
class Client;
}

namespace carat {

struct ServerAddress {
  std::string host, base;  // http://HOST:PORT, and the path in front of /v1
};
// url: with or without a scheme and /v1.
ServerAddress server_address(std::string url);
// Error if the host is no address. key: empty for none.
httplib::Client client_of(const ServerAddress& address, const std::string& key);
// A refusal in the server's own words, else its status.
std::string refusal_of(int status, const std::string& body);
// The first model of /v1/models. Error if the server does not answer or refuses the key.
std::string served_model(const ServerAddress& address, const std::string& key);

}  // namespace carat
