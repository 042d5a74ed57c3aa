// From generated tokens to text that may be shown: whole characters, nothing of a stop string.
#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace carat {

// Passes text on up to the first stop string to be complete (of several that end at the same place, the
// longest). What could be the beginning of one is held back. The result does not depend on how the text is
// cut.
class StopFilter {
 public:
  // Empty strings are left out. include: the stop string itself is passed on.
  explicit StopFilter(std::vector<std::string> stops = {}, bool include = false);
  std::string push(std::string_view text);
  std::string finish();  // what was held back, if no stop string came
  bool stopped() const { return stopped_; }
  const std::string& matched() const { return matched_; }  // the stop string that came

 private:
  size_t hold(std::string_view text) const;  // length of the longest end of text that begins a stop string
  std::vector<std::string> stops_;           // longest first
  std::string held_, matched_;
  bool include_ = false, stopped_ = false;
};

// A streamed body that is never silent for long: clients and proxies give up on one that is, while a long
// prompt is read.
class Pulse {
 public:
  // word: what is said meanwhile, a comment or an event that changes nothing.
  Pulse(const std::function<bool(std::string_view)>& write, std::string word)
      : write_(write), word_(std::move(word)) {}
  bool write(std::string_view piece);  // false: the client has gone
  void beat();                         // says the word if nothing has been written for a while

 private:
  const std::function<bool(std::string_view)>& write_;
  const std::string word_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};
// A comment (WHATWG HTML, 9.2.6).
inline constexpr const char* kHeartbeat = ": still here\n\n";

// Server-sent events (WHATWG HTML, "Server-sent events").
std::string sse(std::string_view data);

}  // namespace carat
