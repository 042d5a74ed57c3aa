#include "text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "text/jinja/text.h"

namespace carat::jinja {
namespace {

constexpr size_t kIndexFrom = 9;  // a scan is quicker for fewer keys

// Equal keys give equal texts, unequal ones different texts.
std::string key_text(const Value& key) {
  switch (key.kind()) {
    case Value::Kind::string: return "s" + key.str();
    case Value::Kind::none: return "n";
    case Value::Kind::boolean:
    case Value::Kind::integer: return "i" + int_repr(key.integer());
    case Value::Kind::real: {
      const double d = key.real();
      if (d == std::floor(d) && std::abs(d) < 1e30) return "i" + int_repr(static_cast<Int>(d));
      return "f" + float_repr(d);
    }
    case Value::Kind::list: {
      if (!key.is_tuple()) break;
      std::string out = "t";
      for (const Value& item : key.items()) {
        const std::string part = key_text(item);
        out += fmt::format("{}:{}", part.size(), part);
        if (out.size() > 4096) throw Fail{"a tuple is too long for a key"};
      }
      return out;
    }
    default: break;
  }
  throw Fail{fmt::format("unhashable type: '{}'", type_name(key))};
}

int sign(auto a, auto b) { return a < b ? -1 : b < a ? 1 : 0; }

// Digits of an integer, maybe behind a minus. What 128 bits do not hold is a real number.
Value integer_of(const std::string& digits) {
  constexpr size_t kDigits128 = 38;
  const bool minus = digits.starts_with('-');
  if (digits.size() - minus > kDigits128) return Value(std::strtod(digits.c_str(), nullptr));
  Int out = 0;
  for (const char c : digits.substr(minus)) out = 10 * out + (c - '0');
  return Value(minus ? -out : out);
}

void indent_line(std::string& out, const JsonStyle& style, int level) {
  if (style.indent < 0) return;
  out += '\n';
  out.append(static_cast<size_t>(style.indent) * static_cast<size_t>(level), ' ');
}

std::string json_key(const Value& key, Budget& budget) {
  switch (key.kind()) {
    case Value::Kind::string: return key.str();
    case Value::Kind::none: return "null";
    case Value::Kind::boolean: return key.boolean() ? "true" : "false";
    case Value::Kind::integer:
    case Value::Kind::real: return to_str(key, budget);
    default: throw Fail{fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key))};
  }
}

void write_json(std::string& out, const Value& v, const JsonStyle& style, int level, Budget& budget) {
  budget.step();
  const size_t before = out.size();
  switch (v.kind()) {
    case Value::Kind::none: out += "null"; break;
    case Value::Kind::boolean: out += v.boolean() ? "true" : "false"; break;
    case Value::Kind::integer: out += int_repr(v.integer()); break;
    case Value::Kind::real: {
      const double d = v.real();
      out += std::isnan(d) ? "NaN" : std::isinf(d) ? (d > 0 ? "Infinity" : "-Infinity") : float_repr(d);
      break;
    }
    case Value::Kind::string: out += json_quote(v.str(), style.ensure_ascii); break;
    case Value::Kind::list: {
      if (v.is_generator()) throw Fail{"Object of type generator is not JSON serializable"};
      out += '[';
      for (bool first = true; const Value& item : v.items()) {
        if (!first) out += style.item_separator;
        first = false;
        indent_line(out, style, level + 1);
        write_json(out, item, style, level + 1, budget);
      }
      if (!v.items().empty()) indent_line(out, style, level);
      out += ']';
      break;
    }
    case Value::Kind::dict: {
      auto items = v.dict().items;
      if (style.sort_keys) {
        std::stable_sort(items.begin(), items.end(),
                         [&](const auto& a, const auto& b) { return compare(a.first, b.first, budget) < 0; });
      }
      out += '{';
      for (bool first = true; const auto& [key, value] : items) {
        if (!first) out += style.item_separator;
        first = false;
        indent_line(out, style, level + 1);
        out += json_quote(json_key(key, budget), style.ensure_ascii);
        out += style.key_separator;
        write_json(out, value, style, level + 1, budget);
      }
      if (!items.empty()) indent_line(out, style, level);
      out += '}';
      break;
    }
    default: throw Fail{fmt::format("Object of type {} is not JSON serializable", type_name(v))};
  }
  if (out.size() > budget.max_bytes()) budget.text(out.size());
  if (!v.is_list() && !v.is_dict()) budget.step((out.size() - before) / 64);
}

}  // namespace

Value Value::undefined(std::string why) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(why))});
}

Value Value::list(std::vector<Value> items, bool tuple) {
  ListData data{std::move(items), tuple, false, 1};
  for (const Value& item : data.items) data.depth = std::max(data.depth, item.depth() + 1);
  if (data.depth > kMaxValueDepth) throw Fail{fmt::format("values nest deeper than {}", kMaxValueDepth)};
  return Value(std::make_shared<const ListData>(std::move(data)));
}

Value Value::generator(std::vector<Value> items) {
  ListData data{std::move(items), false, true, 1};
  for (const Value& item : data.items) data.depth = std::max(data.depth, item.depth() + 1);
  return Value(std::make_shared<const ListData>(std::move(data)));
}

