#include "apps/server_address.h"

#include <fmt/format.h>
#include <httplib.h>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace carat {

using Json = nlohmann::ordered_json;

ServerAddress server_address(std::string url) {
  if (url.find("://") == std::string::npos) url.insert(0, "http://");
  while (url.ends_with('/')) url.pop_back();
  if (url.ends_with("/v1")) url.resize(url.size() - 3);
  const size_t path = url.find('/', url.find("://") + 3);
  return {url.substr(0, path), path == std::string::npos ? "" : url.substr(path)};
}

httplib::Client client_of(const ServerAddress& address, const std::string& key) {
  httplib::Client c(address.host);
  if (!c.is_valid())
    throw Error(fmt::format("'{}' is no address of a server", address.host), "http://127.0.0.1:8080, say");
  c.set_connection_timeout(10);
  c.set_read_timeout(3600);
  if (!key.empty()) c.set_bearer_token_auth(key);
  return c;
}

std::string refusal_of(int status, const std::string& body) {
  const Json j = Json::parse(body, nullptr, false);
  const Json::json_pointer message("/error/message");
  if (j.is_object() && j.contains(message) && j[message].is_string()) return j[message].get<std::string>();
  return fmt::format("status {}", status);
}

std::string served_model(const ServerAddress& address, const std::string& key) {
  const auto r = client_of(address, key).Get(address.base + "/v1/models");
  if (!r)
    throw Error(fmt::format("{} does not answer: {}", address.host, httplib::to_string(r.error())),
                "is the server running? (carat serve)");
  if (r->status != 200)
    throw Error(fmt::format("{}: {}", address.host, refusal_of(r->status, r->body)),
                r->status == 401 ? "give the key with --api-key" : "");
  const Json list = Json::parse(r->body, nullptr, false);
  const Json::json_pointer id("/data/0/id");
  return list.is_object() && list.contains(id) && list[id].is_string() ? list[id].get<std::string>() : "";
}

}  // namespace carat
