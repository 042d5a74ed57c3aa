// Byte-pair encoding over token ids: the merge table, and the merging of one piece.
// Same result as repeating "merge the pair of the best rank, leftmost first" until no pair is left, in O(n
// log n).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace carat {

// Exact text -> id over strings that live elsewhere. Of equal strings the later id wins.
class VocabIndex {
 public:
  void build(std::span<const std::string> tokens);
  Token find(std::string_view piece) const;

 private:
  struct Slot {
    uint32_t hash = 0;
    Token id = -1;
  };
  std::span<const std::string> tokens_;
  std::vector<Slot> slots_;
};

class Bpe {
 public:
  // merges: "left right", best first; every part and every result must be in the vocabulary, else Error. Of
  // equal pairs the later rank wins, as in Hugging Face's tokenizers.
  void build(const VocabIndex& index, std::span<const std::string> tokens,
             std::span<const std::string> merges);

  // Optional, for speed: the initial token that each token's text starts and ends with (-1: never in a
  // merge). Then a piece is cut wherever no merge can reach across, which changes nothing in the result: a
  // whole text becomes words.
  void build_joints(std::span<const Token> first, std::span<const Token> last);

  bool is_part(Token id) const { return part_[id]; }  // of any merge

  // Appends the tokens that `symbols` (initial tokens of one piece) merge into.
  void encode(std::span<const Token> symbols, std::vector<Token>& out) const;

 private:
  struct Merge {
    uint64_t pair = UINT64_MAX;
    uint32_t rank = 0;
    Token result = -1;
  };
  static constexpr uint32_t kNoRank = UINT32_MAX;
  const Merge* find(Token left, Token right) const;
  bool joins(Token left, Token right) const;
  void insert(Token left, Token right, uint32_t rank, Token result);
  void encode_short(std::span<const Token> symbols, std::vector<Token>& out) const;
  void encode_long(std::span<const Token> symbols, std::vector<Token>& out) const;

  std::vector<Merge> slots_;  // open addressing, a power of two
  int shift_ = 63;
  std::vector<bool> part_;
  std::vector<uint64_t> joints_;  // open addressing; empty: anything may join
  int joint_shift_ = 63;
};

}  // namespace carat
