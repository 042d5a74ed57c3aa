// call:NAME{key:value,...} to JSON. Values: <|"|>text<|"|> with nothing escaped inside, numbers, true, false,
// null, [..], {..}.
#include <algorithm>
#include <cctype>

#include "text/chat/gemma.h"

namespace carat {
namespace {

constexpr std::string_view kQuote = "<|\"|>", kSpace = " \t\r\n";
constexpr int kMaxDepth = 100;

struct NoCall {};

std::string_view trim(std::string_view s) {
  const size_t begin = s.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return s.substr(begin, s.find_last_not_of(kSpace) + 1 - begin);
}

class CallReader {
 public:
  explicit CallReader(std::string_view text) : s_(text) {}

  GemmaCall run() {
    s_ = trim(s_);
    if (s_.starts_with("call:")) s_.remove_prefix(5);
    const size_t brace = s_.find('{');
    GemmaCall out;
    out.name = trim(s_.substr(0, brace));
    const auto named = [](unsigned char c) {
      return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == ':' || c == '/' || c >= 0x80;
    };
    if (out.name.empty() || !std::all_of(out.name.begin(), out.name.end(), named)) throw NoCall{};
    out.arguments = Json::object();
    if (brace == std::string_view::npos) return out;
    at_ = brace;
    out.arguments = object();
    return out;
  }

 private:
  char now() const { return at_ < s_.size() ? s_[at_] : '\0'; }
  bool at_end() const { return at_ >= s_.size(); }
  void space() { at_ = std::min(s_.find_first_not_of(kSpace, at_), s_.size()); }
  bool take(char c) {
    space();
    if (now() != c || at_end()) return false;
    ++at_;
    return true;
  }
  bool at_quote() const { return s_.substr(at_).starts_with(kQuote); }

  // After the opening <|"|>. One that is never closed ends before the brackets that close what is open around
  // it.
  std::string text() {
    at_ += kQuote.size();
    const size_t end = s_.find(kQuote, at_);
    std::string_view out = s_.substr(at_, end == std::string_view::npos ? end : end - at_);
    at_ = end == std::string_view::npos ? s_.size() : end + kQuote.size();
    if (end == std::string_view::npos) {
      for (auto open = open_.rbegin(); open != open_.rend(); ++open) {
        const size_t close = out.find_last_not_of(kSpace);
        if (close == std::string_view::npos || out[close] != *open) break;
        out = out.substr(0, close);
      }
    }
    return std::string(out);
  }

  // "text" with JSON's escapes, or 'text'.
  std::string quoted(char quote) {
    const size_t begin = at_;
    size_t end = at_ + 1;
    while (end < s_.size() && s_[end] != quote) end += s_[end] == '\\' ? 2 : 1;
    end = std::min(end, s_.size());
    const std::string_view inner = s_.substr(begin + 1, end - begin - 1);
    at_ = std::min(end + 1, s_.size());
    if (quote == '"') {
      const Json parsed = Json::parse("\"" + std::string(inner) + "\"", nullptr, false);
      if (parsed.is_string()) return parsed.get<std::string>();
    }
    std::string out;
    for (size_t i = 0; i < inner.size(); ++i) {
      if (inner[i] == '\\' && i + 1 < inner.size() && (inner[i + 1] == quote || inner[i + 1] == '\\')) ++i;
      out += inner[i];
    }
    return out;
  }

  // A key with its colon; nothing (and no step) if none stands here.
  std::optional<std::string> key() {
    space();
    const size_t before = at_;
    std::string out;
    if (at_quote()) {
      out = text();
    } else if (now() == '"' || now() == '\'') {
      out = quoted(now());
    } else {
      const size_t end = s_.find_first_of(":,{}[]", at_);
      out = trim(s_.substr(at_, end == std::string_view::npos ? end : end - at_));
      at_ = std::min(end, s_.size());
    }
    if (take(':')) return out;
    at_ = before;
    return {};
  }

  static Json bare(std::string_view word) {
    if (word == "null" || word == "None" || word.empty()) return nullptr;
    if (word == "true" || word == "True") return true;
    if (word == "false" || word == "False") return false;
    if (word[0] == '-' || (word[0] >= '0' && word[0] <= '9')) {
      Json number = Json::parse(word, nullptr, false);
      if (number.is_number()) return number;
    }
    return std::string(word);
  }

  Json value() {
    space();
    if (at_quote()) return text();
    switch (now()) {
      case '{': return object();
      case '[': return array();
      case '"':
      case '\'': return quoted(now());
      default: break;
    }
    const size_t end = std::min(s_.find_first_of(",}]", at_), s_.size());
    const std::string_view word = trim(s_.substr(at_, end - at_));
    at_ = end;
    return bare(word);
  }

  void enter(char close) {
    if (open_.size() >= kMaxDepth) throw NoCall{};
    ++at_;
    open_ += close;
  }
  // What follows a value: true to go on after a comma, false at the end of the object or list (or of the
  // text).
  bool more(char close) {
    for (;;) {
      space();
      if (at_end() || take(close)) return false;
      if (take(',')) return true;
      if (now() == '}' || now() == ']') return false;  // the own bracket is missing
      ++at_;                                           // stray text
    }
  }

  Json object() {
    enter('}');
    Json out = Json::object();
    std::string last;
    for (bool go = !take('}'); go;) {
      space();
      if (at_end() || take('}')) break;
      if (const auto name = key()) {
        last = *name;
        out[last] = value();
      } else if (!out.empty() && out[last].is_string()) {  // an unquoted text with a comma in it
        const size_t end = std::min(s_.find_first_of(",}", at_), s_.size());
        out[last].get_ref<std::string&>() += ", " + std::string(trim(s_.substr(at_, end - at_)));
        at_ = end;
      }
      go = more('}');
    }
    open_.pop_back();
    return out;
  }

  Json array() {
    enter(']');
    Json out = Json::array();
    for (bool go = !take(']'); go;) {
      space();
      if (at_end() || take(']')) break;
      out.push_back(value());
      go = more(']');
    }
    open_.pop_back();
    return out;
  }

  std::string_view s_;
  size_t at_ = 0;
  std::string open_;  // closing brackets that are due
};

}  // namespace

std::optional<GemmaCall> parse_gemma4_call(std::string_view text) {
  try {
    return CallReader(text).run();
  } catch (const NoCall&) {
    return {};
  }
}

}  // namespace carat
