#include "text/grammar/schema.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>

#include "base/error.h"
#include "text/grammar/values.h"
#include "text/jinja/text.h"

namespace carat {
namespace {

using Expr = GrammarBuilder::Expr;

constexpr int kMaxSchemaDepth = 64;
constexpr std::string_view kParameterEnd = "\n</parameter>";
constexpr int64_t kMostCounted = 16'384;  // longer texts that are to be counted are not written
constexpr int64_t kMostLenient = 2000;    // characters; longer limits are let go where that is allowed

const std::set<std::string_view> kRefused = {"not",
                                             "if",
                                             "then",
                                             "else",
                                             "contains",
                                             "minContains",
                                             "maxContains",
                                             "dependentRequired",
                                             "dependentSchemas",
                                             "dependencies",
                                             "unevaluatedProperties",
                                             "unevaluatedItems",
                                             "$dynamicRef",
                                             "$recursiveRef"};
const std::set<std::string_view> kObjectKeys = {"properties",        "required",      "additionalProperties",
                                                "patternProperties", "propertyNames", "minProperties",
                                                "maxProperties"},
                                 kArrayKeys = {"items",    "prefixItems", "additionalItems",
                                               "minItems", "maxItems",    "uniqueItems"},
                                 kStringKeys = {"minLength", "maxLength", "pattern"},
                                 kNumberKeys = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                                "multipleOf"};

bool has_any(const Json& schema, const std::set<std::string_view>& keys) {
  return std::any_of(keys.begin(), keys.end(), [&](std::string_view k) { return schema.contains(k); });
}

// `where` is the path to the schema at hand, for errors.
class SchemaReader : ValueForms {
 public:
  SchemaReader(GrammarBuilder& b, const Json& root, SchemaDialect dialect, bool lenient)
      : ValueForms(b, dialect),
        root_(root),
        merger_(root),
        tags_(dialect == SchemaDialect::tag_call),
        lenient_(lenient) {}

  Expr run() {
    const Expr e = tags_ ? parameters(root_) : value(root_, "schema", 0);
    while (!pending_.empty()) {  // not where they are met: a long chain of references is no deep recursion
      const auto [ref, rule] = pending_.front();
      pending_.pop_front();
      b_.define(rule, value(merger_.target(ref), "schema " + ref, 0));
    }
    return e;
  }

 private:
  [[noreturn]] static void fail(const std::string& where, std::string_view what, std::string hint = {}) {
    throw Error(fmt::format("{}: {}", where, what), std::move(hint));
  }

  // ---- what a schema means

  Expr value(const Json& given, const std::string& where, int depth) {
    return relaxed(
        given, [&](const Json& s) { return exact(s, where, depth); }, [&] { return anything(); });
  }
  // What `read` makes of the schema, less keywords that it cannot keep if that is allowed.
  template <class Read, class Otherwise>
  Expr relaxed(const Json& given, const Read& read, const Otherwise& otherwise) {
    if (!lenient_) return read(given);
    for (Json s = given;;) {
      try {
        return read(s);
      } catch (const Error&) {
        if (!drop_keyword(s)) return otherwise();
      }
    }
  }
  static bool drop_keyword(Json& s) {
    if (!s.is_object()) return false;
    for (const std::string_view key : kRefused)
      if (s.erase(std::string(key))) return true;
    if (const Json* unique = keyword(s, "uniqueItems"); unique && *unique != false)
      return s.erase("uniqueItems");
    if (s.contains("oneOf") && !s.contains("anyOf")) {
      s["anyOf"] = s["oneOf"];
      s.erase("oneOf");
      return true;
    }
    for (const char* key : {"uniqueItems",
                            "pattern",
                            "format",
                            "minLength",
                            "maxLength",
                            "multipleOf",
                            "minProperties",
                            "maxProperties",
                            "propertyNames",
                            "patternProperties",
                            "minItems",
                            "maxItems",
                            "minimum",
                            "maximum",
                            "exclusiveMinimum",
                            "exclusiveMaximum",
                            "prefixItems",
                            "oneOf",
                            "allOf",
                            "anyOf",
                            "additionalProperties",
                            "items",
                            "required",
                            "properties",
                            "$ref",
                            "const",
                            "enum"})
      if (s.erase(key)) return true;
    return false;
  }

