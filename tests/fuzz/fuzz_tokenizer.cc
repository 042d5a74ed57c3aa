// Two kinds of input by the first byte: a tokenizer.json (then a text after a NUL), or text for two small
// vocabularies, where encoding must give the bytes back and every cut of the decoded stream the same text.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/unicode.h"

using namespace carat;
using nlohmann::json;

namespace {

Tokenizer gemma() {
  TokenizerData d;
  d.model = d.pre = "gemma4";
  const auto put = [&](std::string text, TokenType type) {
    d.tokens.push_back(std::move(text));
    d.types.push_back(type);
  };
  for (const char* s : {"<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>"}) put(s, TokenType::control);
  for (const char* s : {"<b>", "<b><i>", "\n\n"}) put(s, TokenType::user_defined);
  for (int b = 0; b < 256; ++b) put(fmt::format("<0x{:02X}>", b), TokenType::byte);
  for (const char* s : {"a", "b", "\n", "▁", "é", "水"}) put(s, TokenType::normal);
  for (const char* m : {"▁▁ ▁", "▁ ▁", "a b", "▁ ab", "ab ab", "aba b", "b a", "水 é"}) {
    std::string joined(m);
    joined.erase(joined.find(' '), 1);
    put(joined, TokenType::normal);
    d.merges.push_back(m);
  }
  for (const char* s : {"aba"}) put(s, TokenType::normal);
  d.bos = 2;
  d.eos = 4;
  return Tokenizer(std::move(d));
}

Tokenizer byte_level() {
  TokenizerData d;
  d.model = "gpt2";
  d.pre = "gpt-2";
  for (char32_t b = 0, next = 0x100; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    std::string s;
    append_utf8(s, printable ? b : next++);
    d.tokens.push_back(s);
  }
  for (const char* m : {"a b", "Ġ ab", "Ã ©", "Ġ Ġ", "Ċ Ċ"}) {
    std::string joined(m);
    joined.erase(joined.find(' '), 1);
    d.tokens.push_back(joined);
    d.merges.push_back(m);
  }
  d.types.assign(d.tokens.size(), TokenType::normal);
  d.tokens.push_back("<|im_end|>");
  d.types.push_back(TokenType::control);
  return Tokenizer(std::move(d));
}

void check_stream(std::string_view bytes) {
  Utf8Stream whole, cut;
  const std::string expected = whole.push(bytes) + whole.finish();
  std::string out;
  for (size_t pos = 0, step = 1; pos < bytes.size(); pos += step, step = step % 5 + 1)
    out += cut.push(bytes.substr(pos, step));
  out += cut.finish();
  CARAT_CHECK(out == expected);
  for (std::string_view rest = expected; !rest.empty();) {
    const Utf8Step s = utf8_step(rest);
    CARAT_CHECK(s.valid);
    rest.remove_prefix(s.bytes);
  }
}

void check_text(const Tokenizer& t, std::string_view text, bool lossless) {
  for (const bool special : {false, true}) {
    const std::vector<Token> ids = t.encode(text, special);
    const std::string back = t.decode(ids, true);
    for (const Token id : ids) CARAT_CHECK(id >= 0 && id < t.size());
    if (lossless && text.find("\xE2\x96\x81") == std::string_view::npos) CARAT_CHECK(back == text);
  }
}

void check_json(std::string_view input) {
  const size_t end = std::min(input.find('\0'), input.size());
  try {
    TokenizerData data =
        read_tokenizer_json(input.substr(0, end), "{\"eos_token\":\"<e>\"}", "{\"eos_token_id\":[1,2]}");
    const Tokenizer t(std::move(data));
    check_text(t, end < input.size() ? input.substr(end + 1) : "a <e> b", false);
  } catch (const Error&) {}
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer characters = gemma(), bytes = byte_level();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.starts_with('{')) {
    check_json(input);
  } else {
    check_text(characters, input, true);
    check_text(bytes, input, true);
    check_stream(input);
  }
  return 0;
}
