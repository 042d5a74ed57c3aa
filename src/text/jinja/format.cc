// "%5.2f" % x and "{:>8}".format(x): the parts of Python's formatting that templates use.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/context.h"
#include "text/jinja/filters.h"
#include "text/jinja/text.h"

namespace carat::jinja {
namespace {

constexpr size_t kMaxWidth = 1000;

struct Spec {
  std::string fill = " ";
  char align = 0, sign = '-', type = 0;
  bool zero = false, comma = false, alternate = false;
  size_t width = 0;
  int precision = -1;
};

size_t number(std::string_view s, size_t& at) {
  size_t n = 0;
  for (; at < s.size() && s[at] >= '0' && s[at] <= '9'; ++at) {
    n = n * 10 + static_cast<size_t>(s[at] - '0');
    if (n > kMaxWidth) throw Fail{"a format width or precision is too large"};
  }
  return n;
}

std::string group_thousands(const std::string& digits) {
  const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && i < end && (end - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string digits_of(const Value& v, const Spec& spec, bool& negative) {
  const char type = spec.type;
  if (std::string_view("dixXob").find(type) != std::string_view::npos) {
    if (!v.is_number())
      throw Fail{fmt::format("%{} format: a number is required, not {}", type, type_name(v))};
    if (!v.is_integral() && std::abs(v.real()) > 1e38) throw Fail{"a number is too large for an integer"};
    const Int i = v.is_integral() ? v.integer() : static_cast<Int>(v.real());
    negative = i < 0;
    const unsigned __int128 u =
        negative ? -static_cast<unsigned __int128>(i) : static_cast<unsigned __int128>(i);
    switch (type) {
      case 'x': return fmt::format("{}{:x}", spec.alternate ? "0x" : "", u);
      case 'X': return fmt::format("{}{:X}", spec.alternate ? "0X" : "", u);
      case 'o': return fmt::format("{}{:o}", spec.alternate ? "0o" : "", u);
      case 'b': return fmt::format("{}{:b}", spec.alternate ? "0b" : "", u);
      default: return fmt::format("{}", u);
    }
  }
  if (!v.is_number()) throw Fail{fmt::format("format '{}' needs a number, not {}", type, type_name(v))};
  const double d = v.real(), magnitude = d < 0 ? -d : d;
  negative = d < 0;
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  switch (type) {
    case 'e': return fmt::format("{:.{}e}", magnitude, precision);
    case 'E': return fmt::format("{:.{}E}", magnitude, precision);
    case 'g': return fmt::format("{:.{}g}", magnitude, precision);
    case '%': return fmt::format("{:.{}f}%", magnitude * 100, precision);
    default: return fmt::format("{:.{}f}", magnitude, precision);
  }
}

std::string padded(std::string text, const Spec& spec, char standard_align, size_t sign_size) {
  const size_t n = char_count(text);
  if (n >= spec.width) return text;
  const size_t total = spec.width - n;
  const char align = spec.align ? spec.align : standard_align;
  const size_t left = align == '<' ? 0 : align == '^' ? total / 2 : total;
  std::string out;
  const auto fill = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) out += spec.zero ? "0" : spec.fill;
  };
  if (align == '=' || (spec.zero && !spec.align)) {
    out = text.substr(0, sign_size);
    fill(total);
    return out + text.substr(sign_size);
  }
  fill(left);
  out += text;
  fill(total - left);
  return out;
}

std::string numeric(const Value& v, const Spec& spec) {
  bool negative = false;
  std::string digits = digits_of(v, spec, negative);
  if (spec.comma) digits = group_thousands(digits);
  const std::string_view sign = negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  return padded(fmt::format("{}{}", sign, digits), spec, '>', sign.size());
}

std::string textual(std::string text, const Spec& spec, char align) {
  if (spec.precision >= 0) {
    std::string cut;
    size_t n = 0;
    for (size_t at = 0; at < text.size() && n < static_cast<size_t>(spec.precision); ++n) {
      const size_t bytes = char_bytes(text, at);
      cut += text.substr(at, bytes);
      at += bytes;
    }
    text = std::move(cut);
  }
  Spec plain = spec;
  plain.zero = false;
  return padded(std::move(text), plain, align, 0);
}

// [[fill]align][sign][#][0][width][,][.precision][type]
Spec parse_spec(std::string_view s) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [&](size_t i) {
    return i < s.size() && std::string_view("<>^=").find(s[i]) != std::string_view::npos;
  };
  if (!s.empty() && is_align(char_bytes(s, 0))) {
    at = char_bytes(s, 0);
    spec.fill = s.substr(0, at);
    spec.align = s[at++];
  } else if (is_align(0)) {
    spec.align = s[at++];
  }
  if (at < s.size() && std::string_view("+- ").find(s[at]) != std::string_view::npos) spec.sign = s[at++];
  if (at < s.size() && s[at] == '#') spec.alternate = true, ++at;
  if (at < s.size() && s[at] == '0') spec.zero = true, ++at;
  spec.width = number(s, at);
  if (at < s.size() && s[at] == ',') spec.comma = true, ++at;
  if (at < s.size() && s[at] == '.') spec.precision = static_cast<int>(number(s, ++at));
  if (at < s.size()) spec.type = s[at++];
  if (at != s.size() ||
      (spec.type && std::string_view("sdxXobfFeEg%").find(spec.type) == std::string_view::npos)) {
    throw Fail{fmt::format("the format '{}' is not supported", s)};
  }
  return spec;
}

std::string formatted(Context& c, const Value& v, std::string_view format) {
  Spec spec = parse_spec(format);
  if (spec.type == 0 && v.is_number() && !v.is(Value::Kind::boolean)) {
    if (spec.precision >= 0)
      spec.type = 'g';
    else if (v.is_integral())
      spec.type = 'd';
    else
      return textual(to_str(v, c.budget), spec, '>');
  }
  if (spec.type == 0 || spec.type == 's') return textual(to_str(v, c.budget), spec, '<');
  return numeric(v, spec);
}

}  // namespace

