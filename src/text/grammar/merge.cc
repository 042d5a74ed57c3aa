// allOf, and $ref with other keywords beside it: one schema out of several.
#include <algorithm>
#include <cctype>
#include <set>

#include "base/error.h"
#include "text/grammar/schema.h"

namespace carat {
namespace {

constexpr int kMaxMergeDepth = 64, kMaxWork = 20'000;
constexpr size_t kMaxBranches = 256;

[[noreturn]] void cannot(const std::string& key) {
  throw Error(fmt::format("schema: two different '{}' in allOf or beside $ref cannot be combined", key),
              "write the combined schema out");
}

std::set<std::string> types_of(const Json& type) {
  std::set<std::string> out;
  if (type.is_string()) out.insert(type.get<std::string>());
  if (type.is_array())
    for (const Json& t : type)
      if (t.is_string()) out.insert(t.get<std::string>());
  return out;
}

Json common_types(const Json& a, const Json& b) {
  const std::set<std::string> left = types_of(a), right = types_of(b);
  Json out = Json::array();
  for (const std::string& t : left)
    if (right.contains(t) || (t == "integer" && right.contains("number"))) out.push_back(t);
  if (left.contains("number") && right.contains("integer") && !left.contains("integer"))
    out.push_back("integer");
  return out;
}

Json both(const Json& a, const Json& b) {
  if (a == b) return a;
  return {{"allOf", Json::array({a, b})}};
}

Json united(const Json& a, const Json& b) {
  Json out = a;
  for (const Json& v : b)
    if (std::find(out.begin(), out.end(), v) == out.end()) out.push_back(v);
  return out;
}

Json product(const Json& a, const Json& b) {
  if (!a.is_array() || !b.is_array() || a.size() * b.size() > kMaxBranches) cannot("anyOf");
  Json out = Json::array();
  for (const Json& x : a)
    for (const Json& y : b) out.push_back(both(x, y));
  return out;
}

}  // namespace

const Json& SchemaMerger::target(const std::string& ref) const {
  if (ref == "#") return root_;
  if (!ref.starts_with("#/"))
    throw Error(fmt::format("schema: $ref '{}' is not supported", ref), "references must begin with #/");
  try {
    std::string pointer;
    for (size_t i = 1; i < ref.size(); ++i) {  // a URI fragment
      if (ref[i] == '%' && i + 2 < ref.size() && std::isxdigit(static_cast<unsigned char>(ref[i + 1])) &&
          std::isxdigit(static_cast<unsigned char>(ref[i + 2]))) {
        pointer += static_cast<char>(std::stoi(ref.substr(i + 1, 2), nullptr, 16));
        i += 2;
      } else {
        pointer += ref[i];
      }
    }
    return root_.at(Json::json_pointer(pointer));
  } catch (const Json::exception&) {
    throw Error(fmt::format("schema: $ref '{}' points nowhere", ref));
  }
}

Json SchemaMerger::flatten(const Json& schema, int depth) {
  if (depth > kMaxMergeDepth) throw Error("schema: references or allOf go round in circles, or too deep");
  if (++work_ > kMaxWork) throw Error("schema: too many combinations of schemas");
  if (!schema.is_object()) return schema;
  const Json *ref = keyword(schema, "$ref"), *all = keyword(schema, "allOf");
  if (!ref && !all) return schema;
  Json out = schema;
  out.erase("$ref");
  out.erase("allOf");
  if (ref) {
    if (!ref->is_string()) throw Error("schema: $ref must be a string");
    out = merge(flatten(target(ref->get<std::string>()), depth + 1), out, depth + 1);
  }
  if (all) {
    if (!all->is_array()) throw Error("schema: allOf must be an array");
    for (const Json& part : *all) out = merge(out, flatten(part, depth + 1), depth + 1);
  }
  return out;
}

Json SchemaMerger::merge(const Json& a, const Json& b, int depth) {
  if (++work_ > kMaxWork || depth > kMaxMergeDepth) throw Error("schema: too many combinations of schemas");
  for (const Json* s : {&a, &b})
    if (!s->is_object() && !s->is_boolean()) throw Error("schema: a schema must be an object, true or false");
  if (a == false || b == false) return false;
  if (a.is_boolean()) return b;
  if (b.is_boolean()) return a;
  static const std::set<std::string> kNotes = {"title",       "description",   "default",  "examples",
                                               "$comment",    "$id",           "$schema",  "$defs",
                                               "definitions", "deprecated",    "readOnly", "writeOnly",
                                               "$anchor",     "discriminator", "example",  "nullable"};
  Json out = a;
  for (const auto& [key, value] : b.items()) {
    Json* mine = out.contains(key) ? &out[key] : nullptr;
    if (!mine) {
      if (key != "properties" && key != "additionalProperties") out[key] = value;
    } else if (*mine == value || kNotes.contains(key) || key == "properties" ||
               key == "additionalProperties") {
    } else if (key == "type") {
      *mine = common_types(*mine, value);
    } else if (key == "required") {
      *mine = united(*mine, value);
    } else if (key == "enum") {
      Json kept = Json::array();
      for (const Json& v : *mine)
        if (std::find(value.begin(), value.end(), v) != value.end()) kept.push_back(v);
      *mine = kept;
    } else if (key == "pattern" && value.is_string()) {  // all of them hold
      *mine = united(mine->is_array() ? *mine : Json::array({*mine}), Json::array({value}));
    } else if (key == "const") {
      return false;
    } else if (key == "anyOf" || key == "oneOf") {
      *mine = product(*mine, value);
    } else if (key == "items" && !value.is_array() && !mine->is_array()) {
      *mine = both(*mine, value);
    } else if (mine->is_number() && value.is_number() &&
               (key.starts_with("min") || key == "exclusiveMinimum")) {
      if (value > *mine) *mine = value;  // integers as such
    } else if (mine->is_number() && value.is_number() &&
               (key.starts_with("max") || key == "exclusiveMaximum")) {
      if (value < *mine) *mine = value;
    } else {
      cannot(key);
    }
  }
  merge_objects(out, b);
  return out;
}

// Properties, each also under what the other schema says of properties it does not list. Not saying anything
// counts as taking all here.
void SchemaMerger::merge_objects(Json& out, const Json& b) {
  const auto rest = [](const Json& s) {
    return s.contains("additionalProperties") ? s["additionalProperties"] : Json(true);
  };
  const Json left = keyword(out, "properties") ? out["properties"] : Json::object();
  const Json right = keyword(b, "properties") ? b["properties"] : Json::object();
  if (!left.is_object() || !right.is_object()) throw Error("schema: properties must be an object");
  const Json left_rest = rest(out), right_rest = rest(b);
  Json all = Json::object();
  for (const auto& [name, schema] : left.items())
    all[name] = right.contains(name) ? both(schema, right[name]) : both(schema, right_rest);
  for (const auto& [name, schema] : right.items())
    if (!left.contains(name)) all[name] = both(left_rest, schema);
  if (!all.empty()) out["properties"] = std::move(all);
  if (out.contains("additionalProperties") || b.contains("additionalProperties"))
    out["additionalProperties"] =
        left_rest == false || right_rest == false ? Json(false) : both(left_rest, right_rest);
}

}  // namespace carat
