// A grammar over a vocabulary: which tokens may come next. Speculation asks for many states of one answer, so
// a state is a number that is copied and forgotten at will; the matcher remembers what the numbers mean. Cost
// (262,144 tokens, one core of a 2 GHz server): docs/operations.md, "Constrained answers".
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/tokenizer/token_trie.h"

namespace carat {

// The part that requests share. Where a grammar takes many bytes (inside a string, say), which tokens it
// takes is worked out once per grammar state: the tokens that stay within the rule, and the places in the
// trie where the rule ends, from which each request goes on by itself.
class TokenGrammar {
 public:
  TokenGrammar(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie);
  struct Local {
    std::vector<uint64_t> allowed;
    std::vector<uint32_t> left;  // trie nodes after which the rule has ended
  };
  // Any thread. units: what it has cost to make it now.
  std::shared_ptr<const Local> local(int32_t state, uint64_t& units) const;
  bool wide(int32_t state) const;  // worth it
  const std::shared_ptr<const Grammar>& grammar() const { return grammar_; }
  const TokenTrie& trie() const { return *trie_; }

 private:
  uint64_t alike(int32_t state) const;
  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const TokenTrie> trie_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<GrammarAutomaton> automaton_;
  mutable std::vector<uint64_t> alike_;  // [states] equal for those that no token tells apart; or empty
  mutable std::unordered_map<uint64_t, std::shared_ptr<const Local>> locals_;
};

class GrammarMatcher {
 public:
  using State = int32_t;
  static constexpr State kNowhere = 0;  // after a token that was not allowed
  explicit GrammarMatcher(std::shared_ptr<const TokenGrammar> grammar);

  State start() const { return start_; }
  // Nowhere if the token is not allowed. An end token leads to `ended`, where only end tokens are allowed.
  State advance(State s, Token token);
  bool may_end(State s) const { return s == kEnded || automaton_.ended(s); }
  // A bit per token of the vocabulary, valid until the next call. Never all zero: where a vocabulary cannot
  // go on, it may end.
  std::span<const uint64_t> allowed(State s);
  // The bytes that must follow whatever is chosen; empty if there is a choice, at most `most`.
  std::string forced_text(State s, size_t most = 256);
  // The same as tokens, longest first; what a drafter may propose. Control tokens included.
  std::vector<Token> forced_tokens(State s, size_t most = 64);
  const TokenTrie& trie() const { return grammar_->trie(); }

 private:
  static constexpr State kEnded = -1;
  struct Kept {
    State state;
    std::vector<uint64_t> words;
  };
  void fill(State s, std::vector<uint64_t>& words);
  void begin_work();

  std::shared_ptr<const TokenGrammar> grammar_;
  GrammarAutomaton automaton_;
  State start_ = kNowhere;
  std::vector<Kept> kept_;  // the latest masks
  size_t next_kept_ = 0;
  uint64_t answer_units_ = 0;  // that the tokens so far may have taken
};

}  // namespace carat
