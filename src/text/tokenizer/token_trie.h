// A vocabulary by its bytes, for walks that try every token at once: 262,144 tokens of a real vocabulary make
// about as many nodes again. Control tokens stand as in a grammar (special_bytes); tokens that end a turn are
// not in it.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace carat {

class TokenTrie {
 public:
  // In preorder: children follow their parent, `skip` is the first node behind the subtree.
  struct Node {
    uint32_t skip = 0;
    Token token = -1;  // the first with these bytes; next_same() has the others
    uint16_t depth = 0;
    uint8_t byte = 0;
  };
  explicit TokenTrie(const Tokenizer& tokenizer);
  std::span<const Node> nodes() const { return nodes_; }  // the first is the root
  Token next_same(Token t) const { return next_same_[static_cast<size_t>(t)]; }
  std::string_view bytes(Token t) const;  // empty: no text, or no such token
  std::span<const Token> ends() const { return ends_; }
  bool is_end(Token t) const;
  size_t deepest() const { return deepest_; }
  int32_t vocabulary() const { return static_cast<int32_t>(next_same_.size()); }

 private:
  std::vector<Node> nodes_;
  std::vector<Token> next_same_, ends_;
  std::vector<uint32_t> begin_;  // of each token's bytes in text_, and the end
  std::string text_;
  size_t deepest_ = 0;
};

}  // namespace carat