  Expr exact(const Json& given, const std::string& where, int depth) {
    if (depth > kMaxSchemaDepth) fail(where, "nested too deeply");
    if (given == true || (given.is_object() && given.empty())) return anything();
    if (given == false) return b_.nothing();
    if (!given.is_object()) fail(where, "a schema must be an object, true or false");
    if (given.contains("$ref") && !restricts(given)) return reference(given["$ref"], where);
    const Json s = merger_.flatten(given);
    if (!s.is_object()) return value(s, where, depth + 1);
    if (excludes_all(s)) return b_.nothing();
    for (const auto& [key, unused] : s.items())
      if (kRefused.contains(key)) fail(where, fmt::format("'{}' is not supported", key));
    for (const char* key : {"anyOf", "oneOf"})
      if (s.contains(key)) return branches(s, key, where, depth);
    if (s.contains("const") || s.contains("enum")) return listed(s, where);
    std::vector<Expr> options;
    for (const std::string& type : types(s, where)) options.push_back(typed(s, type, where, depth));
    return b_.alt(std::move(options));
  }

  // "not": {}, as Zod writes what can never be.
  static bool excludes_all(const Json& s) {
    const Json* j = keyword(s, "not");
    return j && (*j == true || (j->is_object() && j->empty()));
  }

  // Anything beside a reference that says more about the value.
  static bool restricts(const Json& s) {
    static const std::set<std::string_view> kNotes = {
        "$ref",    "title",   "description",   "default",         "examples",        "$comment",  "$id",
        "$schema", "$defs",   "definitions",   "deprecated",      "readOnly",        "writeOnly", "$anchor",
        "id",      "example", "discriminator", "contentEncoding", "contentMediaType"};
    return std::any_of(s.items().begin(), s.items().end(),
                       [](const auto& item) { return !kNotes.contains(item.key()); });
  }

  Expr reference(const Json& ref, const std::string& where) {
    if (!ref.is_string()) fail(where, "$ref must be a string");
    const auto [it, fresh] = references_.try_emplace(ref.get<std::string>(), -1);
    if (fresh) {
      static_cast<void>(merger_.target(it->first));
      it->second = b_.rule(it->first);
      pending_.emplace_back(it->first, it->second);
    }
    return b_.ref(it->second);
  }

  Expr branches(const Json& s, const char* key, const std::string& where, int depth) {
    const Json& list = s[key];
    if (!list.is_array() || list.empty()) fail(where, fmt::format("{} must be a non-empty array", key));
    Json base = s;
    base.erase(key);
    const bool alone = !restricts(base);
    if (std::string_view(key) == "oneOf") check_disjoint(merger_, list, where);
    std::vector<Expr> options;
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string at = fmt::format("{}.{}[{}]", where, key, i);
      options.push_back(alone ? value(list[i], at, depth + 1)
                              : value(merger_.merge(base, merger_.flatten(list[i])), at, depth + 1));
    }
    return b_.alt(std::move(options));
  }

  Expr listed(const Json& s, const std::string& where) {
    for (const auto* keys : {&kObjectKeys, &kArrayKeys, &kStringKeys, &kNumberKeys})
      if (has_any(s, *keys))
        fail(where, "enum or const beside other restrictions is not supported", "keep the list alone");
    Json all = s.contains("const") ? Json::array({s["const"]}) : s["enum"];
    if (!all.is_array()) fail(where, "enum must be an array");
    std::vector<std::string> texts;
    std::vector<Expr> structures;
    for (const Json& v : all) {
      if (s.contains("const") && s.contains("enum") &&
          std::find(s["enum"].begin(), s["enum"].end(), v) == s["enum"].end())
        continue;
      if (s.contains("type")) {
        const std::vector<std::string> allowed = types(s, where);
        const std::string type = schema_type_of(v);
        if (std::none_of(allowed.begin(), allowed.end(), [&](const std::string& t) {
              return t == type || (t == "number" && type == "integer");
            }))
          continue;
      }
      if (v.is_structured() && !v.empty() && !gemma_)
        structures.push_back(spaced(v));
      else
        texts.push_back(written(v));
    }
    structures.push_back(b_.literals(std::move(texts)));
    return b_.alt(std::move(structures));
  }

