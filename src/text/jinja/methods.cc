// Methods of str, dict, list and loop; the two ways to format.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja/context.h"
#include "text/jinja/filters.h"
#include "text/jinja/text.h"

namespace carat::jinja {
namespace {

constexpr std::string_view kStringMethods[] = {
    "capitalize", "center",  "count",      "endswith",  "find",         "format",       "index",
    "isalnum",    "isalpha", "isdigit",    "islower",   "isspace",      "isupper",      "join",
    "ljust",      "lower",   "lstrip",     "partition", "removeprefix", "removesuffix", "replace",
    "rfind",      "rjust",   "rpartition", "rsplit",    "rstrip",       "split",        "splitlines",
    "startswith", "strip",   "title",      "upper",     "zfill"};
constexpr std::string_view kDictMethods[] = {"get", "items", "keys", "values", "copy"};
constexpr std::string_view kListMethods[] = {"index", "count", "copy"};
constexpr std::string_view kChanging[] = {"append", "extend",  "insert", "pop",        "remove", "clear",
                                          "sort",   "reverse", "update", "setdefault", "popitem"};

template <class T>
bool among(const T& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Value list_of(const std::vector<std::string_view>& parts, Budget& budget) {
  budget.step(4 * parts.size());
  std::vector<Value> out;
  for (const std::string_view part : parts) out.emplace_back(part);
  return Value::list(std::move(out));
}

// startswith, endswith: one text or a tuple of them.
bool affix(const std::string& s, const Value& what, bool front) {
  if (what.is_tuple()) {
    return std::any_of(what.items().begin(), what.items().end(),
                       [&](const Value& v) { return affix(s, v, front); });
  }
  if (!what.is_string())
    throw Fail{fmt::format("startswith and endswith need a str or a tuple of str, not {}", type_name(what))};
  return front ? s.starts_with(what.str()) : s.ends_with(what.str());
}

Value pad(Context& c, const std::string& s, const Bound& b, char side) {
  const std::string fill = b[1] ? b.text(1) : " ";
  if (char_count(fill) != 1) throw Fail{"the fill character must be exactly one character long"};
  const size_t n = char_count(s);
  const auto width = static_cast<size_t>(std::max<int64_t>(b.integer(0, 0), 0));
  if (width > c.budget.max_bytes() / 4) c.budget.text(SIZE_MAX);
  const size_t total = width > n ? width - n : 0;
  c.budget.text(s.size() + total * fill.size());
  const size_t left = side == 'r' ? total : side == 'l' ? 0 : total / 2 + (total & width & 1);
  std::string out;
  for (size_t i = 0; i < left; ++i) out += fill;
  out += s;
  for (size_t i = left; i < total; ++i) out += fill;
  return Value(std::move(out));
}

// islower, isupper, isdigit, isalpha, isalnum, isspace
bool all_are(std::string_view s, std::string_view name) {
  if (name == "islower") return lower(s) == s && upper(s) != s;
  if (name == "isupper") return upper(s) == s && lower(s) != s;
  for (size_t at = 0; at < s.size();) {
    const char32_t ch = decode_char(s, at);
    const bool digit = ch >= '0' && ch <= '9';
    const bool good = name == "isdigit"   ? digit
                      : name == "isspace" ? is_space(ch)
                                          : is_alpha(ch) || (name == "isalnum" && digit);
    if (!good) return false;
  }
  return !s.empty();
}

Value find_method(const std::string& s, std::string_view name, const Args& args) {
  const Bound b(name, args, {"sub"}, 1);
  const size_t at = name == "rfind" ? rfind(s, b.text(0)) : find(s, b.text(0));
  if (at == std::string::npos && name == "index") throw Fail{"substring not found"};
  return at == std::string::npos ? Value(-1) : Value(char_count(std::string_view(s).substr(0, at)));
}

Value split_method(Context& c, const std::string& s, std::string_view name, const Args& args) {
  const Bound b(name, args, {"sep", "maxsplit"});
  const int64_t max = b.integer(1, -1);
  if (!b[0] || b[0]->is_none()) {
    if (name == "rsplit" && max >= 0) throw Fail{"rsplit with a limit needs a separator"};
    return list_of(split_space(s, max), c.budget);
  }
  if (b.text(0).empty()) throw Fail{"empty separator"};
  return list_of(name == "split" ? split(s, b.text(0), max) : rsplit(s, b.text(0), max), c.budget);
}

Value partition_method(const std::string& s, std::string_view name, const Args& args) {
  const Bound b(name, args, {"sep"}, 1);
  const std::string& sep = b.text(0);
  if (sep.empty()) throw Fail{"empty separator"};
  const size_t at = name == "partition" ? find(s, sep) : rfind(s, sep);
  if (at != std::string::npos)
    return Value::list({Value(s.substr(0, at)), Value(sep), Value(s.substr(at + sep.size()))}, true);
  if (name == "partition") return Value::list({Value(s), Value(""), Value("")}, true);
  return Value::list({Value(""), Value(""), Value(s)}, true);
}

Value join_method(Context& c, const std::string& glue, const Args& args) {
  const Bound b("join", args, {"iterable"}, 1);
  std::string out;
  for (size_t i = 0; const Value& item : iterate(*b[0], c.budget)) {
    if (!item.is_string())
      throw Fail{fmt::format("sequence item {}: expected str instance, {} found", i, type_name(item))};
    if (i++ > 0) out += glue;
    out += item.str();
    if (out.size() > c.budget.max_bytes()) break;
  }
  c.budget.text(out.size());
  return Value(std::move(out));
}

Value dict_method(Context& c, const Value& self, std::string_view name, const Args& args) {
  const auto& items = self.dict().items;
  if (name == "get") {
    const Bound b(name, args, {"key", "default"}, 1);
    c.budget.step(items.size() / 16);
    if (const Value* v = b[0]->is_undefined() ? nullptr : self.dict().find(*b[0])) return *v;
    return b[1] ? *b[1] : Value(None{});
  }
  Bound(name, args, {});
  if (name == "copy") return self;
  c.budget.step(8 * items.size());
  std::vector<Value> out;
  for (const auto& [key, value] : items) {
    out.push_back(name == "keys" ? key : name == "values" ? value : Value::list({key, value}, true));
  }
  return Value::list(std::move(out));
}

Value list_method(Context& c, const Value& self, std::string_view name, const Args& args) {
  if (name == "copy") return self;
  const Bound b(name, args, {"value"}, 1);
  Int n = 0;
  for (size_t i = 0; i < self.items().size(); ++i) {
    if (!equal(self.items()[i], *b[0], c.budget)) continue;
    if (name == "index") return Value(i);
    ++n;
  }
  if (name == "index") throw Fail{"the value is not in the list"};
  return Value(n);
}

Value loop_method(Context& c, LoopObject& loop, std::string_view name, const Args& args) {
  if (name == "cycle") {
    if (args.positional.empty()) throw Fail{"no items for cycling given"};
    return args.positional[loop.index % args.positional.size()];
  }
  if (!loop.running) throw Fail{"loop.changed() after the end of its loop"};
  for (const Value& v : args.positional) {
    if (v.is(Value::Kind::object)) throw Fail{"loop.changed() cannot compare objects"};
  }
  bool same = loop.called_changed && loop.changed.size() == args.positional.size();
  for (size_t i = 0; same && i < args.positional.size(); ++i)
    same = equal(loop.changed[i], args.positional[i], c.budget);
  loop.called_changed = true;
  if (!same) loop.changed = args.positional;
  return Value(!same);
}

}  // namespace

bool is_string_method(std::string_view name) { return among(kStringMethods, name); }

bool has_method(const Value& self, std::string_view name) {
  switch (self.kind()) {
    case Value::Kind::string: return is_string_method(name);
    case Value::Kind::dict:
      return among(kDictMethods, name) || (among(kChanging, name) && !self.dict().find(Value(name)));
    case Value::Kind::list:
      return !self.is_generator() && (among(kListMethods, name) || among(kChanging, name));
    case Value::Kind::object:
      return self.object()->kind == Object::Kind::loop && (name == "cycle" || name == "changed");
    default: return false;
  }
}

Value call_method(Context& c, const Value& self, std::string_view name, const Args& args) {
  c.budget.step();
  if (self.is_string()) return string_method(c, self, name, args);
  if (self.is(Value::Kind::object))
    return loop_method(c, static_cast<LoopObject&>(*self.object()), name, args);
  if (among(kChanging, name)) {
    throw Fail{fmt::format("{}.{}: templates cannot change values; build a new one, or use namespace()",
                           type_name(self), name)};
  }
  return self.is_dict() ? dict_method(c, self, name, args) : list_method(c, self, name, args);
}

Value string_method(Context& c, const Value& self, std::string_view name, const Args& args) {
  const std::string& s = self.str();
  c.budget.text(s.size());
  const auto text = [&](std::string out) { return Value(std::move(out), self.markup()); };
  if (name == "upper" || name == "lower" || name == "capitalize" || name == "title") {
    Bound(name, args, {});
    return text(name == "upper"   ? upper(s)
                : name == "lower" ? lower(s)
                : name == "title" ? title(s, false)
                                  : capitalize(s));
  }
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Bound b(name, args, {"chars"});
    const bool given = b[0] && !b[0]->is_none();
    const std::string_view what = given ? std::string_view(b.text(0)) : std::string_view();
    return text(std::string(strip(s, given ? &what : nullptr, name != "rstrip", name != "lstrip")));
  }
  if (name == "split" || name == "rsplit") return split_method(c, s, name, args);
  if (name == "splitlines")
    return list_of(split_lines(s, Bound(name, args, {"keepends"}).flag(0, false)), c.budget);
  if (name == "startswith" || name == "endswith")
    return Value(affix(s, *Bound(name, args, {"prefix"}, 1)[0], name == "startswith"));
  if (name == "replace") {
    const Bound b(name, args, {"old", "new", "count"}, 2);
    std::string out = replace(s, b.text(0), b.text(1), b.integer(2, -1), c.budget.max_bytes());
    c.budget.text(out.size());
    return text(std::move(out));
  }
  if (name == "join") return join_method(c, s, args);
  if (name == "find" || name == "rfind" || name == "index") return find_method(s, name, args);
  if (name == "count") return Value(count(s, Bound(name, args, {"sub"}, 1).text(0)));
  if (name == "partition" || name == "rpartition") return partition_method(s, name, args);
  if (name == "removeprefix" || name == "removesuffix") {
    const Bound b(name, args, {"affix"}, 1);
    if (!affix(s, *b[0], name == "removeprefix")) return self;
    const size_t n = b.text(0).size();
    return text(name == "removeprefix" ? s.substr(n) : s.substr(0, s.size() - n));
  }
  if (name == "center" || name == "ljust" || name == "rjust")
    return pad(c, s, Bound(name, args, {"width", "fillchar"}, 1), name[0]);
  if (name == "zfill") {
    const Bound b(name, args, {"width"}, 1);
    const bool sign = s.starts_with('-') || s.starts_with('+');
    const size_t n = char_count(s);
    const auto width = static_cast<size_t>(std::clamp<int64_t>(b.integer(0, 0), 0, 100'000));
    return text(s.substr(0, sign) + std::string(width > n ? width - n : 0, '0') + s.substr(sign));
  }
  if (name == "format") return text(brace_format(c, s, args));
  Bound(name, args, {});
  return Value(all_are(s, name));
}

}  // namespace carat::jinja
