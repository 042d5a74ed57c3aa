// Unicode properties by name, from PCRE2's tables.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "text/grammar/derive.h"
#include "text/tokenizer/unicode.h"

namespace carat {
namespace {

// Every character once, in order: what matches is a run of code points.
CharSet look_up(const std::string& name) {
  const std::string pattern = "\\p{" + name + "}+";
  int error = 0;
  size_t where = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                    &error, &where, nullptr),
      pcre2_code_free);
  if (!code) throw Error(fmt::format("\\p{{{}}} is not known", name));
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  CharSet out;
  constexpr char32_t kBlock = 0x1000;
  for (char32_t first = 0; first <= 0x10FFFF; first += kBlock) {
    if (first >= 0xD800 && first < 0xE000) continue;
    std::string text;
    std::vector<char32_t> at;  // [bytes] the code point that begins there
    for (char32_t c = first; c < first + kBlock; ++c) {
      if (c >= 0xD800 && c < 0xE000) continue;
      append_utf8(text, c);
      at.resize(text.size() + 1, c + 1);
      at[text.size()] = c + 1;
    }
    at[0] = first;
    for (size_t from = 0; from < text.size();) {
      const int n = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                PCRE2_NO_UTF_CHECK, match.get(), nullptr);
      if (n < 0) break;
      const size_t* ends = pcre2_get_ovector_pointer(match.get());
      out.push_back({at[ends[0]], at[ends[1]] - 1});
      from = ends[1];
    }
  }
  return normalized(std::move(out));
}

}  // namespace

CharSet unicode_property(std::string_view name) {
  static std::mutex mutex;
  static std::map<std::string, CharSet, std::less<>> known;
  const bool word = !name.empty() && name.size() < 60 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '=';
  });
  if (!word) throw Error("a regular expression has a \\p without the name of a property");
  const std::lock_guard lock(mutex);
  if (const auto it = known.find(name); it != known.end()) return it->second;
  if (known.size() > 200) known.clear();
  return known.emplace(name, look_up(std::string(name))).first->second;
}

}  // namespace carat
