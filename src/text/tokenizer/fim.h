// Tokens between which models that were trained to fill a gap expect its surroundings.
#pragma once
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace carat {

struct FimTokens {
  Token prefix = -1, suffix = -1, middle = -1;  // all of them, or the model fills no gaps
  Token repository = -1, file = -1;             // before a repository's name and a file's
  std::vector<Token> ends;                      // say that the gap is filled
  explicit operator bool() const { return prefix >= 0 && suffix >= 0 && middle >= 0; }
};
// By the names that published vocabularies give them.
FimTokens fim_tokens(const Tokenizer& tokenizer);

// What stands around a gap.
struct Gap {
  struct File {
    std::string name, text;
  };
  std::vector<File> others;          // of the same repository, before it
  std::string before, after, begun;  // begun: of the gap itself
};
// The prompt; texts are texts, whatever control tokens they spell. No BOS.
std::vector<Token> fim_prompt(const Tokenizer& tokenizer, const FimTokens& tokens, const Gap& gap);

}  // namespace carat
