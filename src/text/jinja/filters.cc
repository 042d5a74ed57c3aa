// Filters on scalars and texts, the argument binder, and global functions. Filters on sequences:
// jinja/lists.cc.
#include "text/jinja/filters.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <ctime>

#include "base/error.h"
#include "text/jinja/context.h"
#include "text/jinja/text.h"

namespace carat::jinja {

Bound::Bound(std::string_view function, const Args& args, std::initializer_list<std::string_view> names,
             size_t required)
    : function_(function), slots_(names.size(), nullptr) {
  if (args.positional.size() > names.size()) {
    throw Fail{fmt::format("'{}' takes at most {} argument(s), got {}", function, names.size(),
                           args.positional.size())};
  }
  for (size_t i = 0; i < args.positional.size(); ++i) slots_[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    size_t i = 0;
    for (; i < names.size() && names.begin()[i] != name; ++i) {}
    if (i == names.size()) throw Fail{fmt::format("'{}' has no argument '{}' here", function, name)};
    if (slots_[i]) throw Fail{fmt::format("'{}' got two values for '{}'", function, name)};
    slots_[i] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!slots_[i]) throw Fail{fmt::format("'{}' needs the argument '{}'", function, names.begin()[i])};
  }
}

int64_t Bound::integer(size_t i, int64_t standard) const {
  if (!slots_[i] || slots_[i]->is_none()) return standard;
  if (!slots_[i]->is_integral())
    throw Fail{fmt::format("'{}' needs an integer, not {}", function_, type_name(*slots_[i]))};
  const Int limit = Int{1} << 62;
  return static_cast<int64_t>(std::clamp<Int>(slots_[i]->integer(), -limit, limit));
}

const std::string& Bound::text(size_t i) const {
  static const std::string kEmpty;
  if (!slots_[i]) return kEmpty;
  if (!slots_[i]->is_string())
    throw Fail{fmt::format("'{}' needs a string, not {}", function_, type_name(*slots_[i]))};
  return slots_[i]->str();
}