  std::vector<std::string> types(const Json& s, const std::string& where) const {
    std::vector<std::string> out;
    if (const Json* type = keyword(s, "type")) {
      const Json list = type->is_array() ? *type : Json::array({*type});
      for (const Json& t : list) {
        if (!t.is_string() || std::find(std::begin(kSchemaTypes), std::end(kSchemaTypes),
                                        t.get<std::string>()) == std::end(kSchemaTypes))
          fail(where,
               fmt::format("type {} is not known", t.dump(-1, ' ', false, Json::error_handler_t::replace)));
        out.push_back(t.get<std::string>());
      }
      if (std::find(out.begin(), out.end(), "number") != out.end()) std::erase(out, "integer");
      return out;
    }
    // Unsaid, but what restricts one type only is meant for that type.
    if (has_any(s, kObjectKeys)) out.push_back("object");
    if (has_any(s, kArrayKeys)) out.push_back("array");
    if (has_any(s, kStringKeys)) out.push_back("string");
    if (has_any(s, kNumberKeys)) out.push_back("number");
    if (out.empty()) out = {"object", "array", "string", "number", "boolean", "null"};
    return out;
  }

  Expr typed(const Json& s, const std::string& type, const std::string& where, int depth) {
    if (type == "object") return object(s, where, depth);
    if (type == "array") return array(s, where, depth);
    if (type == "string") return quoted(string(s, where, spelling()));
    if (type == "boolean") return b_.literals({"true", "false"});
    if (type == "null") return b_.text("null");
    return number(s, type == "integer", where);
  }

  // ---- strings

  // Between the quotes. In a call's arguments a text with a pattern or a length is taken as it is: that such
  // a text spells the quoting mark itself is the pattern's own doing.
  Expr string(const Json& s, const std::string& where, Spelling how) {
    const int64_t least = count(s, "minLength", 0, where);
    int64_t most = count(s, "maxLength", -1, where);
    if (lenient_ && most > kMostLenient) most = -1;
    most = std::min(most, kMostCounted);
    const bool counted = least > 0 || most >= 0;
    std::vector<TextPattern> patterns;
    if (const Json* p = keyword(s, "pattern"))
      for (const Json& one : p->is_array() ? *p : Json::array({*p})) {
        if (!one.is_string()) fail(where, "pattern must be a string");
        patterns.push_back({one.get<std::string>(), true});
      }
    if (const Json* f = keyword(s, "format"); f && f->is_string() && patterns.empty())  // else an annotation
      if (const std::string_view format = format_pattern(f->get_ref<const std::string&>()); !format.empty())
        patterns.push_back({std::string(format), false});
    if (most >= 0 && most < least) return b_.nothing();
    const bool line = tags_ && how == Spelling::plain;  // it stands between tags
    if (patterns.size() == 1 && !counted && !line)
      return regex_grammar(b_, patterns[0].pattern, how, patterns[0].search);
    if (!patterns.empty() || (line && counted))
      return text_grammar(b_, patterns, least, most, how, line ? kParameterEnd : "");
    if (!counted) return line ? line_text() : any_text();
    return b_.repeat(how == Spelling::plain ? b_.chars(complement({})) : any_json_char(), least, most);
  }

  // ---- arguments between tags

  // Any text that does not spell the end of its parameter.
  Expr line_text() {
    if (line_text_ < 0) {
      line_text_ = b_.rule("text");
      b_.define(line_text_, b_.text_without(kParameterEnd, complement({})));
    }
    return b_.ref(line_text_);
  }

