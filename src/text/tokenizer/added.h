// Finds added tokens in text: at every place the longest one that starts there, as Hugging Face's
// AddedVocabulary does.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace carat {

// A part of a text: an added token, or text between them (token -1).
struct TextSpan {
  std::string_view text;
  Token token = -1;
};

class AddedTokens {
 public:
  AddedTokens();
  void add(std::string_view text, const AddedTokenRule& rule);
  bool empty() const { return rules_.empty(); }
  // In order, covering the text; a token that strips white space covers it too.
  std::vector<TextSpan> split(std::string_view text) const;

 private:
  struct Node {
    uint32_t child = 0, sibling = 0;  // 0: none (the root is nobody's child)
    int32_t rule = -1;
    uint8_t byte = 0;
  };
  // The rule of the longest token at the front, and its length; -1 if none.
  int32_t longest(std::string_view text, size_t& length) const;

  std::vector<Node> nodes_;
  std::array<uint32_t, 256> first_{};  // the root's children by byte
  std::vector<AddedTokenRule> rules_;
};

}  // namespace carat