Value Value::dict(std::vector<std::pair<Value, Value>> items) {
  DictData data;
  std::unordered_map<std::string, size_t> index;
  for (auto& [key, value] : items) {
    const auto [at, fresh] = index.emplace(key_text(key), data.items.size());
    if (fresh)
      data.items.emplace_back(std::move(key), value);
    else
      data.items[at->second].second = value;
    data.depth = std::max(data.depth, value.depth() + 1);
  }
  if (data.depth > kMaxValueDepth) throw Fail{fmt::format("values nest deeper than {}", kMaxValueDepth)};
  if (data.items.size() >= kIndexFrom) data.index = std::move(index);
  return Value(std::make_shared<const DictData>(std::move(data)));
}

const std::vector<Value>& Value::items() const { return std::get<List>(v_)->items; }
bool Value::is_tuple() const { return is_list() && std::get<List>(v_)->tuple; }
bool Value::is_generator() const { return is_list() && std::get<List>(v_)->generator; }
int Value::depth() const {
  return is_list() ? std::get<List>(v_)->depth : is_dict() ? std::get<Dict>(v_)->depth : 0;
}

const Value* DictData::find(const Value& key) const {
  if (index.empty() && key.is_string()) {
    for (const auto& [k, v] : items) {
      if (k.is_string() && k.str() == key.str()) return &v;
    }
    return nullptr;
  }
  const std::string text = key_text(key);
  if (!index.empty()) {
    const auto at = index.find(text);
    return at == index.end() ? nullptr : &items[at->second].second;
  }
  for (const auto& [k, v] : items) {
    if (key_text(k) == text) return &v;
  }
  return nullptr;
}

Value from_json(const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxValueDepth) throw Fail{fmt::format("the input nests deeper than {}", kMaxValueDepth)};
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::boolean: return Value(json.get<bool>());
    case Type::number_integer: return Value(Int{json.get<int64_t>()});
    case Type::number_unsigned: return Value(Int{json.get<uint64_t>()});
    case Type::number_float: return Value(json.get<double>());
    case Type::binary: return integer_of({json.get_binary().begin(), json.get_binary().end()});
    case Type::string: return Value(json.get_ref<const std::string&>());
    case Type::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json(item, depth + 1));
      return Value::list(std::move(items));
    }
    case Type::object: {
      std::vector<std::pair<Value, Value>> items;
      items.reserve(json.size());
      for (const auto& [key, value] : json.items())
        items.emplace_back(Value(key), from_json(value, depth + 1));
      return Value::dict(std::move(items));
    }
    default: return Value(None{});
  }
}

bool truthy(const Value& v) {
  switch (v.kind()) {
    case Value::Kind::undefined:
    case Value::Kind::none: return false;
    case Value::Kind::boolean: return v.boolean();
    case Value::Kind::integer: return v.integer() != 0;
    case Value::Kind::real: return v.real() != 0;
    case Value::Kind::string: return !v.str().empty();
    case Value::Kind::list: return v.is_generator() || !v.items().empty();
    case Value::Kind::dict: return !v.dict().items.empty();
    case Value::Kind::object: return true;
  }
  return false;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_number() && b.is_number()) {
    return a.is_integral() && b.is_integral() ? a.integer() == b.integer() : a.real() == b.real();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::Kind::string: budget.step(a.str().size() / 1024); return a.str() == b.str();
    case Value::Kind::list: {
      const auto &x = a.items(), &y = b.items();
      if (a.is_tuple() != b.is_tuple() || x.size() != y.size()) return false;
      for (size_t i = 0; i < x.size(); ++i) {
        if (!equal(x[i], y[i], budget)) return false;
      }
      return true;
    }
    case Value::Kind::dict: {
      if (a.dict().items.size() != b.dict().items.size()) return false;
      for (const auto& [key, value] : a.dict().items) {
        const Value* other = b.dict().find(key);
        if (!other || !equal(value, *other, budget)) return false;
      }
      return true;
    }
    case Value::Kind::object: return a.object() == b.object();
    default: return true;  // none, undefined
  }
}

int compare(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_number() && b.is_number()) {
    return a.is_integral() && b.is_integral() ? sign(a.integer(), b.integer()) : sign(a.real(), b.real());
  }
  if (a.is_string() && b.is_string()) {  // byte order of UTF-8 is the order of the code points
    budget.step(std::min(a.str().size(), b.str().size()) / 1024);
    return sign(a.str().compare(b.str()), 0);
  }
  if (a.is_list() && b.is_list() && a.is_tuple() == b.is_tuple()) {
    const auto &x = a.items(), &y = b.items();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(x[i], y[i], budget)) return compare(x[i], y[i], budget);
    }
    return sign(x.size(), y.size());
  }
  for (const Value* v : {&a, &b}) {
    if (v->is_undefined()) throw Fail{v->why() ? *v->why() : "a value is undefined"};
  }
  throw Fail{fmt::format("'{}' and '{}' cannot be ordered", type_name(a), type_name(b))};
}

