#include "text/tokenizer/unicode.h"

#include <algorithm>
#include <vector>

namespace carat {
namespace {

struct ClassRange {
  char32_t first, last;
  uint8_t value;
};
struct Range {
  char32_t first, last;
};
struct Decomposition {
  char32_t from, first, second;  // second 0: a single character
};
struct Composition {
  char32_t first, second, to;
};
#include "text/tokenizer/unicode_tables.inc"

constexpr char32_t kHangul = 0xAC00, kL = 0x1100, kV = 0x1161, kT = 0x11A7;
constexpr uint32_t kVCount = 21, kTCount = 28, kLCount = 19, kHangulCount = kLCount * kVCount * kTCount;

template <class T, size_t N>
const T* find_range(const T (&table)[N], char32_t c) {
  const T* it = std::upper_bound(std::begin(table), std::end(table), c,
                                 [](char32_t x, const T& range) { return x < range.first; });
  return it != std::begin(table) && c <= (it - 1)->last ? it - 1 : nullptr;
}

uint8_t combining_class(char32_t c) {
  if (c < 0x300) return 0;
  const ClassRange* r = find_range(kClasses, c);
  return r ? r->value : 0;
}

// A stable character starts a new segment: nothing before it can change it, nor it what stands before.
bool is_stable(char32_t c) { return c < 0x300 || !find_range(kUnstable, c); }

void decompose(char32_t c, std::u32string& out) {
  if (const uint32_t s = c - kHangul; s < kHangulCount) {
    out += kL + s / (kVCount * kTCount);
    out += kV + s % (kVCount * kTCount) / kTCount;
    if (s % kTCount) out += kT + s % kTCount;
    return;
  }
  const auto* it = std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), c,
                                    [](const Decomposition& d, char32_t x) { return d.from < x; });
  if (c < 0xC0 || it == std::end(kDecompositions) || it->from != c) {
    out += c;
    return;
  }
  decompose(it->first, out);
  if (it->second) decompose(it->second, out);
}

// The primary composite of a pair, 0 if none.
char32_t compose(char32_t a, char32_t b) {
  if (a - kL < kLCount && b - kV < kVCount) return kHangul + ((a - kL) * kVCount + (b - kV)) * kTCount;
  if (a - kHangul < kHangulCount && (a - kHangul) % kTCount == 0 && b > kT && b - kT < kTCount)
    return a + (b - kT);
  const auto* it = std::lower_bound(std::begin(kCompositions), std::end(kCompositions), Composition{a, b, 0},
                                    [](const Composition& x, const Composition& y) {
                                      return x.first != y.first ? x.first < y.first : x.second < y.second;
                                    });
  return it != std::end(kCompositions) && it->first == a && it->second == b ? it->to : 0;
}

void order_marks(std::u32string& s) {
  for (size_t i = 0; i < s.size();) {
    size_t j = i;
    while (j < s.size() && combining_class(s[j]) != 0) ++j;
    std::stable_sort(s.begin() + i, s.begin() + j,
                     [](char32_t a, char32_t b) { return combining_class(a) < combining_class(b); });
    i = j + 1;
  }
}

// UAX #15's composition: a mark joins the last starter unless a mark of its own class or higher stands
// between.
void compose_all(std::u32string& s) {
  size_t kept = 0, starter = std::u32string::npos;
  int last_class = -1;  // of the last kept character after the starter; -1 if none
  for (size_t i = 0; i < s.size(); ++i) {
    const int cc = combining_class(s[i]);
    if (starter != std::u32string::npos && (last_class < cc || last_class == -1)) {
      if (const char32_t c = compose(s[starter], s[i])) {
        s[starter] = c;
        continue;
      }
    }
    if (cc == 0) {
      starter = kept;
      last_class = -1;
    } else {
      last_class = cc;
    }
    s[kept++] = s[i];
  }
  s.resize(kept);
}

}  // namespace

Utf8Step utf8_step(std::string_view s) {
  if (s.empty()) return {0xFFFD, 0, false, true};
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {0xFFFD, 1, false, false};
  const uint32_t need = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t value = lead & (0x7F >> need);
  for (uint32_t i = 1; i < need; ++i) {
    if (i == s.size()) return {0xFFFD, i, false, true};
    uint8_t low = 0x80, high = 0xBF;
    if (i == 1) {  // no overlong forms, no surrogates, nothing above U+10FFFF
      low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : low;
      high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : high;
    }
    if (byte(i) < low || byte(i) > high) return {0xFFFD, i, false, false};
    value = value << 6 | (byte(i) & 0x3F);
  }
  return {value, need, true, false};
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::string nfc(std::string_view text) {
  // U+0300 and above start with a byte from 0xCC on; below it all is stable.
  const auto high =
      std::find_if(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) >= 0xCC; });
  if (high == text.end()) return std::string(text);
  std::string out;
  out.reserve(text.size());
  std::u32string segment;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step first = utf8_step(text.substr(pos));
    size_t end = pos + first.bytes;
    segment.clear();
    while (end < text.size()) {
      const Utf8Step step = utf8_step(text.substr(end));
      if (is_stable(step.value)) break;
      if (segment.empty()) decompose(first.value, segment);
      decompose(step.value, segment);
      end += step.bytes;
    }
    if (segment.empty() && is_stable(first.value)) {
      out.append(text.substr(pos, end - pos));
    } else {
      if (segment.empty()) decompose(first.value, segment);
      order_marks(segment);
      compose_all(segment);
      for (const char32_t c : segment) append_utf8(out, c);
    }
    pos = end;
  }
  return out;
}

}  // namespace carat
