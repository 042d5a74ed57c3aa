// The one sampler. A token is a function of (logits, parameters, history, seed, position): docs/numerics.md,
// "Noise".
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace carat {

using Token = int32_t;

// Names, defaults and ranges as in llama.cpp and the OpenAI API.
struct SampleParams {
  float temperature = 1;  // 0: greedy
  int32_t top_k = 0;      // 0: all
  float top_p = 1, min_p = 0;
  float repeat_penalty = 1;                              // > 1 discourages tokens of the last repeat_last_n
  int32_t repeat_last_n = -1;                            // -1: the whole history; 0: off
  float presence_penalty = 0, frequency_penalty = 0;     // over generated tokens only (OpenAI)
  std::vector<std::pair<Token, float>> logit_bias = {};  // added first; -inf bans
  uint64_t seed = 0;
};
// Error naming the field and its range.
void check_params(const SampleParams& params);

// What penalties look at: prompt and generated tokens, in order.
class History {
 public:
  void add_prompt(std::span<const Token> tokens);
  void add(Token generated);
  std::span<const Token> tokens() const { return tokens_; }
  int32_t generated_count(Token token) const;
  const std::unordered_map<Token, int32_t>& generated() const { return generated_; }

 private:
  std::vector<Token> tokens_;
  std::unordered_map<Token, int32_t> generated_;
};

// argmax over kept tokens of log p(x) + Gumbel(seed, pos, x); ties to the lowest id; temperature 0: no noise.
// Order: mask, bias, penalties, temperature, top-k, top-p, min-p. logits are not changed. pos: absolute
// position of the token that is picked. allowed: a bit per token (engine/mask.h), what is not in it is as if
// it had probability 0; empty: all are allowed.
Token pick(std::span<const float> logits, const SampleParams& params, const History& history, int64_t pos,
           std::span<const uint64_t> allowed = {});
// The same where all tokens are allowed, from the best of them in order (column, value; TopRows::Row);
// nothing if it takes more than these to know it.
std::optional<Token> pick_among(std::span<const int32_t> column, std::span<const float> value,
                                const SampleParams& params, int64_t pos);

// The distribution pick draws from: probability per token, 0 where filtered.
std::vector<float> distribution(std::span<const float> logits, const SampleParams& params,
                                const History& history);

// log softmax of raw logits at `token`, and the n best (log probability descending, ties to the lowest id).
struct TokenLogprob {
  Token token;
  float logprob;
};
struct Logprobs {
  float chosen = 0;
  std::vector<TokenLogprob> top;
};
Logprobs logprobs(std::span<const float> logits, Token token, int32_t n);

}  // namespace carat
