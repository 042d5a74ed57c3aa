#include "serve/promotion_state.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/file.h"

namespace carat {
namespace {

constexpr const char* kSchema = "carat.promotion";
constexpr size_t kMostHistory = 1000, kMaxFile = size_t{64} << 20;

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

double parse_number(const std::string& text, const std::string& of) {
  char* end = nullptr;
  const double v = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || v < 0) throw Error(fmt::format("'{}' is no number ({})", text, of));
  return v;
}

}  // namespace

double parse_share(const std::string& text) {
  const bool percent = text.ends_with('%');
  const double v =
      parse_number(percent ? text.substr(0, text.size() - 1) : text, "a share") / (percent ? 100.0 : 1.0);
  if (v > 1) throw Error(fmt::format("'{}' is more than all", text), "5% or 0.05, say");
  return v;
}

RollbackRules parse_rules(const std::string& text) {
  RollbackRules r;
  if (text == "none") {
    r.errors = 1, r.speed = 0;
    return r;
  }
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    const size_t eq = part.find('=');
    const std::string name = part.substr(0, eq), value = eq == part.npos ? "" : part.substr(eq + 1);
    if (name == "errors")
      r.errors = parse_share(value);
    else if (name == "speed")
      r.speed = parse_share(value);
    else if (name == "requests")
      r.requests = static_cast<int>(parse_number(value, name));
    else if (name == "minutes")
      r.minutes = parse_number(value, name);
    else
      throw Error(fmt::format("'{}' is no rule of --rollback-on", part),
                  "errors=5%,speed=50%,requests=20,minutes=60 are the defaults; none: it never goes back");
  }
  return r;
}

const Version* PromotionState::find(int id) const {
  for (const Version& v : versions)
    if (v.id == id && id != 0) return &v;
  return nullptr;
}

int PromotionState::add(std::vector<std::string> flags) {
  versions.push_back({next, std::move(flags)});
  return next++;
}

void PromotionState::note(const char* event, int version, const std::string& why) {
  Json line = {{"time", now_text()}, {"event", event}, {"version", version}};
  if (!why.empty()) line["why"] = why;
  history.push_back(std::move(line));
  if (history.size() > kMostHistory) history.erase(history.begin());
}

Json PromotionState::json() const {
  Json all = Json::array();
  for (const Version& v : versions) all.push_back({{"id", v.id}, {"flags", v.flags}});
  return {{"schema", kSchema},
          {"version", 1},
          {"next", next},
          {"serving", serving},
          {"fallback", fallback},
          {"candidate", candidate},
          {"command_line", command_line},
          {"canary", canary},
          {"shadow", shadow},
          {"rollback_on",
           {{"errors", rules.errors},
            {"speed", rules.speed},
            {"requests", rules.requests},
            {"minutes", rules.minutes}}},
          {"speed_before", speed_before},
          {"promoted", promoted},
          {"versions", all},
          {"history", history}};
}

PromotionState PromotionState::parse(const Json& j) {
  PromotionState s;
  try {
    if (j.at("schema") != kSchema || j.at("version") != 1) throw Error("another schema");
    s.next = j.at("next"), s.serving = j.at("serving"), s.fallback = j.at("fallback");
    s.candidate = j.at("candidate"), s.canary = j.at("canary"), s.shadow = j.at("shadow");
    s.command_line = j.at("command_line").get<std::vector<std::string>>();
    const Json& r = j.at("rollback_on");
    s.rules = {r.at("errors"), r.at("speed"), r.at("requests"), r.at("minutes")};
    s.speed_before = j.at("speed_before"), s.promoted = j.at("promoted");
    for (const Json& v : j.at("versions"))
      s.versions.push_back({v.at("id"), v.at("flags").get<std::vector<std::string>>()});
    s.history = j.at("history");
    if (!s.history.is_array() || (s.serving != 0 && !s.find(s.serving))) throw Error("a version is missing");
  } catch (const Json::exception& e) {
    throw Error(fmt::format("no state of promotions: {}", e.what()));
  }
  return s;
}

PromotionStore::PromotionStore(std::string directory) : directory_(std::move(directory)) {
  std::error_code failed;
  std::filesystem::create_directories(directory_, failed);
  lock_ = ::open((directory_ + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0)
    throw Error(fmt::format("'{}' is no directory that can be written", directory_),
                "choose another --promotions");
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock_);
    throw Error(fmt::format("another server keeps its versions in '{}'", directory_),
                "give each server a directory of its own");
  }
}

PromotionStore::~PromotionStore() { ::close(lock_); }

PromotionState PromotionStore::load() const {
  const std::string path = directory_ + "/state.json";
  if (!std::filesystem::exists(path)) return {};
  try {
    return PromotionState::parse(Json::parse(read_file(path, kMaxFile), nullptr, false));
  } catch (const Error& e) {
    throw Error(fmt::format("'{}': {}", path, e.what()), "mend it, or remove it to begin anew");
  }
}

void PromotionStore::save(const PromotionState& state) const {
  AtomicFile file(directory_ + "/state.json");
  file.write(state.json().dump(1) + "\n");
  file.commit();
}

void PromotionStore::save_server(const std::string& url, const std::string& key) const {
  AtomicFile file(directory_ + "/server.json", true);
  file.write(Json{{"url", url}, {"key", key}}.dump() + "\n");
  file.commit();
}

PromotionServer promotion_server(const std::string& directory) {
  const std::string path = directory + "/server.json";
  if (!std::filesystem::exists(path))
    throw Error(
        fmt::format("no server keeps its versions in '{}'", directory),
        "start it with `carat serve -m FILE --promotions DIR`, and give the same directory with --dir");
  const Json j = Json::parse(read_file(path, kMaxFile), nullptr, false);
  if (!j.is_object()) throw Error(fmt::format("'{}' is broken", path), "start the server again");
  return {j.value("url", ""), j.value("key", "")};
}

}  // namespace carat
