// Free text in which some patterns lead on to a form of their own: all patterns are watched for at once (Aho
// and Corasick, "Efficient string matching", 1975).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "text/grammar/grammar.h"

namespace carat {

struct DispatchBranch {
  std::string pattern;         // where the text says this; empty: only `token` leads here
  GrammarBuilder::Expr after;  // this follows
  // What a control token leads to, whatever was said before, with the token; -1: none does.
  GrammarBuilder::Expr token = -1;
};

struct FreeText {
  std::vector<DispatchBranch> branches = {};
  std::vector<std::string> never = {};  // texts that are not said
  bool loop = true;                     // text may follow a branch, and further branches
  int64_t most = -1;                    // characters, without branches; -1: no limit
  GrammarBuilder::Expr other = -1;      // what may stand wherever a character may; -1: nothing
};
// Error if there are too many patterns, or a pattern is empty.
GrammarBuilder::Expr free_text_grammar(GrammarBuilder& b, const FreeText& text);

}  // namespace carat
