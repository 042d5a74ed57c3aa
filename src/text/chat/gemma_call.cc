#include "text/chat/gemma_call.h"

#include <algorithm>
#include <cctype>

#include "text/chat/marks.h"

namespace carat {
namespace {

constexpr size_t kMaxOpen = 100, kMaxName = 1024;

bool in_name(unsigned char c) {
  return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == ':' || c == '/' || c >= 0x80;
}
bool in_key(unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '$'; }

bool is_literal(std::string_view word) {
  static constexpr std::string_view kWords[] = {"null", "None", "true", "True", "false", "False"};
  return std::find(std::begin(kWords), std::end(kWords), word) != std::end(kWords) || is_json_number(word);
}

// A word without quotes as JSON.
std::string bare(std::string_view word) {
  if (word.empty() || word == "null" || word == "None") return "null";
  if (word == "true" || word == "True") return "true";
  if (word == "false" || word == "False") return "false";
  return is_json_number(word) ? std::string(word) : json_string(unmarked(word));
}

class CallReader {
 public:
  CallReader(std::string_view text, const DeclaredTools& tools) : s_(text), tools_(tools) {}

  GemmaCalls run() {
    GemmaCalls out;
    for (;;) {
      const GemmaCallName head = read_gemma_name(s_.substr(at_), tools_, true);
      if (head.is != GemmaCallName::Is::call) break;
      at_ += head.brace;
      name_ = head.name;
      out.calls.push_back({head.name, at_end() ? "{}" : top()});
      at_ = skip_blank(s_, at_);
      if (at_end()) break;
      const size_t next = skip_blank(s_, at_ + 1);
      if (now() == ',' && read_gemma_name(s_.substr(next), tools_, true).is == GemmaCallName::Is::call)
        at_ = next;
    }
    out.rest = unmarked(stray_) + unmarked(s_.substr(at_));
    return out;
  }

 private:
  struct Value {
    std::string json;
    bool text = false;  // a string, which more text may be added to
  };

  char now() const { return at_ < s_.size() ? s_[at_] : '\0'; }
  bool at_end() const { return at_ >= s_.size(); }
  void space() { at_ = skip_blank(s_, at_); }
  bool take(char c) {
    space();
    if (now() != c || at_end()) return false;
    ++at_;
    return true;
  }
  bool at_quote() const { return s_.substr(at_).starts_with(kGemmaQuote); }

  // The arguments, and those that follow a brace which came too early.
  std::string top() {
    std::string out = object();
    for (;;) {
      space();
      const size_t before = at_;
      if (take('}') || take(']')) continue;
      take(',');
      if (at_end() || !at_key()) {
        at_ = before;
        return out;
      }
      --at_;  // object() steps over its bracket
      const std::string more = object();
      out.pop_back();
      if (out.size() > 1 && more.size() > 2) out += ',';
      out.append(more, 1);
    }
  }

  // Whether a key with its colon stands here: bare, and not the beginning of another call.
  bool at_key() const {
    size_t end = at_;
    while (end < s_.size() && in_key(static_cast<unsigned char>(s_[end]))) ++end;
    if (end == at_) return false;
    const std::string_view name = s_.substr(at_, end - at_);
    const size_t colon = skip_blank(s_, end);
    if (colon == s_.size()) return false;
    if (s_[colon] == '=') return tools_.has(name_, name);
    if (s_[colon] != ':') return false;
    return name != "call" || read_gemma_name(s_.substr(at_), tools_, true).is != GemmaCallName::Is::call;
  }

  // After the opening quote. One that is never closed ends before the brackets that close what is open
  // around.
  std::string text() {
    at_ += kGemmaQuote.size();
    const size_t end = s_.find(kGemmaQuote, at_);
    std::string_view out = s_.substr(at_, end == kNone ? end : end - at_);
    at_ = end == kNone ? s_.size() : end + kGemmaQuote.size();
    if (end == kNone) {
      for (auto open = open_.rbegin(); open != open_.rend(); ++open) {
        const size_t close = out.find_last_not_of(kBlank);
        if (close == kNone || out[close] != *open) break;
        out = out.substr(0, close);
      }
    }
    return unmarked(out);
  }

  // "text" with JSON's escapes, or 'text'.
  std::string quoted(char quote) {
    const size_t begin = at_;
    size_t end = at_ + 1;
    while (end < s_.size() && s_[end] != quote) end += s_[end] == '\\' ? 2 : 1;
    end = std::min(end, s_.size());
    const std::string inner = unmarked(s_.substr(begin + 1, end - begin - 1));
    at_ = std::min(end + 1, s_.size());
    if (quote == '"') {
      const Json parsed = Json::parse("\"" + inner + "\"", nullptr, false);
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
      const size_t end = std::min(s_.find_first_of(":=,{}[]", at_), s_.size());
      out = unmarked(trimmed(s_.substr(at_, end - at_)));
      at_ = end;
      if (now() == '=' && tools_.has(name_, out)) return ++at_, out;
    }
    if (take(':')) return out;
    at_ = before;
    return {};
  }