  Expr parameters(const Json& given) {
    const Json s = merger_.flatten(given);
    if (!s.is_object()) fail("schema", "must be an object");
    for (const auto& [key, unused] : s.items())
      if (!lenient_ && (kRefused.contains(key) || key == "patternProperties" || key == "propertyNames"))
        fail("schema", fmt::format("'{}' of a function's parameters is not supported", key));
    for (const char* key : {"anyOf", "oneOf"}) {
      if (!s.contains(key) || !s[key].is_array() || s[key].empty()) continue;
      if (std::string_view(key) == "oneOf" && !lenient_) check_disjoint(merger_, s[key], "schema");
      Json base = s;
      base.erase(key);
      std::vector<Expr> options;
      for (const Json& branch : s[key])
        options.push_back(parameters(merger_.merge(base, merger_.flatten(branch))));
      return b_.alt(std::move(options));
    }
    return declared_parameters(s);
  }
  Expr declared_parameters(const Json& s) {
    Json properties =
        s.contains("properties") && s["properties"].is_object() ? s["properties"] : Json::object();
    const Json rest = s.contains("additionalProperties") ? s["additionalProperties"] : Json(true);
    if (const Json* r = keyword(s, "required"); r && r->is_array())
      for (const Json& name : *r)
        if (name.is_string() && !properties.contains(name.get<std::string>()))
          properties[name.get<std::string>()] = rest;
    const auto entry = [&](Expr name, Expr v) {
      return b_.seq({b_.text("<parameter="), name, b_.text(">\n"), v, b_.text("\n</parameter>\n")});
    };
    if (properties.empty()) {
      if (rest == false || (s.contains("properties") && !s.contains("additionalProperties")))
        return b_.empty();
      const CharSet key = {{'a', 'z'}, {'A', 'Z'}, {'0', '9'}, {'_', '_'}, {'-', '-'}, {'.', '.'}};
      return b_.repeat(entry(b_.repeat(b_.chars(normalized(key)), 1, 64), line_text()), 0, -1);
    }
    std::vector<Expr> all;
    for (const auto& [name, schema] : properties.items()) {
      if (name.empty() || name.find_first_of("<>\n") != name.npos) {
        if (!lenient_) fail("schema", fmt::format("a parameter cannot be called '{}'", name));
        continue;
      }
      const std::string where = "schema.properties." + name;
      const Expr one = entry(b_.text(name), relaxed(
                                                schema, [&](const Json& g) { return parameter(g, where, 0); },
                                                [&] { return line_text(); }));
      all.push_back(b_.named(name, requires_name(s, name) ? one : b_.optional(one)));
    }
    return b_.seq(std::move(all));
  }

  // A text as it stands, another value as JSON.
  Expr parameter(const Json& given, const std::string& where, int depth) {
    if (depth > kMaxSchemaDepth) fail(where, "nested too deeply");
    const Json s = merger_.flatten(given);
    if (s == false || (s.is_object() && excludes_all(s))) return b_.nothing();
    if (!s.is_object() || !restricts(s)) return line_text();
    for (const auto& [key, unused] : s.items())
      if (kRefused.contains(key)) fail(where, fmt::format("'{}' is not supported", key));
    for (const char* key : {"anyOf", "oneOf"}) {
      if (!s.contains(key)) continue;
      if (!s[key].is_array() || s[key].empty()) fail(where, fmt::format("{} must be a non-empty array", key));
      if (std::string_view(key) == "oneOf") check_disjoint(merger_, s[key], where);
      Json base = s;
      base.erase(key);
      std::vector<Expr> options;
      for (const Json& branch : s[key])
        options.push_back(parameter(merger_.merge(base, merger_.flatten(branch)), where, depth + 1));
      return b_.alt(std::move(options));
    }
    if (s.contains("const") || s.contains("enum")) return listed_lines(s, where);
    std::vector<Expr> options;
    for (const std::string& type : types(s, where))
      options.push_back(type == "string" ? string(s, where, Spelling::plain) : typed(s, type, where, depth));
    return b_.alt(std::move(options));
  }
  Expr listed_lines(const Json& s, const std::string& where) {
    std::vector<Expr> options;
    Json others = s;
    const Json list = s.contains("const") ? Json::array({s["const"]}) : s["enum"];
    Json rest = Json::array();
    for (const Json& v : list) {
      if (!v.is_string())
        rest.push_back(v);
      else if (!s.contains("type") || s["type"] == "string" || s["type"].is_array())
        options.push_back(b_.text(v.get_ref<const std::string&>()));
    }
    others.erase("const");
    others["enum"] = rest;
    if (!rest.empty()) options.push_back(listed(others, where));
    return b_.alt(std::move(options));
  }

