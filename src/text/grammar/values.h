// How values are written that a schema (grammar/schema.h) allows: as JSON, or as a Gemma call's arguments.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/schema.h"

namespace carat {

class ValueForms {
 public:
  using Expr = GrammarBuilder::Expr;
  ValueForms(GrammarBuilder& b, SchemaDialect dialect) : b_(b), gemma_(dialect == SchemaDialect::gemma_call) {
    const bool tight = gemma_ || dialect == SchemaDialect::compact_json;
    blank_ = tight ? b.empty() : b.named("space", space());
  }

 protected:
  Expr sp() { return blank_; }
  Expr space();
  Expr anything();
  Expr free_object();
  Expr quoted(Expr inner);
  Spelling spelling() const { return gemma_ ? Spelling::plain : Spelling::json; }
  // One character with all of JSON's ways to write it.
  Expr any_json_char();
  Expr any_text();
  Expr between(const char* open, Expr inner, const char* close);
  Expr none(const char* open, const char* close);
  Expr comma() { return b_.seq({b_.text(","), sp()}); }
  Expr array_of(Expr item, int64_t least, int64_t most);
  // At least one.
  Expr list(Expr item, int64_t least, int64_t most);
  Expr pair(Expr key, Expr v) { return b_.seq({key, b_.text(":"), sp(), v}); }
  Expr map_of(Expr key, Expr v, int64_t least, int64_t most);
  // A name as a key; in a call bare where that can be read back.
  Expr key(const std::string& name);
  static bool bare(std::string_view name);
  Expr quoted_key(Expr inner) { return gemma_ ? inner : quoted(inner); }
  CharSet key_chars() const;
  Expr free_key();
  // Any key but those declared, written canonically, so that no escape spells a declared one.
  Expr other_key(const std::vector<std::string>& declared);
  Expr other_key_from(const std::vector<std::vector<char32_t>>& names, size_t from, size_t to, size_t at);
  std::string written(const Json& v) const;
  // A list or object with white space wherever one may have it.
  Expr spaced(const Json& v);
  // A control token as bytes of the grammar.
  std::string marked(std::string_view name) const;

  GrammarBuilder& b_;
  const bool gemma_;

 private:
  Expr blank_ = -1;
  int32_t any_ = -1, char_ = -1, text_ = -1;
};

}  // namespace carat
