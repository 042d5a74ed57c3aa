#include "serve/api/stream.h"

#include <algorithm>
#include <utility>

namespace carat {

StopFilter::StopFilter(std::vector<std::string> stops, bool include)
    : stops_(std::move(stops)), include_(include) {
  std::erase_if(stops_, [](const std::string& s) { return s.empty(); });
  std::stable_sort(stops_.begin(), stops_.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
}

std::string StopFilter::push(std::string_view text) {
  if (stopped_) return {};
  if (stops_.empty()) return std::string(text);
  const size_t known = held_.size();
  held_ += text;
  for (size_t end = known + 1; end <= held_.size(); ++end) {
    const std::string_view seen(held_.data(), end);
    for (const std::string& stop : stops_) {
      if (!seen.ends_with(stop)) continue;
      stopped_ = true;
      matched_ = stop;
      held_.resize(include_ ? end : end - stop.size());
      return std::move(held_);
    }
  }
  const size_t keep = hold(held_);
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopFilter::finish() { return stopped_ ? std::string() : std::exchange(held_, {}); }

size_t StopFilter::hold(std::string_view text) const {
  size_t longest = 0;
  for (const std::string& stop : stops_)
    for (size_t n = std::min(stop.size() - 1, text.size()); n > longest; --n)
      if (text.ends_with(std::string_view(stop).substr(0, n))) longest = n;
  return longest;
}

bool Pulse::write(std::string_view piece) {
  if (!piece.empty()) last_ = std::chrono::steady_clock::now();
  return write_(piece);
}

void Pulse::beat() {
  constexpr std::chrono::seconds kQuiet{2};
  if (std::chrono::steady_clock::now() - last_ >= kQuiet) write(word_);
}

std::string sse(std::string_view data) {
  std::string out = "data: ";
  out += data;
  out += "\n\n";
  return out;
}

}  // namespace carat
