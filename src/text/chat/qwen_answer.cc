// What Qwen may answer, as a grammar: the thought that the prompt left open, then text or calls
// (docs/qwen36.md, "Chat").
#include "base/error.h"
#include "text/chat/qwen.h"
#include "text/grammar/sources.h"

namespace carat {
namespace {

using Expr = GrammarBuilder::Expr;

bool thinks(std::string_view prompt) {
  const size_t open = prompt.rfind("<think>");
  return open != prompt.npos && prompt.find("</think>", open) == prompt.npos &&
         prompt.find("<|im_end|>", open) == prompt.npos;
}

Expr call(GrammarBuilder& b, const Json& tool, bool loose) {
  const Json& function = tool["function"];
  Json schema = function.contains("parameters") ? function["parameters"] : Json();
  if (schema.is_null()) schema = {{"type", "object"}, {"additionalProperties", false}};
  const std::string name = function["name"];
  const bool strict = function.contains("strict") && function["strict"] == true;
  if (loose && !strict) schema = {{"type", "object"}};
  try {
    return b.named(
        name, b.seq({b.text("\n<function=" + name + ">\n"),
                     schema_grammar(b, schema, SchemaDialect::tag_call, !strict), b.text("</function>\n")}));
  } catch (const Error& e) {
    throw Error(fmt::format("tool '{}': {}", name, e.what()), e.hint());
  }
}

Expr calls(GrammarBuilder& b, const AnswerForm& form) {
  std::vector<Expr> all;
  for (const Json& tool : form.tools) all.push_back(call(b, tool, form.loose));
  const Expr one = b.seq({b.special("<tool_call>"), b.alt(std::move(all)), b.special("</tool_call>")});
  return form.parallel ? b.seq({one, b.repeat(b.seq({b.text("\n"), one}), 0, -1)}) : one;
}

}  // namespace

ThoughtMarks qwen_thought(std::string_view prompt) {
  return {.open = "<think>", .close = "</think>", .opened = thinks(prompt)};
}

std::optional<GrammarBuilder::Expr> qwen_answer(GrammarBuilder& b, const AnswerForm& form,
                                                std::string_view prompt) {
  Expr answer = form.content ? *form.content : b.text_until("<tool_call>");
  if (!form.tools.is_null()) {
    const Expr called = calls(b, form);
    if (form.must_call)
      answer = called;
    else
      answer = form.content ? b.alt({answer, called}) : b.seq({answer, b.optional(called)});
  }
  if (!thinks(prompt)) return answer;
  return b.seq({b.text_until("</think>"), b.special("</think>"), b.repeat(b.text("\n"), 0, 2), answer});
}

}  // namespace carat
