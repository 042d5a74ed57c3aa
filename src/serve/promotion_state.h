// Which version of a model serves, which one stands by and which one is tried, as a directory keeps it: one
// file, written beside it and renamed, so that a process killed at any moment leaves what was or what is.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "text/chat/chat.h"

namespace carat {

// A model, its drafter and settings: flags of `carat serve`.
struct Version {
  int id = 0;
  std::vector<std::string> flags;
};

// When a version goes back by itself: shares of 1, of that many requests at least.
struct RollbackRules {
  double errors = 0.05;  // more answers than these fail; 1: never for that
  double speed = 0.5;    // slower than this share of the version before; 0: never for that
  int requests = 20;
  double minutes = 60;  // that a promoted version is watched
};
// "errors=5%,speed=80%,requests=50,minutes=10", or "none". Error if it is neither.
RollbackRules parse_rules(const std::string& text);
// "5%" or "0.05". Error if it is no share of 1.
double parse_share(const std::string& text);

struct PromotionState {
  int next = 1;
  int serving = 0, fallback = 0, candidate = 0;  // ids of versions; 0: none
  std::vector<std::string> command_line;         // flags that the server was started with
  double canary = 0;                             // share of conversations that the candidate answers
  bool shadow = false;                           // it answers copies of requests; its answers go to no client
  RollbackRules rules;
  double speed_before = 0;  // tokens a second of the version before, while it served
  int64_t promoted = 0;     // when; seconds since 1970
  std::vector<Version> versions;
  Json history = Json::array();  // {"time", "event", "version", "why"}

  const Version* find(int id) const;
  int add(std::vector<std::string> flags);  // its id
  void note(const char* event, int version, const std::string& why = {});
  Json json() const;
  static PromotionState parse(const Json& j);  // Error if it is none
};

class PromotionStore {
 public:
  // Makes the directory and takes it for this process. Error if another one has it.
  explicit PromotionStore(std::string directory);
  ~PromotionStore();
  PromotionStore(const PromotionStore&) = delete;
  PromotionStore& operator=(const PromotionStore&) = delete;
  PromotionState load() const;  // an empty one where none was kept
  void save(const PromotionState& state) const;
  // For `carat promote`, which looks there for this server.
  void save_server(const std::string& url, const std::string& key) const;

 private:
  const std::string directory_;
  int lock_ = -1;
};

// What save_server() wrote. Error if no server did.
struct PromotionServer {
  std::string url, key;
};
PromotionServer promotion_server(const std::string& directory);

}  // namespace carat
