// The stream of an answer: thought </think> content <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n
// </parameter>\n ... </function>\n</tool_call>. What is decided depends on the text alone, never on how it
// was cut: whatever may still become a tag, or white space before one, is held. Texts are passed on while
// they come, other arguments when they are complete.
#include <algorithm>
#include <map>
#include <utility>

#include "text/chat/qwen.h"
#include "text/tokenizer/tokenizer.h"

namespace carat {
namespace {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>", kCall = "<tool_call>",
                           kCallEnd = "</tool_call>", kFunction = "<function=", kFunctionEnd = "</function>",
                           kParameter = "<parameter=", kParameterEnd = "</parameter>", kSpace = " \t\r\n";
constexpr size_t kNone = std::string_view::npos, kMaxName = 1024;

bool begins(std::string_view text, std::string_view tag) {
  return text.size() < tag.size() && tag.starts_with(text);
}
size_t rtrim(std::string_view s, size_t end) {
  while (end > 0 && kSpace.find(s[end - 1]) != kNone) --end;
  return end;
}
std::string dump(const Json& v) { return v.dump(-1, ' ', false, Json::error_handler_t::replace); }

// What the tools in the prompt say of their parameters: function -> parameter -> schema.
class Schemas {
 public:
  explicit Schemas(std::string_view prompt) {
    const size_t open = prompt.find("<tools>\n"), close = prompt.find("\n</tools>", open == kNone ? 0 : open);
    if (open == kNone || close == kNone) return;
    prompt = prompt.substr(open + 8, close - open - 8);
    while (!prompt.empty()) {
      const size_t end = std::min(prompt.find('\n'), prompt.size());
      const Json tool = Json::parse(prompt.substr(0, end), nullptr, false);
      prompt.remove_prefix(std::min(end + 1, prompt.size()));
      if (!tool.is_object() || !tool.contains("function")) continue;
      const Json& f = tool["function"];
      if (!f.is_object() || !f.value("name", Json()).is_string()) continue;
      const Json properties = f.value("parameters", Json::object());
      if (properties.is_object() && properties.value("properties", Json()).is_object())
        schemas_[f["name"].get<std::string>()] = properties["properties"];
    }
  }
  // Whether a parameter's text is taken as it stands.
  bool is_text(const std::string& function, const std::string& parameter) const {
    const auto f = schemas_.find(function);
    if (f == schemas_.end() || !f->second.contains(parameter)) return true;
    const Json& schema = f->second[parameter];
    if (!schema.is_object() || !schema.contains("type")) return true;
    const Json& type = schema["type"];
    if (type.is_string()) return type == "string";
    return !type.is_array() || std::find(type.begin(), type.end(), "string") != type.end();
  }

 private:
  std::map<std::string, Json> schemas_;
};

// The value of a parameter that is no text: JSON, in Python's spelling too; what is neither stays text.
Json typed(std::string_view text) {
  const size_t first = std::min(text.find_first_not_of(kSpace), text.size());
  text = text.substr(first, rtrim(text, text.size()) - std::min(first, rtrim(text, text.size())));
  if (text == "True") return true;
  if (text == "False") return false;
  if (text == "None") return nullptr;
  Json v = Json::parse(text, nullptr, false);
  return v.is_discarded() ? Json(std::string(text)) : v;
}

class QwenParser final : public ChatParser {
 public:
  explicit QwenParser(std::string_view prompt) : schemas_(prompt) {
    const size_t open = prompt.rfind(kThink);
    if (open != kNone && prompt.find(kThinkEnd, open) == kNone && prompt.find("<|im_end|>", open) == kNone)
      state_ = State::thinking;
  }
  std::vector<ChatDelta> push(std::string_view bytes) override {
    text_ += utf8_.push(bytes);
    run(false);
    return std::exchange(out_, {});
  }
  std::vector<ChatDelta> finish() override {
    text_ += utf8_.finish();
    run(true);
    if (in_call()) end_call();
    return std::exchange(out_, {});
  }

 private:
  enum class State : uint8_t { content, thinking, skip, call, function, json, close, between, key, value };
  using Kind = ChatDelta::Kind;

  void run(bool last) {
    while (step(last)) {}
  }
  bool step(bool last) {
    switch (state_) {
      case State::content: return content(last);
      case State::thinking: return thinking(last);
      case State::skip: return skip();
      case State::call: return call(last);
      case State::function: return function(last);
      case State::json: return json(last);
      case State::between: return between(last);
      case State::key: return key();
      case State::value: return value(last);
      case State::close: return close(last);
    }
    return false;
  }

