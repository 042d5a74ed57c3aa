#include "text/jinja/text.h"

#include <fmt/format.h>
#include <locale.h>
#include <string.h>
#include <wctype.h>

#include <algorithm>

namespace carat::jinja {
namespace {

// glibc's own table of Unicode classes, whatever locale the process runs in.
locale_t unicode_locale() {
  static const locale_t locale = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return locale;
}

char32_t simple_upper(char32_t c) {
  if (c < 0x80 || !unicode_locale()) return c >= 'a' && c <= 'z' ? c - 32 : c;
  return static_cast<char32_t>(::towupper_l(static_cast<wint_t>(c), unicode_locale()));
}

char32_t simple_lower(char32_t c) {
  if (c < 0x80 || !unicode_locale()) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  return static_cast<char32_t>(::towlower_l(static_cast<wint_t>(c), unicode_locale()));
}

// Letters whose upper case is several letters (SpecialCasing.txt, the ones found in running text).
const char* long_upper(char32_t c, bool title) {
  switch (c) {
    case 0xDF: return title ? "Ss" : "SS";
    case 0x149: return "\u02BCN";
    case 0x1F0: return "J\u030C";
    case 0xFB00: return title ? "Ff" : "FF";
    case 0xFB01: return title ? "Fi" : "FI";
    case 0xFB02: return title ? "Fl" : "FL";
    case 0xFB03: return title ? "Ffi" : "FFI";
    case 0xFB04: return title ? "Ffl" : "FFL";
    case 0xFB05:
    case 0xFB06: return title ? "St" : "ST";
    default: return nullptr;
  }
}

void append_upper(std::string& out, char32_t c, bool title) {
  if (const char* s = long_upper(c, title))
    out += s;
  else
    append_char(out, simple_upper(c));
}

bool is_cased(char32_t c) { return simple_upper(c) != c || simple_lower(c) != c || long_upper(c, false); }

// The lower case of the sigma depends on its place: a final one has its own form.
void append_lower(std::string& out, char32_t c, bool final_place) {
  if (c == 0x130)
    out += "i\u0307";
  else if (c == 0x3A3)
    append_char(out, final_place ? 0x3C2 : 0x3C3);
  else
    append_char(out, simple_lower(c));
}

bool in_set(std::string_view set, std::string_view c) { return find(set, c) != std::string_view::npos; }

}  // namespace

char32_t decode_char(std::string_view s, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char b = byte(at);
  const size_t n = b < 0x80                ? 1
                   : b >= 0xC2 && b < 0xE0 ? 2
                   : b >= 0xE0 && b < 0xF0 ? 3
                   : b >= 0xF0 && b < 0xF5 ? 4
                                           : 0;
  if (n == 1) return ++at, b;
  if (n == 0 || at + n > s.size()) return ++at, 0xDC00 + b;
  char32_t c = b & (0xFF >> (n + 1));
  for (size_t i = 1; i < n; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return ++at, 0xDC00 + b;
    c = (c << 6) | (byte(at + i) & 0x3F);
  }
  const bool bad =
      (n == 3 && (c < 0x800 || (c >= 0xD800 && c < 0xE000))) || (n == 4 && (c < 0x10000 || c > 0x10FFFF));
  if (bad) return ++at, 0xDC00 + b;
  at += n;
  return c;
}

size_t char_bytes(std::string_view s, size_t at) {
  size_t end = at;
  decode_char(s, end);
  return end - at;
}

void append_char(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c >= 0xDC80 && c <= 0xDCFF) {
    out += static_cast<char>(c - 0xDC00);  // a byte that decode_char could not read
  } else if (c < 0x800) {
    out += {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))};
  } else if (c < 0x10000) {
    out += {static_cast<char>(0xE0 | (c >> 12)), static_cast<char>(0x80 | ((c >> 6) & 0x3F)),
            static_cast<char>(0x80 | (c & 0x3F))};
  } else {
    out += {static_cast<char>(0xF0 | (c >> 18)), static_cast<char>(0x80 | ((c >> 12) & 0x3F)),
            static_cast<char>(0x80 | ((c >> 6) & 0x3F)), static_cast<char>(0x80 | (c & 0x3F))};
  }
}

