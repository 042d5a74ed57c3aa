// What Gemma 4 may answer, as a grammar: a thought, then text or calls (docs/gemma4.md, section 7).
#include "base/error.h"
#include "text/chat/gemma.h"
#include "text/grammar/sources.h"

namespace carat {
namespace {

using Expr = GrammarBuilder::Expr;

constexpr std::string_view kThoughtTag = "<|channel>", kThoughtEndTag = "<channel|>",
                           kCallTag = "<|tool_call>", kCallEndTag = "<tool_call|>";

// The prompt left a thought open.
bool thinks(std::string_view prompt) {
  const size_t open = prompt.rfind(kThoughtTag);
  return open != prompt.npos && prompt.find(kThoughtEndTag, open) == prompt.npos &&
         prompt.find("<turn|>", open) == prompt.npos;
}

Expr thought(GrammarBuilder& b) { return b.seq({b.text_until(kThoughtEndTag), b.special(kThoughtEndTag)}); }

// NAME{key:value,...}. Where the function does not ask for strictness, keywords that cannot be kept are let
// go.
Expr call(GrammarBuilder& b, const Json& tool, bool loose) {
  const Json& function = tool["function"];
  Json schema = function.contains("parameters") ? function["parameters"] : Json();
  if (schema.is_null())
    schema = {{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
  if (schema.is_object() && !schema.contains("type")) schema["type"] = "object";
  const std::string name = function["name"];
  const bool strict = function.contains("strict") && function["strict"] == true;
  if (loose && !strict) schema = {{"type", "object"}};
  try {
    return b.named(name,
                   b.seq({b.text(name), schema_grammar(b, schema, SchemaDialect::gemma_call, !strict)}));
  } catch (const Error& e) {
    throw Error(fmt::format("tool '{}': {}", name, e.what()), e.hint());
  }
}

Expr calls(GrammarBuilder& b, const AnswerForm& form) {
  std::vector<Expr> all;
  for (const Json& tool : form.tools) all.push_back(call(b, tool, form.loose));
  const Expr one =
      b.seq({b.special(kCallTag), b.text("call:"), b.alt(std::move(all)), b.special(kCallEndTag)});
  return b.repeat(one, 1, form.parallel ? -1 : 1);
}

}  // namespace

ThoughtMarks gemma4_thought(std::string_view prompt) {
  return {.open = std::string(kThoughtTag),
          .close = std::string(kThoughtEndTag),
          .head = "thought\n",
          .opened = thinks(prompt)};
}

GrammarBuilder::Expr gemma4_answer(GrammarBuilder& b, const AnswerForm& form, std::string_view prompt) {
  Expr answer = form.content ? *form.content : b.text_until(kCallTag);
  if (!form.tools.is_null()) {
    const Expr called = calls(b, form);
    if (form.must_call)
      answer = called;
    else
      answer = form.content ? b.alt({answer, called}) : b.seq({answer, b.optional(called)});
  }
  if (thinks(prompt)) return b.seq({thought(b), answer});
  if (!form.thinking) return answer;
  return b.seq({b.optional(b.seq({b.special(kThoughtTag), thought(b)})), answer});
}

}  // namespace carat
