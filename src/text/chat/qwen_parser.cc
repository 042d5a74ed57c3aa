// The stream of an answer: thought </think> content <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n
// </parameter>\n ... </function>\n</tool_call>. <think> and <tool_call> are tokens (chat/marks.h), what
// stands between is text. What is decided depends on text and tokens, never on how it was cut. Texts are
// passed on while they come, other arguments when they are complete.
#include <algorithm>
#include <utility>

#include "text/chat/marks.h"
#include "text/chat/qwen.h"
#include "text/chat/qwen_values.h"

namespace carat {
namespace {

constexpr std::string_view kThink = "\xff<think>", kThinkEnd = "\xff</think>";
constexpr size_t kMaxName = 1024;

class QwenParser final : public MarkedParser {
 public:
  QwenParser(std::string_view prompt, const Json& tools)
      : MarkedParser({kThink, kThinkEnd, kCall, kCallEnd}), tools_(tools) {
    const size_t open = prompt.rfind(kThink.substr(1));
    if (open != kNone && prompt.find(kThinkEnd.substr(1), open) == kNone &&
        prompt.find("<|im_end|>", open) == kNone)
      state_ = State::thinking;
  }

 private:
  enum class State : uint8_t { content, thinking, skip, call, function, json, close, between, key, value };

  void run(bool last) override {
    while (step(last)) {}
  }
  void end(bool cut) override {
    if (!cut && state_ >= State::between) end_call();
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
  void arguments(std::string_view text) { emit(Kind::tool_arguments, text, calls_); }

  // Where code fences and lines begin decides what a spelled call is.
  void said(std::string_view content) override {
    for (const char c : content) {
      if (kBlank.find(c) == kNone) tail_ += c;
      nothing_said_ = nothing_said_ && kBlank.find(c) != kNone;
      if (c == '\n') {
        line_.clear();
      } else if (line_.size() < 3 && !(line_.empty() && (c == ' ' || c == '\t'))) {
        line_ += c;
        if (line_ == "```") fenced_ = !fenced_;
      }
    }
    if (tail_.size() > kCall.size()) tail_.erase(0, tail_.size() - kCall.size());
  }

  bool content(bool last) {
    if (nothing_said_ && text_.starts_with(kThink)) {  // a thought that the prompt did not open
      text_.erase(0, kThink.size());
      thought_begun_ = false;
      return state_ = State::thinking, true;
    }
    if (tools_.any()) {
      const size_t at = text_.find(kFunction), tag = text_.find(kCall);
      if (at < tag) return untagged(at, last);
      if (tag == kNone && !last) {  // what may become one stays here, its line before it, too
        const size_t angle = text_.rfind('<');
        if (angle != kNone && begins(std::string_view(text_).substr(angle), kFunction))
          return keep_from(angle), false;
      }
    }
    if (nothing_said_ && !last && skip_blank(text_, 0) == text_.size()) return false;
    const size_t blank = skip_blank(text_, 0);
    if (nothing_said_ && std::string_view(text_).substr(blank).starts_with(kThink)) {
      text_.erase(0, blank);
      return true;
    }
    const int tag = until(Kind::content, {kCall}, last);
    if (tag == 0) start_call(State::content);
    return tag >= 0;
  }
  // Emits what stands before, but for the blanks there.
  void keep_from(size_t at) {
    const size_t keep = rtrim(text_, at);
    emit(Kind::content, std::string_view(text_).substr(0, keep));
    text_.erase(0, keep);
  }
  // A call whose opening tag was forgotten (not spelled): at the beginning of a line, outside code, with a
  // declared name.
  bool untagged(size_t at, bool last) {
    keep_from(at);
    at = text_.find(kFunction);
    const std::string_view before = std::string_view(text_).substr(0, at);
    const bool starts = before.find('\n') != kNone || line_.empty();
    const std::string_view rest = std::string_view(text_).substr(at + kFunction.size());
    const size_t end = std::min(rest.find_first_of(">\n"), rest.size());
    const size_t next = skip_blank(rest, std::min(end + 1, rest.size()));
    const bool unclear = end == rest.size() || next == rest.size() || begins(rest.substr(next), kParameter) ||
                         begins(rest.substr(next), kFunctionEnd);
    const bool may = starts && !fenced_ && end < kMaxName && !tail_.ends_with(kCall.substr(1));
    if (may && unclear && !last && (end == rest.size() || tools_.has(rest.substr(0, end)))) return false;
    if (may && end < rest.size() && rest[end] == '>' && tools_.has(rest.substr(0, end)) &&
        (rest.substr(next).starts_with(kParameter) || rest.substr(next).starts_with(kFunctionEnd))) {
      text_.erase(0, at + kFunction.size());
      return state_ = State::function, true;
    }
    emit(Kind::content, std::string_view(text_).substr(0, at + kFunction.size()));
    text_.erase(0, at + kFunction.size());
    return true;
  }

  bool thinking(bool last) {
    if (!thought_begun_) {  // white space, and a tag that the prompt has already
      text_.erase(0, skip_blank(text_, 0));
      if (text_.starts_with(kThink)) return text_.erase(0, kThink.size()), true;
      if (text_.empty()) return false;
      thought_begun_ = true;
    }
    const int tag = until(Kind::thinking, {kThinkEnd, kCall}, last);
    if (tag == 0) {
      thought_begun_ = false;
      nothing_said_ = false;
      state_ = State::skip;
    }
    if (tag == 1) start_call(State::thinking);  // small models forget the closing tag
    return tag >= 0;
  }
  // White space behind a thought or a call.
  bool skip() {
    text_.erase(0, skip_blank(text_, 0));
    if (text_.empty()) return false;
    state_ = State::content;
    return true;
  }

  // ---- a call

  void start_call(State from) {
    from_ = from;
    state_ = State::call;
    if (!tools_.any()) no_call();
  }
  // Nothing of it is lost, and what follows is text of what the tag stood in.
  void no_call() {
    emit(from_ == State::thinking ? Kind::thinking : Kind::content, space_ + std::string(kCall));
    state_ = from_;
  }

  bool call(bool last) {
    const size_t at = skip_blank(text_, 0);
    const std::string_view rest = std::string_view(text_).substr(at);
    if (rest.starts_with('{')) return state_ = State::json, true;
    if (begins(rest, kFunction)) return last && !cut_ ? (no_call(), true) : false;
    if (!rest.starts_with(kFunction)) return no_call(), true;
    const std::string_view name = rest.substr(kFunction.size());
    const size_t end = std::min(name.find_first_of(">\n\xff"), name.size());
    if (end == name.size() && !last && end < kMaxName) return false;
    if (end == name.size() && last && cut_) return false;
    if (end == name.size() || name[end] != '>' || !tools_.has(name.substr(0, end))) return no_call(), true;
    text_.erase(0, at + kFunction.size());
    state_ = State::function;
    return true;
  }

  bool function(bool) {
    const size_t end = text_.find('>');
    name_ = text_.substr(0, end);
    text_.erase(0, end + 1);
    emit(Kind::tool_name, name_, calls_);
    arguments("{");
    given_.clear();
    state_ = State::between;
    return true;
  }

  // {"name": ..., "arguments": {...}}, as older models of the family write it.
  bool json(bool last) {
    const size_t end = text_.find(kCallEnd);
    if (end == kNone && (!last || cut_)) return false;
    const Json v = Json::parse(unmarked(std::string_view(text_).substr(0, end)), nullptr, false);
    if (!v.is_object() || !v.contains("name") || !v["name"].is_string() ||
        !tools_.has(v["name"].get_ref<const std::string&>()))
      return no_call(), true;
    emit(Kind::tool_name, v["name"].get<std::string>(), calls_);
    const Json given = v.contains("arguments") ? v["arguments"] : Json::object();
    arguments(given.is_string() ? given.get<std::string>()
                                : given.dump(-1, ' ', false, Json::error_handler_t::replace));
    emit_end(calls_++);
    text_.erase(0, end == kNone ? end : end + kCallEnd.size());
    state_ = State::skip;
    return true;
  }

  void end_call() {
    if (state_ == State::value) end_value();
    arguments("}");
    emit_end(calls_++);
    state_ = State::skip;
  }

  // Behind the name or a parameter.
  bool between(bool last) {
    text_.erase(0, std::min(text_.find_first_of("<\xff"), text_.size()));
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
    if (text_.starts_with(kCall)) return end_call(), true;  // the next one: this one was not closed
    for (const std::string_view tag : {kParameter, kFunctionEnd})
      if (!last && begins(text_, tag)) return false;
    text_.erase(0, 1);  // stray text
    return true;
  }

  bool key() {
    const size_t end = text_.find('>');
    if (end == kNone) return false;
    key_ = unmarked(text_.substr(0, end));
    text_.erase(0, end + 1);
    state_ = State::value;
    scan_ = {};
    begun_ = false;
    return true;
  }

  bool value(bool last) {
    if (!begun_) {  // one newline before it is the tag's
      if (text_.empty() && !last) return false;
      if (text_.empty() && cut_) return false;
      if (text_.starts_with('\n')) text_.erase(0, 1);
      begun_ = true;
      if (!given_.empty()) arguments(", ");
      arguments(json_string(key_).append(": "));
      given_.push_back(key_);
      value_ =
          QwenValue(tools_.has(name_, key_) ? tools_.types(name_, key_) : uint8_t{DeclaredTools::string});
    }
    const QwenEnd end = scan_.find(text_, {tools_, name_, given_}, last && !cut_);
    arguments(value_.more(unmarked(std::string_view(text_).substr(0, end.text))));
    if (!end.found) {
      text_.erase(0, end.text);
      return false;
    }
    text_.erase(0, end.next);
    end_value();
    state_ = State::between;
    return true;
  }
  void end_value() {
    if (begun_) arguments(value_.end());
    begun_ = false;
  }

  bool close(bool last) {
    text_.erase(0, skip_blank(text_, 0));
    if (text_.starts_with(kCallEnd))
      text_.erase(0, kCallEnd.size());
    else if (text_.empty() && !last)
      return false;
    state_ = State::skip;
    return true;
  }

  const DeclaredTools tools_;
  State state_ = State::content, from_ = State::content;
  int calls_ = 0;
  std::string name_, key_, line_, tail_;  // of the content: the line's first three characters, the last ones
  std::vector<std::string> given_;        // parameters of this call
  QwenScan scan_;
  QwenValue value_;
  bool thought_begun_ = false, begun_ = false, nothing_said_ = true, fenced_ = false;
};

}  // namespace

std::unique_ptr<ChatParser> make_qwen_parser(std::string_view prompt, const AnswerReading& reading) {
  return with_spelled_marks(std::make_unique<QwenParser>(prompt, reading.tools),
                            missing_marks(reading.tokenizer, {kThink, kThinkEnd, kCall, kCallEnd}));
}

}  // namespace carat
