#include "text/grammar/values.h"

#include <algorithm>

#include "base/error.h"
#include "text/jinja/text.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/unicode.h"

namespace carat {
namespace {

using Expr = GrammarBuilder::Expr;

constexpr std::string_view kQuote = "<|\"|>";

std::vector<char32_t> code_points(std::string_view text) {
  std::vector<char32_t> out;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    out.push_back(step.value);
    text.remove_prefix(step.bytes);
  }
  return out;
}

}  // namespace

Expr ValueForms::space() {
  const Expr line = b_.seq({b_.text("\n"), b_.repeat(b_.chars({{'\t', '\t'}, {' ', ' '}}), 0, 40)});
  return b_.optional(b_.alt({b_.text(" "), line}));
}

Expr ValueForms::anything() {
  if (any_ < 0) {
    any_ = b_.rule("value");
    b_.define(any_, b_.alt({free_object(), array_of(b_.ref(any_), 0, -1), quoted(any_text()),
                            number_grammar(b_, {}), b_.literals({"true", "false", "null"})}));
  }
  return b_.ref(any_);
}

Expr ValueForms::free_object() { return map_of(quoted_key(free_key()), b_.ref(any_), 0, -1); }

Expr ValueForms::quoted(Expr inner) {
  if (gemma_) return b_.seq({b_.special(kQuote), inner, b_.special(kQuote)});
  return b_.seq({b_.text("\""), inner, b_.text("\"")});
}

Expr ValueForms::any_json_char() {
  if (char_ < 0) {
    const auto digit = [&](CharSet set) { return b_.chars(normalized(std::move(set))); };
    const CharSet hex = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
    const Expr h = digit(hex), d = digit({{'d', 'd'}, {'D', 'D'}});
    const Expr other =
        b_.alt({b_.seq({digit({{'0', '9'}, {'A', 'C'}, {'a', 'c'}, {'E', 'F'}, {'e', 'f'}}), h, h, h}),
                b_.seq({d, digit({{'0', '7'}}), h, h})});
    const Expr pair = b_.seq({d, digit({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}), h, h, b_.text("\\u"), d,
                              digit({{'C', 'F'}, {'c', 'f'}}), h, h});
    const Expr escape = b_.alt({b_.chars(normalized({{'"', '"'},
                                                     {'\\', '\\'},
                                                     {'/', '/'},
                                                     {'b', 'b'},
                                                     {'f', 'f'},
                                                     {'n', 'n'},
                                                     {'r', 'r'},
                                                     {'t', 't'}})),
                                b_.seq({b_.text("u"), b_.alt({other, pair})})});
    char_ = b_.rule("char");
    b_.define(char_, b_.alt({b_.chars(complement({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}})),
                             b_.seq({b_.text("\\"), escape})}));
  }
  return b_.ref(char_);
}

Expr ValueForms::any_text() {
  if (text_ < 0) {
    text_ = b_.rule("text");
    b_.define(text_, gemma_ ? b_.text_until(kQuote) : b_.repeat(any_json_char(), 0, -1));
  }
  return b_.ref(text_);
}

Expr ValueForms::between(const char* open, Expr inner, const char* close) {
  return b_.seq({b_.text(open), sp(), inner, sp(), b_.text(close)});
}

Expr ValueForms::none(const char* open, const char* close) {
  return b_.seq({b_.text(open), sp(), b_.text(close)});
}

Expr ValueForms::array_of(Expr item, int64_t least, int64_t most) {
  if (most >= 0 && most < least) return b_.nothing();
  std::vector<Expr> options;
  if (least == 0) options.push_back(none("[", "]"));
  if (most != 0) options.push_back(between("[", list(item, std::max<int64_t>(least, 1), most), "]"));
  return b_.alt(std::move(options));
}

Expr ValueForms::list(Expr item, int64_t least, int64_t most) {
  return b_.seq({item, b_.repeat(b_.seq({comma(), item}), least - 1, most < 0 ? -1 : most - 1)});
}

