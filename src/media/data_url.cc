#include "media/data_url.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"

namespace carat {
namespace {

constexpr uint8_t kSpace = 64, kPadding = 65, kOther = 66;
constexpr std::array<uint8_t, 256> kValues = [] {
  std::array<uint8_t, 256> t{};
  t.fill(kOther);
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < kDigits.size(); ++i) t[static_cast<uint8_t>(kDigits[i])] = static_cast<uint8_t>(i);
  t['-'] = 62, t['_'] = 63;  // RFC 4648, section 5
  for (const char c : {' ', '\t', '\r', '\n'}) t[static_cast<uint8_t>(c)] = kSpace;
  t['='] = kPadding;
  return t;
}();

bool begins(std::string_view text, std::string_view word) {
  return text.size() >= word.size() && std::equal(word.begin(), word.end(), text.begin(), [](char a, char b) {
           return a == (b >= 'A' && b <= 'Z' ? static_cast<char>(b + 32) : b);
         });
}

constexpr const char* kHint = "send the file as base64, or as a data: URL of base64";

void check_end(size_t digits, size_t padding) {
  const size_t rest = digits % 4;
  if (rest == 1 || padding > 2 || (padding > 0 && (rest + padding) % 4 != 0))
    throw Error(
        fmt::format("base64 ends in the middle of a byte: {} digits and {} of padding", digits, padding),
        "send all of it");
}

}  // namespace

std::vector<uint8_t> decode_base64(std::string_view text, size_t most_bytes) {
  std::vector<uint8_t> out;
  out.reserve(std::min(text.size(), most_bytes * 4 / 3 + 4) / 4 * 3 + 3);
  size_t digits = 0, padding = 0;
  uint32_t word = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const uint8_t value = kValues[static_cast<uint8_t>(text[i])];
    if (value == kSpace) continue;
    if (value == kPadding) {
      ++padding;
      continue;
    }
    if (value == kOther || padding > 0)
      throw Error(fmt::format("no base64: byte {} at {}", static_cast<int>(static_cast<uint8_t>(text[i])), i),
                  kHint);
    word = word << 6 | value;
    if (++digits % 4 == 1) continue;  // a byte is whole with the second, third and fourth digit
    out.push_back(static_cast<uint8_t>(word >> (6 - 2 * ((digits - 1) % 4))));
    if (out.size() > most_bytes)
      throw Error(fmt::format("the file has more than the {} bytes that are allowed", most_bytes),
                  "make it smaller");
  }
  check_end(digits, padding);
  return out;
}

std::string encode_base64(std::span<const uint8_t> bytes) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k) word = word << 8 | (k < n ? bytes[i + k] : 0);
    for (size_t k = 0; k < 4; ++k) out += k > n ? '=' : kDigits[word >> (18 - 6 * k) & 63];
  }
  return out;
}

std::vector<uint8_t> file_of_request(std::string_view value, size_t most_bytes) {
  if (begins(value, "data:")) {
    const size_t comma = value.find(',');
    constexpr std::string_view kBase64 = ";base64";
    if (comma == value.npos || comma < kBase64.size() ||
        !begins(value.substr(comma - kBase64.size()), kBase64))
      throw Error("the data: URL holds no base64", "it begins like data:image/png;base64,");
    return decode_base64(value.substr(comma + 1), most_bytes);
  }
  const size_t colon = value.substr(0, 16).find(':');
  if (colon != value.npos)
    throw Error(fmt::format("'{}:' addresses are not loaded", value.substr(0, colon)), kHint);
  return decode_base64(value, most_bytes);
}

}  // namespace carat
