// From generated tokens to text that may be shown: whole characters, nothing of a stop string.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace carat {

// Passes text on up to the first stop string to be complete (of several that end at the same place, the
// longest). What could be the beginning of one is held back. The result does not depend on how the text is
// cut.
class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stops = {});  // empty strings are left out
  std::string push(std::string_view text);
  std::string finish();  // what was held back, if no stop string came
  bool stopped() const { return stopped_; }
  const std::string& matched() const { return matched_; }  // the stop string that came

 private:
  size_t hold(std::string_view text) const;  // length of the longest end of text that begins a stop string
  std::vector<std::string> stops_;           // longest first
  std::string held_, matched_;
  bool stopped_ = false;
};

// Server-sent events (WHATWG HTML, "Server-sent events").
std::string sse(std::string_view data);

}  // namespace carat
