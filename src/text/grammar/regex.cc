#include <algorithm>
#include <optional>

#include "base/error.h"
#include "text/grammar/derive.h"
#include "text/grammar/sources.h"
#include "text/tokenizer/unicode.h"

namespace carat {
namespace {

using Expr = GrammarBuilder::Expr;
using Kind = RegexTree::Kind;

constexpr int kMaxGroupDepth = 100;
constexpr int64_t kMaxRepeats = 100'000;

const CharSet kDigit = {{'0', '9'}}, kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
              kSpace = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                        {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                        {0x3000, 0x3000}, {0xFEFF, 0xFEFF}},
              kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class RegexReader {
 public:
  explicit RegexReader(std::string_view pattern) : s_(pattern) {}

  RegexTree run() {
    if (s_.size() > 100'000) fail("is too long");
    RegexTree tree = alternatives(0);
    if (at_ < s_.size()) fail("has a ')' too many");
    return tree;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw Error(fmt::format("the regular expression '{}' {}", s_.substr(0, 200), what));
  }
  bool at_end() const { return at_ >= s_.size(); }
  char now() const { return at_end() ? '\0' : s_[at_]; }
  bool take(std::string_view text) {
    if (!s_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t character() {
    const Utf8Step step = utf8_step(s_.substr(at_));
    if (!step.valid) fail("is not UTF-8");
    at_ += step.bytes;
    return step.value;
  }
  static RegexTree of(Kind kind, std::vector<RegexTree> parts = {}) {
    return {.kind = kind, .parts = std::move(parts)};
  }
  static RegexTree set(CharSet chars) { return {.kind = Kind::set, .set = std::move(chars)}; }

  RegexTree alternatives(int depth) {
    if (depth > kMaxGroupDepth) fail("is nested too deeply");
    std::vector<RegexTree> options;
    do options.push_back(sequence(depth));
    while (take("|"));
    return options.size() == 1 ? std::move(options[0]) : of(Kind::alt, std::move(options));
  }

  RegexTree sequence(int depth) {
    std::vector<RegexTree> parts;
    while (!at_end() && now() != '|' && now() != ')') {
      if (take("^"))
        parts.push_back(of(Kind::begin));
      else if (take("$"))
        parts.push_back(of(Kind::end));
      else
        parts.push_back(repeated(depth));
    }
    return of(Kind::seq, std::move(parts));
  }

  RegexTree repeated(int depth) {
    RegexTree e = atom(depth);
    int64_t least = 0, most = -1;
    if (!quantifier(least, most)) return e;
    if (e.kind == Kind::look) fail("repeats a look ahead");
    if (now() == '+') fail("has a possessive quantifier, which is not supported");
    take("?");  // lazy: the same texts
    int64_t a = 0, z = 0;
    if (quantifier(a, z)) fail("repeats a repetition");
    RegexTree out = of(Kind::repeat, {std::move(e)});
    out.least = least, out.most = most;
    return out;
  }

  bool quantifier(int64_t& least, int64_t& most) {
    if (take("*")) return true;
    if (take("+")) return least = 1, true;
    if (take("?")) return most = 1, true;
    return now() == '{' && counts(least, most);
  }

  // {n}, {n,}, {n,m}; anything else is text, as in ECMA 262 without the u flag.
  bool counts(int64_t& least, int64_t& most) {
    size_t p = at_ + 1;
    const auto number = [&]() -> std::optional<int64_t> {
      std::optional<int64_t> n;
      for (; p < s_.size() && s_[p] >= '0' && s_[p] <= '9'; ++p) {
        n = n.value_or(0) * 10 + (s_[p] - '0');
        if (*n > kMaxRepeats) fail("repeats too often");
      }
      return n;
    };
    const auto low = number();
    if (!low) return false;
    least = most = *low;
    if (p < s_.size() && s_[p] == ',') {
      ++p;
      most = number().value_or(-1);
    }
    if (p >= s_.size() || s_[p] != '}') return false;
    if (most >= 0 && most < least) fail("has a repetition whose end is before its beginning");
    at_ = p + 1;
    return true;
  }

  RegexTree atom(int depth) {
    switch (now()) {
      case '(': return group(depth);
      case '[': return set(bracket());
      case '.': ++at_; return set(complement(kLineEnds));
      case '\\': return set(escape());
      case '*':
      case '+':
      case '?': fail("repeats nothing");
      default: break;
    }
    const char32_t c = character();
    return set({{c, c}});
  }

  RegexTree group(int depth) {
    ++at_;
    std::optional<bool> ahead;  // whether it must not come
    if (take("?")) {
      if (take("="))
        ahead = false;
      else if (take("!"))
        ahead = true;
      else if (take("<") && now() != '=' && now() != '!') {
        at_ = std::min(s_.find('>', at_), s_.size());
        if (!take(">")) fail("has a group without an end of its name");
      } else if (!take(":")) {
        fail("looks behind or sets flags, which is not supported");
      }
    }
    RegexTree e = alternatives(depth + 1);
    if (!take(")")) fail("has a group without an end");
    if (!ahead) return e;
    RegexTree out = of(Kind::look, {std::move(e)});
    out.negative = *ahead;
    return out;
  }

  char32_t hex(int digits) {
    char32_t v = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = now();
      const int d = c >= '0' && c <= '9'                 ? c - '0'
                    : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                         : -1;
      if (d < 0) fail("has an incomplete \\x or \\u");
      v = v * 16 + static_cast<char32_t>(d);
    }
    return v;
  }

  char32_t unicode() {
    if (take("{")) {
      char32_t v = 0;
      while (!at_end() && now() != '}') {
        v = v * 16 + hex(1);
        if (v > 0x10FFFF) fail("has an impossible \\u");
      }
      if (!take("}")) fail("has an incomplete \\u");
      return v;
    }
    const char32_t high = hex(4);
    if (high < 0xD800 || high > 0xDBFF || !take("\\u")) return high;
    return 0x10000 + ((high - 0xD800) << 10) + (hex(4) - 0xDC00);
  }

  // One character, or a class of them.
  CharSet escape() {
    ++at_;
    if (at_end()) fail("ends with \\");
    const char c = s_[at_];
    const auto one = [](char32_t x) { return CharSet{{x, x}}; };
    if (static_cast<unsigned char>(c) >= 0x80) return one(character());
    ++at_;
    switch (c) {
      case 'd': return kDigit;
      case 'D': return complement(kDigit);
      case 'w': return kWord;
      case 'W': return complement(kWord);
      case 's': return kSpace;
      case 'S': return complement(kSpace);
      case 'n': return one('\n');
      case 'r': return one('\r');
      case 't': return one('\t');
      case 'f': return one('\f');
      case 'v': return one('\v');
      case '0': return one(0);
      case 'x': return one(hex(2));
      case 'u': return one(unicode());
      case 'p': return property();
      case 'P': return complement(property());
      default: break;
    }
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
      fail(fmt::format("has \\{}, which is not supported", c));
    return one(static_cast<unsigned char>(c));
  }

  CharSet property() {
    if (!take("{")) fail("has a \\p without {");
    const size_t end = s_.find('}', at_);
    if (end == s_.npos) fail("has a \\p{ without }");
    const std::string_view name = s_.substr(at_, end - at_);
    at_ = end + 1;
    return unicode_property(name);
  }

  CharSet bracket() {
    ++at_;
    const bool negated = take("^");
    CharSet out;
    for (bool first = true; first || now() != ']'; first = false) {
      if (at_end()) fail("has a [ without its ]");
      if (now() == ']') break;
      CharSet low = now() == '\\' ? class_escape() : one_character();
      const bool single = low.size() == 1 && low[0].low == low[0].high;
      if (single && now() == '-' && at_ + 1 < s_.size() && s_[at_ + 1] != ']') {
        ++at_;
        const CharSet high = now() == '\\' ? class_escape() : one_character();
        if (high.size() != 1 || high[0].low != high[0].high || high[0].low < low[0].low)
          fail("has a range in [] that is none");
        low[0].high = high[0].high;
      }
      out.insert(out.end(), low.begin(), low.end());
    }
    ++at_;
    out = normalized(std::move(out));
    return negated ? complement(out) : out;
  }
  CharSet one_character() {
    const char32_t c = character();
    return {{c, c}};
  }
  CharSet class_escape() {
    if (s_.substr(at_, 2) != "\\b") return escape();
    at_ += 2;
    return {{'\b', '\b'}};
  }

  std::string_view s_;
  size_t at_ = 0;
};

Expr expression(GrammarBuilder& b, const RegexTree& t, Spelling spelling) {
  if (t.kind == Kind::set) return spelled(b, t.set, spelling);
  std::vector<Expr> parts;
  for (const RegexTree& p : t.parts) parts.push_back(expression(b, p, spelling));
  if (t.kind == Kind::repeat) return b.repeat(parts[0], t.least, t.most);
  return t.kind == Kind::alt ? b.alt(std::move(parts)) : b.seq(std::move(parts));
}

// Anchors stand at the ends of the alternatives of the whole, if anywhere: then no text need be looked at
// twice.
bool simple(const RegexTree& t, bool top = true) {
  if (t.pure()) return true;
  if (!top) return false;
  if (t.kind == Kind::alt)
    return std::all_of(t.parts.begin(), t.parts.end(), [](const RegexTree& p) { return simple(p); });
  if (t.kind != Kind::seq) return false;
  for (size_t i = 0; i < t.parts.size(); ++i) {
    const Kind kind = t.parts[i].kind;
    if (kind == Kind::begin ? i > 0 : kind == Kind::end ? i + 1 < t.parts.size() : !t.parts[i].pure())
      return false;
  }
  return true;
}

Expr simple_expression(GrammarBuilder& b, const RegexTree& t, Spelling spelling, bool search) {
  if (t.kind == Kind::alt) {
    std::vector<Expr> options;
    for (const RegexTree& p : t.parts) options.push_back(simple_expression(b, p, spelling, search));
    return b.alt(std::move(options));
  }
  const auto anything = [&] { return b.repeat(spelled(b, complement({}), spelling), 0, -1); };
  std::vector<Expr> parts;
  bool begins = false, ends = false;
  for (const RegexTree& p : t.kind == Kind::seq ? t.parts : std::vector<RegexTree>{t}) {
    begins = begins || p.kind == Kind::begin;
    ends = ends || p.kind == Kind::end;
    if (p.pure()) parts.push_back(expression(b, p, spelling));
  }
  if (search && !begins) parts.insert(parts.begin(), anything());
  if (search && !ends) parts.push_back(anything());
  return b.seq(std::move(parts));
}

}  // namespace

RegexTree parse_regex(std::string_view pattern) { return RegexReader(pattern).run(); }

// JSON: what must be escaped is, in the short form where there is one.
Expr spelled(GrammarBuilder& b, const CharSet& set, Spelling spelling) {
  if (spelling == Spelling::plain) return b.chars(set);
  const CharSet special = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  std::vector<Expr> options;
  const CharSet plain = intersection(set, complement(special));
  if (!plain.empty()) options.push_back(b.chars(plain));
  std::vector<std::string> escapes;
  for (const CharRange& r : intersection(set, special))
    for (char32_t c = r.low; c <= r.high; ++c) {
      const std::string json = Json(std::string(1, static_cast<char>(c))).dump();
      escapes.push_back(json.substr(1, json.size() - 2));
    }
  if (!escapes.empty()) options.push_back(b.literals(std::move(escapes)));
  return b.alt(std::move(options));
}

Expr regex_grammar(GrammarBuilder& b, std::string_view pattern, Spelling spelling, bool search) {
  const RegexTree tree = parse_regex(pattern);
  if (simple(tree)) return simple_expression(b, tree, spelling, search);
  Derivatives d;
  return d.grammar(b, d.pattern(tree, search), spelling);
}

}  // namespace carat
