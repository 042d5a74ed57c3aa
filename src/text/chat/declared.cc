#include "text/chat/declared.h"

#include <algorithm>
#include <cctype>

#include "text/chat/marks.h"

namespace carat {
namespace {

constexpr int kMaxTypeDepth = 32, kMaxNesting = 100;

const Json* member(const Json& j, std::string_view key) {
  if (!j.is_object()) return nullptr;
  const auto it = j.find(key);
  return it == j.end() ? nullptr : &*it;
}

uint8_t type_named(const Json& name) {
  static const std::pair<const char*, uint8_t> kNames[] = {
      {"null", DeclaredTools::null},       {"boolean", DeclaredTools::boolean},
      {"integer", DeclaredTools::integer}, {"number", DeclaredTools::number | DeclaredTools::integer},
      {"string", DeclaredTools::string},   {"array", DeclaredTools::array},
      {"object", DeclaredTools::object}};
  if (!name.is_string()) return DeclaredTools::kAny;
  std::string lower = name.get<std::string>();
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const auto& [known, type] : kNames)
    if (lower == known) return type;
  return DeclaredTools::kAny;
}

uint8_t type_of(const Json& v) {
  switch (v.type()) {
    case Json::value_t::null: return DeclaredTools::null;
    case Json::value_t::boolean: return DeclaredTools::boolean;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned: return DeclaredTools::integer;
    case Json::value_t::number_float: return DeclaredTools::number;
    case Json::value_t::array: return DeclaredTools::array;
    case Json::value_t::object: return DeclaredTools::object;
    default: return DeclaredTools::string;
  }
}

// What the schema allows, a superset where it says more than this knows.
uint8_t types_of(const Json& schema, const Json& root, int depth) {
  if (!schema.is_object() || depth > kMaxTypeDepth) return DeclaredTools::kAny;
  uint8_t out = DeclaredTools::kAny;
  const auto either = [&](const Json& branches) {
    uint8_t any = 0;
    for (const Json& b : branches) any |= types_of(b, root, depth + 1);
    return any;
  };
  if (const Json* ref = member(schema, "$ref"); ref && ref->is_string()) {
    const std::string& at = ref->get_ref<const std::string&>();
    if (at.starts_with("#")) {
      try {
        out &= types_of(root.at(Json::json_pointer(at.substr(1))), root, depth + 1);
      } catch (const Json::exception&) {  // it points nowhere: nothing is said
      }
    }
  }
  if (const Json* type = member(schema, "type")) {
    uint8_t any = 0;
    if (type->is_array())
      for (const Json& t : *type) any |= type_named(t);
    out &= type->is_array() ? any : type_named(*type);
  }
  if (const Json* values = member(schema, "enum"); values && values->is_array()) {
    uint8_t any = 0;
    for (const Json& v : *values) any |= type_of(v);
    out &= any;
  }
  if (const Json* value = member(schema, "const")) out &= type_of(*value);
  for (const char* key : {"anyOf", "oneOf"})
    if (const Json* list = member(schema, key); list && list->is_array()) out &= either(*list);
  if (const Json* all = member(schema, "allOf"); all && all->is_array())
    for (const Json& s : *all) out &= types_of(s, root, depth + 1);
  if (out == DeclaredTools::kAny && (member(schema, "properties") || member(schema, "additionalProperties")))
    out = DeclaredTools::object;
  if (out == DeclaredTools::kAny && (member(schema, "items") || member(schema, "prefixItems")))
    out = DeclaredTools::array;
  if (const Json* nullable = member(schema, "nullable"); nullable && *nullable == true)
    out |= DeclaredTools::null;
  return out ? out : DeclaredTools::kAny;
}

// Python's literals, read once from left to right.
class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : s_(text) {}
  std::optional<std::string> run() {
    std::string out;
    if (!value(out, 0)) return {};
    at_ = skip_blank(s_, at_);
    return at_ == s_.size() ? std::optional(out) : std::nullopt;
  }

 private:
  char now() const { return at_ < s_.size() ? s_[at_] : '\0'; }
  bool take(char c) {
    at_ = skip_blank(s_, at_);
    if (now() != c) return false;
    ++at_;
    return true;
  }