  // A word without quotes: up to a comma or bracket, or to a key whose comma was forgotten.
  Value word() {
    const size_t end = std::min(s_.find_first_of(",}]", at_), s_.size());
    const std::string_view whole = s_.substr(at_, end - at_);
    const size_t from = at_;
    for (size_t p = whole.find_first_of(kBlank); p < whole.size(); p = whole.find_first_of(kBlank, p + 1)) {
      at_ = from + skip_blank(whole, p);
      const std::string_view first = trimmed(whole.substr(0, p));
      size_t name = at_;
      while (name < s_.size() && in_key(static_cast<unsigned char>(s_[name]))) ++name;
      if (!at_key() || (!is_literal(first) && !tools_.has(name_, s_.substr(at_, name - at_)))) continue;
      at_ = from + p;
      return {bare(first), !is_literal(first)};
    }
    at_ = end;
    const std::string_view word = trimmed(whole);
    return {bare(word), !word.empty() && !is_literal(word)};
  }

  Value value() {
    space();
    if (at_quote()) return {json_string(text()), true};
    switch (now()) {
      case '{':
        if (open_.size() < kMaxOpen) return {object()};
        break;
      case '[':
        if (open_.size() < kMaxOpen) return {array()};
        break;
      case '"':
      case '\'': return {json_string(quoted(now())), true};
      default: break;
    }
    return word();
  }

  // What follows a value: true to go on, false at the end of the object or list (or of the text). Text that
  // is neither belongs to a string before it.
  bool more(char close, Value& last) {
    for (;;) {
      space();
      if (at_end() || take(close)) return false;
      if (take(',')) return true;
      if (now() == '}' || now() == ']') return false;  // the own bracket is missing
      if (close == '}' && (at_key() || at_quote() || now() == '"')) return true;
      const size_t end = std::max(at_ + 1, std::min(s_.find_first_of(",}]", at_), s_.size()));
      append(last, " ", s_.substr(at_, end - at_));
      at_ = end;
    }
  }
  void append(Value& last, const char* between, std::string_view text) {
    const std::string clean = unmarked(trimmed(text));
    if (clean.empty()) return;
    if (!last.text) return void(stray_ += clean);
    last.json.pop_back();
    std::string added = between;
    added += clean;
    last.json.append(json_string(added), 1);
  }

  std::string object() {
    ++at_;
    open_ += '}';
    std::string out = "{";
    std::string name;
    Value last;
    const auto put = [&] {
      if (!last.json.empty())
        out.append(out.size() > 1 ? "," : "").append(name).append(":").append(last.json);
      last = {};
    };
    for (bool go = !take('}'); go;) {
      space();
      if (at_end() || take('}')) break;
      if (const auto found = key()) {
        put();
        name = json_string(*found);
        last = value();
      } else {  // a text without quotes that has a comma in it
        const size_t end = std::max(at_ + 1, std::min(s_.find_first_of(",}", at_), s_.size()));
        append(last, ", ", s_.substr(at_, end - at_));
        at_ = end;
      }
      go = more('}', last);
    }
    put();
    open_.pop_back();
    return out + "}";
  }

  std::string array() {
    ++at_;
    open_ += ']';
    std::string out = "[";
    for (bool go = !take(']'); go;) {
      space();
      if (at_end() || take(']')) break;
      Value item = value();
      go = more(']', item);
      out.append(out.size() > 1 ? "," : "").append(item.json);
    }
    open_.pop_back();
    return out + "]";
  }

