// The one sampler. A token is a function of (logits, parameters, history, seed, position): docs/numerics.md,
// "Noise".
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace carat {

using Token = int32_t;

// Where a repeat ends for DRY: tokens, and sequences of tokens.
struct DryBreakers {
  std::vector<bool> token;  // [vocab], or shorter
  std::vector<std::vector<Token>> sequences = {};
  bool breaks(Token t) const {
    return static_cast<size_t>(t) < token.size() && token[static_cast<size_t>(t)];
  }
};

// Names, defaults and ranges as in llama.cpp and the OpenAI API.
struct SampleParams {
  float temperature = 1;  // 0: greedy
  int32_t top_k = 0;      // 0: all
  float top_p = 1, min_p = 0;
  float top_n_sigma = -1;  // of logits' deviations below the best; <= 0: all (Top-n-sigma, Tang et al. 2024)
  float typical_p = 1;     // 1: all (Locally typical sampling, Meister et al. 2023)
  // With xtc_probability all tokens of at least xtc_threshold but the least probable of them are left out.
  float xtc_probability = 0, xtc_threshold = 0.1F;
  // The temperature goes with the entropy of what is left, between temperature -+ range.
  float dynatemp_range = 0, dynatemp_exponent = 1;
  int32_t mirostat = 0;  // 1, 2: its versions instead of all filters above (Mirostat, Basu et al. 2021)
  float mirostat_tau = 5, mirostat_eta = 0.1F;
  // DRY: a token that would go on with a repeat of `length` tokens loses multiplier * base ^ (length -
  // allowed).
  float dry_multiplier = 0, dry_base = 1.75F;
  int32_t dry_allowed_length = 2, dry_penalty_last_n = -1;  // -1: the whole history; 0: off
  std::shared_ptr<const DryBreakers> dry_breakers = {};     // null: none
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
  // Mirostat's bound on a token's surprise in bits; nothing before the first one.
  std::optional<double> surprise_bound;

 private:
  std::vector<Token> tokens_;
  std::unordered_map<Token, int32_t> generated_;
};

// argmax over kept tokens of log p(x) + Gumbel(seed, pos, x); ties to the lowest id; temperature 0: no noise.
// Order: mask, bias, penalties, DRY, temperature, top-n-sigma, top-k, typical, top-p, min-p, XTC, dynamic
// temperature; with Mirostat it alone follows temperature. logits are not changed. pos: absolute position of
// the token that is picked. allowed: a bit per token (engine/mask.h), what is not in it is as if it had
// probability 0; empty: all are allowed.
Token pick(std::span<const float> logits, const SampleParams& params, const History& history, int64_t pos,
           std::span<const uint64_t> allowed = {});
// After each pick, before its token comes into the history: what Mirostat learns from it.
void learn(std::span<const float> logits, const SampleParams& params, History& history, Token picked,
           std::span<const uint64_t> allowed = {});
// The same as pick where all tokens are allowed, from the best of them in order (column, value;
// TopRows::Row); nothing if it takes more than these to know it.
std::optional<Token> pick_among(std::span<const int32_t> column, std::span<const float> value,
                                const SampleParams& params, int64_t pos);

// The distribution pick draws from: probability per token, 0 where filtered. pos: XTC alone depends on it.
std::vector<float> distribution(std::span<const float> logits, const SampleParams& params,
                                const History& history, int64_t pos = 0);

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
