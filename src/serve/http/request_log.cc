#include "serve/http/request_log.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/log.h"

namespace carat {

std::string request_id(std::string_view given) {
  const auto harmless = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  if (!given.empty() && given.size() <= 128 && std::all_of(given.begin(), given.end(), harmless))
    return std::string(given);
  static std::atomic<uint64_t> count{0};
  static const auto start =
      static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  return fmt::format("req-{:012x}-{}", start & 0xFFFFFFFFFFFF, ++count);
}

std::string json_line(const Answered& a) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  nlohmann::ordered_json line = {{"time", std::round(now * 1e3) / 1e3},
                                 {"level", "info"},
                                 {"id", a.id},
                                 {"method", a.method},
                                 {"path", a.path},
                                 {"status", a.status},
                                 {"ms", std::round(a.ms * 10) / 10}};
  if (!a.client.empty()) line["client"] = a.client;
  if (!a.address.empty()) line["address"] = a.address;
  if (*a.stream) line["stream"] = a.stream;
  return line.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void log_answer(const Answered& a, bool json) {
  if (log_level() > LogLevel::info) return;
  if (!json) {
    log_info("{} {} {} {} {:.0f} ms{}{}{}{}", a.id, a.method, a.path, a.status, a.ms,
             *a.stream ? ", stream " : "", a.stream, a.client.empty() ? "" : ", ", a.client);
    return;
  }
  const std::string text = json_line(a);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace carat