  // ---- numbers

  Expr number(const Json& s, bool integer, const std::string& where) {
    const NumberBounds bounds = read_bounds(s, where);
    const Json* multiple = keyword(s, "multipleOf");
    if (!multiple) return integer ? integer_grammar(b_, bounds) : number_grammar(b_, bounds);
    const double of = multiple->is_number() ? multiple->get<double>() : 0;
    if (!(of > 0)) fail(where, "multipleOf must be a number above 0");
    if (of == std::floor(of) && of < 1e15) return multiple_grammar(b_, static_cast<int64_t>(of), bounds);
    if (integer || bounds.low || bounds.high) fail(where, "multipleOf of a fraction is supported alone only");
    for (int places = 1; places <= 15; ++places)
      if (of == std::stod("1e-" + std::to_string(places)))
        return b_.seq(
            {b_.optional(b_.text("-")), integer_grammar(b_, {.low = 0, .high = {}}),
             b_.optional(b_.seq({b_.text("."), b_.repeat(digit_grammar(b_, '0', '9'), 1, places)}))});
    fail(where, "multipleOf must be an integer or 0.1, 0.01, ...");
  }

  static NumberBounds read_bounds(const Json& s, const std::string& where) {
    NumberBounds out;
    const auto read = [&](const char* key, std::optional<long double>& bound, bool& open, int sign) {
      const Json* j = keyword(s, key);
      if (!j) return;
      const bool exclusive = std::string_view(key).starts_with("ex");
      if (j->is_boolean()) {  // draft 4: minimum is exclusive
        if (*j == true && bound) open = true;
        return;
      }
      if (!j->is_number()) fail(where, fmt::format("{} must be a number", key));
      const long double v = j->is_number_unsigned()  ? static_cast<long double>(j->get<uint64_t>())
                            : j->is_number_integer() ? static_cast<long double>(j->get<int64_t>())
                                                     : static_cast<long double>(j->get<double>());
      if (!std::isfinite(v)) fail(where, fmt::format("{} must be finite", key));
      if (bound && sign * v < sign * *bound) return;
      open = exclusive || (bound && *bound == v && open);
      bound = v;
    };
    read("minimum", out.low, out.low_open, 1);
    read("exclusiveMinimum", out.low, out.low_open, 1);
    read("maximum", out.high, out.high_open, -1);
    read("exclusiveMaximum", out.high, out.high_open, -1);
    return out;
  }

  static int64_t count(const Json& s, const char* key, int64_t otherwise, const std::string& where) {
    const Json* j = keyword(s, key);
    if (!j) return otherwise;
    const double v = j->is_number() ? j->get<double>() : -1;
    if (v < 0 || v != std::floor(v) || v > 1e9) fail(where, fmt::format("{} must be a count", key));
    return static_cast<int64_t>(v);
  }

  // ---- arrays