Expr ValueForms::map_of(Expr key, Expr v, int64_t least, int64_t most) {
  if (most >= 0 && most < least) return b_.nothing();
  std::vector<Expr> options;
  if (least == 0) options.push_back(none("{", "}"));
  if (most != 0) options.push_back(between("{", list(pair(key, v), std::max<int64_t>(least, 1), most), "}"));
  return b_.alt(std::move(options));
}

Expr ValueForms::key(const std::string& name) {
  if (!gemma_) return b_.text(Json(name).dump());
  return bare(name) ? b_.text(name) : quoted(b_.text(name));
}

bool ValueForms::bare(std::string_view name) {
  return !name.empty() && name.find_first_of(":,{}[]\"'<>\t\r\n ") == std::string_view::npos;
}

CharSet ValueForms::key_chars() const {
  if (!gemma_) return complement({});
  return normalized({{'a', 'z'}, {'A', 'Z'}, {'0', '9'}, {'_', '_'}, {'-', '-'}, {'.', '.'}});
}

Expr ValueForms::free_key() {
  if (!gemma_) return any_text();
  return b_.repeat(b_.chars(key_chars()), 1, 64);
}

Expr ValueForms::other_key(const std::vector<std::string>& declared) {
  std::vector<std::vector<char32_t>> names;
  for (const std::string& n : declared) names.push_back(code_points(n));
  std::sort(names.begin(), names.end());
  return other_key_from(names, 0, names.size(), 0);
}

Expr ValueForms::other_key_from(const std::vector<std::vector<char32_t>>& names, size_t from, size_t to,
                                size_t at) {
  std::vector<Expr> options;
  const bool is_name = from < to && names[from].size() == at;
  if (!is_name && (at > 0 || !gemma_)) options.push_back(b_.empty());
  if (at > 200) throw Error("schema: a property's name is too long");
  CharSet other = key_chars();
  for (size_t i = from + (is_name ? 1 : 0); i < to;) {
    size_t end = i + 1;
    while (end < to && names[end][at] == names[i][at]) ++end;
    const CharSet one = {{names[i][at], names[i][at]}};
    if (!intersection(key_chars(), one).empty())
      options.push_back(b_.seq({spelled(b_, one, spelling()), other_key_from(names, i, end, at + 1)}));
    other = intersection(other, complement(one));
    i = end;
  }
  options.push_back(
      b_.seq({spelled(b_, other, spelling()), b_.repeat(spelled(b_, key_chars(), spelling()), 0, -1)}));
  return b_.alt(std::move(options));
}

std::string ValueForms::written(const Json& v) const {
  if (!gemma_) return v.dump(-1, ' ', false, Json::error_handler_t::replace);
  const std::string quote = marked(kQuote);
  if (v.is_string()) return quote + v.get<std::string>() + quote;
  if (!v.is_structured()) return v.dump();
  std::string out;
  std::vector<std::pair<std::string, const Json*>> items;
  for (const auto& [name, item] : v.items()) items.emplace_back(name, &item);
  if (v.is_object())
    std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) {
      return jinja::lower(a.first) < jinja::lower(b.first);
    });
  for (const auto& [name, item] : items) {
    if (!out.empty()) out += ',';
    if (v.is_object()) out += (bare(name) ? name : quote + name + quote) + ":";
    out += written(*item);
  }
  return v.is_object() ? "{" + out + "}" : "[" + out + "]";
}

Expr ValueForms::spaced(const Json& v) {
  if (!v.is_structured() || v.empty()) return b_.text(written(v));
  const bool object = v.is_object();
  std::vector<Expr> parts = {b_.text(object ? "{" : "["), sp()};
  for (const auto& [name, item] : v.items()) {
    if (parts.size() > 2) parts.push_back(comma());
    parts.push_back(object ? pair(key(name), spaced(item)) : spaced(item));
  }
  parts.insert(parts.end(), {sp(), b_.text(object ? "}" : "]")});
  return b_.seq(std::move(parts));
}

std::string ValueForms::marked(std::string_view name) const {
  const Token token = b_.specials() ? b_.specials()->find(name) : -1;
  return token >= 0 && is_special(*b_.specials(), token) ? special_bytes(token) : std::string(name);
}

}  // namespace carat