  void emit(Kind kind, std::string_view text, int index = 0) {
    if (text.empty()) return;
    if (!out_.empty() && out_.back().kind == kind && out_.back().index == index && kind != Kind::tool_name)
      out_.back().text += text;
    else
      out_.push_back({kind, std::string(text), index});
  }
  void arguments(std::string_view text) { emit(Kind::tool_arguments, text, calls_); }

  // Emits up to the first of the tags and steps over it; which one, or -1 if none is here yet.
  template <size_t N>
  int until(Kind kind, const std::string_view (&tags)[N], bool last) {
    size_t at = kNone;
    int which = -1;
    for (size_t i = 0; i < N; ++i)
      if (const size_t p = text_.find(tags[i]); p < at) at = p, which = static_cast<int>(i);
    if (which >= 0) {
      emit(kind, std::string_view(text_).substr(0, rtrim(text_, at)));
      text_.erase(0, at + tags[which].size());
      return which;
    }
    size_t hold = text_.size();
    for (size_t n = std::min<size_t>(text_.size(), 16); !last && n > 0; --n) {
      const std::string_view tail = std::string_view(text_).substr(text_.size() - n);
      if (std::none_of(tags, tags + N, [&](std::string_view t) { return begins(tail, t); })) continue;
      hold = text_.size() - n;
      break;
    }
    if (!last || kind == Kind::thinking) hold = rtrim(text_, hold);
    emit(kind, std::string_view(text_).substr(0, hold));
    text_.erase(0, last ? text_.size() : hold);
    return -1;
  }

  bool content(bool last) {
    static constexpr std::string_view kTags[] = {kThink, kCall};
    const int tag = until(Kind::content, kTags, last);
    if (tag == 0) state_ = State::thinking;
    if (tag == 1) state_ = State::call;
    return tag >= 0;
  }
  bool thinking(bool last) {
    static constexpr std::string_view kTags[] = {kThinkEnd, kCall};  // small models forget the closing tag
    if (!thought_begun_) {  // white space, and a tag that the prompt has already
      text_.erase(0, std::min(text_.find_first_not_of(kSpace), text_.size()));
      if (text_.starts_with(kThink)) return text_.erase(0, kThink.size()), true;
      if (text_.empty() || (!last && begins(text_, kThink))) return false;
      thought_begun_ = true;
    }
    const int tag = until(Kind::thinking, kTags, last);
    if (tag < 0) return false;
    thought_begun_ = false;
    state_ = tag == 0 ? State::skip : State::call;
    return true;
  }
  // White space behind a thought or a call.
  bool skip() {
    text_.erase(0, std::min(text_.find_first_not_of(kSpace), text_.size()));
    if (text_.empty()) return false;
    state_ = State::content;
    return true;
  }

  // ---- a call

  bool in_call() const { return state_ >= State::between; }

  bool call(bool last) {
    const size_t at = std::min(text_.find_first_not_of(kSpace), text_.size());
    const std::string_view rest = std::string_view(text_).substr(at);
    if (rest.starts_with(kFunction)) {
      text_.erase(0, at + kFunction.size());
      state_ = State::function;
      return true;
    }
    if (rest.starts_with('{')) return state_ = State::json, true;
    if (!last && (rest.empty() || begins(rest, kFunction))) return false;
    emit(Kind::content, kCall);  // not a call: nothing of it is lost
    state_ = State::content;
    return true;
  }

  bool function(bool last) {
    const size_t end = text_.find_first_of(">\n");
    if (end == kNone && !last && text_.size() < kMaxName) return false;
    if (end == kNone || text_[end] != '>' || end == 0) {
      emit(Kind::content, kCall);
      emit(Kind::content, "\n");
      text_.insert(0, kFunction);
      state_ = State::content;
      return true;
    }
    name_ = text_.substr(0, end);
    text_.erase(0, end + 1);
    emit(Kind::tool_name, name_, calls_);
    state_ = State::between;
    first_ = true;
    return true;
  }

  // {"name": ..., "arguments": {...}}, as older models of the family write it.
  bool json(bool last) {
    const size_t end = text_.find(kCallEnd);
    if (end == kNone && !last) return false;
    const Json v = Json::parse(std::string_view(text_).substr(0, end), nullptr, false);
    const bool good = v.is_object() && v.contains("name") && v["name"].is_string();
    if (good) {
      emit(Kind::tool_name, v["name"].get<std::string>(), calls_);
      const Json given = v.contains("arguments") ? v["arguments"] : Json::object();
      emit(Kind::tool_arguments, given.is_string() ? given.get<std::string>() : dump(given), calls_);
      ++calls_;
    } else {
      emit(Kind::content, kCall);
      emit(Kind::content, std::string_view(text_).substr(0, end));
      if (end != kNone) emit(Kind::content, kCallEnd);
    }
    text_.erase(0, end == kNone ? end : end + kCallEnd.size());
    state_ = State::skip;
    return true;
  }