  Expr array(const Json& s, const std::string& where, int depth) {
    if (const Json* unique = keyword(s, "uniqueItems"); unique && *unique != false)
      fail(where, "uniqueItems is not supported");
    const int64_t least = count(s, "minItems", 0, where), most = count(s, "maxItems", -1, where);
    const Json* items = keyword(s, "items");
    const Json* prefix = keyword(s, "prefixItems");
    if (items && items->is_array()) {  // draft 7
      prefix = items;
      items = keyword(s, "additionalItems");
    }
    if (!prefix || (prefix->is_array() && prefix->empty())) {
      if (items && *items == false) return least == 0 ? none("[", "]") : b_.nothing();
      return array_of(b_.named("item", items ? value(*items, where + ".items", depth + 1) : anything()),
                      least, most);
    }
    if (!prefix->is_array()) fail(where, "prefixItems must be an array");
    const bool open = items && *items != false;
    const auto fixed = static_cast<int64_t>(prefix->size());
    const int64_t end = open ? most : most < 0 ? fixed : std::min(most, fixed);
    if (end >= 0 && end < least) return b_.nothing();
    Expr tail = b_.empty();
    if (open && (end < 0 || end > fixed)) {
      const Expr item = b_.named("item", value(*items, where + ".items", depth + 1));
      tail =
          b_.repeat(b_.seq({comma(), item}), std::max<int64_t>(0, least - fixed), end < 0 ? -1 : end - fixed);
    }
    for (int64_t i = fixed - 1; i >= 0; --i) {
      if (end >= 0 && i >= end) continue;
      const Expr item =
          value((*prefix)[static_cast<size_t>(i)], fmt::format("{}.prefixItems[{}]", where, i), depth + 1);
      tail = i == 0 ? b_.seq({item, tail}) : b_.seq({comma(), item, tail});
      if (i >= std::max<int64_t>(least, 1)) tail = b_.optional(tail);
    }
    std::vector<Expr> options;
    if (least == 0) options.push_back(none("[", "]"));
    if (end != 0) options.push_back(between("[", tail, "]"));
    return b_.alt(std::move(options));
  }

  // ---- objects

  Expr object(const Json& s, const std::string& where, int depth) {
    const Json* properties = keyword(s, "properties");
    if (properties && !properties->is_object()) fail(where, "properties must be an object");
    std::vector<std::string> required;
    if (const Json* r = keyword(s, "required")) {
      if (!r->is_array()) fail(where, "required must be an array");
      for (const Json& name : *r) {
        if (!name.is_string()) fail(where, "required must hold names");
        required.push_back(name.get<std::string>());
      }
    }
    if (const auto listed = listed_names(s)) return object(*listed, where, depth);
    // "properties": {}: none are declared, so none are written.
    if (properties && properties->empty() && required.empty() && !s.contains("additionalProperties") &&
        !s.contains("patternProperties") && !s.contains("propertyNames") && !s.contains("minProperties"))
      return none("{", "}");
    if (s.contains("patternProperties") || s.contains("propertyNames") ||
        ((!properties || properties->empty()) && required.empty()))
      return map(s, where, depth);
    return declared(s, properties ? *properties : Json::object(), required, where, depth);
  }

  // Names that propertyNames lists, as properties: what Zod writes for records of an enum.
  static std::optional<Json> listed_names(const Json& s) {
    const Json *names = keyword(s, "propertyNames"), *patterns = keyword(s, "patternProperties");
    if (!names || patterns || !names->is_object() || (s.contains("properties") && !s["properties"].empty()))
      return {};
    const Json list = names->contains("enum")    ? (*names)["enum"]
                      : names->contains("const") ? Json::array({(*names)["const"]})
                                                 : Json();
    if (!list.is_array() ||
        !std::all_of(list.begin(), list.end(), [](const Json& n) { return n.is_string(); }))
      return {};
    Json out = s;
    out.erase("propertyNames");
    const Json rest = s.contains("additionalProperties") ? s["additionalProperties"] : Json(true);
    out["properties"] = Json::object();
    for (const Json& n : list) out["properties"][n.get<std::string>()] = rest;
    out["additionalProperties"] = false;
    return out;
  }

