// The pieces of schema_grammar (grammar/sources.h).
#pragma once
#include <cstdint>
#include <optional>

#include "text/grammar/sources.h"

namespace carat {

// Null if there is none.
inline const Json* keyword(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

// Bounds of a number; nothing: none.
struct NumberBounds {
  std::optional<long double> low, high;      // wide enough for integers of 64 bits
  bool low_open = false, high_open = false;  // the bound itself is excluded
};
// Integers of at most 19 digits.
GrammarBuilder::Expr integer_grammar(GrammarBuilder& b, const NumberBounds& bounds);
// Decimal fractions; an exponent only where there are no bounds.
GrammarBuilder::Expr number_grammar(GrammarBuilder& b, const NumberBounds& bounds);
// Integers that `of` divides. Error if the bounds are more than a sign and leave too many to list.
GrammarBuilder::Expr multiple_grammar(GrammarBuilder& b, int64_t of, const NumberBounds& bounds);
// One digit from low to high.
GrammarBuilder::Expr digit_grammar(GrammarBuilder& b, char low, char high);

// The schema that both schemas together are. Error if that cannot be said in one.
class SchemaMerger {
 public:
  explicit SchemaMerger(const Json& root) : root_(root) {}
  // Without $ref and allOf at its top; anyOf and oneOf stay.
  Json flatten(const Json& schema, int depth = 0);
  Json merge(const Json& a, const Json& b, int depth = 0);
  const Json& target(const std::string& ref) const;

 private:
  void merge_objects(Json& out, const Json& b);
  const Json& root_;
  int work_ = 0;
};

inline constexpr const char* kSchemaTypes[] = {"object",  "array",   "string", "number",
                                               "integer", "boolean", "null"};
// The type that a value has; whole numbers are integers.
std::string schema_type_of(const Json& v);
bool requires_name(const Json& schema, const std::string& name);
// oneOf means exactly one: Error unless what is written for a branch never matches another one. They differ
// in type, in a property that both require, or each requires a name that the other does not have.
void check_disjoint(SchemaMerger& merger, const Json& list, const std::string& where);

// A pattern for a `format` that says something about the text; empty: it is an annotation.
std::string_view format_pattern(std::string_view format);

}  // namespace carat
