#include "text/tokenizer/split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "text/tokenizer/unicode.h"

namespace carat {

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

constexpr std::string_view kQwen2 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                                    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
                                     R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                                     R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// llama.cpp's default: punctuation apart, then GPT-2's pieces, of them numbers apart, of those three digits.
constexpr std::string_view kPunctuation = R"([\p{P}\$\+<=>\^~\|]+)", kNumber = R"(\p{N}+)",
                           kThreeDigits = "[0-9][0-9][0-9]";

const PreTokenizer kPreTokenizers[] = {
    {"qwen35", kQwen35, true, false},
    {"qwen2", kQwen2, true, false},
    {"llama-bpe", kLlama3, false, true, true},
    {"gpt-2", kGpt2Pattern, false, false},
    {"default", kPunctuation, false, false, false, {kGpt2Pattern, kNumber, kThreeDigits}},
};

constexpr size_t kMaxPattern =
    8192;  // bytes; compiling is quick up to here, published ones have some hundred

struct CodeFree {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
};
struct MatchFree {
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};
using Code = std::unique_ptr<pcre2_code, CodeFree>;

std::string pcre_message(int code) {
  unsigned char text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

// \s as Unicode's White_Space, which the vocabularies' own engine takes it for; PCRE2's has U+180E as well.
std::string with_unicode_space(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\\' && i + 1 < pattern.size()) {
      const char c = pattern[++i];
      if (c == 's') {
        out += "\\p{White_Space}";
      } else if (c == 'S') {
        out += "\\P{White_Space}";
      } else {
        out += '\\';
        out += c;
      }
    } else {
      out += pattern[i];
    }
  }
  return out;
}

Code compile(std::string_view pattern) {
  if (pattern.size() > kMaxPattern) {
    throw Error(fmt::format("The tokenizer's split pattern is longer than {} bytes", kMaxPattern),
                "The tokenizer data is damaged.");
  }
  const std::string text = with_unicode_space(pattern);
  int code = 0;
  PCRE2_SIZE at = 0;
  Code re(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                        PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, nullptr));
  if (!re) {
    throw Error(fmt::format("The tokenizer's split pattern does not compile ({} at {}): {:.200}",
                            pcre_message(code), at, text),
                "Only the syntax that PCRE2 shares with Oniguruma is understood.");
  }
  pcre2_jit_compile(re.get(), PCRE2_JIT_COMPLETE);  // without a JIT the interpreter runs: slower, same result
  return re;
}

}  // namespace

const PreTokenizer* find_pre_tokenizer(std::string_view name) {
  if (name.empty()) name = "default";  // as old files have it
  for (const PreTokenizer& p : kPreTokenizers) {
    if (p.name == name) return &p;
  }
  return nullptr;
}

std::string pre_tokenizer_name(std::string_view pattern, bool nfc, bool ignore_merges) {
  for (const PreTokenizer& p : kPreTokenizers) {
    if (p.then.empty() && p.pattern == pattern && p.nfc == nfc && p.ignore_merges == ignore_merges)
      return std::string(p.name);
  }
  return {};
}

std::string pre_tokenizer_names() {
  std::string out;
  for (const PreTokenizer& p : kPreTokenizers) {
    out += (out.empty() ? "" : ", ") + std::string(p.name);
  }
  return out;
}

bool is_word_character(char32_t c) {
  static const Code word = compile(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}])");
  std::string text;
  append_utf8(text, c);
  const std::unique_ptr<pcre2_match_data, MatchFree> match(pcre2_match_data_create(1, nullptr));
  return pcre2_match(word.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                     PCRE2_NO_UTF_CHECK, match.get(), nullptr) > 0;
}

struct Splitter::Impl {
  Code code;
};

Splitter::Splitter(std::string_view pattern) : impl_(new Impl{compile(pattern)}) {}
Splitter::~Splitter() = default;
Splitter::Splitter(Splitter&&) noexcept = default;
Splitter& Splitter::operator=(Splitter&&) noexcept = default;

void Splitter::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  const std::unique_ptr<pcre2_match_data, MatchFree> match(pcre2_match_data_create(1, nullptr));
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t pos = 0, begin = 0;  // next place to look; text not yet in a piece
  while (pos < text.size()) {
    const int found =
        pcre2_match(impl_->code.get(), subject, text.size(), pos, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      throw Error(fmt::format("The tokenizer's split pattern gives up on this text: {}", pcre_message(found)),
                  "The pattern needs too much backtracking; check the tokenizer data.");
    }
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match.get());
    if (span[0] > begin) pieces.push_back(text.substr(begin, span[0] - begin));
    begin = pos = span[0];
    if (span[1] > span[0]) {
      pieces.push_back(text.substr(span[0], span[1] - span[0]));
      begin = pos = span[1];
    } else if (pos < text.size()) {  // an empty match cuts, and the search goes on behind the next character
      pos += utf8_step(text.substr(pos)).bytes;
    }
  }
  if (begin < text.size()) pieces.push_back(text.substr(begin));
}

}  // namespace carat
