#include "serve/config.h"

#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "base/error.h"
#include "base/file.h"

namespace carat {

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

std::optional<int> handed_listener() {
  constexpr int kFirst = 3;
  const auto pid = environment("LISTEN_PID"), count = environment("LISTEN_FDS");
  if (!pid || !count || *pid != std::to_string(::getpid()) || *count == "0") return {};
  if (*count != "1")
    throw Error("LISTEN_FDS=" + *count + ": systemd hands over several sockets",
                "one ListenStream= in the .socket unit is what this server takes");
  return kFirst;
}

std::vector<std::string> read_api_keys(const std::string& list, const std::string& file) {
  std::vector<std::string> keys;
  const auto take = [&](const std::string& text, char separator) {
    std::istringstream in(text);
    for (std::string key; std::getline(in, key, separator);) {
      constexpr const char* kSpace = " \t\r";
      const size_t from = key.find_first_not_of(kSpace);
      if (from != std::string::npos)
        keys.push_back(key.substr(from, key.find_last_not_of(kSpace) - from + 1));
    }
  };
  take(list, ',');
  if (!list.empty() && keys.empty())
    throw Error("--api-key holds no key", "give one, or several with commas between");
  if (!file.empty()) {
    take(read_file(file, size_t{1} << 20), '\n');
    if (keys.empty()) throw Error("'" + file + "' holds no key", "write one key per line");
  }
  return keys;
}

}  // namespace carat
