// Which clients may use the server, under which name, and how often.
#pragma once
#include <chrono>
#include <cstdint>
#include <ctime>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace carat {

struct ApiKey {
  std::string name, key;  // the name is what logs say; "" for keys given without one
};

struct Client {
  std::string name;
  std::string secret;  // of its key alone, for salt_of(): whoever does not hold the key cannot know it
};

// The file's lines: "NAME KEY" or "KEY", '#' begins a comment. Error if a line has more, or a key comes
// twice.
std::vector<ApiKey> read_key_file(const std::string& path);

class KeyRing {
 public:
  // file: read again when it changes; "": none. per_minute: requests of a key, or of an address where no key
  // is needed; 0: any number.
  KeyRing(std::vector<std::string> keys, std::string file, double per_minute);
  bool needed() const { return needed_; }
  // The key's client (named "key 1" where the key has no name); nothing: it is none of ours. In a time that
  // does not tell how much of it was right.
  std::optional<Client> client_of(std::string_view given);
  // Seconds after which this client may ask again; 0: now.
  double wait_of(const std::string& client);
  // What keeps the cached texts of a client (its secret; "": of all) and of its own salt apart from others'
  // (Request::salt): never 0. A cryptographic hash: no salt of one client can be made to meet another's.
  static uint64_t salt_of(std::string_view secret, std::string_view own);

 private:
  void refresh();

  using Clock = std::chrono::steady_clock;
  struct Bucket {
    double left = 0;
    Clock::time_point at;
  };
  const std::vector<std::string> fixed_;
  const std::string file_;
  const double per_minute_;
  bool needed_ = false;
  std::mutex mutex_;
  std::vector<ApiKey> keys_;
  uint64_t stamp_ = UINT64_MAX;  // of the file
  Clock::time_point looked_{};
  std::map<std::string, Bucket> buckets_;
};

}  // namespace carat