  void end_call() {
    if (state_ == State::value) end_value();
    arguments(first_ ? "{}" : "}");
    ++calls_;
    state_ = State::skip;
  }

  // Behind the name or a parameter.
  bool between(bool last) {
    text_.erase(0, std::min(text_.find('<'), text_.size()));
    if (text_.starts_with(kParameter)) {
      text_.erase(0, kParameter.size());
      state_ = State::key;
      return true;
    }
    if (text_.starts_with(kFunctionEnd) || text_.starts_with(kCallEnd)) {
      const bool function = text_.starts_with(kFunctionEnd);
      text_.erase(0, function ? kFunctionEnd.size() : kCallEnd.size());
      end_call();
      if (function) state_ = State::close;
      return true;
    }
    if (text_.empty()) return false;
    for (const std::string_view tag : {kParameter, kFunctionEnd, kCallEnd})
      if (!last && begins(text_, tag)) return false;
    text_.erase(0, 1);  // stray text
    return true;
  }

  bool key() {
    const size_t end = text_.find('>');
    if (end == kNone) return false;
    key_ = text_.substr(0, end);
    text_.erase(0, end + 1);
    state_ = State::value;
    value_.clear();
    begun_ = false;
    is_text_ = schemas_.is_text(name_, key_);
    return true;
  }

  // A value ends at </parameter>, or where that was forgotten, at the end of the call.
  bool value(bool last) {
    if (!begun_) {  // one newline before it is the tag's
      if (text_.empty() && !last) return false;
      if (text_.starts_with('\n')) text_.erase(0, 1);
      begun_ = true;
      arguments(first_ ? "{" : ", ");
      first_ = false;
      arguments(dump(key_) + ": ");
      if (is_text_) arguments("\"");
    }
    const size_t a = text_.find(kParameterEnd), b = text_.find(kCallEnd), at = std::min(a, b);
    if (at != kNone) {
      std::string_view v = std::string_view(text_).substr(0, at);
      if (b < a) {
        v = v.substr(0, rtrim(v, v.size()));
        if (v.ends_with(kFunctionEnd)) v.remove_suffix(kFunctionEnd.size());
      }
      if (v.ends_with('\n')) v.remove_suffix(1);
      piece(v);
      text_.erase(0, a < b ? at + kParameterEnd.size() : at);
      end_value();
      state_ = State::between;
      return true;
    }
    // Held: the newline before the tag and its beginning, or all that may be the end of a call.
    size_t hold = text_.size();
    if (!last) {
      static constexpr std::string_view kEnds[] = {
          "\n</parameter>", kParameterEnd, "\n</function>\n</tool_call>", "</function>\n</tool_call>",
          "\n</tool_call>", kCallEnd};
      for (size_t n = std::min<size_t>(text_.size(), 32); n > 0; --n) {
        const std::string_view tail = std::string_view(text_).substr(text_.size() - n);
        if (std::none_of(std::begin(kEnds), std::end(kEnds),
                         [&](std::string_view t) { return begins(tail, t); }))
          continue;
        hold = text_.size() - n;
        break;
      }
    }
    piece(std::string_view(text_).substr(0, hold));
    text_.erase(0, hold);
    return false;
  }
  void piece(std::string_view text) {
    if (!is_text_) {
      value_ += text;
      return;
    }
    const std::string quoted = dump(Json(std::string(text)));
    arguments(std::string_view(quoted).substr(1, quoted.size() - 2));
  }
  void end_value() {
    if (begun_) arguments(is_text_ ? "\"" : dump(typed(value_)));
    begun_ = false;
  }

  bool close(bool last) {
    text_.erase(0, std::min(text_.find_first_not_of(kSpace), text_.size()));
    if (text_.starts_with(kCallEnd))
      text_.erase(0, kCallEnd.size());
    else if (text_.empty() || (!last && begins(text_, kCallEnd)))
      return false;
    state_ = State::skip;
    return true;
  }

  Schemas schemas_;
  Utf8Stream utf8_;
  State state_ = State::content;
  std::string text_;  // not yet decided
  std::vector<ChatDelta> out_;
  int calls_ = 0;
  std::string name_, key_, value_;
  bool thought_begun_ = false, first_ = true, begun_ = false, is_text_ = true;
};

}  // namespace

std::unique_ptr<ChatParser> make_qwen_parser(std::string_view prompt) {
  return std::make_unique<QwenParser>(prompt);
}

}  // namespace carat
