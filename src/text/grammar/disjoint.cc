// oneOf, and the formats of texts: what schema_grammar must know of schemas beyond their grammar.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "text/grammar/schema.h"

namespace carat {
namespace {

constexpr int kMaxComparedDepth = 8;

std::optional<Json> values(const Json& s) {
  if (s.contains("const")) return Json::array({s["const"]});
  if (s.contains("enum")) return s["enum"];
  return {};
}

std::set<std::string> kinds(const Json& s) {
  std::set<std::string> out;
  if (const auto list = values(s)) {
    for (const Json& v : *list) out.insert(schema_type_of(v));
  } else if (const Json* type = keyword(s, "type")) {
    for (const Json& t : type->is_array() ? *type : Json::array({*type}))
      if (t.is_string()) out.insert(t.get<std::string>());
  } else {
    for (const char* t : kSchemaTypes) out.insert(t);
  }
  if (out.contains("number")) out.insert("integer");
  return out;
}

bool common(const Json& a, const Json& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](const Json& v) { return std::find(b.begin(), b.end(), v) != b.end(); });
}

class Disjointness {
 public:
  explicit Disjointness(SchemaMerger& merger) : merger_(merger) {}

  bool of(const Json& given_a, const Json& given_b, int depth) {
    if (depth > kMaxComparedDepth) return false;
    const Json a = merger_.flatten(given_a), b = merger_.flatten(given_b);
    if (!a.is_object() || !b.is_object()) return a == false || b == false;
    for (const char* key : {"anyOf", "oneOf"}) {
      if (const Json* list = keyword(a, key)) return all_of(*list, b, depth);
      if (const Json* list = keyword(b, key)) return all_of(*list, a, depth);
    }
    const auto x = values(a), y = values(b);
    if (x && y) return !common(*x, *y);
    const std::set<std::string> left = kinds(a), right = kinds(b);
    if (std::none_of(left.begin(), left.end(), [&](const auto& t) { return right.contains(t); })) return true;
    return objects(a, b, depth);
  }

 private:
  bool all_of(const Json& list, const Json& b, int depth) {
    return list.is_array() &&
           std::all_of(list.begin(), list.end(), [&](const Json& x) { return of(x, b, depth + 1); });
  }

  // What is written for it is.
  static bool is_object(const Json& s) { return !s.contains("type") || s["type"] == "object"; }

  bool objects(const Json& a, const Json& b, int depth) {
    const Json *p = keyword(a, "properties"), *q = keyword(b, "properties");
    if (!p || !q || !p->is_object() || !q->is_object() || !is_object(a) || !is_object(b)) return false;
    for (const auto& [name, schema] : p->items())
      if (q->contains(name) && requires_name(a, name) && requires_name(b, name) &&
          of(schema, (*q)[name], depth + 1))
        return true;
    return lacks(a, b) && lacks(b, a);
  }

  // What is written for `a` never has a name that `b` requires.
  static bool lacks(const Json& a, const Json& b) {
    const Json *rest = keyword(a, "additionalProperties"), *needs = keyword(b, "required");
    if ((rest && *rest != false) || keyword(a, "patternProperties") || !needs || !needs->is_array())
      return false;
    return std::any_of(needs->begin(), needs->end(), [&](const Json& n) {
      return n.is_string() && !a["properties"].contains(n.get<std::string>()) &&
             !requires_name(a, n.get<std::string>());
    });
  }

  SchemaMerger& merger_;
};

}  // namespace

std::string schema_type_of(const Json& v) {
  if (v.is_number_integer()) return "integer";
  if (v.is_number_float()) return v.get<double>() == std::floor(v.get<double>()) ? "integer" : "number";
  return v.is_object()   ? "object"
         : v.is_array()  ? "array"
         : v.is_string() ? "string"
         : v.is_null()   ? "null"
                         : "boolean";
}

bool requires_name(const Json& s, const std::string& name) {
  const Json* r = keyword(s, "required");
  return r && r->is_array() && std::find(r->begin(), r->end(), name) != r->end();
}

void check_disjoint(SchemaMerger& merger, const Json& list, const std::string& where) {
  Disjointness disjoint(merger);
  for (size_t i = 0; i < list.size(); ++i)
    for (size_t k = 0; k < i; ++k)
      if (!disjoint.of(list[i], list[k], 0))
        throw Error(fmt::format("{}: oneOf: a value may match both branch {} and branch {}", where, k, i),
                    "use anyOf, or a required property with a different const in each branch");
}

std::string_view format_pattern(std::string_view format) {
#define CARAT_DATE                                                                                           \
  "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?" \
  ":0[1-9]|"                                                                                                 \
  "1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
#define CARAT_TIME \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
  if (format == "date") return CARAT_DATE;
  if (format == "time") return CARAT_TIME;
  if (format == "date-time") return CARAT_DATE "T" CARAT_TIME;
#undef CARAT_DATE
#undef CARAT_TIME
  if (format == "uuid") return "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
  if (format == "ipv4")
    return "(?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]"
           "?[0-9])";
  if (format == "email")
    return "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,32}){0,2}@[A-Za-z0-9](?:[A-Za-z0-9-]{0,60}[A-Za-z0-9])"
           "?(?:\\.[A-Za-z]{2,"
           "20}){1,3}";
  return {};
}

}  // namespace carat
