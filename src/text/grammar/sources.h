// Where grammars come from: JSON Schema, regular expressions, GBNF, choice lists. Each gives an expression of
// a builder, so that a chat format can put its own marks around it. All throw Error naming what is wrong; all
// are bounded in depth and size.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/grammar.h"

namespace carat {

using Json = nlohmann::ordered_json;

// How a chosen character of a string is written where the string stands: itself, or with JSON's escapes.
enum class Spelling : uint8_t { plain, json };
GrammarBuilder::Expr spelled(GrammarBuilder& b, const CharSet& set, Spelling spelling);

// ECMA 262 and PCRE's common part: classes, groups, quantifiers (greedy or not: the language is the same), ^
// and $ at the ends, \d \w \s, \xHH \uHHHH. search: as JSON Schema's `pattern`, the text may go on on either
// side unless anchored; else the whole text must match.
GrammarBuilder::Expr regex_grammar(GrammarBuilder& b, std::string_view pattern, Spelling spelling,
                                   bool search);

// A text that matches all of the patterns, of least to most characters (-1: no limit), without `never` in it
// (empty: anything may be).
struct TextPattern {
  std::string pattern;
  bool search = true;
};
GrammarBuilder::Expr text_grammar(GrammarBuilder& b, const std::vector<TextPattern>& patterns, int64_t least,
                                  int64_t most, Spelling spelling, std::string_view never = {});

// llama.cpp's grammars (grammars/README.md there): rules NAME ::= ..., starting at `root`.
GrammarBuilder::Expr gbnf_grammar(GrammarBuilder& b, std::string_view text);

// How values are written.
enum class SchemaDialect : uint8_t {
  json,  // JSON, with white space where a writer may put it: none, a blank, or a line break and indentation
  compact_json,  // JSON without white space
  gemma_call,    // Gemma 4's arguments: <|"|>text<|"|>, bare keys in alphabetical order, no white space
  tag_call       // Qwen's: <parameter=KEY>, a line with the text or the JSON value, </parameter>
};
// JSON Schema (2020-12 and draft 7's spellings). Objects are written in the order of `properties`, then the
// others; objects that declare properties take no others unless additionalProperties says so. Keywords that
// restrict and are not understood are an Error, never dropped. docs/operations.md lists them. lenient: for
// tools that do not ask for strictness; such keywords are let go one by one, and the rest of the schema
// holds.
GrammarBuilder::Expr schema_grammar(GrammarBuilder& b, const Json& schema, SchemaDialect dialect,
                                    bool lenient = false);

}  // namespace carat
