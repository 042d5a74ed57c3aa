// Chat formats: messages to a prompt, and a stream of generated text back to thinking, content and tool
// calls.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/grammar.h"

namespace carat {

class Tokenizer;

using Json = nlohmann::ordered_json;

// messages, tools: as in the OpenAI API. Both may be null.
struct ChatInput {
  Json messages, tools;
  std::optional<bool> think;  // before it answers; nothing: as the template does where it is not told
  bool add_generation_prompt = true;
  std::string bos, eos;  // text of these tokens
  Json extra;            // further template variables (chat_template_kwargs); null or an object
};

// What a parser found in the bytes given so far. A tool call's name comes first, then its arguments in
// pieces, then that it is whole (a call that was cut never says so).
struct ChatDelta {
  enum class Kind : uint8_t { content, thinking, tool_name, tool_arguments, tool_end } kind = Kind::content;
  std::string text;
  int index = 0;  // number of the tool call, from 0
};

class ChatParser {  // one per response
 public:
  virtual ~ChatParser() = default;
  // Text cut anywhere, also inside a character. It may spell a tag without being one.
  virtual std::vector<ChatDelta> push(std::string_view text) = 0;
  // The text of a token that the tokenizer does not split: a tag, if the format has such a tag, else text.
  virtual std::vector<ChatDelta> push_mark(std::string_view text) { return push(text); }
  // What was held back. cut: the answer did not end, its tokens ran out.
  virtual std::vector<ChatDelta> finish(bool cut) = 0;
};

// What a parser must know beside the prompt.
struct AnswerReading {
  Json tools;                            // functions that may be called, as in the OpenAI API; null: none
  const Tokenizer* tokenizer = nullptr;  // null: every tag is a token of the model
};

// What an answer may be, for a grammar of it.
struct AnswerForm {
  std::optional<GrammarBuilder::Expr> content;  // of the text; nothing: any text
  Json tools;                                   // functions that may be called; null: none
  bool must_call = false;                       // at least one of them, and no text
  bool parallel = true;                         // more than one
  bool thinking = false;                        // the model may think first
  bool loose = false;                           // functions that are not strict may have any arguments
};

// How a format marks thoughts.
struct ThoughtMarks {
  std::string open, close;  // control tokens
  std::string head = {};    // stands behind the opening one and is no thought
  bool opened = false;      // the prompt ends inside a thought
};

class ChatFormat {
 public:
  virtual ~ChatFormat() = default;
  virtual std::string_view name() const = 0;
  // The prompt, control tokens written out. Error if the messages cannot be rendered.
  virtual std::string render(const ChatInput& input) const = 0;
  // prompt: what was rendered (it may end inside a thought). The text of the token that ends a turn is not
  // for the parser.
  virtual std::unique_ptr<ChatParser> parser(std::string_view prompt, const AnswerReading& reading) const = 0;
  // The whole answer to a rendered prompt, as this format writes it. Nothing if the format does not know how
  // its model writes calls. Error if a strict function's schema cannot be kept.
  virtual std::optional<GrammarBuilder::Expr> answer(GrammarBuilder& b, const AnswerForm& form,
                                                     std::string_view prompt) const;
  // Whether the model thinks where ChatInput::think says nothing.
  virtual bool thinks_by_default() const { return false; }
  // Nothing if the format has no thoughts.
  virtual std::optional<ThoughtMarks> thought(std::string_view /*prompt*/) const { return {}; }
  // Whether generated control tokens must reach the parser as text.
  virtual bool wants_special() const = 0;
};

// What decides between variants of a format where the model file has no template.
struct ChatHints {
  // Gemma 4 with thinking off: 26B and 31B (no per-layer embeddings) end the prompt with an empty thought
  // block, E2B and E4B do not.
  bool empty_thought = true;
};

// arch: general.architecture; template_text: the model's own Jinja template, or empty for the format's native
// rendering ("gemma4": chat/gemma.cc; "qwen35", "qwen35moe": chat/qwen.cc). Unknown arch without a template:
// Error; with one: answers are plain content.
std::unique_ptr<ChatFormat> make_chat_format(std::string_view arch, std::string_view template_text,
                                             const ChatHints& hints = {});

// Messages and tools as clients send them, checked, in the form that templates expect (chat/normalize.cc).
// Every ChatFormat::render does this first. Error naming the message and field. split_calls: an assistant
// message with text and tool calls becomes two.
ChatInput normalize_chat(const ChatInput& input, bool split_calls);

}  // namespace carat
