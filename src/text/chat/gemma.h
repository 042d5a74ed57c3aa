// Gemma 4's chat format: rendering without a template, and the parser of its answers.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "text/chat/chat.h"

namespace carat {

// What the published templates of 2026-07-09 render, byte for byte, from the input as it stands.
// extra.preserve_thinking keeps the reasoning of older messages with tool calls.
std::string render_gemma4(const ChatInput& input, bool empty_thought);

std::unique_ptr<ChatParser> make_gemma4_parser(std::string_view prompt, const AnswerReading& reading);

// ChatFormat::answer and ::thought of this format.
GrammarBuilder::Expr gemma4_answer(GrammarBuilder& b, const AnswerForm& form, std::string_view prompt);
ThoughtMarks gemma4_thought(std::string_view prompt);

}  // namespace carat
