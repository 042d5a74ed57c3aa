#include "serve/api/call_arguments.h"

#include "serve/api/json.h"

namespace carat {

std::string arguments_mark(const ToolCall& call) { return "arguments of " + call.id; }

std::string with_arguments(const std::vector<ToolCall>& calls, std::string text, bool one_line) {
  for (const ToolCall& call : calls) {
    const std::string mark = dump_json(arguments_mark(call));
    const size_t at = text.find(mark);
    if (at == text.npos) continue;
    const Json parsed = Json::parse(call.arguments, nullptr, false);
    const bool again = one_line && call.arguments.find('\n') != std::string::npos;
    text.replace(at, mark.size(), !parsed.is_object() ? "{}" : again ? dump_json(parsed) : call.arguments);
  }
  return text;
}

}  // namespace carat
