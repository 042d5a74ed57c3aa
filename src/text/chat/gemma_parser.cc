// The stream of an answer: content, <|channel>thought ... <channel|>, <|tool_call>call:NAME{...}<tool_call|>.
// What is decided depends on the text alone, never on how it was cut: whatever may still become a tag, or
// white space before one, is held.
#include <algorithm>
#include <utility>

#include "text/chat/gemma.h"
#include "text/tokenizer/tokenizer.h"

namespace carat {
namespace {

constexpr std::string_view kThought = "<|channel>", kThoughtEnd = "<channel|>", kCall = "<|tool_call>",
                           kCallEnd = "<tool_call|>", kResponse = "<|tool_response>", kQuote = "<|\"|>",
                           kSpace = " \t\r\n", kHeader = "thought\n";
constexpr size_t kNone = std::string_view::npos;

// The text is a beginning of the tag, but not all of it.
bool begins(std::string_view text, std::string_view tag) {
  return text.size() < tag.size() && tag.starts_with(text);
}

size_t rtrim(std::string_view s, size_t end) {
  while (end > 0 && kSpace.find(s[end - 1]) != kNone) --end;
  return end;
}

class GemmaParser final : public ChatParser {
 public:
  explicit GemmaParser(std::string_view prompt) {
    const size_t open = prompt.rfind(kThought);
    if (open == kNone || prompt.find(kThoughtEnd, open) != kNone || prompt.find("<turn|>", open) != kNone)
      return;
    const std::string_view header = prompt.substr(open + kThought.size());
    state_ = header.starts_with(kHeader) ? State::thinking : State::header;
    if (state_ == State::header) text_ = header;
  }

  std::vector<ChatDelta> push(std::string_view bytes) override {
    text_ += utf8_.push(bytes);
    run(false);
    return std::exchange(out_, {});
  }
  std::vector<ChatDelta> finish() override {
    text_ += utf8_.finish();
    run(true);
    return std::exchange(out_, {});
  }

 private:
  enum class State : uint8_t { content, header, thinking, call, after_thought, after_call };
  using Kind = ChatDelta::Kind;

  void run(bool last) {
    while (!text_.empty()) {
      const bool more = state_ == State::content    ? content(last)
                        : state_ == State::header   ? header(last)
                        : state_ == State::thinking ? thinking(last)
                        : state_ == State::call     ? call(last)
                                                    : skip(last);
      if (!more) return;
    }
  }

  void emit(Kind kind, std::string_view text, int index = 0) {
    if (text.empty()) return;
    if (!out_.empty() && out_.back().kind == kind && out_.back().index == index && kind != Kind::tool_name) {
      out_.back().text += text;
    } else {
      out_.push_back({kind, std::string(text), index});
    }
  }

  // Emits up to the first of two tags and steps over it; which one (0, 1), or -1 if neither is here yet.
  int until(Kind kind, std::string_view a, std::string_view b, bool last) {
    const size_t at_a = text_.find(a), at_b = text_.find(b), at = std::min(at_a, at_b);
    if (at != kNone) {
      emit(kind, std::string_view(text_).substr(0, rtrim(text_, at)));
      text_.erase(0, at + (at_a < at_b ? a : b).size());
      return at_a < at_b ? 0 : 1;
    }
    size_t hold = text_.size();
    if (!last) {
      const size_t longest = std::min(text_.size(), std::max(a.size(), b.size()) - 1);
      for (size_t n = longest; n > 0; --n) {
        const std::string_view tail = std::string_view(text_).substr(text_.size() - n);
        if (!begins(tail, a) && !begins(tail, b)) continue;
        hold = text_.size() - n;
        break;
      }
    }
    if (!last || kind == Kind::thinking) hold = rtrim(text_, hold);
    emit(kind, std::string_view(text_).substr(0, hold));
    text_.erase(0, last ? text_.size() : hold);
    return -1;
  }

  bool content(bool last) {
    const int tag = until(Kind::content, kThought, kCall, last);
    if (tag == 0) state_ = State::header;
    if (tag == 1) start_call();
    return tag >= 0;
  }

