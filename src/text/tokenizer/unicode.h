// UTF-8 and the one Unicode normal form that vocabularies ask for (NFC). Tables: Unicode 14, as PCRE2 10.42.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace carat {

// What stands at the front of a byte string.
struct Utf8Step {
  char32_t value;  // the code point if valid, else U+FFFD
  uint32_t
      bytes;   // consumed: the character, or the longest start of one (at least 1; 0 only for empty input)
  bool valid;  // a whole character
  bool unfinished;  // not valid, but only because the input ends here
};

// Well-formed means Unicode's table 3-7: no surrogates, no overlong forms. One ill-formed step is one
// "maximal subpart", which is what the WHATWG decoder replaces by a single U+FFFD.
Utf8Step utf8_step(std::string_view s);

void append_utf8(std::string& out, char32_t c);

// The property White_Space.
bool is_white_space(char32_t c);

// Normalization Form C of well-formed UTF-8 (UAX #15).
std::string nfc(std::string_view text);

}  // namespace carat
