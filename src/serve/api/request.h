// What chat and completion requests have in common.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "serve/api/json.h"
#include "serve/api/wishes.h"
#include "serve/config.h"
#include "text/grammar/matcher.h"
#include "text/tokenizer/tokenizer.h"

namespace carat {

struct GenerateOptions {
  SampleParams sample;
  int32_t max_tokens = -1;
  int n = 1;
  uint64_t salt = 0;  // Request::salt
  int32_t priority = 0;
  int32_t slot = -1;  // Request::slot
  std::vector<std::string> stop;
  bool stream = false, include_usage = false, include_steps = false, ignore_eos = false;
  bool usage_each = false, timings_each = false;  // in every piece of a stream
  std::string id;                                 // of the answer, behind its kind; empty: a random one
  bool speculate = true;                          // false: plain decoding, whatever drafts for others
  bool progress = false;                          // tell how far the prompt has been read
  double max_predict_ms = 0;                      // behind the first token, once there is a line; 0: any time
  int indent = 0;                                 // a line with less white space in front ends the answer
  std::vector<Token> further_ends;                // tokens that end the answer beside the model's own
  int32_t logprobs = -1;                          // alternatives per token; -1: no log probabilities
  std::shared_ptr<const TokenGrammar> grammar = nullptr;  // of the answer; null: anything
  Wishes wishes = {};
  std::optional<ThoughtMarks> thought = {};  // how the model thinks; nothing: it does not
};

// Everything but logprobs, whose form differs.
GenerateOptions read_options(const Json& body, const ServeConfig& config, const HttpRequest& request);

// Tokens of a rendered prompt or a text; bos in front if the model wants one and it is not there.
std::vector<Token> encode_prompt(const Tokenizer& tokenizer, std::string_view text);

struct PromptTooLong : ApiError {
  PromptTooLong(const std::string& what, const char* param, size_t tokens_, int32_t most_)
      : ApiError(400, what, param, "context_length_exceeded"), tokens(tokens_), most(most_) {}
  size_t tokens;
  int32_t most;
};
// PromptTooLong if the prompt leaves no room for a token.
void check_length(size_t prompt_tokens, int32_t context, const char* param);

}  // namespace carat
