// What Qwen may answer, as a grammar: the thought that the prompt left open, then text (docs/qwen36.md,
// "Chat").
#include "text/chat/qwen.h"

namespace carat {
namespace {

bool thinks(std::string_view prompt) {
  const size_t open = prompt.rfind("<think>");
  return open != prompt.npos && prompt.find("</think>", open) == prompt.npos;
}

}  // namespace

// Calls are not constrained.
std::optional<GrammarBuilder::Expr> qwen_answer(GrammarBuilder& b, const AnswerForm& form,
                                                std::string_view prompt) {
  if (!form.tools.is_null() || !form.content) return {};
  if (!thinks(prompt)) return form.content;
  return b.seq(
      {b.text_until("</think>"), b.special("</think>"), b.repeat(b.text("\n"), 0, 2), *form.content});
}

ThoughtMarks qwen_thought(std::string_view prompt) {
  return {.open = "<think>", .close = "</think>", .opened = thinks(prompt)};
}

}  // namespace carat
