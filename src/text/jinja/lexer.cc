#include "text/jinja/lexer.h"

#include <fmt/format.h>
#include <algorithm>

#include "base/error.h"
#include "text/jinja/text.h"

namespace carat::jinja {
namespace {

constexpr size_t kMaxTemplateBytes = size_t{4} << 20;

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || (c & 0x80);
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Line ends become \n; one at the very end goes away.
std::string normalize_lines(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] == '\r') {
      out += '\n';
      if (i + 1 < s.size() && s[i + 1] == '\n') ++i;
    } else {
      out += s[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : s_(std::move(source)) {}

  std::vector<Tok> run() {
    while (at_ < s_.size()) {
      const size_t tag = next_tag(at_);
      if (tag == std::string::npos) {
        add_data(s_.substr(at_));
        break;
      }
      tag_line_ = line_ + static_cast<int>(std::count(s_.begin() + static_cast<long>(at_),
                                                      s_.begin() + static_cast<long>(tag), '\n'));
      const char kind = s_[tag + 1], sign = tag + 2 < s_.size() ? s_[tag + 2] : '\0';
      add_data(trim_before_tag(s_.substr(at_, tag - at_), kind, sign));
      line_ = tag_line_;
      at_ = tag + 2 + (sign == '-' || sign == '+' ? 1 : 0);
      if (kind == '#')
        comment();
      else if (kind == '{')
        expression("}}", Tok::Kind::print_begin, Tok::Kind::print_end);
      else if (!raw())
        expression("%}", Tok::Kind::block_begin, Tok::Kind::block_end);
      line_starting_ = at_ > 0 && s_[at_ - 1] == '\n';
    }
    add(Tok::Kind::end, "");
    return std::move(out_);
  }

 private:
  size_t next_tag(size_t from) const {
    for (size_t i = s_.find('{', from); i != std::string::npos && i + 1 < s_.size();
         i = s_.find('{', i + 1)) {
      if (s_[i + 1] == '{' || s_[i + 1] == '%' || s_[i + 1] == '#') return i;
    }
    return std::string::npos;
  }

  // What "-" before a tag, or lstrip_blocks, leaves of the text before it.
  std::string trim_before_tag(std::string text, char kind, char sign) const {
    if (sign == '-') return std::string(strip(text, nullptr, false, true));
    if (sign == '+' || kind == '{') return text;
    const size_t line = text.rfind('\n') + 1;
    if ((line > 0 || line_starting_) &&
        strip(std::string_view(text).substr(line), nullptr, true, false).empty()) {
      text.resize(line);
    }
    return text;
  }

  void add(Tok::Kind kind, std::string text) { out_.push_back({kind, std::move(text), line_}); }
  void add_data(std::string text) {
    if (!text.empty()) add(Tok::Kind::data, std::move(text));
  }
  void advance_to(size_t to) {
    line_ += static_cast<int>(
        std::count(s_.begin() + static_cast<long>(at_), s_.begin() + static_cast<long>(to), '\n'));
    at_ = to;
  }
  void skip_space() {
    size_t to = at_;
    for (size_t next = to; to < s_.size() && is_space(decode_char(s_, next)); to = next) {}
    advance_to(to);
  }

  // If a closing delimiter with an optional sign stands at `at`: its length, else 0.
  size_t closing(size_t at, std::string_view end) const {
    const std::string_view rest = std::string_view(s_).substr(at);
    if (rest.starts_with(end)) return 2;
    const bool sign = !rest.empty() && (rest[0] == '-' || (rest[0] == '+' && end != "}}"));
    return sign && rest.substr(1).starts_with(end) ? 3 : 0;
  }
  // Steps over a closing delimiter and the white space that belongs to it.
  void close(size_t length, bool trim_newline) {
    const char sign = length == 3 ? s_[at_] : '\0';
    advance_to(at_ + length);
    if (sign == '-')
      skip_space();
    else if (sign == '\0' && trim_newline && at_ < s_.size() && s_[at_] == '\n')
      advance_to(at_ + 1);
  }

  void comment() {
    const size_t hash = s_.find("#}", at_);
    if (hash == std::string::npos) fail_at(tag_line_, "the comment '{#' is never closed");
    const bool sign = hash > at_ && (s_[hash - 1] == '-' || s_[hash - 1] == '+');
    advance_to(hash - (sign ? 1 : 0));
    close(sign ? 3 : 2, true);
  }

  // {% raw %} ... {% endraw %}: plain text. False if the tag at hand is another one.
  bool raw() {
    const auto word = [&](size_t at, std::string_view name) -> size_t {
      const std::string_view rest = strip(std::string_view(s_).substr(at), nullptr, true, false);
      if (!rest.starts_with(name)) return 0;
      const std::string_view tail = strip(rest.substr(name.size()), nullptr, true, false);
      return static_cast<size_t>(tail.data() - s_.data());
    };
    const size_t begin = word(at_, "raw");
    const size_t length = begin ? closing(begin, "%}") : 0;
    if (!length || s_[begin] == '+') return false;
    advance_to(begin);
    close(length, false);
    line_starting_ = s_[at_ - 1] == '\n';
    for (size_t tag = s_.find("{%", at_); tag != std::string::npos; tag = s_.find("{%", tag + 2)) {
      const char sign = tag + 2 < s_.size() ? s_[tag + 2] : '\0';
      const size_t end = word(tag + (sign == '-' || sign == '+' ? 3 : 2), "endraw");
      const size_t end_length = end ? closing(end, "%}") : 0;
      if (!end_length) continue;
      add_data(trim_before_tag(s_.substr(at_, tag - at_), '%', sign));
      advance_to(end);
      close(end_length, true);
      return true;
    }
    fail_at(tag_line_, "'{% raw %}' is never closed");
  }

  void expression(std::string_view end, Tok::Kind begin_kind, Tok::Kind end_kind) {
    add(begin_kind, "");
    std::string open;  // brackets: inside them "}}" does not close the tag
    for (;;) {
      skip_space();
      if (at_ >= s_.size()) fail_at(tag_line_, fmt::format("a tag is never closed with '{}'", end));
      const size_t length = open.empty() ? closing(at_, end) : 0;
      if (length) {
        add(end_kind, "");
        close(length, end_kind == Tok::Kind::block_end);
        return;
      }
      token(open);
    }
  }

  void token(std::string& open) {
    const char c = s_[at_];
    if (c == '"' || c == '\'') return string(c);
    if (is_digit(c)) return number();
    if (is_word(c)) {
      size_t to = at_;
      while (to < s_.size() && is_word(s_[to])) ++to;
      add(Tok::Kind::name, s_.substr(at_, to - at_));
      return advance_to(to);
    }
    static constexpr std::string_view kTwo[] = {"**", "//", "==", "!=", ">=", "<="};
    for (const std::string_view op : kTwo) {
      if (std::string_view(s_).substr(at_).starts_with(op)) {
        add(Tok::Kind::op, std::string(op));
        return advance_to(at_ + 2);
      }
    }
    if (std::string_view("+-/*%~[](){}<>=.:|,;").find(c) == std::string_view::npos) {
      fail_at(line_, fmt::format("unexpected character {}",
                                 repr(std::string_view(s_).substr(at_, char_bytes(s_, at_)))));
    }
    if (c == '(' || c == '[' || c == '{') open += c;
    if (c == ')' || c == ']' || c == '}') {
      const char wanted = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (open.empty() || open.back() != wanted) fail_at(line_, fmt::format("unexpected '{}'", c));
      open.pop_back();
    }
    add(Tok::Kind::op, std::string(1, c));
    advance_to(at_ + 1);
  }

  void number() {
    size_t to = at_;
    const auto digits = [&](auto&& good) {
      while (to < s_.size() && (good(s_[to]) || (s_[to] == '_' && to + 1 < s_.size() && good(s_[to + 1]))))
        ++to;
    };
    Tok::Kind kind = Tok::Kind::integer;
    const char base = s_[at_] == '0' && at_ + 1 < s_.size() ? static_cast<char>(s_[at_ + 1] | 0x20) : '\0';
    if (base == 'x' || base == 'o' || base == 'b') {
      to += 2;
      digits([](char c) { return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); });
    } else {
      digits(is_digit);
      if (to + 1 < s_.size() && s_[to] == '.' && is_digit(s_[to + 1])) {
        kind = Tok::Kind::real;
        ++to;
        digits(is_digit);
      }
      const size_t sign = to + 1 < s_.size() && (s_[to + 1] == '+' || s_[to + 1] == '-') ? 1 : 0;
      if (to + 1 + sign < s_.size() && (s_[to] | 0x20) == 'e' && is_digit(s_[to + 1 + sign])) {
        kind = Tok::Kind::real;
        to += 1 + sign;
        digits(is_digit);
      }
    }
    std::string text = s_.substr(at_, to - at_);
    std::erase(text, '_');
    add(kind, std::move(text));
    advance_to(to);
  }

  char32_t hex(size_t& at, size_t digits) {
    char32_t c = 0;
    for (size_t i = 0; i < digits; ++i, ++at) {
      const char d = at < s_.size() ? static_cast<char>(s_[at] | 0x20) : '\0';
      if (!is_digit(d) && !(d >= 'a' && d <= 'f')) fail_at(line_, "bad escape in a string");
      c = c * 16 + static_cast<char32_t>(d >= 'a' ? d - 'a' + 10 : d - '0');
    }
    return c;
  }

  void string(char quote) {
    std::string text;
    size_t at = at_ + 1;
    for (;; ++at) {
      if (at >= s_.size()) fail_at(line_, "a string is never closed");
      if (s_[at] == quote) break;
      if (s_[at] != '\\') {
        text += s_[at];
        continue;
      }
      if (++at >= s_.size()) fail_at(line_, "a string is never closed");
      escape(text, at);
    }
    add(Tok::Kind::string, std::move(text));
    advance_to(at + 1);
  }

  // at: on the character after the backslash; left on the last character of the escape.
  void escape(std::string& text, size_t& at) {
    static constexpr std::string_view kFrom = "abfnrtv\\'\"", kTo = "\a\b\f\n\r\t\v\\'\"";
    const char c = s_[at];
    if (const size_t i = kFrom.find(c); i != std::string_view::npos) {
      text += kTo[i];
    } else if (c == '\n') {
      return;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      ++at;
      const char32_t code = hex(at, c == 'x' ? 2 : c == 'u' ? 4 : 8);
      --at;
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        fail_at(line_, "a string escape is not a character");
      append_char(text, code);
    } else if (c >= '0' && c <= '7') {
      char32_t code = 0;
      size_t n = 0;
      while (n < 3 && at + n < s_.size() && s_[at + n] >= '0' && s_[at + n] <= '7')
        code = code * 8 + static_cast<char32_t>(s_[at + n++] - '0');
      at += n - 1;
      append_char(text, code);
    } else if (c == 'N') {
      fail_at(line_, "string escapes by character name ('\\N{...}') are not supported");
    } else {
      (text += '\\') += c;
    }
  }

  std::string s_;
  size_t at_ = 0;
  int line_ = 1, tag_line_ = 1;
  bool line_starting_ = true;
  std::vector<Tok> out_;
};

}  // namespace

void fail_at(int line, const std::string& what) {
  throw Error(fmt::format("chat template, line {}: {}", line, what),
              "The template cannot be used as it stands; --chat-template takes another one.");
}

std::vector<Tok> lex(std::string_view source) {
  if (source.size() > kMaxTemplateBytes)
    fail_at(1, fmt::format("the template is longer than {} bytes", kMaxTemplateBytes));
  return Lexer(normalize_lines(source)).run();
}

}  // namespace carat::jinja
