// What a request asks of its answer beside the sampler's settings: vLLM's and llama.cpp's fields. Each is
// honoured or refused with a 400 that names it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/mask.h"
#include "serve/api/json.h"
#include "serve/config.h"
#include "text/tokenizer/tokenizer.h"

namespace carat {

struct Wishes {
  int32_t min_tokens = 0;  // no end and no stop string before
  std::vector<Token> stop_token_ids = {};
  std::vector<Token> allowed_token_ids = {};  // empty: all
  std::vector<std::string> bad_words = {};
  std::vector<std::string> dry_breakers = {};
  std::vector<std::pair<std::string, float>> text_bias = {};  // of each of the text's tokens
  bool include_stop = false;        // the stop string, or token, is part of the answer
  bool return_token_ids = false;    // tokens beside the text
  int32_t truncate_prompt = 0;      // only the last tokens of the prompt; -1: as many as fit; 0: all
  bool truncate_end = false;        // these are the first ones instead
  bool drop_oldest = false;         // a conversation that is too long loses its oldest turns
  bool include_reasoning = true;    // thoughts are told
  bool special_tokens = false;      // control tokens are part of a completion's text
  bool tokens_as_ids = false;       // in log probabilities: "token_id:N" for a token's text
  bool return_prompt_text = false;  // what was rendered
  int32_t thinking_budget = -1;     // tokens of thought; -1: no bound
  std::string budget_message = {};  // what a thought that is cut ends with
};
Wishes read_wishes(const Fields& f, const ServeConfig& config);

// thinking_token_budget (vLLM), thinking_budget_tokens, reasoning_budget, reasoning_budget_tokens
// (llama.cpp).
int32_t read_thinking_budget(const Fields& f, int32_t otherwise);
// Where no thoughts are told apart: ApiError 400 if a budget is set.
void refuse_thinking_budget(const Fields& f);

// The fields of a chat body that have the same name and meaning in every API.
void copy_shared_fields(const Json& from, Json& to);

// Keeps the last tokens (BOS stays in front), or the first ones.
void truncate_prompt(std::vector<Token>& prompt, const Wishes& wishes, int32_t context, int32_t max_tokens,
                     Token bos);

// Breakers for DRY: tokens that hold one of the texts, and the tokens that spell it.
std::shared_ptr<const DryBreakers> find_breakers(const Tokenizer& tokenizer,
                                                 const std::vector<std::string>& texts);

// A mask that keeps the wishes, within what `inner` allows (null: everything); `inner` itself if they ask for
// nothing. ends: tokens that end an answer. marks: null where there is no thought to be bounded. ApiError 400
// if a token is not in the vocabulary.
std::shared_ptr<TokenMask> restricted(std::shared_ptr<TokenMask> inner, const Wishes& wishes,
                                      const std::vector<Token>& ends, const ThoughtMarks* marks,
                                      const Tokenizer& tokenizer);

}  // namespace carat
