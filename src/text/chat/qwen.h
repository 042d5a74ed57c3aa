// The chat format of Qwen3.5 and Qwen3.6: ChatML with thoughts and calls in XML-like tags; rendering without
// a template, and the parser of its answers. Facts: the models' published templates; docs/qwen36.md, "Chat".
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "text/chat/chat.h"

namespace carat {

// extra.preserve_thinking keeps the reasoning of older messages.
std::string render_qwen(const ChatInput& input);

// The types of arguments are those that the tools declare.
std::unique_ptr<ChatParser> make_qwen_parser(std::string_view prompt, const AnswerReading& reading);

// ChatFormat::answer and ::thought of this format.
std::optional<GrammarBuilder::Expr> qwen_answer(GrammarBuilder& b, const AnswerForm& form,
                                                std::string_view prompt);
ThoughtMarks qwen_thought(std::string_view prompt);

}  // namespace carat
