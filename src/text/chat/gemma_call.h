// What stands between <|tool_call> and <tool_call|>: call:NAME{key:value,...}, and the repairs that damaged
// calls need.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat/declared.h"

namespace carat {

// The quote as a token (chat/marks.h).
inline constexpr std::string_view kGemmaQuote = "\xff<|\"|>";

// The name before the first brace.
struct GemmaCallName {
  enum class Is : uint8_t { none, more, call } is = Is::none;  // more: it may become one
  std::string name;
  size_t brace = 0;  // where { stands; where the text ends if it has none
};
// last: nothing more comes. tools: what may be called.
GemmaCallName read_gemma_name(std::string_view text, const DeclaredTools& tools, bool last);

struct GemmaCall {
  std::string name, arguments;  // a JSON object, digits as they were written
};
struct GemmaCalls {
  std::vector<GemmaCall> calls;
  std::string rest;  // what belongs to no call
};
// text: all of it, beginning with what read_gemma_name took. Nothing is lost: what is no argument comes in
// `rest`.
GemmaCalls read_gemma_calls(std::string_view text, const DeclaredTools& tools);

// The arguments of a call as far as they are certain while it is written: a beginning of what
// read_gemma_calls makes of the whole. It stops where a call leaves its form.
class GemmaPreview {
 public:
  // text: the call from its { on; what was given before, and more.
  std::string more(std::string_view text);

 private:
  enum class State : uint8_t { key, value, string, after, stopped };
  bool step(std::string_view text);
  bool key(std::string_view text);
  bool value(std::string_view text);
  bool string(std::string_view text);
  bool after(std::string_view text);
  bool stop() { return state_ = State::stopped, false; }
  // Where a bare key ends, its colon behind it; 0: not here (yet), npos: never.
  static size_t key_end(std::string_view text, size_t at);

  State state_ = State::value;
  size_t at_ = 0;
  std::string open_, out_;
  bool first_ = true;
};

}  // namespace carat