  // "thought\n" after the opening tag; without the newline if the block ends at once.
  bool header(bool last) {
    const std::string_view bare = kHeader.substr(0, kHeader.size() - 1);
    if (!last && begins(text_, kHeader)) return false;
    if (text_.starts_with(kHeader)) {
      text_.erase(0, kHeader.size());
    } else if (text_.starts_with(bare)) {
      const std::string_view rest = std::string_view(text_).substr(bare.size());
      if (!last && begins(rest, kThoughtEnd)) return false;
      if (rest.empty() || rest.starts_with(kThoughtEnd)) text_.erase(0, bare.size());
    } else if (last && begins(text_, kHeader)) {
      text_.clear();
    }
    state_ = State::thinking;
    return true;
  }

  bool thinking(bool last) {
    const int tag = until(Kind::thinking, kThoughtEnd, kCall, last);
    if (tag == 0) state_ = State::after_thought;
    if (tag == 1) start_call();
    return tag >= 0;
  }

  bool skip(bool last) {
    text_.erase(0, std::min(text_.find_first_not_of(kSpace), text_.size()));
    if (state_ == State::after_call) {
      for (const std::string_view tag : {kCallEnd, kResponse}) {
        if (text_.starts_with(tag)) return text_.erase(0, tag.size()), true;
        if (!last && begins(text_, tag)) return false;
      }
    }
    if (text_.empty()) return false;
    state_ = State::content;
    return true;
  }

  // ---- a call: text_ holds what came after <|tool_call>

  void start_call() {
    state_ = State::call;
    scan_ = 0;
    candidate_ = kNone;
    in_string_ = false;
  }

  bool call(bool last) {
    const size_t end = find_end(last);
    if (end == kNone && !last) return false;
    const std::string_view body = std::string_view(text_).substr(0, end);
    if (const auto parsed = parse_gemma4_call(body)) {
      emit(Kind::tool_name, parsed->name, calls_);
      emit(Kind::tool_arguments, parsed->arguments.dump(-1, ' ', false, Json::error_handler_t::replace),
           calls_);
      ++calls_;
    } else {  // not a call: nothing of it is lost
      emit(Kind::content, kCall);
      emit(Kind::content, body);
      if (end != kNone) emit(Kind::content, kCallEnd);
    }
    text_.erase(0, end == kNone ? end : end + kCallEnd.size());
    state_ = State::after_call;
    return true;
  }

  // Where <tool_call|> closes the call. Inside a <|"|> string it is text, unless the string was never closed:
  // then the next <|"|> opens another one, or there is none.
  size_t find_end(bool last) {
    for (;;) {
      const size_t quote = text_.find(kQuote, scan_), close = text_.find(kCallEnd, scan_);
      if (!in_string_) {
        if (close < quote) return close;
        if (quote == kNone) return hold_scan();
        in_string_ = true;
        scan_ = quote + kQuote.size();
        continue;
      }
      if (candidate_ == kNone && close < quote) candidate_ = close;
      if (quote == kNone) return last ? candidate_ : hold_scan();
      if (candidate_ != kNone) {
        const size_t after = text_.find_first_not_of(kSpace, quote + kQuote.size());
        if (after == kNone && !last) return scan_ = quote, kNone;
        if (after == kNone || std::string_view(",}]").find(text_[after]) == kNone) return candidate_;
      }
      candidate_ = kNone;
      in_string_ = false;
      scan_ = quote + kQuote.size();
    }
  }
  // Nothing found up to here; a tag may have begun.
  size_t hold_scan() {
    const size_t keep = kCallEnd.size() - 1;
    scan_ = std::max(scan_, text_.size() > keep ? text_.size() - keep : 0);
    return kNone;
  }

  Utf8Stream utf8_;
  State state_ = State::content;
  std::string text_;  // not yet decided
  std::vector<ChatDelta> out_;
  int calls_ = 0;
  size_t scan_ = 0, candidate_ = kNone;
  bool in_string_ = false;
};

}  // namespace

std::unique_ptr<ChatParser> make_gemma4_parser(std::string_view prompt) {
  return std::make_unique<GemmaParser>(prompt);
}

}  // namespace carat
