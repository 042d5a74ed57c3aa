// The arguments of a Qwen call: where a parameter's text ends, and what value it is.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "text/chat/declared.h"
#include "text/chat/marks.h"

namespace carat {

inline constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>",
                                  kParameter = "<parameter=", kParameterEnd = "</parameter>";
// These two are tokens.
inline constexpr std::string_view kCall = "\xff<tool_call>", kCallEnd = "\xff</tool_call>";

// What decides whether a tag inside a text is one.
struct QwenCallSoFar {
  const DeclaredTools& tools;
  const std::string& function;
  const std::vector<std::string>& given;  // parameters, the one that is read among them
};

struct QwenEnd {
  bool found = false;
  size_t text = 0;  // bytes that certainly belong to the value
  size_t next = 0;  // found: where what follows begins
};

// Looks for the end of a parameter: </parameter> on a line of its own, or what comes where that was
// forgotten. The same tags elsewhere are text.
class QwenScan {
 public:
  // text: what was not taken yet; the caller takes QwenEnd::text of it. last: nothing more comes.
  QwenEnd find(std::string_view text, const QwenCallSoFar& call, bool last);

 private:
  enum class Is : uint8_t { text, unclear, end };
  Is parameter_end(std::string_view text, size_t at, const QwenCallSoFar& call, bool last) const;
  Is next_parameter(std::string_view text, size_t at, const QwenCallSoFar& call, bool last) const;
  static Is next_call(std::string_view text, const QwenCallSoFar& call, bool last);
  bool on_line(std::string_view text, size_t at) const { return at == 0 ? fresh_ : text[at - 1] == '\n'; }
  QwenEnd ends(std::string_view text, size_t at, size_t next) const;

  bool fresh_ = true;                     // nothing of the value was taken
  size_t candidate_ = std::string::npos;  // a closing tag of the call that may be text
  size_t from_ = 0;                       // what lies before is decided
};

// A parameter's text as JSON, by the types that its schema allows.
class QwenValue {
 public:
  explicit QwenValue(uint8_t types = DeclaredTools::string)
      : types_(types), streams_(types == DeclaredTools::string || types == DeclaredTools::kAny) {}
  std::string more(std::string_view text);  // what may be said of it now
  std::string end();

 private:
  uint8_t types_;
  bool streams_, open_ = false;  // a string that is passed on; its quote has been
  std::string held_;
};

}  // namespace carat
