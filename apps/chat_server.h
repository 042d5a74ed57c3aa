// A server to ask: one that runs somewhere, or a child of this process that serves a file.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/server_address.h"

namespace carat {

class ChatServer {
 public:
  // url: with or without /v1. Error if it does not answer.
  static std::unique_ptr<ChatServer> at(const std::string& url, const std::string& key, std::string model,
                                        const std::vector<std::string>& headers = {});
  // Starts `carat serve -m FILE` with these further flags on a port of its own, and waits until it is ready.
  static std::unique_ptr<ChatServer> of_file(const std::string& file, const std::vector<std::string>& flags,
                                             double seconds = 600);
  ~ChatServer();  // ends the child
  ChatServer(const ChatServer&) = delete;
  ChatServer& operator=(const ChatServer&) = delete;

  const std::string& model() const { return model_; }
  // POST to PATH below /v1. Error with the server's words if it refuses.
  nlohmann::ordered_json post(const std::string& path, const nlohmann::ordered_json& body) const;
  nlohmann::ordered_json get(const std::string& path) const;  // null where there is none

 private:
  ChatServer() = default;
  ServerAddress address_;
  std::string key_, model_;
  std::vector<std::pair<std::string, std::string>> headers_;
  int child_ = -1;
};

}  // namespace carat