  bool text(std::string& out) {
    const char quote = s_[at_++];
    std::string raw;
    for (; at_ < s_.size() && s_[at_] != quote; ++at_) {
      if (s_[at_] != '\\' || at_ + 1 == s_.size()) {
        raw += s_[at_];
        continue;
      }
      const char c = s_[++at_];
      static constexpr std::string_view kFrom = "nrtbf0", kTo("\n\r\t\b\f\0", 6);
      if (const size_t i = kFrom.find(c); i != kFrom.npos)
        raw += kTo[i];
      else if (c == '\'' || c == '"' || c == '\\')
        raw += c;
      else
        return false;  // other escapes: not ours to guess
    }
    if (!take(quote)) return false;
    out += json_string(raw);
    return true;
  }

  bool list(std::string& out, char close, int depth) {
    ++at_;
    const bool object = close == '}';
    out += object ? '{' : '[';
    for (bool first = true; !take(close); first = false) {
      if (!first) {
        if (!take(',')) return false;
        if (take(close)) break;
        out += ',';
      }
      at_ = skip_blank(s_, at_);
      if (object) {
        if (now() != '"' && now() != '\'') return false;
        if (!text(out) || !take(':')) return false;
        out += ':';
      }
      if (!value(out, depth + 1)) return false;
    }
    out += object ? '}' : ']';
    return true;
  }

  bool value(std::string& out, int depth) {
    at_ = skip_blank(s_, at_);
    if (depth > kMaxNesting) return false;
    switch (now()) {
      case '"':
      case '\'': return text(out);
      case '{': return list(out, '}', depth);
      case '[': return list(out, ']', depth);
      case '(': return list(out, ')', depth);
      default: break;
    }
    const size_t end = std::min(s_.find_first_of(",:]}) \t\r\n", at_), s_.size());
    const std::string_view word = s_.substr(at_, end - at_);
    at_ = end;
    if (word == "True" || word == "true")
      out += "true";
    else if (word == "False" || word == "false")
      out += "false";
    else if (word == "None" || word == "null")
      out += "null";
    else if (is_json_number(word))
      out += word;
    else
      return false;
    return true;
  }

  std::string_view s_;
  size_t at_ = 0;
};

}  // namespace

DeclaredTools::DeclaredTools(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    const Json* f = member(tool, "function");
    const Json* name = f ? member(*f, "name") : nullptr;
    if (!name || !name->is_string()) continue;
    const Json* schema = member(*f, "parameters");
    tools_[name->get<std::string>()] = schema ? *schema : Json::object();
  }
}

bool DeclaredTools::has(std::string_view function, std::string_view parameter) const {
  const auto f = tools_.find(function);
  const Json* properties = f == tools_.end() ? nullptr : member(f->second, "properties");
  return properties && member(*properties, parameter);
}

uint8_t DeclaredTools::types(std::string_view function, std::string_view parameter) const {
  if (!has(function, parameter)) return kAny;
  const Json& root = tools_.find(function)->second;
  return types_of(*member(*member(root, "properties"), parameter), root, 0);
}

bool is_json_number(std::string_view s) {
  size_t at = s.starts_with('-') ? 1 : 0;
  const auto digits = [&] {
    const size_t from = at;
    while (at < s.size() && s[at] >= '0' && s[at] <= '9') ++at;
    return at - from;
  };
  const bool zero = at < s.size() && s[at] == '0';
  const size_t whole = digits();
  if (whole == 0 || (zero && whole > 1)) return false;
  if (at < s.size() && s[at] == '.' && (++at, digits() == 0)) return false;
  if (at < s.size() && (s[at] == 'e' || s[at] == 'E')) {
    ++at;
    if (at < s.size() && (s[at] == '+' || s[at] == '-')) ++at;
    if (digits() == 0) return false;
  }
  return at == s.size();
}

std::string json_string(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<uint8_t> json_type(std::string_view text) {
  text = trimmed(text);
  if (is_json_number(text))
    return text.find_first_of(".eE") == text.npos ? DeclaredTools::integer : DeclaredTools::number;
  const Json v = Json::parse(text, nullptr, false);
  if (v.is_discarded()) return {};
  return type_of(v);
}

std::optional<std::string> json_of_literal(std::string_view text) {
  text = trimmed(text);
  if (is_json_number(text) || Json::accept(text)) return std::string(text);
  return LiteralReader(text).run();
}

}  // namespace carat