  std::string_view s_;
  const DeclaredTools& tools_;
  size_t at_ = 0;
  std::string name_;
  std::string open_;   // closing brackets that are due
  std::string stray_;  // what found no place
};

}  // namespace

GemmaCallName read_gemma_name(std::string_view text, const DeclaredTools& tools, bool last) {
  using Is = GemmaCallName::Is;
  const size_t from = skip_blank(text, 0);
  size_t end = from;
  while (end < text.size() && in_name(static_cast<unsigned char>(text[end])) && text[end] != kMark) ++end;
  const size_t brace = skip_blank(text, end);
  if (brace == text.size() && !last) return {text.size() < kMaxName ? Is::more : Is::none, {}, 0};
  if (brace < text.size() && text[brace] != '{') return {};
  std::string_view name = text.substr(from, end - from);
  const auto known = [&] { return !name.empty() && tools.has(name); };
  if (known()) return {Is::call, std::string(name), brace};
  if (name.starts_with("call")) name.remove_prefix(4);
  while (!known() && name.starts_with(':')) name.remove_prefix(1);
  if (known()) return {Is::call, std::string(name), brace};
  return {};
}

GemmaCalls read_gemma_calls(std::string_view text, const DeclaredTools& tools) {
  return CallReader(text, tools).run();
}

std::string GemmaPreview::more(std::string_view text) {
  while (step(text)) {}
  return std::exchange(out_, {});
}

bool GemmaPreview::step(std::string_view text) {
  switch (state_) {
    case State::key: return key(text);
    case State::value: return value(text);
    case State::string: return string(text);
    case State::after: return after(text);
    case State::stopped: break;
  }
  return false;
}

size_t GemmaPreview::key_end(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && in_key(static_cast<unsigned char>(text[end]))) ++end;
  if (end == text.size()) return 0;
  return end > at && text[end] == ':' && text.substr(at, end - at) != "call" ? end : kNone;
}

bool GemmaPreview::key(std::string_view text) {
  const size_t at = skip_blank(text, at_);
  if (at == text.size()) return false;
  if (first_ && text[at] == '}') return at_ = at, state_ = State::after, true;
  const size_t end = key_end(text, at);
  if (end == 0) return false;
  if (end == kNone) return stop();
  out_.append(first_ ? "" : ",").append(json_string(text.substr(at, end - at))).append(":");
  at_ = end + 1;
  state_ = State::value;
  return true;
}

bool GemmaPreview::value(std::string_view text) {
  const size_t at = skip_blank(text, at_);
  if (at == text.size()) return false;
  const bool item = !open_.empty() && open_.back() == ']';
  const char c = text[at];
  if (item && c == ']') return first_ ? (at_ = at, state_ = State::after, true) : stop();
  const char* comma = item && !first_ ? "," : "";
  if (c == '{' || c == '[') {
    if (open_.size() >= kMaxOpen) return stop();
    out_.append(comma).append(1, c);
    open_ += c == '{' ? '}' : ']';
    at_ = at + 1;
    first_ = true;
    state_ = c == '{' ? State::key : State::value;
    return true;
  }
  if (text.substr(at).starts_with(kGemmaQuote)) {
    out_.append(comma).append("\"");
    at_ = at + kGemmaQuote.size();
    state_ = State::string;
    return true;
  }
  const size_t end = text.find_first_of(",}]", at);
  if (end == kNone) return false;
  const std::string_view word = trimmed(text.substr(at, end - at));
  if (!is_literal(word)) return stop();
  out_.append(comma).append(bare(word));
  at_ = end;
  state_ = State::after;
  return true;
}

// Held: brackets at the end, which end a string that is never closed.
bool GemmaPreview::string(std::string_view text) {
  const size_t mark = text.find(kMark, at_);
  size_t end = std::min(mark, text.size());
  if (mark == kNone || !text.substr(mark).starts_with(kGemmaQuote))
    while (end > at_ && std::string_view(" \t\r\n}]").find(text[end - 1]) != kNone) --end;
  const std::string quoted = json_string(text.substr(at_, end - at_));
  out_ += std::string_view(quoted).substr(1, quoted.size() - 2);
  at_ = end;
  if (mark == kNone) return false;
  if (mark != end || !text.substr(mark).starts_with(kGemmaQuote)) return stop();
  const size_t next = skip_blank(text, mark + kGemmaQuote.size());
  if (next == text.size()) return false;
  if (text[next] == ',' && open_.back() == '}') {
    const size_t name = skip_blank(text, next + 1);
    const size_t key = name == text.size() ? 0 : key_end(text, name);
    if (key == 0) return false;
    if (key == kNone) return stop();
  } else if (text[next] != ',' && text[next] != open_.back()) {
    return stop();
  }
  out_ += '"';
  at_ = next;
  state_ = State::after;
  return true;
}

bool GemmaPreview::after(std::string_view text) {
  const size_t at = skip_blank(text, at_);
  if (at == text.size()) return false;
  if (text[at] == ',') {
    at_ = at + 1;
    first_ = false;
    state_ = open_.back() == '}' ? State::key : State::value;
    return true;
  }
  if (text[at] != open_.back() || open_.size() == 1) return stop();
  out_ += open_.back();
  open_.pop_back();
  at_ = at + 1;
  first_ = false;
  return true;
}

}  // namespace carat