std::string printf_format(Context& c, const std::string& format, const Value& values) {
  const bool many = values.is_tuple();
  std::string out;
  size_t used = 0;
  for (size_t at = 0; at < format.size();) {
    c.budget.step();
    if (format[at] != '%') {
      out += format[at++];
      continue;
    }
    if (++at < format.size() && format[at] == '%') {
      out += format[at++];
      continue;
    }
    const Value* value = nullptr;
    if (at < format.size() && format[at] == '(') {
      const size_t end = format.find(')', at);
      if (end == std::string::npos || !values.is_dict()) throw Fail{"format requires a mapping"};
      const std::string key = format.substr(at + 1, end - at - 1);
      value = values.dict().find(Value(key));
      if (!value) throw Fail{fmt::format("the format's key '{}' is missing", key)};
      at = end + 1;
    }
    Spec spec;
    for (; at < format.size() && std::string_view("-+ 0#").find(format[at]) != std::string_view::npos; ++at) {
      if (format[at] == '-')
        spec.align = '<';
      else if (format[at] == '0')
        spec.zero = true;
      else if (format[at] == '#')
        spec.alternate = true;
      else
        spec.sign = format[at];
    }
    spec.width = number(format, at);
    if (at < format.size() && format[at] == '.') spec.precision = static_cast<int>(number(format, ++at));
    if (at >= format.size()) throw Fail{"incomplete format"};
    spec.type = format[at++];
    if (spec.align) spec.zero = false;
    if (!value) {
      if (used >= (many ? values.items().size() : 1)) throw Fail{"not enough arguments for format string"};
      value = many ? &values.items()[used] : &values;
      ++used;
    }
    if (spec.type == 's')
      out += textual(to_str(*value, c.budget), spec, '>');
    else if (spec.type == 'r') {
      std::string text;
      append_repr(text, *value, c.budget);
      out += textual(std::move(text), spec, '>');
    } else if (std::string_view("dixXofFeEg").find(spec.type) != std::string_view::npos)
      out += numeric(*value, spec);
    else
      throw Fail{fmt::format("the format '%{}' is not supported", spec.type)};
    if (out.size() > c.budget.max_bytes()) break;
  }
  if (used < (many ? values.items().size() : values.is_dict() ? 0 : 1))
    throw Fail{"not all arguments converted during string formatting"};
  c.budget.text(out.size());
  return out;
}

std::string brace_format(Context& c, const std::string& format, const Args& args) {
  std::string out;
  size_t next = 0;
  for (size_t at = 0; at < format.size();) {
    c.budget.step();
    const char ch = format[at++];
    if ((ch == '{' || ch == '}') && at < format.size() && format[at] == ch) {
      out += format[at++];
      continue;
    }
    if (ch == '}') throw Fail{"Single '}' encountered in format string"};
    if (ch != '{') {
      out += ch;
      continue;
    }
    const size_t end = format.find('}', at);
    if (end == std::string::npos) throw Fail{"Single '{' encountered in format string"};
    const std::string_view field = std::string_view(format).substr(at, end - at);
    at = end + 1;
    const size_t colon = std::min(field.find(':'), field.size());
    const std::string_view key = field.substr(0, colon);
    const Value* value = nullptr;
    size_t digits = 0;
    const size_t index = key.empty() ? next++ : number(key, digits);
    if (digits == key.size()) {
      if (index < args.positional.size()) value = &args.positional[index];
    } else {
      for (const auto& [name, v] : args.named) {
        if (name == key) value = &v;
      }
    }
    if (!value) throw Fail{fmt::format("the format's field '{}' has no value", field)};
    out += formatted(c, *value, colon < field.size() ? field.substr(colon + 1) : "");
    if (out.size() > c.budget.max_bytes()) break;
  }
  c.budget.text(out.size());
  return out;
}

}  // namespace carat::jinja
