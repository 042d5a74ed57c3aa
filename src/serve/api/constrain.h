// Answers of a demanded form: what requests call response_format, grammar, guided_*, structured_outputs and
// tool_choice, as a mask for the engine.
#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "serve/api/json.h"
#include "text/grammar/matcher.h"

namespace carat {

// How a request's tools may be used.
struct ToolUse {
  Json declared;  // all that the model is told of
  Json tools;     // those that may be called, null: none
  bool must_call = false, parallel = true;
  bool some = false;        // not all that are declared may be called
  bool constrains() const;  // more than the model's own habits is asked for
};
// tools, tool_choice (OpenAI's) and parallel_tool_calls.
ToolUse read_tool_use(const Json& body);

// Grammars of requests, made once and kept while they are asked for again. Any thread.
class Constraints {
 public:
  explicit Constraints(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  // The grammar that a completion's body asks for; null: none. ApiError 400 naming the field.
  std::shared_ptr<const TokenGrammar> of_text(const Json& body);
  // Likewise for the answer to a chat, around which the format puts its own marks.
  std::shared_ptr<const TokenGrammar> of_chat(const Json& body, const ToolUse& use, const ChatFormat& format,
                                              const std::string& prompt, bool thinking);

 private:
  std::shared_ptr<const TokenGrammar> find(const std::string& key);
  std::shared_ptr<const TokenGrammar> keep(const std::string& key, std::shared_ptr<const Grammar> grammar);

  const Tokenizer& tokenizer_;
  std::mutex mutex_;
  std::shared_ptr<const TokenTrie> trie_;
  std::list<std::pair<std::string, std::shared_ptr<const TokenGrammar>>> kept_;  // the latest first
};

}  // namespace carat