namespace {

// Filters take anything and see it as text.
std::string soft(Context& c, const Value& v) { return to_str(v, c.budget); }

Value upper_filter(Context& c, const Value& v, const Args& a) {
  Bound("upper", a, {});
  return Value(upper(soft(c, v)), v.markup());
}
Value lower_filter(Context& c, const Value& v, const Args& a) {
  Bound("lower", a, {});
  return Value(lower(soft(c, v)), v.markup());
}
Value capitalize_filter(Context& c, const Value& v, const Args& a) {
  Bound("capitalize", a, {});
  return Value(capitalize(soft(c, v)), v.markup());
}
Value title_filter(Context& c, const Value& v, const Args& a) {
  Bound("title", a, {});
  return Value(title(soft(c, v), true), v.markup());
}
Value trim_filter(Context& c, const Value& v, const Args& a) {
  const Bound b("trim", a, {"chars"});
  const std::string text = soft(c, v);
  const bool given = b[0] && !b[0]->is_none();
  const std::string_view what = given ? std::string_view(b.text(0)) : std::string_view();
  return Value(std::string(strip(text, given ? &what : nullptr, true, true)), v.markup());
}
Value string_filter(Context& c, const Value& v, const Args& a) {
  Bound("string", a, {});
  return v.is_string() ? v : Value(soft(c, v));
}
Value safe_filter(Context& c, const Value& v, const Args& a) {
  Bound("safe", a, {});
  return Value(soft(c, v), true);
}
Value escape_filter(Context& c, const Value& v, const Args& a) {
  Bound("escape", a, {});
  if (v.markup()) return v;
  const std::string text = soft(c, v);
  c.budget.text(6 * text.size());
  return Value(escape_html(text), true);
}
Value forceescape_filter(Context& c, const Value& v, const Args& a) {
  Bound("forceescape", a, {});
  return Value(escape_html(soft(c, v)), true);
}
Value default_filter(Context&, const Value& v, const Args& a) {
  const Bound b("default", a, {"default_value", "boolean"});
  if (!v.is_undefined() && !(b.flag(1, false) && !truthy(v))) return v;
  return b[0] ? *b[0] : Value("");
}
Value replace_filter(Context& c, const Value& v, const Args& a) {
  const Bound b("replace", a, {"old", "new", "count"}, 2);
  std::string out =
      replace(soft(c, v), soft(c, *b[0]), soft(c, *b[1]), b.integer(2, -1), c.budget.max_bytes());
  c.budget.text(out.size());
  return Value(std::move(out), v.markup());
}
Value length_filter(Context& c, const Value& v, const Args& a) {
  Bound("length", a, {});
  return Value(length(v, c.budget));
}

Value tojson_filter(Context& c, const Value& v, const Args& a) {
  const Bound b("tojson", a, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = b.flag(0, false);
  style.sort_keys = b.flag(3, false);
  style.indent = static_cast<int>(std::clamp<int64_t>(b.integer(1, -1), -1, 100));
  if (b[2] && !b[2]->is_none()) {
    if (!b[2]->is_list() || b[2]->items().size() != 2 || !b[2]->items()[0].is_string() ||
        !b[2]->items()[1].is_string()) {
      throw Fail{"'tojson' needs two strings as separators"};
    }
    style.item_separator = b[2]->items()[0].str();
    style.key_separator = b[2]->items()[1].str();
  }
  return Value(to_json(v, style, c.budget));
}

// Python's int(text) and float(text): surrounding space, one sign, underscores between digits.
bool parse_int(std::string_view text, int base, Int& out) {
  text = strip(text, nullptr, true, true);
  const bool minus = text.starts_with('-');
  if (minus || text.starts_with('+')) text.remove_prefix(1);
  const char mark = base == 16 ? 'x' : base == 8 ? 'o' : 'b';
  if (base != 10 && text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == mark) text.remove_prefix(2);
  if (text.empty() || text.size() > 200) return false;
  out = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char ch = static_cast<char>(text[i] | 0x20);
    if (text[i] == '_' && i > 0 && i + 1 < text.size() && text[i - 1] != '_') continue;
    const int digit = text[i] >= '0' && text[i] <= '9' ? text[i] - '0'
                      : ch >= 'a' && ch <= 'z'         ? ch - 'a' + 10
                                                       : 99;
    if (digit >= base) return false;
    if (__builtin_mul_overflow(out, Int{base}, &out) || __builtin_add_overflow(out, Int{digit}, &out)) {
      throw Fail{"an integer is too large"};
    }
  }
  if (minus) out = -out;
  return true;
}
bool parse_real(std::string_view text, double& out) {
  std::string t(strip(text, nullptr, true, true));
  std::erase(t, '_');
  if (t.empty() || t.size() > 2000 || t.find_first_of("xXpP(") != std::string::npos) return false;
  char* end = nullptr;
  out = std::strtod(t.c_str(), &end);
  return end == t.c_str() + t.size();
}
Value truncated(double d, const Value& standard) {
  if (std::isnan(d)) return standard;
  if (std::abs(d) > 1e38) throw Fail{"a number is too large for an integer"};
  return Value(static_cast<Int>(d));
}

Value int_filter(Context&, const Value& v, const Args& a) {
  const Bound b("int", a, {"default", "base"});
  const Value standard = b[0] ? *b[0] : Value(0);
  const int base = static_cast<int>(b.integer(1, 10));
  if (base != 2 && base != 8 && base != 10 && base != 16) throw Fail{"'int' knows the bases 2, 8, 10 and 16"};
  if (v.is_integral()) return Value(v.integer());
  if (v.is(Value::Kind::real)) return truncated(v.real(), standard);
  if (v.is_undefined()) throw Fail{v.why() ? *v.why() : "a value is undefined"};
  Int i = 0;
  double d = 0;
  if (!v.is_string()) return standard;
  if (parse_int(v.str(), base, i)) return Value(i);
  return parse_real(v.str(), d) ? truncated(d, standard) : standard;
}
Value float_filter(Context&, const Value& v, const Args& a) {
  const Bound b("float", a, {"default"});
  if (v.is_number()) return Value(v.real());
  if (v.is_undefined()) throw Fail{v.why() ? *v.why() : "a value is undefined"};
  double d = 0;
  if (v.is_string() && parse_real(v.str(), d)) return Value(d);
  return b[0] ? *b[0] : Value(0.0);
}
Value abs_filter(Context&, const Value& v, const Args& a) {
  Bound("abs", a, {});
  if (!v.is_number()) throw Fail{fmt::format("'abs' needs a number, not {}", type_name(v))};
  return v.is_integral() ? Value(v.integer() < 0 ? -v.integer() : v.integer()) : Value(std::abs(v.real()));
}
Value round_filter(Context&, const Value& v, const Args& a) {
  const Bound b("round", a, {"precision", "method"});
  if (!v.is_number()) throw Fail{fmt::format("'round' needs a number, not {}", type_name(v))};
  const int digits = static_cast<int>(std::clamp<int64_t>(b.integer(0, 0), -300, 300));
  const std::string method = b[1] ? b.text(1) : "common";
  if (method == "common") {
    if (v.is_integral() && digits >= 0) return v;
    if (digits >= 0) return Value(std::strtod(fmt::format("{:.{}f}", v.real(), digits).c_str(), nullptr));
    const double unit = std::pow(10, -digits);
    return v.is_integral() ? Value(static_cast<Int>(std::nearbyint(v.real() / unit) * unit))
                           : Value(std::nearbyint(v.real() / unit) * unit);
  }
  if (method != "ceil" && method != "floor") throw Fail{"'round' knows the methods common, ceil and floor"};
  const double unit = std::pow(10, digits);
  return Value((method == "ceil" ? std::ceil(v.real() * unit) : std::floor(v.real() * unit)) / unit);
}

Value indent_filter(Context& c, const Value& v, const Args& a) {
  const Bound b("indent", a, {"width", "first", "blank"});
  const std::string pad =
      b[0] && b[0]->is_string()
          ? b[0]->str()
          : std::string(static_cast<size_t>(std::clamp<int64_t>(b.integer(0, 4), 0, 1000)), ' ');
  const std::string text = soft(c, v);
  const bool first = b.flag(1, false), blank = b.flag(2, false);
  std::string out;
  size_t number = 0;
  for (const std::string_view line : split(text, "\n", -1)) {
    if (number > 0) out += '\n';
    if (number == 0 ? first : blank || !line.empty()) out += pad;
    out += line;
    ++number;
    if (out.size() > c.budget.max_bytes()) break;
  }
  c.budget.text(out.size());
  return Value(std::move(out), v.markup());
}
Value center_filter(Context& c, const Value& v, const Args& a) {
  const Bound b("center", a, {"width"});
  return string_method(c, Value(soft(c, v)), "center", Args{{Value(Int{b.integer(0, 80)})}, {}});
}
Value format_filter(Context& c, const Value& v, const Args& a) {
  if (a.named.empty()) return Value(printf_format(c, soft(c, v), Value::list(a.positional, true)));
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [name, value] : a.named) items.emplace_back(Value(name), value);
  return Value(printf_format(c, soft(c, v), Value::dict(std::move(items))));
}
Value attr_filter(Context& c, const Value& v, const Args& a) {
  const Bound b("attr", a, {"name"}, 1);
  return c.attribute(v, b.text(0));
}

