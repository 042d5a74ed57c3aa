// The stream of an answer: content, <|channel>thought ... <channel|>, <|tool_call>call:NAME{...}<tool_call|>.
// Tags are tokens (chat/marks.h). What is decided depends on the text and its tokens, never on how it was
// cut.
#include <algorithm>
#include <utility>

#include "text/chat/gemma.h"
#include "text/chat/gemma_call.h"
#include "text/chat/marks.h"

namespace carat {
namespace {

constexpr std::string_view kThought = "\xff<|channel>", kThoughtEnd = "\xff<channel|>",
                           kCall = "\xff<|tool_call>", kCallEnd = "\xff<tool_call|>",
                           kResponse = "\xff<|tool_response>", kHeader = "thought\n";

class GemmaParser final : public MarkedParser {
 public:
  GemmaParser(std::string_view prompt, const Json& tools)
      : MarkedParser({kThought, kThoughtEnd, kCall, kCallEnd, kResponse, kGemmaQuote}), tools_(tools) {
    const size_t open = prompt.rfind(kThought.substr(1));
    if (open == kNone || prompt.find(kThoughtEnd.substr(1), open) != kNone ||
        prompt.find("<turn|>", open) != kNone)
      return;
    const std::string_view header = prompt.substr(open + kThought.size() - 1);
    state_ = header.starts_with(kHeader) ? State::thinking : State::header;
    if (state_ == State::header) text_ = header;
  }

 private:
  enum class State : uint8_t { content, header, thinking, name, call, after_thought, after_call };

  void run(bool last) override {
    while (!text_.empty()) {
      const bool more = state_ == State::content    ? content(last)
                        : state_ == State::header   ? header(last)
                        : state_ == State::thinking ? thinking(last)
                        : state_ == State::name     ? name(last)
                        : state_ == State::call     ? call(last)
                                                    : skip();
      if (!more) return;
    }
    if (last && state_ == State::name && !cut_) no_call();
  }

  bool content(bool last) {
    const int tag = until(Kind::content, {kThought, kCall}, last);
    if (tag == 0) state_ = State::header;
    if (tag == 1) start_call(State::content);
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
      if (rest.empty() || rest.starts_with(kThoughtEnd)) text_.erase(0, bare.size());
    } else if (last && begins(text_, kHeader)) {
      text_.clear();
    }
    state_ = State::thinking;
    return true;
  }

  bool thinking(bool last) {
    const int tag = until(Kind::thinking, {kThoughtEnd, kCall}, last);
    if (tag == 0) state_ = State::after_thought;
    if (tag == 1) start_call(State::thinking);
    return tag >= 0;
  }

  bool skip() {
    text_.erase(0, skip_blank(text_, 0));
    if (state_ == State::after_call) {
      for (const std::string_view tag : {kCallEnd, kResponse})
        if (text_.starts_with(tag)) return text_.erase(0, tag.size()), true;
    }
    if (text_.empty()) return false;
    state_ = State::content;
    return true;
  }

  // ---- a call: text_ holds what came after <|tool_call>

  void start_call(State from) {
    from_ = from;
    state_ = State::name;
    if (!tools_.any()) no_call();
  }
  // Nothing of it is lost, and what follows is text of what the tag stood in.
  void no_call() {
    emit(from_ == State::thinking ? Kind::thinking : Kind::content, space_ + std::string(kCall));
    state_ = from_;
  }

  bool name(bool last) {
    const size_t mark = std::min(text_.find(kMark), text_.size());
    const bool ends = mark < text_.size() || (last && !cut_);
    const GemmaCallName head = read_gemma_name(std::string_view(text_).substr(0, mark), tools_, ends);
    if (head.is == GemmaCallName::Is::more) {
      if (last) text_.clear();  // it was cut: the name may have gone on
      return false;
    }
    const bool bare = head.brace == mark;  // no arguments
    if (head.is == GemmaCallName::Is::none ||
        (bare && mark < text_.size() && !std::string_view(text_).substr(mark).starts_with(kCallEnd)))
      return no_call(), true;
    emit(Kind::tool_name, head.name, calls_);
    brace_ = head.brace;
    preview_ = {};
    sent_.clear();
    scan_ = 0;
    candidate_ = kNone;
    in_string_ = false;
    state_ = State::call;
    return true;
  }

  bool call(bool last) {
    const size_t end = find_end(last && !cut_);
    const std::string_view body = std::string_view(text_).substr(0, end);
    if (brace_ < body.size()) send(preview_.more(body.substr(brace_)));
    if (end == kNone && !last) return false;
    if (end == kNone && cut_) return text_.clear(), false;  // its end never comes
    GemmaCalls all = read_gemma_calls(body, tools_);
    for (size_t i = 0; i < all.calls.size(); ++i) {
      const std::string& arguments = all.calls[i].arguments;
      if (i > 0) emit(Kind::tool_name, all.calls[i].name, calls_);
      const size_t known = i == 0 ? sent_.size() : 0;
      if (arguments.starts_with(std::string_view(sent_).substr(0, known))) {
        emit(Kind::tool_arguments, std::string_view(arguments).substr(known), calls_);
        emit_end(calls_);
      }
      ++calls_;
    }
    text_.erase(0, end == kNone ? end : end + kCallEnd.size());
    if (!all.rest.empty()) emit(Kind::content, all.rest);
    state_ = State::after_call;
    return true;
  }
  void send(const std::string& arguments) {
    sent_ += arguments;
    emit(Kind::tool_arguments, arguments, calls_);
  }

  // Where <tool_call|> closes the call. Inside a <|"|> string it is text, unless the string was never closed:
  // then the next <|"|> opens another one, or there is none.
  size_t find_end(bool last) {
    for (;;) {
      const size_t quote = text_.find(kGemmaQuote, scan_), close = text_.find(kCallEnd, scan_);
      if (!in_string_) {
        if (close < quote) return close;
        if (quote == kNone) return scan_ = text_.size(), kNone;
        in_string_ = true;
        scan_ = quote + kGemmaQuote.size();
        continue;
      }
      if (candidate_ == kNone && close < quote) candidate_ = close;
      if (quote == kNone) return last ? candidate_ : (scan_ = text_.size(), kNone);
      if (candidate_ != kNone) {
        const size_t after = skip_blank(text_, quote + kGemmaQuote.size());
        if (after == text_.size() && !last) return scan_ = quote, kNone;
        if (after == text_.size() || std::string_view(",}]").find(text_[after]) == kNone) return candidate_;
      }
      candidate_ = kNone;
      in_string_ = false;
      scan_ = quote + kGemmaQuote.size();
    }
  }

  const DeclaredTools tools_;
  State state_ = State::content, from_ = State::content;
  int calls_ = 0;
  std::string sent_;  // of the arguments of the call that is written
  GemmaPreview preview_;
  size_t brace_ = 0, scan_ = 0, candidate_ = kNone;
  bool in_string_ = false;
};

}  // namespace

std::unique_ptr<ChatParser> make_gemma4_parser(std::string_view prompt, const AnswerReading& reading) {
  return with_spelled_marks(
      std::make_unique<GemmaParser>(prompt, reading.tools),
      missing_marks(reading.tokenizer, {kThought, kThoughtEnd, kCall, kCallEnd, kResponse, kGemmaQuote}));
}

}  // namespace carat