size_t char_count(std::string_view s) {
  size_t n = 0;
  for (size_t at = 0; at < s.size(); ++n) at += char_bytes(s, at);
  return n;
}

std::vector<std::string_view> chars(std::string_view s) {
  std::vector<std::string_view> out;
  for (size_t at = 0; at < s.size();) {
    const size_t n = char_bytes(s, at);
    out.push_back(s.substr(at, n));
    at += n;
  }
  return out;
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  if (is_space(c) || c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0xAD) return false;
  const bool format = (c >= 0x600 && c <= 0x605) || c == 0x61C || c == 0x6DD || c == 0x70F || c == 0x180E ||
                      (c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) ||
                      (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFB) ||
                      (c >= 0xD800 && c < 0xF900) || c >= 0xE0000;
  if (format && !(c >= 0xE0100 && c <= 0xE01EF)) return false;
  return c < 0x80 || !unicode_locale() || ::iswprint_l(static_cast<wint_t>(c), unicode_locale());
}

bool is_alpha(char32_t c) {
  if (c < 0x80 || !unicode_locale()) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return ::iswalpha_l(static_cast<wint_t>(c), unicode_locale());
}

std::string upper(std::string_view s) {
  std::string out;
  for (size_t at = 0; at < s.size();) append_upper(out, decode_char(s, at), false);
  return out;
}

std::string lower(std::string_view s) {
  std::string out;
  bool after_cased = false;
  for (size_t at = 0; at < s.size();) {
    const char32_t c = decode_char(s, at);
    size_t peek = at;
    const bool before_cased = at < s.size() && is_cased(decode_char(s, peek));
    append_lower(out, c, after_cased && !before_cased);
    after_cased = is_cased(c);
  }
  return out;
}

std::string capitalize(std::string_view s) {
  if (s.empty()) return {};
  const size_t n = char_bytes(s, 0);
  size_t at = 0;
  std::string out;
  append_upper(out, decode_char(s, at), true);
  return out + lower(s.substr(n));
}

std::string title(std::string_view s, bool jinja) {
  std::string out;
  bool inside = false;
  for (size_t at = 0; at < s.size();) {
    const char32_t c = decode_char(s, at);
    // The filter starts words at white space, hyphens and opening brackets; the method at everything without
    // case.
    const bool separates =
        jinja ? is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<' : !is_cased(c);
    size_t peek = at;
    const bool last = at >= s.size() || !is_cased(decode_char(s, peek));
    if (separates || inside)
      append_lower(out, c, inside && last);
    else
      append_upper(out, c, true);
    inside = !separates;
  }
  return out;
}

std::string_view strip(std::string_view s, const std::string_view* what, bool left, bool right) {
  const auto drop = [&](std::string_view c) {
    size_t at = 0;
    return what ? in_set(*what, c) : is_space(decode_char(c, at));
  };
  while (left && !s.empty()) {
    const size_t n = char_bytes(s, 0);
    if (!drop(s.substr(0, n))) break;
    s.remove_prefix(n);
  }
  while (right && !s.empty()) {
    size_t n = 1;
    while (n < 4 && n < s.size() && (static_cast<unsigned char>(s[s.size() - n]) & 0xC0) == 0x80) ++n;
    if (char_bytes(s, s.size() - n) != n) n = 1;
    if (!drop(s.substr(s.size() - n))) break;
    s.remove_suffix(n);
  }
  return s;
}

size_t find(std::string_view s, std::string_view what, size_t from) {
  if (from > s.size()) return std::string_view::npos;
  if (what.empty()) return from;
  const void* at = ::memmem(s.data() + from, s.size() - from, what.data(), what.size());
  return at ? static_cast<size_t>(static_cast<const char*>(at) - s.data()) : std::string_view::npos;
}

size_t rfind(std::string_view s, std::string_view what) {
  const std::string back(s.rbegin(), s.rend()), key(what.rbegin(), what.rend());
  const size_t at = find(back, key);
  return at == std::string_view::npos ? at : s.size() - at - what.size();
}

size_t count(std::string_view s, std::string_view what) {
  if (what.empty()) return char_count(s) + 1;
  size_t n = 0;
  for (size_t at = 0; (at = find(s, what, at)) != std::string_view::npos; at += what.size()) ++n;
  return n;
}

