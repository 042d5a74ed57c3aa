// A conversation with a running server: carat run --url.
#pragma once
#include <functional>
#include <string>

#include "apps/open.h"
#include "apps/server_address.h"
#include "text/chat/chat.h"

namespace carat {

struct RemoteOptions {
  std::string url, key, model;  // model: empty takes what the server serves
};

struct RemoteAnswer {
  std::string content;
  Json timings;  // null if the server tells none
};

class RemoteChat {
 public:
  // Error if the server does not answer or refuses the key. Of `sample` what the command line said.
  RemoteChat(RemoteOptions options, const SampleFlags& sample, std::optional<bool> think);
  const std::string& model() const { return options_.model; }

  // Streams the answer; on_delta returns false to stop. Error with the server's own words if it refuses.
  RemoteAnswer ask(const Json& messages, const std::function<bool(const ChatDelta&)>& on_delta);

 private:
  RemoteOptions options_;
  ServerAddress address_;
  Json request_;  // all but the messages
};

}  // namespace carat
