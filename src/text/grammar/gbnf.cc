#include <map>
#include <string>

#include "base/error.h"
#include "text/grammar/sources.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/unicode.h"

namespace carat {
namespace {

using Expr = GrammarBuilder::Expr;

constexpr int kMaxRuleDepth = 100;
constexpr int64_t kMaxCount = 100'000;

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class GbnfReader {
 public:
  GbnfReader(GrammarBuilder& b, std::string_view text) : b_(b), s_(text) {}

  Expr run() {
    space(true);
    while (at_ < s_.size()) {
      const std::string name = read_name();
      space(false);
      if (!take("::=")) fail("'::=' is missing after a rule's name");
      space(true);
      const int32_t r = rule(name);
      if (b_.defined(r)) fail("the rule '" + name + "' is defined twice");
      b_.define(r, alternatives(0));
      if (at_ < s_.size() && s_[at_] != '\n' && s_[at_] != '\r')
        fail("a new rule must begin on a line of its own");
      space(true);
    }
    if (!rules_.contains("root"))
      throw Error("the grammar has no rule 'root'", "the answer is what 'root' matches");
    for (const auto& [name, r] : rules_)
      if (!b_.defined(r)) throw Error(fmt::format("the grammar's rule '{}' is not defined", name));
    return b_.ref(rules_.at("root"));
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    size_t line = 1;
    for (size_t i = 0; i < std::min(at_, s_.size()); ++i) line += s_[i] == '\n';
    throw Error(fmt::format("grammar, line {}: {}", line, what));
  }
  char now() const { return at_ < s_.size() ? s_[at_] : '\0'; }
  bool take(std::string_view text) {
    if (!s_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  // lines: ends of lines too. Comments run to the end of a line.
  void space(bool lines) {
    for (; at_ < s_.size(); ++at_) {
      if (s_[at_] == '#')
        while (at_ + 1 < s_.size() && s_[at_ + 1] != '\n' && s_[at_ + 1] != '\r') ++at_;
      else if (!(s_[at_] == ' ' || s_[at_] == '\t' || (lines && (s_[at_] == '\n' || s_[at_] == '\r'))))
        return;
    }
  }
  std::string read_name() {
    const size_t from = at_;
    while (at_ < s_.size() && is_name(s_[at_])) ++at_;
    if (at_ == from) fail("a rule's name is missing");
    return std::string(s_.substr(from, at_ - from));
  }
  int32_t rule(const std::string& name) {
    const auto [it, fresh] = rules_.try_emplace(name, -1);
    if (fresh) it->second = b_.rule(name);
    return it->second;
  }

  // Inside parentheses, and after a |, a rule may go on in the next line.
  Expr alternatives(int depth) {
    if (depth > kMaxRuleDepth) fail("nested too deeply");
    std::vector<Expr> options;
    do {
      space(true);
      options.push_back(sequence(depth));
    } while (take("|"));
    return b_.alt(std::move(options));
  }

  Expr sequence(int depth) {
    std::vector<Expr> parts;
    for (;;) {
      space(depth > 0);
      const char c = now();
      if (c == '"') {
        parts.push_back(repeated(literal()));
      } else if (c == '[') {
        parts.push_back(repeated(b_.chars(bracket())));
      } else if (c == '.') {
        ++at_;
        parts.push_back(repeated(b_.chars(complement({}))));
      } else if (c == '(') {
        ++at_;
        const Expr inner = alternatives(depth + 1);
        space(true);
        if (!take(")")) fail("')' is missing");
        parts.push_back(repeated(inner));
      } else if (c == '<') {
        parts.push_back(repeated(token()));
      } else if (is_name(c)) {
        parts.push_back(repeated(b_.ref(rule(read_name()))));
      } else {
        break;
      }
    }
    return b_.seq(std::move(parts));
  }

  // <|name|>: a control token of the vocabulary.
  Expr token() {
    const size_t end = s_.find('>', at_);
    if (end == std::string_view::npos) fail("'>' is missing");
    const std::string_view name = s_.substr(at_, end + 1 - at_);
    if (!b_.specials() || b_.specials()->find(name) < 0)
      fail(fmt::format("the vocabulary has no token {}", name));
    at_ = end + 1;
    return b_.special(name);
  }

  Expr repeated(Expr e) {
    for (int64_t low = 0, high = -1;; low = 0, high = -1) {
      if (take("*")) {
      } else if (take("+")) {
        low = 1;
      } else if (take("?")) {
        high = 1;
      } else if (take("{")) {
        counts(low, high);
      } else {
        return e;
      }
      e = b_.repeat(e, low, high);
    }
  }

  void counts(int64_t& low, int64_t& high) {
    low = high = number(0);
    space(false);
    if (take(",")) {
      space(false);
      high = number(-1);
      space(false);
    }
    if (!take("}")) fail("'}' is missing");
    if (high >= 0 && high < low) fail("a repetition's end is before its beginning");
  }
  int64_t number(int64_t otherwise) {
    if (now() < '0' || now() > '9') return otherwise;
    int64_t n = 0;
    for (; now() >= '0' && now() <= '9'; ++at_) {
      n = n * 10 + (now() - '0');
      if (n > kMaxCount) fail("too many repetitions");
    }
    return n;
  }

  char32_t character() {
    if (now() == '\\') {
      ++at_;
      const char c = now();
      ++at_;
      switch (c) {
        case 'n': return '\n';
        case 'r': return '\r';
        case 't': return '\t';
        case 'x': return hex(2);
        case 'u': return hex(4);
        case 'U': return hex(8);
        case '"':
        case '\\':
        case '[':
        case ']':
        case '-':
        case '^': return static_cast<unsigned char>(c);
        default: fail("an unknown escape");
      }
    }
    const Utf8Step step = utf8_step(s_.substr(at_));
    if (!step.valid) fail("not UTF-8");
    at_ += step.bytes;
    return step.value;
  }
  char32_t hex(int digits) {
    uint64_t v = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = now();
      const int d = c >= '0' && c <= '9'                 ? c - '0'
                    : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                         : -1;
      if (d < 0) fail("an incomplete escape");
      v = v * 16 + static_cast<uint64_t>(d);
    }
    if (v > 0x10FFFF || (v >= 0xD800 && v < 0xE000)) fail("an impossible character");
    return static_cast<char32_t>(v);
  }

  Expr literal() {
    ++at_;
    std::string out;
    while (now() != '"') {
      if (at_ >= s_.size() || now() == '\n') fail("'\"' is missing");
      append_utf8(out, character());
    }
    ++at_;
    return b_.text(out);
  }

  CharSet bracket() {
    ++at_;
    const bool negated = take("^");
    CharSet out;
    while (now() != ']') {
      if (at_ >= s_.size()) fail("']' is missing");
      const char32_t low = character();
      char32_t high = low;
      if (now() == '-' && at_ + 1 < s_.size() && s_[at_ + 1] != ']') {
        ++at_;
        high = character();
        if (high < low) fail("a range in [] ends before it begins");
      }
      out.push_back({low, high});
    }
    ++at_;
    return negated ? complement(out) : normalized(std::move(out));
  }

  GrammarBuilder& b_;
  std::string_view s_;
  size_t at_ = 0;
  std::map<std::string, int32_t> rules_;
};

}  // namespace

Expr gbnf_grammar(GrammarBuilder& b, std::string_view text) { return GbnfReader(b, text).run(); }

}  // namespace carat