std::string replace(std::string_view s, std::string_view from, std::string_view to, int64_t max,
                    size_t max_bytes) {
  std::string out;
  size_t at = 0;
  for (int64_t n = 0; (max < 0 || n < max) && out.size() <= max_bytes; ++n) {
    if (from.empty()) {  // between all characters
      out += to;
      if (at == s.size()) return out;
      const size_t bytes = char_bytes(s, at);
      out += s.substr(at, bytes);
      at += bytes;
      continue;
    }
    const size_t hit = find(s, from, at);
    if (hit == std::string_view::npos) break;
    out += s.substr(at, hit - at);
    out += to;
    at = hit + from.size();
  }
  out += s.substr(at);
  return out;
}

std::vector<std::string_view> split(std::string_view s, std::string_view separator, int64_t max) {
  std::vector<std::string_view> out;
  size_t at = 0, hit = 0;
  while ((max < 0 || static_cast<int64_t>(out.size()) < max) &&
         (hit = find(s, separator, at)) != std::string_view::npos) {
    out.push_back(s.substr(at, hit - at));
    at = hit + separator.size();
  }
  out.push_back(s.substr(at));
  return out;
}

std::vector<std::string_view> rsplit(std::string_view s, std::string_view separator, int64_t max) {
  std::vector<std::string_view> out;
  const std::string back(s.rbegin(), s.rend()), key(separator.rbegin(), separator.rend());
  for (const std::string_view part : split(back, key, max)) {
    const size_t end = s.size() - static_cast<size_t>(part.data() - back.data());
    out.push_back(s.substr(end - part.size(), part.size()));
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string_view> split_space(std::string_view s, int64_t max) {
  std::vector<std::string_view> out;
  for (s = strip(s, nullptr, true, false); !s.empty(); s = strip(s, nullptr, true, false)) {
    if (max >= 0 && static_cast<int64_t>(out.size()) == max) {
      out.push_back(s);
      return out;
    }
    size_t end = 0;
    for (size_t at = 0; at < s.size(); end = at) {
      if (is_space(decode_char(s, at))) break;
    }
    out.push_back(s.substr(0, end));
    s.remove_prefix(end);
  }
  return out;
}

std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends) {
  std::vector<std::string_view> out;
  size_t start = 0;
  for (size_t at = 0; at < s.size();) {
    const size_t begin = at;
    const char32_t c = decode_char(s, at);
    if (!((c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029))
      continue;
    if (c == '\r' && at < s.size() && s[at] == '\n') ++at;
    out.push_back(s.substr(start, (keep_ends ? at : begin) - start));
    start = at;
  }
  if (start < s.size()) out.push_back(s.substr(start));
  return out;
}

std::string escape_html(std::string_view s) {
  std::string out;
  for (const char c : s) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string repr(std::string_view s) {
  const bool single = s.find('\'') != std::string_view::npos;
  const char quote = single && s.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < s.size();) {
    const size_t begin = at;
    const char32_t c = decode_char(s, at);
    if (c == static_cast<char32_t>(quote) || c == '\\')
      (out += '\\') += static_cast<char>(c);
    else if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\t')
      out += "\\t";
    else if (is_printable(c))
      out += s.substr(begin, at - begin);
    else if (c < 0x100)
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    else if (c < 0x10000)
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    else
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
  }
  return out + quote;
}

std::string json_quote(std::string_view s, bool ensure_ascii) {
  std::string out = "\"";
  for (size_t at = 0; at < s.size();) {
    const size_t begin = at;
    const char32_t c = decode_char(s, at);
    switch (c) {
      case '"': out += "\\\""; continue;
      case '\\': out += "\\\\"; continue;
      case '\n': out += "\\n"; continue;
      case '\r': out += "\\r"; continue;
      case '\t': out += "\\t"; continue;
      case '\f': out += "\\f"; continue;
      case '\b': out += "\\b"; continue;
      default: break;
    }
    if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000)) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else if (ensure_ascii && c >= 0x10000) {
      const uint32_t low = static_cast<uint32_t>(c) - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (low >> 10), 0xDC00 + (low & 0x3FF));
    } else {
      out += s.substr(begin, at - begin);
    }
  }
  return out + '"';
}

}  // namespace carat::jinja
