#include "text/tokenizer/added.h"

#include "base/error.h"
#include "text/tokenizer/split.h"
#include "text/tokenizer/unicode.h"

namespace carat {
namespace {

constexpr size_t kMaxLength = 512;  // bytes; bounds the time per position

// The last character, U+FFFD if it is ill-formed.
Utf8Step step_back(std::string_view s) {
  for (size_t n = std::min<size_t>(4, s.size()); n > 0; --n) {
    const Utf8Step step = utf8_step(s.substr(s.size() - n));
    if (step.valid && step.bytes == n) return step;
  }
  return {0xFFFD, 1, false, false};
}

bool word_at_end(std::string_view s) { return !s.empty() && is_word_character(step_back(s).value); }
bool word_at_start(std::string_view s) { return !s.empty() && is_word_character(utf8_step(s).value); }

size_t spaces_at_end(std::string_view s) {
  const size_t size = s.size();
  while (!s.empty()) {
    const Utf8Step step = step_back(s);
    if (!step.valid || !is_white_space(step.value)) break;
    s.remove_suffix(step.bytes);
  }
  return size - s.size();
}

size_t spaces_at_start(std::string_view s) {
  size_t n = 0;
  for (Utf8Step step = utf8_step(s); step.valid && is_white_space(step.value);
       step = utf8_step(s.substr(n))) {
    n += step.bytes;
  }
  return n;
}

}  // namespace

AddedTokens::AddedTokens() : nodes_(1) {}

void AddedTokens::add(std::string_view text, const AddedTokenRule& rule) {
  if (text.empty()) return;
  if (text.size() > kMaxLength) {
    throw Error(fmt::format("The added token \"{:.40}...\" is longer than {} bytes", text, kMaxLength),
                "The tokenizer data is damaged.");
  }
  uint32_t at = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    uint32_t next = at == 0 ? first_[byte] : nodes_[at].child;
    while (next != 0 && nodes_[next].byte != byte) next = nodes_[next].sibling;
    if (next == 0) {
      next = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({0, at == 0 ? 0 : nodes_[at].child, -1, byte});
      (at == 0 ? first_[byte] : nodes_[at].child) = next;
    }
    at = next;
  }
  nodes_[at].rule = static_cast<int32_t>(rules_.size());  // of equal texts the later
  rules_.push_back(rule);
}

int32_t AddedTokens::longest(std::string_view text, size_t& length) const {
  int32_t rule = -1;
  uint32_t at = first_[static_cast<uint8_t>(text[0])];
  for (size_t i = 0; at != 0;) {
    if (nodes_[at].rule >= 0) {
      rule = nodes_[at].rule;
      length = i + 1;
    }
    if (++i == text.size()) break;
    const auto byte = static_cast<uint8_t>(text[i]);
    at = nodes_[at].child;
    while (at != 0 && nodes_[at].byte != byte) at = nodes_[at].sibling;
  }
  return rule;
}

std::vector<TextSpan> AddedTokens::split(std::string_view text) const {
  std::vector<TextSpan> spans;
  size_t begin = 0;  // of the text not yet in a span
  for (size_t pos = 0; pos < text.size() && !empty();) {
    size_t length = 0;
    const int32_t found = longest(text.substr(pos), length);
    if (found < 0) {
      ++pos;
      continue;
    }
    const AddedTokenRule& rule = rules_[found];
    size_t start = pos, stop = pos + length;
    pos = stop;
    if (rule.single_word && (word_at_end(text.substr(0, start)) || word_at_start(text.substr(stop))))
      continue;
    if (rule.lstrip) start -= spaces_at_end(text.substr(begin, start - begin));
    if (rule.rstrip) stop += spaces_at_start(text.substr(stop));
    if (start > begin) spans.push_back({text.substr(begin, start - begin), -1});
    spans.push_back({text.substr(start, stop - start), rule.id});
    begin = pos = stop;
  }
  if (begin < text.size()) spans.push_back({text.substr(begin), -1});
  return spans;
}

}  // namespace carat