std::string type_name(const Value& v) {
  switch (v.kind()) {
    case Value::Kind::undefined: return "Undefined";
    case Value::Kind::none: return "NoneType";
    case Value::Kind::boolean: return "bool";
    case Value::Kind::integer: return "int";
    case Value::Kind::real: return "float";
    case Value::Kind::string: return "str";
    case Value::Kind::list: return v.is_generator() ? "generator" : v.is_tuple() ? "tuple" : "list";
    case Value::Kind::dict: return "dict";
    case Value::Kind::object: break;
  }
  switch (v.object()->kind) {
    case Object::Kind::name_space: return "Namespace";
    case Object::Kind::macro: return "Macro";
    case Object::Kind::loop: return "LoopContext";
    case Object::Kind::function: return "function";
    case Object::Kind::method: return "method";
  }
  return "object";
}

std::string int_repr(Int i) { return fmt::format("{}", i); }

// The shortest digits that read back the same, laid out as Python does.
std::string float_repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  const int exponent = std::stoi(std::string(text.substr(e + 1)));
  if (exponent < -4 || exponent >= 16) return std::string(text);
  std::string out(
      buffer, static_cast<size_t>(
                  std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::fixed).ptr - buffer));
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

void append_repr(std::string& out, const Value& v, Budget& budget) {
  budget.step();
  switch (v.kind()) {
    case Value::Kind::undefined: out += "Undefined"; break;
    case Value::Kind::string:
      budget.text(v.str().size());
      out += v.markup() ? "Markup(" + jinja::repr(v.str()) + ")" : jinja::repr(v.str());
      break;
    case Value::Kind::list: {
      if (v.is_generator()) {
        out += "<generator>";
        break;
      }
      out += v.is_tuple() ? '(' : '[';
      for (bool first = true; const Value& item : v.items()) {
        if (!first) out += ", ";
        first = false;
        append_repr(out, item, budget);
      }
      if (v.is_tuple() && v.items().size() == 1) out += ',';
      out += v.is_tuple() ? ')' : ']';
      break;
    }
    case Value::Kind::dict: {
      out += '{';
      for (bool first = true; const auto& [key, value] : v.dict().items) {
        if (!first) out += ", ";
        first = false;
        append_repr(out, key, budget);
        out += ": ";
        append_repr(out, value, budget);
      }
      out += '}';
      break;
    }
    default: out += to_str(v, budget);
  }
  if (out.size() > budget.max_bytes()) budget.text(out.size());
}

std::string to_str(const Value& v, Budget& budget) {
  switch (v.kind()) {
    case Value::Kind::undefined: return {};
    case Value::Kind::none: return "None";
    case Value::Kind::boolean: return v.boolean() ? "True" : "False";
    case Value::Kind::integer: return int_repr(v.integer());
    case Value::Kind::real: return float_repr(v.real());
    case Value::Kind::string: budget.text(v.str().size()); return v.str();
    case Value::Kind::object: return "<" + type_name(v) + ">";
    default: break;
  }
  std::string out;
  append_repr(out, v, budget);
  return out;
}

std::vector<Value> iterate(const Value& v, Budget& budget) {
  std::vector<Value> items;
  switch (v.kind()) {
    case Value::Kind::undefined: break;
    case Value::Kind::list: {
      const auto& list = v.items();
      budget.step(list.size());
      items = list;
      break;
    }
    case Value::Kind::dict:
      budget.step(v.dict().items.size());
      for (const auto& entry : v.dict().items) items.push_back(entry.first);
      break;
    case Value::Kind::string:
      budget.step(4 * v.str().size());
      for (const std::string_view c : chars(v.str())) items.emplace_back(c);
      break;
    default: throw Fail{fmt::format("'{}' object is not iterable", type_name(v))};
  }
  return items;
}

size_t length(const Value& v, Budget& budget) {
  switch (v.kind()) {
    case Value::Kind::undefined: return 0;
    case Value::Kind::list:
      if (v.is_generator()) throw Fail{"object of type 'generator' has no len()"};
      return v.items().size();
    case Value::Kind::dict: return v.dict().items.size();
    case Value::Kind::string: budget.text(v.str().size()); return char_count(v.str());
    default: throw Fail{fmt::format("object of type '{}' has no len()", type_name(v))};
  }
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  switch (container.kind()) {
    case Value::Kind::undefined: return false;
    case Value::Kind::string:
      if (!item.is_string())
        throw Fail{fmt::format("'in <string>' requires string as left operand, not {}", type_name(item))};
      budget.text(container.str().size());
      return find(container.str(), item.str()) != std::string::npos;
    case Value::Kind::dict: return container.dict().find(item) != nullptr;
    case Value::Kind::list:
      for (const Value& x : container.items()) {
        if (equal(x, item, budget)) return true;
      }
      return false;
    default: throw Fail{fmt::format("argument of type '{}' is not iterable", type_name(container))};
  }
}

std::string to_json(const Value& v, const JsonStyle& given, Budget& budget) {
  JsonStyle style = given;
  if (style.item_separator.empty()) style.item_separator = style.indent >= 0 ? "," : ", ";
  std::string out;
  write_json(out, v, style, 0, budget);
  return out;
}

}  // namespace carat::jinja