  // No declared names.
  Expr map(const Json& s, const std::string& where, int depth) {
    if (s.contains("properties") && !s["properties"].empty())
      fail(where, "patternProperties and propertyNames beside properties are not supported");
    if (s.contains("required") && !s["required"].empty())
      fail(where, "required names that properties does not list are not supported here");
    const int64_t least = count(s, "minProperties", 0, where), most = count(s, "maxProperties", -1, where);
    if (least > 1) fail(where, "minProperties above 1 is not supported", "list the required properties");
    const Json* rest = keyword(s, "additionalProperties");
    Expr name = quoted_key(free_key());
    if (const Json* patterns = keyword(s, "patternProperties")) {
      if (!patterns->is_object() || patterns->size() != 1 || s.contains("propertyNames") ||
          (rest && *rest != false))
        fail(where,
             "patternProperties is supported with one pattern, additionalProperties: false and nothing else");
      name = quoted_key(regex_grammar(b_, patterns->begin().key(), spelling(), true));
      return map_of(
          name, b_.named("entry", value(patterns->begin().value(), where + ".patternProperties", depth + 1)),
          least, most);
    }
    if (const Json* names = keyword(s, "propertyNames")) {
      if (!names->is_object()) fail(where, "propertyNames must be an object");
      name = quoted_key(string(*names, where + ".propertyNames", spelling()));
    }
    if (rest && *rest == false) return least == 0 ? none("{", "}") : b_.nothing();
    const Expr v = rest ? value(*rest, where + ".additionalProperties", depth + 1) : anything();
    return map_of(name, b_.named("entry", v), least, most);
  }
  Expr declared(const Json& s, const Json& properties, const std::vector<std::string>& required,
                const std::string& where, int depth) {
    std::vector<std::string> names;
    for (const auto& [name, unused] : properties.items()) names.push_back(name);
    const Json* rest = keyword(s, "additionalProperties");
    for (const std::string& name : required)
      if (!properties.contains(name)) names.push_back(name);
    if (gemma_)
      std::stable_sort(names.begin(), names.end(),
                       [](const auto& a, const auto& b) { return jinja::lower(a) < jinja::lower(b); });
    const bool open = rest && *rest != false;
    if (count(s, "minProperties", 0, where) > static_cast<int64_t>(required.size()) ||
        (s.contains("maxProperties") &&
         (open || count(s, "maxProperties", 0, where) < static_cast<int64_t>(names.size()))))
      fail(where, "minProperties and maxProperties beside properties are not supported", "use required");
    // rest_of[i]: what may follow when the first i names are done; `begun` if something stands before it.
    Expr more = b_.empty(), alone = b_.empty();
    if (open) {
      const Expr entry = pair(b_.named("key", quoted_key(other_key(names))),
                              b_.named("entry", value(*rest, where + ".additionalProperties", depth + 1)));
      more = b_.named("more", b_.repeat(b_.seq({comma(), entry}), 0, -1));
      alone = b_.optional(b_.seq({entry, more}));
    }
    for (size_t i = names.size(); i-- > 0;) {
      const bool needed = std::find(required.begin(), required.end(), names[i]) != required.end();
      const std::string at = fmt::format("{}.properties.{}", where, names[i]);
      const Expr v = properties.contains(names[i]) ? value(properties[names[i]], at, depth + 1)
                     : rest                        ? value(*rest, at, depth + 1)
                                                   : anything();
      const Expr entry = b_.named(names[i], pair(key(names[i]), v));
      const Expr begun = b_.seq({comma(), entry, more}), first = b_.seq({entry, more});
      alone = b_.named("object", needed ? first : b_.alt({first, alone}));
      more = b_.named("object", needed ? begun : b_.alt({begun, more}));
    }
    return b_.seq({b_.text("{"), sp(), alone, sp(), b_.text("}")});
  }

  const Json& root_;
  SchemaMerger merger_;
  const bool tags_, lenient_;
  int32_t line_text_ = -1;
  std::map<std::string, int32_t> references_;
  std::deque<std::pair<std::string, int32_t>> pending_;
};

}  // namespace

Expr schema_grammar(GrammarBuilder& b, const Json& schema, SchemaDialect dialect, bool lenient) {
  return SchemaReader(b, schema, dialect, lenient).run();
}

}  // namespace carat