// ---- functions

Value range_function(Context& c, const Args& a) {
  const Bound b("range", a, {"start", "stop", "step"}, 1);
  const bool one = !b[1];
  const int64_t start = one ? 0 : b.integer(0, 0), stop = one ? b.integer(0, 0) : b.integer(1, 0),
                step = b.integer(2, 1);
  for (const Value* v : {b[0], b[1], b[2]}) {
    if (v && !v->is_integral())
      throw Fail{fmt::format("'{}' object cannot be interpreted as an integer", type_name(*v))};
  }
  if (step == 0) throw Fail{"range() arg 3 must not be zero"};
  const Int distance = step > 0 ? Int{stop} - start : Int{start} - stop;
  const Int stride = step > 0 ? Int{step} : -Int{step};
  const Int n = distance <= 0 ? 0 : (distance + stride - 1) / stride;
  if (n > 100'000) throw Fail{"range() is limited to 100000 items"};  // as in Jinja's sandbox
  c.budget.step(static_cast<size_t>(4 * n));
  std::vector<Value> items;
  for (Int i = 0; i < n; ++i) items.emplace_back(Int{start} + i * step);
  return Value::list(std::move(items));
}
Value dict_function(Context& c, const Args& a) {
  if (a.positional.size() > 1) throw Fail{"'dict' takes at most one positional argument"};
  std::vector<std::pair<Value, Value>> items;
  if (!a.positional.empty() && a.positional[0].is_dict()) {
    c.budget.step(8 * a.positional[0].dict().items.size());
    items = a.positional[0].dict().items;
  } else if (!a.positional.empty()) {
    for (const Value& pair : iterate(a.positional[0], c.budget)) {
      if (!pair.is_list() || pair.items().size() != 2) throw Fail{"'dict' needs pairs"};
      c.budget.step(8);
      items.emplace_back(pair.items()[0], pair.items()[1]);
    }
  }
  for (const auto& [name, value] : a.named) items.emplace_back(Value(name), value);
  return Value::dict(std::move(items));
}
Value namespace_function(Context& c, const Args& a) {
  std::unordered_map<std::string, Value> attributes;
  const Value fields = dict_function(c, a);
  for (const auto& [key, value] : fields.dict().items) {
    if (!key.is_string()) throw Fail{"a namespace needs names"};
    attributes[key.str()] = value;
  }
  return c.make_namespace(std::move(attributes));
}
Value raise_function(Context& c, const Args& a) {
  const Bound b("raise_exception", a, {"message"}, 1);
  throw Error(to_str(*b[0], c.budget), "The model's chat template refuses these messages.");
}
Value strftime_function(Context& c, const Args& a) {
  const Bound b("strftime_now", a, {"format"}, 1);
  std::tm when{};
  if (c.now) {
    when = *c.now;
  } else {
    const std::time_t t = std::time(nullptr);
    ::localtime_r(&t, &when);
  }
  const std::string& format = b.text(0);
  if (format.size() > 200) throw Fail{"'strftime_now': the format is too long"};
  char out[1024];
  return Value(std::string(out, std::strftime(out, sizeof out, format.c_str(), &when)));
}

template <class F>
using Row = std::pair<std::string_view, F>;

constexpr Row<FilterFn> kFilters[] = {
    {"abs", abs_filter},         {"attr", attr_filter},       {"capitalize", capitalize_filter},
    {"center", center_filter},   {"count", length_filter},    {"d", default_filter},
    {"default", default_filter}, {"e", escape_filter},        {"escape", escape_filter},
    {"float", float_filter},     {"format", format_filter},   {"forceescape", forceescape_filter},
    {"indent", indent_filter},   {"int", int_filter},         {"length", length_filter},
    {"lower", lower_filter},     {"replace", replace_filter}, {"round", round_filter},
    {"safe", safe_filter},       {"string", string_filter},   {"title", title_filter},
    {"tojson", tojson_filter},   {"trim", trim_filter},       {"upper", upper_filter},
};

constexpr Row<GlobalFn> kGlobals[] = {
    {"dict", dict_function},   {"namespace", namespace_function},   {"raise_exception", raise_function},
    {"range", range_function}, {"strftime_now", strftime_function},
};

}  // namespace

FilterFn find_filter(std::string_view name) {
  for (const auto& [key, f] : kFilters) {
    if (key == name) return f;
  }
  return find_list_filter(name);
}

GlobalFn find_global(std::string_view name) {
  for (const auto& [key, f] : kGlobals) {
    if (key == name) return f;
  }
  return nullptr;
}

}  // namespace carat::jinja
